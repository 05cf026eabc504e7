"""Cleaning takes what nobody needs and nothing else, in any workspace."""

from __future__ import annotations

import os
import random
import time

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.tasks.ownership import current_search
from headway.tasks.ownership.pipeline_history import SearchRecord, append
from headway.tasks.retention import clean
from headway.tasks.retention.reachability import DAY_S, REPRODUCTIONS, TUNING, kind_of
from headway.training.checkpoint.layout import RESULT_NAME, checkpoint_path, run_folder
from headway.training.launch.base import run_lock
from tests.tasks.past_work import Maker, refs_of
from tests.tasks.retention.cleanings import LATER_S, cleaned, dangling, everything, look


def history(workspace: Workspace, draw: random.Random, num_runs: int) -> dict[str, list[str]]:
    """A drawn past: runs on shared or own data, some from another's checkpoint, some registered. Needed, by version."""
    maker, needed, past = Maker(workspace), {}, []
    for number in range(num_runs):
        manifest = maker.data(draw.randrange(3))
        start = draw.choice([None, *past])
        made = maker.run(number, manifest, start=None if start is None else start.checkpoint)
        if start is not None:
            made.files += start.files
        past.append(made)
        if draw.random() < 0.7:
            evaluation = maker.evaluate(made, manifest)
            if draw.random() < 0.5:
                needed[str(number)] = made.files + maker.register(made, evaluation, number)
    maker.run(100, maker.data(0), finished=False)
    return needed


@pytest.mark.parametrize("seed", range(12))
def test_of_any_past_what_versions_need_stays_and_no_document_names_what_went(workspace: Workspace, seed: int) -> None:
    draw = random.Random(seed)
    needed = history(workspace, draw, draw.randrange(1, 7))
    before = everything(workspace)
    assert dangling(workspace) == set()
    found = look(workspace, keep_last=draw.randrange(2))
    gone = {file.path for file in clean.sweep(workspace, found, settle_s=0)}
    assert gone == {file.path for file in found.files} and gone
    assert everything(workspace) == before - gone
    for files in needed.values():
        assert not set(files) & gone
    assert dangling(workspace) == set()
    assert cleaned(workspace) <= before  # keep_last 0 may take more, and never what is needed
    assert all(set(files) <= everything(workspace) for files in needed.values())


@pytest.mark.long
@pytest.mark.process
def test_the_unregistered_goes_wherever_the_workspace_lies(anywhere: Workspace) -> None:
    maker = Maker(anywhere)
    first, second = maker.data(1), maker.data(2)
    kept, lost = maker.run(1, first), maker.run(2, second)
    needed = kept.files + maker.register(kept, maker.evaluate(kept, first), 1)
    maker.evaluate(lost, second)
    anywhere.publish(f"ledger/{'a' * 8}/flow.jsonl", b"{}\n")
    anywhere.publish("notes/mine.txt", b"nobody knows what for")
    gone = cleaned(anywhere)
    assert set(needed) <= everything(anywhere)
    shared = {path for path in lost.files if path in needed}
    assert set(lost.files) - shared <= gone
    assert f"ledger/{'a' * 8}/flow.jsonl" in gone
    assert f"{run_folder(kept.run)}/export/model.pt2" in gone
    assert f"{checkpoint_path(run_folder(kept.run), 2)}/manifest.json" in gone
    assert anywhere.exists("notes/mine.txt")
    assert dangling(anywhere) == set()
    validate, launch = (anywhere.names(f"stages/{stage}") for stage in ("validate", "launch"))
    assert len(validate) == len(launch) == 1  # of what stays, every stage is found again
    assert cleaned(anywhere) == set()


def test_what_is_young_or_among_the_last_finished_runs_stays(workspace: Workspace) -> None:
    maker = Maker(workspace)
    made = [maker.run(2 * number, maker.data(number)) for number in range(3)]
    for age, each in zip((50, 40, 20), made, strict=True):
        for path in [workspace.local_path(path) for path in each.files]:
            moment = time.time() - age * DAY_S
            os.utime(path, (moment, moment))
        for path in workspace.local_path(run_folder(each.run)).rglob("*"):
            os.utime(path, (moment, moment))
    for path in workspace.local_path("stages").rglob("*.json"):
        os.utime(path, (0, 0))
    gone = cleaned(workspace, keep_last=1, later_s=0)
    assert set(made[2].files) <= everything(workspace)
    assert document_path(made[0].run) in gone and document_path(made[1].run) in gone
    gone = cleaned(workspace, keep_last=1, later_s=LATER_S)
    assert set(made[2].files) <= everything(workspace) and f"{run_folder(made[2].run)}/export/model.pt2" not in gone


def test_models_of_folds_take_no_place_of_the_last_finished_runs(workspace: Workspace) -> None:
    maker = Maker(workspace)
    run, data = maker.run(0, maker.data(0)), maker.data(2)
    of_fold = workspace.load(data, ShardManifest).model_copy(update={"spec": {"fold": {"number": 1, "of": 2}}})
    fold = maker.run(2, workspace.publish_document(of_fold))  # of the same pipeline, and newer
    for path in workspace.local_path(run_folder(run.run)).rglob("*"):
        os.utime(path, (time.time() - 50 * DAY_S,) * 2)
    gone = cleaned(workspace, keep_last=1)
    assert set(run.files) <= everything(workspace) and document_path(fold.run) in gone


@pytest.mark.parametrize("damaged", [b"{}", b"{", b'{"step": 7}', b'{"step": null}', b'{"step": [3]}'])
def test_the_model_of_a_finished_run_whose_result_is_damaged_stays(workspace: Workspace, damaged: bytes) -> None:
    maker = Maker(workspace)
    made = maker.run(0, maker.data(0))
    workspace.local_path(f"{run_folder(made.run)}/{RESULT_NAME}").write_bytes(damaged)
    cleaned(workspace, keep_last=1)
    # The checkpoint's document is written again by whoever finds it.
    assert {path for path in made.files if path.startswith("runs/")} <= everything(workspace)


@pytest.mark.parametrize("damage", ["altered", "gone", "ref"])
def test_nothing_goes_while_what_a_version_needs_cannot_be_known(workspace: Workspace, damage: str) -> None:
    maker = Maker(workspace)
    manifest = maker.data(1)
    made = maker.run(1, manifest)
    (registration, *_) = maker.register(made, maker.evaluate(made, manifest), 1)
    entry = f"refs/{refs_of('tiny')}/00000001.json"
    path = workspace.local_path(entry if damage == "ref" else registration)
    data = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(data.replace(b"tiny", b"tinz").replace(b"registered", b"x"))
    with pytest.raises(IntegrityError, match="Nothing was deleted"):
        look(workspace)
    path.write_bytes(data)
    assert look(workspace).files


def test_a_pipeline_that_went_on_after_a_damaged_entry_can_be_cleaned(workspace: Workspace) -> None:
    fitted = Maker(workspace).data(1)
    for _ in range(2):
        refs.move(workspace, "fitted/tiny", fitted, expected=refs.current(workspace, "fitted/tiny"), reason="fit")
    workspace.local_path("refs/fitted/tiny/00000001.json").write_bytes(b"{")
    assert document_path(fitted) in look(workspace).live_set.why


def test_what_a_search_has_yet_to_read_stays_until_it_is_over(workspace: Workspace) -> None:
    maker = Maker(workspace)
    manifest = maker.data(1)
    shards = workspace.load(manifest, ShardManifest)
    record = SearchRecord(
        state="started", started_unix_s=1.0, settings="a" * 64, receipt=shards.receipt, manifest=manifest
    )
    current_search.begin(workspace, "tiny", record)
    append(workspace, "tiny", lambda before: before.model_copy(update={"event": "held"}))
    assert not {file.path for file in shards.files} & cleaned(workspace)
    current_search.end(workspace, "tiny", 1.0, "a" * 64, "ended")
    assert {document_path(manifest), *(file.path for file in shards.files)} <= cleaned(workspace)
    assert look(workspace).live_set.why


def test_copies_on_this_machine_go_when_nobody_used_them_and_so_does_finished_work_for_a_bucket(
    anywhere: Workspace,
) -> None:
    anywhere.publish("notes/mine.txt", b"")
    note, data, old = (anywhere.local_path(f"{name}") for name in ("tables/x.json", "tables/x.data", "copies/y.json"))
    for path in (note, data, old):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(canonical_json({}))
    work = anywhere.local_path("runs/0123456789abcdef/attempts/log")
    work.parent.mkdir(parents=True)
    work.write_bytes(b"")
    future = time.time() + LATER_S
    os.utime(data, (future, future))
    cleaned(anywhere)
    assert note.exists() and data.exists() and not old.exists() and not work.exists()


@pytest.mark.parametrize(
    ("folder", "kind"), [(f"{REPRODUCTIONS}/0", REPRODUCTIONS), (f"{TUNING}/work", "trials of a tuning")]
)
def test_work_that_nothing_stands_on_goes_when_it_is_old_unless_it_is_at_it(
    anywhere: Workspace, folder: str, kind: str
) -> None:
    anywhere.publish("notes/mine.txt", b"")
    measured = anywhere.local_path(f"{TUNING}/tiny.json")
    trials = [anywhere.local_path(f"{folder}-{digit}") for digit in "123"]
    for trial in trials:
        (trial / "checkpoints").mkdir(parents=True)
        (trial / "checkpoints" / "tensors").write_bytes(b"")
    measured.parent.mkdir(exist_ok=True)
    measured.write_bytes(b"{}")
    old, young, alive = trials
    future = time.time() + LATER_S
    os.utime(young / "checkpoints" / "tensors", (future, future))
    with run_lock.owning(alive):
        found = {file.path for file in look(anywhere).here}
        assert {kind_of(path) for path in found} == {kind}
        cleaned(anywhere)
    assert not old.exists() and young.exists() and (alive / "checkpoints" / "tensors").exists()
    assert measured.exists(), "what tuning found is not its work"
