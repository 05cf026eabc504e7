"""The fitted state stays while it serves, and never outlives what it was fitted for."""

from __future__ import annotations

import pytest

from data_contracts import refs
from data_contracts.digest_cache import DigestCache
from data_contracts.documents import ContractReceipt, FittedState, Link
from data_contracts.publication import Workspace
from data_contracts.sources import SourceSpec, take_snapshot
from tasks.context import RunContext
from tasks.shard import current_fitted_state, fitted_ref, known_fitted_state
from training.data.spec import BytePairSpec, ShardSpec
from training.ledger import Ledger, read_events

SPEC = ShardSpec(encoder=BytePairSpec(vocab_size=300, sequence_tokens=16), num_groups=2, heldout_fraction=0.3)
OTHER_SPLIT = SPEC.model_copy(update={"split_salt": "another"})


class Case:
    def __init__(self, root) -> None:
        (root / "texts").mkdir()
        for number in range(30):
            self.write(root, number, f"text {number} of several texts\n" * 5)
        self.root = root
        workspace = Workspace.create(str(root / "workspace"))
        self.context = RunContext(
            pipeline="tiny",
            workspace=workspace,
            base=root,
            ledger=Ledger(root / "ledger"),
            digests=DigestCache(root / "digests"),
            scratch=root,
            budget_scope="one",
        )
        self.source = SourceSpec(format="text-files", uri="texts", include=("**/*.txt",))

    @staticmethod
    def write(root, number: int, text: str) -> None:
        (root / "texts" / f"{number}.txt").write_text(text)

    def fit(self, spec: ShardSpec = SPEC) -> Link:
        workspace = self.context.workspace
        snapshot = take_snapshot(self.source, base=self.root, cache=self.context.digests)
        workspace.publish_document(snapshot)
        receipt = ContractReceipt(
            contract=workspace.publish("frozen/contract", b""),
            contract_name="tiny",
            contract_version="1",
            snapshot=snapshot.link,
            passed=True,
            num_rows=snapshot.num_rows,
            verdicts=(),
            quarantined=(),
            metrics={},
        )
        return current_fitted_state(self.context, spec, self.source, snapshot.link, workspace.publish_document(receipt))

    def damage(self, link: Link) -> None:
        (file,) = self.context.workspace.load(link, FittedState).files
        path = self.context.workspace.local_path(file.path)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    @property
    def reasons(self) -> list[str]:
        return [entry.reason for entry in refs.history(self.context.workspace, fitted_ref("tiny"))]

    @property
    def damages(self) -> list[str]:
        events = read_events(self.root / "ledger")
        return [str(event["message"]) for event in events if event["event"] == "stage.damaged"]


@pytest.fixture
def case(tmp_path) -> Case:
    return Case(tmp_path)


def test_new_data_keep_the_state(case):
    first = case.fit()
    case.write(case.root, 99, "new words\n" * 9)
    assert case.fit() == first == known_fitted_state(case.context, SPEC)
    assert case.reasons == ["first fit"]


def test_another_split_fits_again_for_the_old_state_saw_what_is_now_held_out(case):
    first = case.fit()
    assert known_fitted_state(case.context, OTHER_SPLIT) is None
    second = case.fit(OTHER_SPLIT)
    assert second != first
    assert case.fit(OTHER_SPLIT) == second
    assert case.fit() == first
    assert case.reasons == ["first fit", "another split", "another split"]


def test_a_damaged_state_heals_from_the_same_data_under_the_same_name(case):
    first = case.fit()
    case.damage(first)
    assert known_fitted_state(case.context, SPEC) is None
    assert case.fit() == first == known_fitted_state(case.context, SPEC)
    assert case.reasons == ["first fit"]


def test_a_damaged_state_whose_data_moved_on_is_replaced_and_said_to_be(case):
    first = case.fit()
    case.damage(first)
    for number in range(30):
        case.write(case.root, number, f"quite other words {number}\n" * 7)
    second = case.fit()
    assert second != first
    assert case.reasons == ["first fit", "the state in use is damaged"]
    assert f"{first.short} came from earlier data" in case.damages[-1]
