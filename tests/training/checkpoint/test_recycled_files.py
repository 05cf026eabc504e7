"""Writing over what expired: faster, and nothing that anybody could notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headway.data_contracts.store.digests import sha256_file
from headway.data_contracts.store.leftovers import discard_if_abandoned
from headway.tasks.retention.reachability import UNFINISHED, kind_of
from headway.tasks.retention.reference_graph import OF_CHECKPOINT
from headway.training.checkpoint import recycled_files
from headway.training.checkpoint.layout import MANIFEST_NAME, TENSOR_FILES, committed_steps, directory_name
from headway.training.checkpoint.read import read_checkpoint, verify_checkpoint
from headway.training.checkpoint.restore import restore_newest
from headway.training.checkpoint.retention import discard_expired, sweep
from headway.training.checkpoint.save import Checkpointer
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.ranks.distributed import ProcessGroup
from tests.training.checkpoint.conftest import save_checkpoint

ALONE = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
KEEP = CheckpointSpec(keep_last=2)
IS_FIT = recycled_files._is_fit
NUM_VALUES = 300_000
"""Enough for a file that is written past the cache."""

READER = """
import hashlib, mmap, sys
how, path = sys.argv[1:]
file = open(path, "rb")
if how == "mapped":
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    file.close()
print("has it", flush=True)
sys.stdin.readline()
print(hashlib.sha256(view if how == "mapped" else file.read()).hexdigest())
"""


@pytest.fixture(autouse=True)
def wherever_tests_run(monkeypatch):
    monkeypatch.setattr(recycled_files, "_is_fit", lambda _folder: True)


def state(step: int, num_values: int = NUM_VALUES) -> dict[str, torch.Tensor]:
    return {"w": torch.full((num_values,), float(step))}


def keeper(checkpoints: Path) -> Checkpointer:
    """Of the last two, as a run keeps them."""
    return Checkpointer(checkpoints, ALONE, retain=lambda step: discard_expired(checkpoints, KEEP, known_good={step}))


def save(checkpointer: Checkpointer, content, step: int, **size: int) -> None:
    checkpointer.save(content(step, state(step, **size)))
    checkpointer.finish()


def tensor_file(checkpoints: Path, step: int) -> Path:
    (found,) = (checkpoints / directory_name(step)).glob(TENSOR_FILES)
    return found


def spares_in(checkpoints: Path) -> list[Path]:
    return [path for path in checkpoints.iterdir() if path.is_file()]


def test_a_checkpoint_is_written_over_the_files_of_one_that_expired_and_none_is_left_in_the_end(tmp_path, content):
    with keeper(tmp_path) as checkpointer:
        save(checkpointer, content, 1)
        inode = tensor_file(tmp_path, 1).stat().st_ino
        save(checkpointer, content, 2)
        assert spares_in(tmp_path) == []
        save(checkpointer, content, 3)
        assert [spare.stat().st_ino for spare in spares_in(tmp_path)] == [inode]
        save(checkpointer, content, 4)
        assert tensor_file(tmp_path, 4).stat().st_ino == inode
        assert len(spares_in(tmp_path)) == 1, "one checkpoint's worth at most"

    assert [path.name for path in sorted(tmp_path.iterdir())] == [directory_name(3), directory_name(4)]
    for step in (3, 4):
        assert torch.equal(read_checkpoint(tmp_path / directory_name(step)).tensors["w"], state(step)["w"])


@pytest.mark.parametrize("num_values", [1000, NUM_VALUES - 1000, NUM_VALUES + 1000, 3 * NUM_VALUES])
def test_state_of_another_size_is_written_whole_over_a_spare(tmp_path, content, num_values):
    with keeper(tmp_path) as checkpointer:
        for step in (1, 2, 3):
            save(checkpointer, content, step)
        (inode,) = (spare.stat().st_ino for spare in spares_in(tmp_path))
        save(checkpointer, content, 4, num_values=num_values)
        assert tensor_file(tmp_path, 4).stat().st_ino == inode

    assert torch.equal(read_checkpoint(tmp_path / directory_name(4)).tensors["w"], state(4, num_values)["w"])


@pytest.mark.process
@pytest.mark.parametrize("how", ["open", "mapped"])
def test_who_still_reads_an_expired_checkpoint_reads_its_bytes_to_the_end(tmp_path, content, how):
    with keeper(tmp_path) as checkpointer:
        save(checkpointer, content, 1)
        path = tensor_file(tmp_path, 1)
        digest = sha256_file(path)
        command = [sys.executable, "-c", READER, how, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None and reader.stdout.readline() == "has it\n"
            for step in (2, 3, 4, 5):
                save(checkpointer, content, step)
            message, _ = reader.communicate("go on\n")
    assert message.strip() == digest
    assert verify_checkpoint(tmp_path / directory_name(5)).step == 5


def test_a_persons_hard_link_to_an_expired_file_keeps_its_bytes(tmp_path, content):
    checkpoints, link = tmp_path / "checkpoints", tmp_path / "mine"
    with keeper(checkpoints) as checkpointer:
        save(checkpointer, content, 1)
        link.hardlink_to(tensor_file(checkpoints, 1))
        before = link.read_bytes()
        for step in (2, 3, 4):
            save(checkpointer, content, step)
    assert link.read_bytes() == before


def test_who_opens_a_file_at_the_moment_it_is_looked_at_ends_no_process(tmp_path, monkeypatch):
    path, real, openers = tmp_path / "spare", recycled_files.fcntl.fcntl, []

    def fcntl(descriptor, command, argument):
        if argument == recycled_files.fcntl.F_UNLCK:
            with pytest.raises(BlockingIOError):  # the kernel asks us first
                os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            openers.append(path)
        return real(descriptor, command, argument)

    path.write_bytes(b"old")
    monkeypatch.setattr(recycled_files.fcntl, "fcntl", fcntl)
    recycled_files._make_own(path, 5)
    assert openers == [path]


@pytest.mark.process
def test_a_death_while_a_spare_is_overwritten_harms_no_checkpoint_and_the_next_save_is_whole(
    tmp_path, run, content, monkeypatch
):
    checkpoints = tmp_path / "checkpoints"
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            with keeper(checkpoints) as checkpointer:
                for step in (1, 2, 3):
                    save(checkpointer, content, step)
                (inode,) = (spare.stat().st_ino for spare in spares_in(checkpoints))

                def die_halfway(descriptor, data, offset, pwrite=os.pwrite):
                    if os.fstat(descriptor).st_ino == inode:
                        pwrite(descriptor, data[: len(data) // 8192 * 4096], offset)
                        os.kill(os.getpid(), signal.SIGKILL)
                    return pwrite(descriptor, data, offset)

                os.pwrite = die_halfway
                save(checkpointer, content, 4)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(checkpoints.glob(f"{directory_name(4)}/.*"))) >= 1, "it died on the way"
    assert [verify_checkpoint(checkpoints / directory_name(step)).step for step in (2, 3)] == [2, 3]

    told = []
    found = restore_newest(tmp_path, run, ALONE, on_quarantine=lambda *what: told.append(what))

    assert told == [] and found is not None and found.manifest.step == 3
    assert {path.name for path in checkpoints.iterdir()} == {directory_name(2), directory_name(3)}
    save_checkpoint(checkpoints, content(4, state(4)), ALONE, newest=found.manifest)
    assert torch.equal(read_checkpoint(checkpoints / directory_name(4)).tensors["w"], state(4)["w"])


def test_spares_count_as_nothing_and_as_leftovers_to_whoever_looks_for_them(tmp_path, content):
    folder = "runs/0123456789abcdef/checkpoints"
    checkpoints = tmp_path / folder
    checkpointer = keeper(checkpoints)
    for step in (1, 2, 3):
        save(checkpointer, content, step)
    (spare,) = spares_in(checkpoints)

    assert committed_steps(checkpoints) == [2, 3]
    assert len(list(checkpoints.glob(f"*/{MANIFEST_NAME}"))) == 2
    assert kind_of(f"{folder}/{spare.name}") == UNFINISHED and OF_CHECKPOINT.match(f"{folder}/{spare.name}") is None
    assert discard_if_abandoned(spare) and not spare.exists()
    save(checkpointer, content, 4)
    assert spares_in(checkpoints) != [] and sweep(checkpoints) == []
    assert spares_in(checkpoints) == []


def test_spares_fail_no_save_that_finds_room_without_them(new_disk, content):
    checkpoints = new_disk(8 * NUM_VALUES) / "checkpoints"
    checkpoints.mkdir()
    for rank in (7, 8):
        left = checkpoints / f".tensors-{rank:05d}-of-00009.safetensors.of-other-ranks.partial"
        left.write_bytes(bytes(3 * NUM_VALUES))
    save_checkpoint(checkpoints, content(1, state(1)), ALONE)
    assert verify_checkpoint(checkpoints / directory_name(1)).step == 1


def test_spares_that_nobody_takes_go_with_the_next_checkpoint(tmp_path, content):
    left = tmp_path / ".tensors-00007-of-00009.safetensors.of-other-ranks.partial"
    left.write_bytes(b"old")
    checkpointer = Checkpointer(tmp_path, ALONE)
    save(checkpointer, content, 1)
    assert not left.exists()


@pytest.mark.parametrize("kind, is_fit", [("ext4", True), ("nfs4", False), ("fuse.sshfs", False)])
def test_only_a_file_system_of_this_machine_is_fit(tmp_path, kind, is_fit):
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"21 1 0:0 / /proc rw - proc proc rw\n"
        f"27 1 {os.major(device)}:{os.minor(device)} / / rw,relatime shared:1 - {kind} /dev/vda rw,discard\n"
    )
    assert IS_FIT(tmp_path, mounts) is is_fit
    assert not IS_FIT(tmp_path / "nowhere", mounts)
