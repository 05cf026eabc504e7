"""A gang may die at any moment of a checkpoint's life: while it is written, committed, expired.

Each trial is a fork of this process that counts what it does to the file system, and kills itself before one of the
operations: some, drawn anew at each run, or with `HEADWAY_TEST_KILLS=all` every one.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest
import torch

from headway.training.checkpoint import blocks
from headway.training.checkpoint.layout import MANIFEST_NAME, committed_steps
from headway.training.checkpoint.restore import restore_newest
from headway.training.checkpoint.retention import discard_expired
from headway.training.checkpoint.save import Checkpointer
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.ranks.distributed import ProcessGroup

pytestmark = pytest.mark.long

ALONE = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
OPERATIONS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "shutil.rmtree"}
LAST_STEP = 4
NUM_KILLS = os.environ.get("HEADWAY_TEST_KILLS", "24")
KEEP = CheckpointSpec(keep_last=2)


def state(step: int) -> dict[str, torch.Tensor]:
    return {"a": torch.full((40,), float(step)), "b": torch.full((3,), step)}


def train(run_dir: Path, run, in_gang, content) -> None:
    """Two ranks go on from the newest good checkpoint to the last step, each with a checkpoint."""

    def live(process_group: ProcessGroup) -> None:
        checkpoints = run_dir / "checkpoints"
        found = restore_newest(run_dir, run, process_group)
        good = set()

        def retain(step: int) -> None:
            good.add(step)
            discard_expired(checkpoints, KEEP, known_good=good)

        with Checkpointer(checkpoints, process_group, newest=found and found.manifest, retain=retain) as checkpointer:
            for step in range(checkpointer.saved_step + 1, LAST_STEP + 1):
                checkpointer.save(content(step, state(step)))

    errors = in_gang(2, live)
    assert errors == [None, None], errors


def forked(folder: Path, life, *, kill_before: int = -1) -> int:
    """Live in a fork; returns how many operations it did below `folder`.

    With `kill_before`, which counts from 0, it must die before that operation.
    """
    counted = folder.with_suffix(".operations")
    child = os.fork()
    if child == 0:
        try:
            # torch's thread pool did not survive the fork; one thread makes it anew, before two could race for it.
            torch.set_num_threads(1)
            operations: list[str] = []

            def count(event: str, arguments: tuple) -> None:
                place = str(arguments[0]) if event in OPERATIONS else ""
                # Rank 0 looks for parts until they are there: how often is chance.
                if place.startswith(f"{folder}/") and not (event == "open" and "/part-" in place):
                    if len(operations) == kill_before:
                        os.kill(os.getpid(), signal.SIGKILL)
                    operations.append(event)

            sys.addaudithook(count)
            life()
            counted.write_text(f"{len(operations)}")
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if kill_before < 0 else -signal.SIGKILL)
    return int(counted.read_text()) if kill_before < 0 else kill_before


def test_killed_at_any_moment_the_next_start_uses_the_newest_checkpoint_and_clears_up(
    tmp_path, run, in_gang, content, monkeypatch
):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)

    def life(run_dir: Path) -> None:
        train(run_dir, run, in_gang, content)

    num_operations = forked(tmp_path / "whole", lambda: life(tmp_path / "whole"))
    assert num_operations > 100
    # The last few depend on how the two ranks' threads fall.
    moments = range(num_operations - 5)
    for moment in moments if NUM_KILLS == "all" else random.sample(moments, int(NUM_KILLS)):
        run_dir = tmp_path / f"{moment}"
        checkpoints = run_dir / "checkpoints"
        forked(run_dir, lambda run_dir=run_dir: life(run_dir), kill_before=moment)
        newest = max(committed_steps(checkpoints), default=0)

        told = []
        found = restore_newest(run_dir, run, ALONE, on_quarantine=lambda *what, told=told: told.append(what))

        assert told == [], f"operation {moment}: a death damages nothing that was committed"
        assert (found.manifest.step if found else 0) == newest, f"operation {moment}"
        if found:
            assert all(torch.equal(found.tensors[name], value) for name, value in state(newest).items())
        left = list(checkpoints.iterdir()) if checkpoints.exists() else []
        assert all((path / MANIFEST_NAME).exists() for path in left), f"operation {moment}: leftovers are swept"
        life(run_dir)
        assert committed_steps(checkpoints) == [LAST_STEP - 1, LAST_STEP], f"operation {moment}"
        assert all(not path.name.startswith((".", "part")) for path in checkpoints.glob("*/*"))
