"""Saving behind the next steps: never mutated, one at a time, and no failure is lost."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from headway.data_contracts.store.errors import EnvironmentProblem, PeerFailed, RunStopped
from headway.data_contracts.store.publication import Workspace
from headway.training.checkpoint import blocks, commit, save
from headway.training.checkpoint.commit import part_name
from headway.training.checkpoint.layout import MANIFEST_NAME, SEAL_NAME, committed_steps, directory_name
from headway.training.checkpoint.read import read_checkpoint
from headway.training.checkpoint.save import Checkpointer
from headway.training.ranks.distributed import ProcessGroup
from tests.training.checkpoint.conftest import save_checkpoint
from tests.waiting import DEADLINE_S

ALONE = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))


class LostMates(ProcessGroup):
    """Rank 0 of two, whose mate answers but never writes."""

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        return torch.cat([values, values])


WITH_LOST_MATE = LostMates(rank=0, world_size=2, device=torch.device("cpu"))


@pytest.fixture
def held_back(monkeypatch):
    """Writing waits for the gate; `asked` is set once it wants to begin, and `on_part` called while it waits."""
    real, gate = save.write_share, threading.Event()
    gate.asked, gate.on_part = threading.Event(), lambda on_part: None

    def write_share(*arguments, on_part):
        gate.asked.set()
        while not gate.wait(0.01):
            gate.on_part(on_part)
        return real(*arguments, on_part=on_part)

    monkeypatch.setattr(save, "write_share", write_share)
    yield gate
    gate.set()


def no_space(*_arguments):
    raise OSError(28, "No space left on device")


def test_training_goes_on_while_it_is_written_and_what_is_written_is_the_moment_of_the_call(
    tmp_path, content, held_back
):
    state = {"w": torch.arange(1000.0), "moment": torch.ones(3, 5)}
    as_it_was = {name: value.clone() for name, value in state.items()}
    with Checkpointer(tmp_path, ALONE) as checkpointer:
        checkpointer.save(content(3, state))
        assert held_back.asked.wait(DEADLINE_S)
        for value in state.values():
            value.mul_(-7)
        assert committed_steps(tmp_path) == [], "nothing is committed before it is written"
        held_back.set()
        manifest = checkpointer.finish()

    found = read_checkpoint(tmp_path / directory_name(3))
    assert found.manifest == manifest
    assert all(torch.equal(found.tensors[name], value) for name, value in as_it_was.items())


def test_the_next_save_waits_for_the_one_before_and_uses_its_memory_again(tmp_path, content, held_back):
    state, durable = {"w": torch.zeros(100)}, []
    checkpointer = Checkpointer(tmp_path, ALONE, on_saved=durable.append)
    checkpointer.save(content(1, state))
    (image,) = checkpointer._images
    second = threading.Thread(target=checkpointer.save, args=(content(2, {"w": torch.ones(100)}),))
    second.start()
    assert held_back.asked.wait(DEADLINE_S)
    assert second.is_alive() and durable == []
    held_back.set()
    second.join(DEADLINE_S)
    checkpointer.finish()

    assert checkpointer._images == [image]
    assert [saved.step for saved in durable] == [1, 2]
    assert [float(read_checkpoint(tmp_path / directory_name(step)).tensors["w"].sum()) for step in (1, 2)] == [0, 100]


def test_a_checkpoint_is_reported_with_the_moment_in_which_it_was_durable_however_late_that_is(
    tmp_path, content, monkeypatch
):
    durable, clock = [], iter((100.0,))
    monkeypatch.setattr(save, "time", SimpleNamespace(time=lambda: next(clock), perf_counter=time.perf_counter))
    checkpointer = Checkpointer(tmp_path, ALONE, on_saved=durable.append)
    checkpointer.save(content(1, {"w": torch.zeros(100)}))
    wait((checkpointer._in_flight,), DEADLINE_S)
    assert durable == [], "told as the next one is saved"
    checkpointer.finish()
    assert [(saved.step, saved.unix_s) for saved in durable] == [(1, 100.0)]


@pytest.mark.parametrize("gets_on", [True, False])
def test_who_waits_for_the_disk_tells_that_writing_gets_on_and_only_then(
    tmp_path, content, held_back, monkeypatch, gets_on
):
    monkeypatch.setattr(save, "POLL_EVERY_S", 0.02)
    looks, told, told_by_then = [], threading.Event(), []
    if gets_on:
        held_back.on_part = lambda on_part: on_part()
    checkpointer = Checkpointer(tmp_path, ALONE, on_part=told.set)
    checkpointer.save(content(1, {"w": torch.zeros(100)}))
    real = save.wait

    def counting_wait(*arguments):
        looks.append(arguments)
        if len(looks) == 10:
            told_by_then.append(told.is_set())
            held_back.set()  # and from here on it gets on
        return real(*arguments)

    monkeypatch.setattr(save, "wait", counting_wait)
    assert not told.is_set(), "behind the steps nobody waits, and nothing is told"

    checkpointer.finish()

    assert told_by_then == [gets_on]


def test_every_part_that_is_written_or_digested_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(blocks, "WRITE_BYTES", 1000)
    counted = []
    blocks.publish_blocks(Workspace(str(tmp_path)), "file", memoryview(bytes(5000)), on_part=lambda: counted.append(1))
    assert len(counted) == 2 * 5


def test_each_names_the_one_before_and_the_first_the_one_that_training_went_on_from(tmp_path, content):
    first = save_checkpoint(tmp_path, content(1, {}), ALONE)
    with Checkpointer(tmp_path, ALONE, newest=first) as checkpointer:
        assert checkpointer.saved_step == 1
        checkpointer.save(content(2, {}))
        checkpointer.save(content(3, {}))
    manifests = [read_checkpoint(tmp_path / directory_name(step)).manifest for step in (1, 2, 3)]
    assert [manifest.parent for manifest in manifests] == [None, manifests[0].sha256, manifests[1].sha256]


def test_state_that_has_grown_is_planned_anew_when_one_rank_says_so(tmp_path, content, in_gang):
    def live(process_group):
        with Checkpointer(tmp_path, process_group) as checkpointer:
            checkpointer.save(content(1, {"w": torch.zeros(4)}))
            more = {"late": torch.ones(2)} if process_group.rank == 1 else {}
            checkpointer.save(content(2, {"w": torch.ones(4), **more}))

    assert in_gang(2, live) == [None, None]
    assert read_checkpoint(tmp_path / directory_name(1)).tensors.keys() == {"w"}
    assert read_checkpoint(tmp_path / directory_name(2)).tensors.keys() == {"w", "late"}


def test_what_a_part_or_a_manifest_speaks_of_is_durable_before_it_has_its_name(
    tmp_path, content, in_gang, monkeypatch, disk
):
    folder, real, spoken_of, too_early = tmp_path / directory_name(1), Path.replace, {}, []

    def replace(path, target):
        name = Path(target).name
        if name == part_name(1):
            spoken_of[name] = {"tensors-00001-of-00002.safetensors"}
        elif name == MANIFEST_NAME:
            spoken_of[name] = {file.name for file in folder.iterdir()} - {path.name}
        too_early.extend(
            (name, file)
            for file in spoken_of.get(name, ())
            if file not in disk.names(folder) or not disk.has_bytes(folder / file)
        )
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    in_gang(
        2,
        lambda process_group: save_checkpoint(
            tmp_path, content(1, {"w": torch.zeros(6), "v": torch.ones(6)}), process_group
        ),
    )
    assert too_early == []
    assert spoken_of[MANIFEST_NAME] == {file.name for file in folder.iterdir()} - {MANIFEST_NAME}
    assert len(spoken_of) == 2 and len(spoken_of[MANIFEST_NAME]) == 4
    assert MANIFEST_NAME in disk.names(folder) and disk.has_bytes(folder / MANIFEST_NAME)


@pytest.mark.parametrize("then", ["save", "finish", "leave"])
def test_what_failed_behind_the_steps_is_raised_at_the_next_chance(tmp_path, content, monkeypatch, then):
    save_checkpoint(tmp_path, content(1, {"w": torch.zeros(2)}), ALONE)
    with pytest.raises(EnvironmentProblem, match="no space left"), Checkpointer(tmp_path, ALONE) as checkpointer:
        with monkeypatch.context() as patch:
            patch.setattr("headway.data_contracts.store.publication.fsync_path", no_space)
            checkpointer.save(content(2, {"w": torch.zeros(2)}))
            assert checkpointer._in_flight.exception(60) is not None
        if then == "save":
            checkpointer.save(content(3, {"w": torch.zeros(2)}))
        elif then == "finish":
            checkpointer.finish()
    assert committed_steps(tmp_path) == [1]


def test_a_rank_that_cannot_write_is_named_and_no_rank_goes_on(tmp_path, content, in_gang, monkeypatch):
    real = commit.publish_blocks

    def publish_blocks(store, relative, data, **options):
        return no_space() if relative.startswith("tensors-00001") else real(store, relative, data, **options)

    monkeypatch.setattr(commit, "publish_blocks", publish_blocks)
    errors = in_gang(
        3, lambda process_group: save_checkpoint(tmp_path, content(1, {"w": torch.zeros(6)}), process_group)
    )

    assert [type(error) for error in errors] == [EnvironmentProblem, EnvironmentProblem, PeerFailed]
    assert "rank 1 could not write its part" in str(errors[0])
    assert "no space left" in str(errors[1])
    assert "rank 0, 1 could not keep" in str(errors[2])
    assert committed_steps(tmp_path) == []


def test_a_rank_that_is_silent_is_named_at_the_deadline(tmp_path, content, monkeypatch):
    monkeypatch.setattr(commit, "PARTS_PATIENCE_S", 0.01)
    with pytest.raises(EnvironmentProblem, match="rank 1 did not say that its part is written"):
        save_checkpoint(tmp_path, content(1, {"w": torch.zeros(6)}), WITH_LOST_MATE)


def test_leaving_by_an_error_waits_for_nobody_and_loses_neither_error(tmp_path, content):
    with (
        pytest.raises(ValueError, match="loss is not finite") as raised,
        Checkpointer(tmp_path, WITH_LOST_MATE) as checkpointer,
    ):
        checkpointer.save(content(1, {"w": torch.zeros(6)}))
        raise ValueError("loss is not finite")
    assert "checkpoint of step 1 was not completed" in raised.value.__notes__[0]


def test_leaving_by_an_error_completes_what_was_begun_where_it_can(tmp_path, content):
    with pytest.raises(ValueError), Checkpointer(tmp_path, ALONE) as checkpointer:
        checkpointer.save(content(1, {"w": torch.zeros(6)}))
        raise ValueError
    assert committed_steps(tmp_path) == [1]


def test_a_run_that_was_asked_to_stop_leaves_a_durable_checkpoint(tmp_path, content, in_gang):
    def live(process_group):
        with Checkpointer(tmp_path, process_group) as checkpointer:
            checkpointer.save(content(1, {"w": torch.zeros(6)}))
            raise RunStopped("stopped as asked")

    assert [type(error) for error in in_gang(2, live)] == [RunStopped, RunStopped]
    read_checkpoint(tmp_path / directory_name(1))


def test_the_manifest_is_the_last_file_of_all(tmp_path, content, in_gang, monkeypatch):
    seen: list[set[str]] = []
    real = commit.Workspace.publish

    def publish(store, relative, data, **options):
        if relative == MANIFEST_NAME:
            seen.append({path.name for path in (tmp_path / directory_name(1)).iterdir()})
        return real(store, relative, data, **options)

    monkeypatch.setattr(commit.Workspace, "publish", publish)
    in_gang(
        2,
        lambda process_group: save_checkpoint(
            tmp_path, content(1, {"a": torch.zeros(6), "b": torch.zeros(6)}), process_group
        ),
    )

    (before,) = seen
    after = {path.name for path in (tmp_path / directory_name(1)).iterdir()}
    assert after - before == {MANIFEST_NAME}
    assert SEAL_NAME in before and len(before) == 4


def test_a_step_that_is_trained_again_replaces_its_checkpoint(tmp_path, content, in_gang):
    for value in (1.0, 2.0):
        in_gang(
            2,
            lambda process_group, value=value: save_checkpoint(
                tmp_path, content(1, {"w": torch.full((2,), value)}), process_group
            ),
        )
    assert read_checkpoint(tmp_path / directory_name(1)).tensors["w"].tolist() == [2.0, 2.0]


def test_what_expires_goes_when_a_newer_one_is_durable(tmp_path, content):
    told = []

    def retain(step):
        told.append((step, committed_steps(tmp_path)))

    with Checkpointer(tmp_path, ALONE, retain=retain) as checkpointer:
        for step in (1, 2):
            checkpointer.save(content(step, {}))
    assert told == [(1, [1]), (2, [1, 2])]

    with Checkpointer(tmp_path, ALONE, newest=checkpointer.newest, retain=retain):
        assert told[2:] == [(2, [1, 2])], "also at the start, for what a death left"


def test_a_large_share_is_written_as_several_files_and_is_the_same_state(tmp_path, content, in_gang, monkeypatch):
    monkeypatch.setattr("headway.training.checkpoint.plan.FILE_BYTES", 1 << 20)
    monkeypatch.setattr("headway.training.checkpoint.plan.CUT_BYTES", 1 << 20)
    state = {"huge": torch.arange(2.0**20).view(1024, 1024), **{f"w{i}": torch.full((250_000,), i) for i in range(3)}}

    manifest, _ = in_gang(2, lambda process_group: save_checkpoint(tmp_path, content(1, state), process_group))

    found = read_checkpoint(tmp_path / directory_name(1))
    assert all(torch.equal(found.tensors[name], value) for name, value in state.items())
    sizes = [file.size_bytes for file in manifest.files if file.name != manifest.proof.file]
    assert len(sizes) == 4 * 2 and max(sizes) < 2 * min(sizes)
    assert manifest.world_size == 2
