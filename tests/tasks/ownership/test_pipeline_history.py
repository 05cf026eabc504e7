"""A pipeline's history: each event carries the standing on, whoever writes at once and whatever is damaged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.errors import IntegrityError, RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.ownership import current_run
from headway.tasks.ownership.pipeline_history import (
    FailedRetrain,
    Hold,
    PipelineEvent,
    RequestRecord,
    append,
    read,
    record_ask,
    record_failure,
    ref_of,
)
from headway.tasks.retention.reference_graph import ReferenceReader
from headway.training.launch.base.failure import Failure
from tests.tasks.conftest import MODEL, link

HOLD = Hold(pipeline=MODEL, by="alice", why="wrong labels", since="2026-11-23T10:00:00+00:00")
ASK = RequestRecord(
    pipeline=MODEL, snapshot=link("snapshot"), request_unix_s=1.0, why="rows", by="bob", triggers=("new data",)
)


def hold(workspace: Workspace, *, is_repair: bool = False) -> None:
    append(
        workspace,
        MODEL,
        lambda before: before.model_copy(update={"event": "held", "hold": HOLD}),
        is_repair=is_repair,
    )


def fail(workspace: Workspace, what: str = "lost.", unix_s: float = 5.0) -> None:
    failure, where = Failure(cause="training", what=what), {"host": "n1", "flow_run": "one", "stage": "launch"}
    record_failure(workspace, FailedRetrain(pipeline=MODEL, failed_unix_s=unix_s, failure=failure, card="", **where))


def test_an_event_of_no_calendar_is_a_damage(context: RunContext) -> None:
    """Whoever shows it would end with a traceback, and the exporter with it."""
    for unix_s in (1e300, -1.0, 253402300800.0):
        with pytest.raises(ValueError, match="failed_unix_s"):
            fail(context.workspace, unix_s=unix_s)


def test_the_newest_event_tells_all_that_stands_whatever_came_after_it(context: RunContext) -> None:
    workspace = context.workspace
    assert read(workspace, MODEL) == PipelineEvent(pipeline=MODEL)
    hold(workspace)
    record_ask(workspace, ASK, read(workspace, MODEL))
    current_run.start(context, "a" * 64)
    fail(workspace)
    now = read(workspace, MODEL)
    assert (now.event, now.hold, now.requested, now.run, now.state) == ("failed", HOLD, ASK, "a" * 16, "started")
    current_run.finish(context, 6.0, link("snapshot"))
    now = read(workspace, MODEL)
    assert (now.event, now.hold, now.requested, now.failed, now.state) == ("finished", HOLD, None, None, "finished")
    told = [entry.reason for entry in refs.history(workspace, ref_of(MODEL))]
    assert told == ["held", "rows", "started", "failed", "finished"]


def test_an_ask_stands_over_what_takes_no_newer_data_and_gives_way_to_another_ask(context: RunContext) -> None:
    workspace, seen = context.workspace, read(context.workspace, MODEL)
    hold(workspace)
    record_ask(workspace, ASK, seen)
    current_run.finish(context, 2.0)
    assert read(workspace, MODEL).requested == ASK, "a run that is finished on older data answers no ask"
    with pytest.raises(RefConflict):
        record_ask(workspace, ASK.model_copy(update={"why": "more rows"}), seen)


def test_a_retrain_that_registers_nothing_answers_no_ask_and_ends_its_run(context: RunContext) -> None:
    workspace, dry = context.workspace, dataclasses.replace(context, may_register=False)
    record_ask(workspace, ASK, read(workspace, MODEL))
    current_run.start(dry, "a" * 64)
    current_run.finish(dry, 6.0, link("snapshot"))
    now = read(workspace, MODEL)
    assert (now.event, now.state, now.requested, now.finished) == ("finished", "finished", ASK, None)


def test_a_decision_that_is_made_anew_after_damage_keeps_what_stood_before(context: RunContext) -> None:
    workspace = context.workspace
    fail(workspace)
    record_ask(workspace, ASK, read(workspace, MODEL))
    entry = workspace.local_path(f"refs/{ref_of(MODEL)}/00000002.json")
    entry.chmod(0o644)
    entry.write_bytes(b"{}")
    with pytest.raises(IntegrityError):
        hold(workspace)
    hold(workspace, is_repair=True)
    now = read(workspace, MODEL)
    assert now.hold == HOLD and now.failed is not None and now.requested is None, "what cannot be read is forgotten"


def test_the_words_of_a_failure_keep_nothing_from_being_cleaned_away(context: RunContext) -> None:
    workspace, damaged = context.workspace, link("shard-manifest", "d")
    record_ask(workspace, ASK, read(workspace, MODEL))
    fail(workspace, f"documents/shard-manifest/{damaged.sha256}.json: its bytes differ.")
    reader = ReferenceReader(workspace)
    (newest,) = (file for file in workspace.files("documents") if Path(file.path).stem == read(workspace, MODEL).sha256)
    assert reader.read(newest.path).references.digests == {ASK.snapshot.sha256}
