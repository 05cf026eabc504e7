"""Links of the proof that a model without quarantined rows does not have."""

from __future__ import annotations

import pytest

from data_contracts.documents import ContractReceipt, Link
from data_contracts.errors import IntegrityError
from data_contracts.publication import Workspace
from tasks.prove import _receipt


def receipt_with_a_quarantine(workspace: Workspace) -> ContractReceipt:
    return ContractReceipt(
        contract=workspace.publish("contracts/texts.yaml", b"name: texts"),
        suite=workspace.publish("contracts/suite.json", b"{}"),
        contract_name="texts",
        contract_version="1.0.0",
        snapshot=Link(kind="snapshot", sha256="0" * 64),
        passed=True,
        num_rows=1,
        num_quarantined=1,
        quarantine=workspace.publish("quarantine/rows.parquet", b"path, row, rules"),
        verdicts=(),
        metrics={},
    )


def test_the_list_of_rows_left_out_is_proved_with_the_receipt(workspace: Workspace) -> None:
    proofs = list(_receipt(workspace, receipt_with_a_quarantine(workspace)))
    assert [proof.what for proof in proofs] == ["contract receipt", "contract", "suite", "quarantine"]


@pytest.mark.parametrize("path", ["contracts/texts.yaml", "contracts/suite.json", "quarantine/rows.parquet"])
def test_one_flipped_bit_in_either_is_named(workspace: Workspace, path: str) -> None:
    receipt = receipt_with_a_quarantine(workspace)
    data = workspace.read(path)
    workspace.publish(path, bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(IntegrityError, match="sha256 is") as caught:
        list(_receipt(workspace, receipt))
    assert caught.value.where == path
