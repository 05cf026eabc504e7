"""Who may put a checkpoint aside: ranks that read its bytes and agree. One that is blind, or alone, stops the run."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
import torch

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.checkpoint import blocks, restore
from headway.training.checkpoint.layout import committed_steps, directory_name
from headway.training.checkpoint.read import read_checkpoint, verify_checkpoint
from headway.training.checkpoint.restore import restore_newest
from headway.training.checkpoint.verified_files import BlockMissing
from headway.training.frozen.result import is_finished, publish_result
from tests.training.checkpoint.conftest import save_checkpoint

STATE = {"model.w": torch.arange(600.0), "optimizer.m": torch.ones(600)}


@pytest.fixture
def run_dir(tmp_path, in_gang, content, monkeypatch) -> Path:
    """Two good checkpoints of two ranks."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 256)
    folder: Path = tmp_path / "run"
    for step in (1, 2):
        in_gang(
            2,
            lambda process_group, step=step: save_checkpoint(
                folder / "checkpoints", content(step, STATE), process_group
            ),
        )
    return folder


def bad_checkpoint(run_dir: Path, name: str = "tensors-00001-of-00002.safetensors") -> Path:
    path = run_dir / "checkpoints" / directory_name(2) / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 64
    path.write_bytes(data)
    return path.parent


def nothing_was_moved(run_dir: Path) -> bool:
    return committed_steps(run_dir / "checkpoints") == [1, 2] and not (run_dir / "quarantine").exists()


def restored(in_gang, run, run_dirs, **options):
    """What each rank restores, or raises, that has its own idea of the run's folder."""
    return in_gang(
        len(run_dirs), lambda process_group: restore_newest(run_dirs[process_group.rank], run, process_group, **options)
    )


def test_ranks_that_do_not_share_the_folder_are_named_before_anything_is_read(run_dir, in_gang, run, tmp_path):
    empty, copy = tmp_path / "empty", tmp_path / "copy"
    empty.mkdir()
    shutil.copytree(run_dir, copy)
    errors = restored(in_gang, run, [run_dir, empty, run_dir, copy])

    assert [type(error) for error in errors] == [EnvironmentProblem] * 4
    assert "the folder is not shared: rank 1, 3 cannot see" in str(errors[0])
    assert nothing_was_moved(run_dir) and nothing_was_moved(copy)
    assert [path.name for path in run_dir.iterdir()] == ["checkpoints"], "no token is left"


@pytest.mark.parametrize("lacks", ["all", "a file", "the manifest", "this one, and has another"])
def test_a_rank_that_cannot_see_a_checkpoint_puts_none_aside(
    run_dir, in_gang, content, run, tmp_path, monkeypatch, lacks
):
    """As with a mount that shows one folder and not another, or late."""
    monkeypatch.setattr(restore, "require_shared", lambda *_: None)
    other = tmp_path / "other"
    shutil.copytree(run_dir, other)
    newest = other / "checkpoints" / directory_name(2)
    if lacks == "a file":
        (newest / "tensors-00001-of-00002.safetensors").unlink()
    elif lacks == "the manifest":
        (newest / "manifest.json").unlink()
    else:
        shutil.rmtree(newest)
        if lacks != "all":
            in_gang(1, lambda process_group: save_checkpoint(newest.parent, content(2, STATE), process_group))

    errors = restored(in_gang, run, [run_dir, other])

    assert [type(error) for error in errors] == [EnvironmentProblem] * 2
    assert "not shared: rank 1 cannot find there" in str(errors[0])
    assert nothing_was_moved(run_dir)


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_wrong_bytes_that_another_rank_reads_as_right_ones_stop_the_run(run_dir, in_gang, run, monkeypatch, bad_rank):
    """As with bad memory, or a host whose mount gives stale pages."""
    real, culprit = os.preadv, threading.local()

    def preadv(descriptor, buffers, offset):
        got = real(descriptor, buffers, offset)
        if getattr(culprit, "is_here", False):
            buffers[0][0] ^= 1
        return got

    def restore_here(process_group):
        culprit.is_here = process_group.rank == bad_rank
        return restore_newest(run_dir, run, process_group)

    monkeypatch.setattr(os, "preadv", preadv)
    errors = in_gang(2, restore_here)

    assert [type(error) for error in errors] == [EnvironmentProblem] * 2
    assert f"rank {bad_rank} reads other bytes than rank {1 - bad_rank}" in str(errors[0])
    assert nothing_was_moved(run_dir)


def test_what_all_ranks_find_missing_is_put_aside(run_dir, in_gang, run):
    (run_dir / "checkpoints" / directory_name(2) / "tensors-00001-of-00002.safetensors").unlink()
    found = restored(in_gang, run, [run_dir, run_dir])
    assert [each.manifest.step for each in found] == [1, 1]
    assert [path.name for path in (run_dir / "quarantine").iterdir()] == [f"{directory_name(2)}.0"]


def test_a_tensor_that_no_rank_wants_is_verified_all_the_same(run_dir, in_gang, run):
    last = {piece for piece in STATE if piece.startswith("optimizer")}
    bad_checkpoint(run_dir)
    found = restored(in_gang, run, [run_dir] * 2, state={name: STATE[name] for name in STATE.keys() - last})
    assert [each.manifest.step for each in found] == [1, 1]
    assert all(each.tensors.keys() == {"model.w"} for each in found)


def test_a_checkpoint_that_lacks_a_file_is_not_read_in_part_either(run_dir):
    directory = run_dir / "checkpoints" / directory_name(2)
    (there, lost) = sorted(read_checkpoint(directory).manifest.layout, key=lambda piece: piece.file)
    assert read_checkpoint(directory, prefix=there.tensor, rest=()).tensors.keys() == {there.tensor}
    (directory / lost.file).unlink()
    with pytest.raises(BlockMissing, match=lost.file):
        read_checkpoint(directory, prefix=there.tensor, rest=())


def test_every_part_that_is_read_is_told(run_dir, in_gang, run):
    size_bytes = sum(path.stat().st_size for path in (run_dir / "checkpoints" / directory_name(2)).glob("tensors-*"))
    told = []
    restored(in_gang, run, [run_dir], on_part=lambda: told.append(1))
    assert len(told) >= size_bytes / 256


def test_ranks_share_out_the_check_of_a_finished_run_and_agree(run_dir, in_gang, run, monkeypatch):
    manifest = verify_checkpoint(run_dir / "checkpoints" / directory_name(2))
    publish_result(run_dir, run, manifest, sorted(STATE.items()))
    read_by: dict[int, int] = {}

    def finished(process_group):
        read_by[process_group.rank] = 0

        def count():
            read_by[process_group.rank] += 1

        return is_finished(run_dir, run, process_group, on_part=count)

    assert in_gang(1, finished) == [True]
    alone = read_by[0]
    assert in_gang(3, finished) == [True] * 3
    assert sum(read_by.values()) == alone and max(read_by.values()) < alone

    stranger = Link(kind="run", sha256="f" * 64)
    assert in_gang(1, lambda process_group: is_finished(run_dir, stranger, process_group)) == [False], (
        "the result is another run's"
    )
    publish_result(run_dir, run, manifest.model_copy(update={"num_samples": 0}), [])
    assert in_gang(2, finished) == [False] * 2, "good, and not the checkpoint that the result names"
    publish_result(run_dir, run, manifest, sorted(STATE.items()))
    assert in_gang(2, finished) == [True] * 2

    bad_checkpoint(run_dir)
    assert in_gang(2, finished) == [False] * 2, "only one of them read the bad file"
    assert nothing_was_moved(run_dir)
