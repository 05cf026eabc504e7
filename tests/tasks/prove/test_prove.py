"""Links of the proof that no honest run breaks, or that a model without quarantined rows does not have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.documents import (
    CheckpointManifest,
    ContractReceipt,
    EvaluationReport,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
)
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.prove.prove import ChainProof, _belong_together, _checkpoint, _heldout_parts, _proofs, _receipt, _run
from headway.tasks.registry import model_refs
from headway.tasks.registry.model_export import naming_the_copy, registered_graph
from headway.tasks.rows.heldout_parts import HeldoutParts
from headway.training.checkpoint.layout import RESULT_NAME, run_folder
from headway.training.programs.evaluation import graph_model
from tests.tasks.conftest import Register, link
from tests.tasks.forge import Forge
from tests.tasks.past_work import Made, Maker


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
    proofs = list(_receipt(receipt_with_a_quarantine(workspace)))
    assert [proof.what for proof in proofs] == ["contract receipt", "contract", "suite", "quarantine"]


@pytest.mark.parametrize("path", ["contracts/texts.yaml", "contracts/suite.json", "quarantine/rows.parquet"])
def test_one_flipped_bit_in_either_is_named(workspace: Workspace, path: str) -> None:
    receipt = receipt_with_a_quarantine(workspace)
    data = workspace.read(path)
    workspace.publish(path, bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(IntegrityError, match="sha256 is") as caught:
        list(_proofs(workspace, _receipt(receipt)))
    assert caught.value.where == path


@pytest.fixture
def made(workspace: Workspace) -> Made:
    maker = Maker(workspace)
    return maker.run(1, maker.data(1))


def broken(bond: str) -> ChainProof:
    return ChainProof(what="chain", status="broken", detail=f"it is not true that {bond}")


def verdict(workspace: Workspace, run: RunSpec) -> ChainProof | None:
    """The first link that is broken."""
    proofs = _proofs(workspace, _run(workspace, workspace.publish_document(run)))
    return next((proof for proof in proofs if proof.status == "broken"), None)


def test_documents_that_are_whole_and_do_not_name_one_another_prove_no_run(workspace: Workspace, made: Made) -> None:
    run = workspace.load(made.run, RunSpec)
    shards = workspace.load(run.manifest, ShardManifest)
    other = workspace.load(Maker(workspace).data(2), ShardManifest)
    failed = workspace.load(run.receipt, ContractReceipt).model_copy(update={"passed": False})
    receipt = workspace.publish_document(failed)
    of_other_rows = workspace.publish_document(shards.model_copy(update={"snapshot": other.snapshot}))
    of_failed_rows = workspace.publish_document(shards.model_copy(update={"receipt": receipt}))
    assert verdict(workspace, run) is None
    for changes, bond in (
        ({"fitted": other.fitted}, "the run names the fitted state of the shards"),
        ({"receipt": other.receipt}, "the run names the receipt of the shards"),
        ({"manifest": of_other_rows}, "the receipt names the snapshot of the shards"),
        ({"manifest": of_failed_rows, "receipt": receipt}, "the receipt passed"),
        ({"start": made.checkpoint}, "the configuration says that it starts from a model"),
    ):
        assert verdict(workspace, run.model_copy(update=changes)) == broken(bond)


def test_shards_that_were_mixed_in_are_proved_with_the_runs_own(workspace: Workspace, made: Made) -> None:
    run = workspace.load(made.run, RunSpec)
    own = workspace.load(run.manifest, ShardManifest)
    stranger = workspace.load(Maker(workspace).data(2), ShardManifest)
    other = stranger.model_copy(update={"fitted": own.fitted})
    failed = workspace.load(other.receipt, ContractReceipt).model_copy(update={"passed": False})
    judged_bad = other.model_copy(update={"receipt": workspace.publish_document(failed)})

    def mixing(shards: ShardManifest) -> RunSpec:
        mix = [{"manifest": workspace.publish_document(shards).sha256, "weight": 1.0}]
        return run.model_copy(update={"config": {**run.config, "order": {"mix": mix}}})

    assert verdict(workspace, mixing(other)) is None
    assert verdict(workspace, mixing(stranger)) == broken("what is mixed in has the fitted state of the shards")
    assert verdict(workspace, mixing(judged_bad)) == replace(broken("the receipt passed"), what="mixed in: chain")
    file = other.groups[0].shards[0].file
    workspace.publish(file.path, b"other bytes")
    with pytest.raises(IntegrityError) as caught:
        verdict(workspace, mixing(other))
    assert caught.value.where == file.path


def test_documents_that_are_whole_and_of_other_models_prove_no_registration(
    workspace: Workspace, register: Register
) -> None:
    registration = workspace.load(register(1)[0], Registration)
    other = workspace.load(register(2)[0], Registration)
    evaluation = workspace.load(registration.evaluation, EvaluationReport)
    checkpoint = workspace.load(registration.checkpoint, CheckpointManifest)
    run = workspace.load(registration.run, RunSpec)
    whole = (registration.model, registration, evaluation, checkpoint, run)
    assert _belong_together(*whole).status == "proved"
    elsewhere = evaluation.model_copy(update={"manifest": link("manifest", "1")})
    for place, stranger, bond in (
        (0, "another", "the registration carries the model's name"),
        (2, workspace.load(other.evaluation, EvaluationReport), "the evaluation is of the checkpoint"),
        (2, elsewhere, "the evaluation is on the run's shards"),
        (3, workspace.load(other.checkpoint, CheckpointManifest), "the checkpoint belongs to the run"),
    ):
        assert _belong_together(*whole[:place], stranger, *whole[place + 1 :]) == broken(bond)  # type: ignore[arg-type]


def test_which_held_out_examples_an_evaluation_is_of_is_proved_with_it(
    workspace: Workspace, register: Register
) -> None:
    registration = workspace.load(register(1)[0], Registration)
    evaluation = workspace.load(registration.evaluation, EvaluationReport)

    def proofs(num_examples: int = 3, manifest: Link = evaluation.manifest) -> list[ChainProof]:
        parts = HeldoutParts(manifest=manifest, num_examples=num_examples, ranking="wA==", apart="wA==")
        told = workspace.publish_document(parts)
        report = evaluation.model_copy(update={"num_examples": 1, "num_ranking_examples": 2, "heldout_parts": told})
        return list(_proofs(workspace, _heldout_parts(workspace, report, told)))

    assert [(each.what, each.status) for each in proofs()] == [("held-out parts", "proved"), ("chain", "proved")]
    assert proofs(manifest=link("manifest", "1"))[1] == broken("the held-out parts are of the evaluation's shards")
    assert proofs(num_examples=2)[1] == broken("the held-out parts have the evaluation's examples")
    gone = link("heldout-parts", "1")
    with pytest.raises(IntegrityError, match="gone"):
        list(_heldout_parts(workspace, evaluation, gone))


def test_a_run_whose_result_is_another_checkpoint_does_not_prove_this_one(workspace: Workspace, made: Made) -> None:
    manifest = workspace.load(made.checkpoint, CheckpointManifest)
    assert [proof.status for proof in _proofs(workspace, _checkpoint(workspace, manifest, made.run))] == ["proved"]
    where = f"{run_folder(made.run)}/{RESULT_NAME}"
    ended = json.loads(workspace.read(where))
    for change in ({"step": 2, "checkpoint": "step-00000002"}, {"manifest_sha256": "0" * 64}):
        workspace.publish_json(where, {**ended, **change})
        with pytest.raises(IntegrityError, match="names another checkpoint than the registered one"):
            list(_proofs(workspace, _checkpoint(workspace, manifest, made.run)))
    others = ({"run": "0" * 64}, {"checkpoint": "step-00000002"}, {"format_version": 2}, {"more": 1}, {"step": "3"})
    blank = canonical_json(ended) + b"\n"
    for data in (*(canonical_json({**ended, **change}) for change in others), blank, b"[" * 10**5, b'{"step":1e999}'):
        workspace.publish(where, data)
        with pytest.raises(IntegrityError, match="not a readable result") as caught:
            list(_proofs(workspace, _checkpoint(workspace, manifest, made.run)))
        assert caught.value.where == where


@pytest.mark.long
@pytest.mark.process
def test_a_registered_file_that_is_gone_comes_back_by_the_command_that_its_error_names(forge: Forge) -> None:
    before, workspace = forge.graph.read_bytes(), forge.workspace
    name, version, link = model_refs.resolve(workspace, "models:/tiny@champion")
    forge.graph.unlink()
    with pytest.raises(IntegrityError) as gone, naming_the_copy(workspace, name, version, link):
        graph_model(workspace, registered_graph(forge.last))
    command = gone.value.advice.split("`")[1]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, shell=True, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert forge.graph.read_bytes() == before
