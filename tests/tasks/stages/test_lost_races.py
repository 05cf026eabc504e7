"""Two retrains of one pipeline at the same moment: who writes second takes what the first wrote; nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.sources.reading import SourceSpec, take_snapshot
from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import ContractReceipt, RunSpec
from headway.data_contracts.store.errors import RefConflict, RunStopped
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.ownership import current_run, pipeline_history
from headway.tasks.registry import champion, model_refs
from headway.tasks.rows.acceptance import accept, accepted_ref
from headway.tasks.rows.fitted_refs import fitted_ref
from headway.tasks.stages.shard import current_fitted_state
from headway.tasks.stages.starting_point import ResolvedStart, record_start, start_ref
from headway.training.config.shards import BytePairSpec, ShardSpec
from tests.tasks.conftest import MODEL, NOWHERE, link, make_context

SPEC = ShardSpec(encoder=BytePairSpec(vocab_size=300, sequence_tokens=16), num_groups=2, heldout_fraction=0.3)
SOURCE = SourceSpec(format="text-files", uri="texts", include=("**/*.txt",))


class Raced(Workspace):
    """Where a rival writes its entry of a ref just before ours is written, once."""

    rival: Callable[[], object] | None = None

    def publish(self, relative: str, data: bytes | memoryview, **options: Any) -> Any:
        if relative.startswith("refs/") and (rival := self.rival) is not None:
            self.rival = None
            rival()
        return super().publish(relative, data, **options)


@pytest.fixture
def workspace(tmp_path: Path) -> Raced:
    made = Raced.create(str(tmp_path / "workspace"))
    assert isinstance(made, Raced)
    return made


@pytest.fixture
def ours(workspace: Raced, tmp_path: Path) -> RunContext:
    return make_context(workspace, tmp_path / "ours")


@pytest.fixture
def theirs(workspace: Raced, tmp_path: Path) -> RunContext:
    return make_context(Workspace(workspace.uri), tmp_path / "theirs")


def targets(workspace: Workspace, name: str) -> list[str]:
    return [entry.target.sha256 for entry in refs.history(workspace, name)]


def test_the_state_that_another_retrain_fitted_first_is_taken(workspace, ours, theirs) -> None:
    for context in (ours, theirs):
        for number in range(20):
            path = context.base / "texts" / f"{number}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"text {number} of several texts\n" * 5)

    def fit(context: RunContext):
        snapshot = take_snapshot(SOURCE, base=context.base, cache=context.digests)
        receipt = ContractReceipt(
            contract=context.workspace.publish("frozen/contract", b""),
            contract_name="tiny",
            contract_version="1",
            snapshot=context.workspace.publish_document(snapshot),
            passed=True,
            num_rows=snapshot.num_rows,
            verdicts=(),
            num_quarantined=0,
            quarantine=None,
            metrics={},
        )
        return current_fitted_state(context, SPEC, SOURCE, snapshot.link, context.workspace.publish_document(receipt))

    (theirs.base / "texts" / "0.txt").write_text("data that came a moment earlier\n" * 5)
    first = []
    workspace.rival = lambda: first.append(fit(theirs))
    assert fit(ours) == first[0]
    assert targets(workspace, fitted_ref(MODEL)) == [first[0].sha256]


def test_the_same_challenger_receipt_and_start_are_written_down_once(workspace, ours, theirs) -> None:
    model, receipt, start = link("registration", "1"), link("contract-receipt", "2"), link("checkpoint", "3")
    links = {"receipt": receipt, "fitted": link("fitted-state"), "manifest": link("shard-manifest")}
    started = RunSpec(pipeline=MODEL, config={}, code=NOWHERE, environment=NOWHERE, start=start, **links)

    def write_down(context: RunContext) -> None:
        champion.move_alias(context, MODEL, "challenger", model, reason="newest candidate", detail={"version": "1"})

    for write, name in (
        (write_down, model_refs.alias_ref(MODEL, "challenger")),
        (lambda context: accept(context, receipt), accepted_ref(MODEL)),
        (
            lambda context: record_start(context, ResolvedStart(started, "")),
            start_ref(started.model_copy(update={"start": None})),
        ),
    ):
        workspace.rival = lambda write=write: write(theirs)
        write(ours)
        assert len(refs.history(workspace, name)) == 1, name


def test_of_two_receipts_accepted_at_the_same_moment_neither_is_forgotten(workspace, ours, theirs) -> None:
    workspace.rival = lambda: accept(theirs, link("contract-receipt", "1"))
    accept(ours, link("contract-receipt", "2"))
    assert [target[0] for target in targets(workspace, accepted_ref(MODEL))] == ["1", "2"]


def test_a_model_that_another_retrain_made_champion_at_the_same_moment_is_champion(ours, theirs, workspace) -> None:
    model = link("registration", "1")

    def crown(context: RunContext) -> bool:
        return champion.ensure_champion(
            context, MODEL, model, expected=None, why="better", detail={"version": "1", "how": "retrain"}
        )

    workspace.rival = lambda: crown(theirs)
    assert crown(ours) is False
    assert len(refs.history(workspace, model_refs.alias_ref(MODEL, "champion"))) == 1


def test_another_model_that_became_champion_at_the_same_moment_is_not_replaced_unjudged(
    ours, theirs, workspace
) -> None:
    detail = {"version": "1", "how": "retrain"}
    workspace.rival = lambda: champion.set_champion(
        theirs, MODEL, link("registration", "1"), expected=None, why="better", detail=detail
    )
    with pytest.raises(RefConflict):
        champion.ensure_champion(ours, MODEL, link("registration", "2"), expected=None, why="better", detail=detail)


def test_a_run_begun_while_another_ends_is_the_current_one(workspace, ours, theirs) -> None:
    current_run.start(theirs, "a" * 64)
    workspace.rival = lambda: current_run.finish(theirs, 0.0)
    current_run.start(ours, "b" * 64)
    now = pipeline_history.read(workspace, MODEL)
    assert (now.run, now.state) == ("b" * 16, "started")


def test_a_window_that_cuts_two_retrains_of_one_run_is_one_window(workspace, ours, theirs) -> None:
    current_run.start(ours, "a" * 64)
    current_run.start(theirs, "a" * 64)

    def cut(context: RunContext) -> None:
        with pytest.raises(RunStopped), current_run.recording_the_end(context, starving_after=5):
            raise RunStopped("the window closes.", reason="window closed")

    workspace.rival = lambda: cut(theirs)
    cut(ours)
    assert pipeline_history.read(workspace, MODEL).windows_cut == 1
