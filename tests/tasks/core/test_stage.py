"""A stage is found under the key of all its inputs, or made; what went bad is made again, and the ledger says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headway.data_contracts.store import stages
from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.documents import Registration
from headway.data_contracts.store.errors import DataError, HeadwayError, RefConflict, RegistryError, RunStopped
from headway.data_contracts.store.published_files import document_path
from headway.tasks.core import retry_policy
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage import StageOutput, find_intact, find_or_make, stage_task
from headway.tasks.core.stage_records import newest_record
from headway.training.launch.base.stop_request import StopRequest
from headway.training.observe.ledger import Event, read_events

INPUTS = {"source": "a", "code": "1"}


class Stage:
    """Makes one document over one file, and counts how often."""

    def __init__(self, context: RunContext, document: Registration) -> None:
        self.context, self.document, self.num_made = context, document, 0

    def make(self) -> StageOutput:
        self.num_made += 1
        return StageOutput(document=self.document, files=(self.context.workspace.publish("files/one", b"bytes"),))

    def run(self, **changes: str) -> int:
        """How often it has been made, after it was looked for."""
        link = find_or_make(self.context, "register", {**INPUTS, **changes}, self.make)
        assert self.context.workspace.load(link, Registration) == self.document
        return self.num_made

    def damaged(self) -> list[Event]:
        return [e for e in read_events(self.context.scratch / "ledger.jsonl") if e["event"] == "stage.damaged"]


@pytest.fixture
def stage(context: RunContext, register) -> Stage:
    registration, _ = register(1)
    return Stage(context, context.workspace.load(registration, Registration))


@pytest.fixture
def paths(stage: Stage) -> dict[str, Path]:
    local = stage.context.workspace.local_path
    key = stages.stage_key("register", INPUTS)
    return {
        "document": local(document_path(stage.document.link)),
        "file": local("files/one"),
        "record": local(stages.record_path("register", key)),
    }


def test_what_was_made_is_found(stage: Stage) -> None:
    assert [stage.run(), stage.run()] == [1, 1]
    assert stage.damaged() == []


def test_a_record_says_whose_it_is_and_what_it_took(stage: Stage, paths) -> None:
    stage.run()
    provenance = json.loads(paths["record"].read_text())["provenance"]
    assert provenance["pipeline"] == stage.context.pipeline and provenance["duration_s"] >= 0


def test_another_input_is_another_key(stage: Stage) -> None:
    assert [stage.run(), stage.run(code="2"), stage.run(source="b"), stage.run()] == [1, 2, 3, 3]


@pytest.mark.parametrize("what", ["document", "file", "record"])
@pytest.mark.parametrize("fate", ["altered", "gone"])
def test_what_went_bad_is_made_again_as_it_was_and_told(stage: Stage, paths, what: str, fate: str) -> None:
    stage.run()
    path = paths[what]
    good = path.read_bytes()
    if fate == "altered":
        path.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    else:
        path.unlink()
    assert stage.run() == 2
    if what != "record":
        assert path.read_bytes() == good
    assert bool(stage.damaged()) == ((what, fate) != ("record", "gone")), "a record that is gone was never made"
    assert stage.run() == 2


def test_a_record_that_lies_in_the_place_of_another_is_none(stage: Stage, paths) -> None:
    stage.run()
    other = stage.context.workspace.local_path(
        stages.record_path("register", stages.stage_key("register", {**INPUTS, "code": "2"}))
    )
    stage.run(code="2")
    other.write_bytes(paths["record"].read_bytes())
    assert [stage.run(code="2"), stage.run(code="2"), stage.run()] == [3, 3, 3] and len(stage.damaged()) == 1


def test_a_damage_is_told_once_however_often_it_is_met(stage: Stage, paths) -> None:
    stage.run()
    paths["record"].write_bytes(b"{}")
    assert [find_intact(stage.context, "register", INPUTS) for _ in range(3)] == [None] * 3
    assert stage.run() == 2 and len(stage.damaged()) == 1


@pytest.mark.parametrize("named", ["another of its kind", "one of another kind"])
def test_a_record_whose_document_was_exchanged_by_hand_for_an_intact_one_is_made_again(
    stage: Stage, paths, register, named: str
) -> None:
    stage.run()
    good = paths["record"].read_bytes()
    other, _ = register(2)
    if named == "one of another kind":
        other = stage.context.workspace.load(other, Registration).run
    altered = {**json.loads(good), "document": other.model_dump(mode="json")}
    paths["record"].write_bytes(canonical_json(altered))
    assert stage.run() == 2, "not the other's document under this stage's key"
    assert len(stage.damaged()) == 1 and stage.run() == 2


def test_what_an_earlier_headway_wrote_down_without_a_digest_still_counts(stage: Stage, paths) -> None:
    stage.run()
    value = json.loads(paths["record"].read_bytes())
    del value["sha256"]
    paths["record"].write_bytes(canonical_json({**value, "format_version": 1}))
    assert stage.run() == 1 and not stage.damaged()
    paths["record"].write_bytes(canonical_json(value))
    assert stage.run() == 2, "of today's form, without its digest"


def test_what_is_cleaned_away_while_it_is_found_is_made_again(stage: Stage, paths, monkeypatch) -> None:
    stage.run()
    real = stages.find

    def find(*arguments):
        found = real(*arguments)
        paths["record"].unlink()
        return found

    monkeypatch.setattr(stages, "find", find)
    assert stage.run() == 2
    assert paths["record"].exists()


def test_when_the_time_is_over_nothing_is_begun_and_what_is_there_is_still_found(stage: Stage) -> None:
    over = StopRequest(at_unix_s=1.0, reason="window closed")
    there = Stage(stage.context, stage.document)
    there.run()
    there.context = replace(stage.context, stop=over, continued_by="headway retrain tiny")
    assert there.run() == 1
    with pytest.raises(RunStopped, match=r"window closed .*: stage register was not started. `headway retrain tiny`"):
        there.run(source="b")
    assert there.num_made == 1


def test_a_record_too_deep_to_be_read_is_damage_and_no_end(stage: Stage, paths) -> None:
    assert stage.run() == 1
    paths["record"].write_bytes(b"[" * 100_000 + b"]" * 100_000)
    assert newest_record(stage.context.workspace, "register") is None
    assert stage.run() == 2
    assert "not a readable stage record" in stage.damaged()[0]["message"]


@pytest.mark.parametrize("altered", [{"unix_s": "soon"}, {"duration_s": "long"}, {"num_steps": "many"}])
def test_a_record_whose_times_are_texts_is_passed_over(stage: Stage, paths, altered: dict[str, str]) -> None:
    stage.run()
    newest = newest_record(stage.context.workspace, "register")
    assert newest is not None
    value = newest.model_dump(mode="json")
    paths["record"].write_text(json.dumps({**value, "provenance": {**value["provenance"], **altered}}))
    assert newest_record(stage.context.workspace, "register") is None


@pytest.mark.parametrize(
    ("error", "calls"),
    [(RegistryError("it is away."), 3), (RefConflict("it lost."), 1), (DataError("it is torn."), 1)],
)
def test_without_prefect_a_stage_is_tried_again_where_that_helps_and_not_else(
    context: RunContext, monkeypatch: pytest.MonkeyPatch, error: HeadwayError, calls: int
) -> None:
    waited_s: list[float] = []
    monkeypatch.setattr(retry_policy.time, "sleep", waited_s.append)
    begun: list[int] = []

    @stage_task(name="toy", task_run_name="toy")
    def toy(_context: RunContext) -> None:
        begun.append(1)
        raise error

    with pytest.raises(type(error)):
        toy(context)
    assert (len(begun), waited_s) == (calls, [1.0, 5.0][: calls - 1])
