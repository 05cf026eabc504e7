"""A worker trains behind its gate, and ends with the same bits however it got there."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.documents import Link
from headway.training.checkpoint.layout import committed_steps
from headway.training.checkpoint.read import read_checkpoint, verify_checkpoint
from headway.training.config.checkpoints import RANKING, CheckpointSpec
from headway.training.config.execution import ExecutionSpec
from headway.training.config.parallel import ParallelSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.frozen.result import tensors_sha256
from headway.training.launch.base.stop_request import StopRequest
from headway.training.observe.ledger import Event
from headway.training.observe.step_summary import PARTS, summarise_steps
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.process


def result(run_dir: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((run_dir / "result.json").read_bytes())
    return value


def lasting(training: TrainingSpec, max_steps: int, *, every_steps: int) -> TrainingSpec:
    return training.model_copy(update={"max_steps": max_steps, "checkpoints": CheckpointSpec(every_steps=every_steps)})


@pytest.fixture(scope="module")
def undisturbed(shared_project, tmp_path_factory) -> Path:
    """A run to its end on two ranks."""
    run_dir: Path = tmp_path_factory.mktemp("undisturbed")
    assert shared_project.train(shared_project.publish_run(), run_dir, world_size=2) == [0, 0]
    return run_dir


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_one_two_three_and_four_ranks_end_with_the_same_bits_and_losses(project, undisturbed, tmp_path, world_size):
    assert project.train(project.publish_run(), tmp_path, world_size=world_size) == [0] * world_size

    assert result(tmp_path)["tensors_sha256"] == result(undisturbed)["tensors_sha256"]
    assert _losses(project, tmp_path) == _losses(project, undisturbed)


def test_two_runs_from_scratch_write_the_same_checkpoint_byte_for_byte(project, undisturbed, tmp_path):
    assert project.train(project.publish_run(), tmp_path, world_size=2) == [0, 0]

    assert result(tmp_path) == result(undisturbed)
    assert result(tmp_path)["step"] == 6


def test_a_run_stopped_by_sigterm_exits_75_with_a_checkpoint_and_continues_to_the_same_bits(
    project, until, tiny_training: TrainingSpec, tmp_path
):
    run = project.publish_run(lasting(tiny_training, 1_000_000, every_steps=1_000_000))
    ranks = project.start(run, tmp_path / "stopped", world_size=2)
    until(lambda: _last_step(project, tmp_path / "stopped") > 3, what="step 4")

    ranks[1].send_signal(signal.SIGTERM)

    assert [rank.wait(DEADLINE_S) for rank in ranks] == [75, 75], "one rank's wish is everybody's"
    (stopped_at,) = committed_steps(tmp_path / "stopped" / "checkpoints")
    assert stopped_at > 3
    later = StopRequest(at_step=stopped_at + 3).environment()
    assert project.train(run, tmp_path / "stopped", world_size=2, **later) == [75, 75]
    assert _restored_at(project, tmp_path / "stopped") == stopped_at
    assert project.train(run, tmp_path / "whole", world_size=1, **later) == [75]
    stopped, whole = (
        read_checkpoint(max((tmp_path / name / "checkpoints").iterdir())) for name in ("stopped", "whole")
    )
    assert stopped.manifest.step == whole.manifest.step == stopped_at + 3
    assert tensors_sha256(sorted(stopped.tensors.items())) == tensors_sha256(sorted(whole.tensors.items()))


def test_a_rank_that_waits_for_its_peers_at_the_start_stops_at_once(project, until, tmp_path):
    ranks = project.start(project.publish_run(), tmp_path, world_size=2, fresh=[1], HEADWAY_STOP_GRACE_S="6000")
    ranks[1].send_signal(signal.SIGSTOP)  # it never comes to the rendezvous
    until(lambda: any(e["event"] == "rendezvous.begin" for e in project.events(tmp_path)), what="the rendezvous")

    ranks[0].send_signal(signal.SIGTERM)

    assert ranks[0].wait(DEADLINE_S) == 75, "well within its grace"


def test_a_run_stops_at_its_step_any_number_of_times_and_continues_to_the_same_bits(project, undisturbed, tmp_path):
    run = project.publish_run()
    for step in (1, 3, 3):  # the second time at step 3 there is nothing to do
        assert project.train(run, tmp_path, world_size=2, **StopRequest(at_step=step).environment()) == [75, 75]
        assert committed_steps(tmp_path / "checkpoints")[-1] == step
    assert "step" not in {event["event"] for event in project.events(tmp_path)}
    assert project.train(run, tmp_path, world_size=2) == [0, 0]
    assert result(tmp_path)["tensors_sha256"] == result(undisturbed)["tensors_sha256"]


def test_all_ranks_stop_at_the_step_of_the_rank_whose_clock_comes_to_the_end_first(
    project, until, tiny_training, tmp_path
):
    run = project.publish_run(lasting(tiny_training, 1_000_000, every_steps=1_000_000))
    started_s = time.monotonic()
    assert project.train(run, tmp_path / "one step", world_size=2, **StopRequest(at_step=1).environment()) == [75, 75]
    start_s = time.monotonic() - started_s  # on this machine, as busy as it was
    for times in (2, 4, 8):  # when it grows busier meanwhile, it comes to no step in time, or to nothing else
        run_dir = tmp_path / str(times)
        bound = StopRequest(at_unix_s=time.time() + times * start_s + 2, reason="window closed")
        ranks = project.start(run, run_dir, world_size=2, **bound.environment())
        assert [rank.wait(DEADLINE_S + times * start_s) for rank in ranks] == [75, 75]
        kept = list((run_dir / "checkpoints").glob("*/manifest.json"))
        is_durable = [path.stat().st_mtime < bound.at_unix_s for path in kept]
        if is_durable == [True]:
            break
    assert is_durable == [True], "one checkpoint, and durable by then"
    newest = max(e["step"] for e in project.events(run_dir) if e["event"] == "step")
    assert verify_checkpoint(kept[0].parent).step == newest
    markers = [json.loads(path.read_bytes()) for path in run_dir.glob("attempts/*/rank-?.json")]
    assert {marker["state"] for marker in markers} == {"stopped"}
    assert "window closed" in {marker["failure"]["reason"] for marker in markers}


def test_a_step_ends_an_attempt_with_a_checkpoint_whatever_the_interval(project, tiny_training, tmp_path):
    run = project.publish_run(lasting(tiny_training, 30, every_steps=1000))
    assert project.train(run, tmp_path, world_size=2, **StopRequest(at_step=11).environment()) == [75, 75]
    assert committed_steps(tmp_path / "checkpoints") == [11]


@pytest.mark.long
def test_checkpoints_by_time_are_taken_by_all_ranks_at_once_and_change_no_bit(project, tiny_training, tmp_path):
    by_time = CheckpointSpec(every_steps=None, every_s=0.02, keep_best=1, keep_last=2)
    run = project.publish_run(tiny_training.model_copy(update={"max_steps": 40, "checkpoints": by_time}))
    assert project.train(run, tmp_path / "two", world_size=2) == [0, 0]
    # What the launch says goes before the document of a run that was described with an interval.
    launched = ExecutionSpec(checkpoints=by_time.model_copy(update={"every_s": 0.01}), profile=None).environment()
    assert project.train(run, tmp_path / "one", world_size=1, **launched) == [0]
    seldom = ExecutionSpec(checkpoints=CheckpointSpec(every_steps=1000), profile=None).environment()
    assert project.train(run, tmp_path / "seldom", world_size=1, **seldom) == [0]
    assert committed_steps(tmp_path / "seldom" / "checkpoints") == [40]
    assert result(tmp_path / "seldom")["tensors_sha256"] == result(tmp_path / "one")["tensors_sha256"]

    for folder in (tmp_path / "two", tmp_path / "one"):
        kept = committed_steps(folder / "checkpoints")
        saves = [event["step"] for event in project.events(folder) if event["event"] == "checkpoint"]
        assert len(saves) >= 3 and kept[-1] == saves[-1] == 40
        scalars = verify_checkpoint(folder / "checkpoints" / "step-00000040").scalars
        assert all(isinstance(scalars[name], int | float) for name in RANKING), "what one may rank them by"
    assert result(tmp_path / "two")["tensors_sha256"] == result(tmp_path / "one")["tensors_sha256"]


@pytest.mark.long
def test_a_rank_killed_at_a_random_step_costs_time_and_no_bits(project, until, tiny_training, tmp_path):
    run = project.publish_run(lasting(tiny_training, 1_000_000, every_steps=10))
    ranks = project.start(run, tmp_path / "killed", world_size=2)
    step = random.randrange(15, 60)
    until(lambda: _last_step(project, tmp_path / "killed") >= step, what=f"step {step}")

    os.kill(ranks[1].pid, signal.SIGKILL)

    assert ranks[0].wait(DEADLINE_S) not in (0, 75)
    later = StopRequest(at_step=_last_step(project, tmp_path / "killed") + 12).environment()
    for name in ("killed", "whole"):
        assert project.train(run, tmp_path / name, world_size=2, **later) == [75, 75]
    assert _restored_at(project, tmp_path / "killed") >= step - step % 10 - 10
    killed, whole = (max((tmp_path / name / "checkpoints").glob("*/manifest.json")) for name in ("killed", "whole"))
    assert killed.parent.name == whole.parent.name
    assert killed.read_bytes() == whole.read_bytes(), "the last checkpoint's very bytes"


def test_a_run_goes_on_with_another_number_of_ranks_to_the_same_bits(project, tiny_training, undisturbed, tmp_path):
    run = project.publish_run()
    assert project.train(run, tmp_path, world_size=4) == [0] * 4
    _forget_after(tmp_path, step=2)

    assert project.train(run, tmp_path, world_size=1) == [0]

    assert _restored_at(project, tmp_path) == 2
    assert result(tmp_path)["tensors_sha256"] == result(undisturbed)["tensors_sha256"]


def test_a_corrupt_newest_checkpoint_is_put_aside_and_the_older_one_gives_the_same_bits(project, undisturbed, tmp_path):
    run = project.publish_run()
    assert project.train(run, tmp_path, world_size=2) == [0, 0]
    _forget_after(tmp_path, step=4)
    _flip_a_bit(next((tmp_path / "checkpoints" / "step-00000004").glob("tensors-*")))

    assert project.train(run, tmp_path, world_size=2) == [0, 0]

    assert _restored_at(project, tmp_path) == 2
    assert [path.name for path in (tmp_path / "quarantine").iterdir()] == ["step-00000004.0"]
    assert "step-00000004" in str([e for e in project.events(tmp_path) if e["event"] == "checkpoint.quarantined"])
    assert result(tmp_path) == result(undisturbed)


def test_a_run_whose_checkpoints_are_all_corrupt_says_so_and_begins_anew_to_the_same_bits(
    project, undisturbed, tmp_path
):
    run = project.publish_run()
    assert project.train(run, tmp_path, world_size=2) == [0, 0]
    _forget_after(tmp_path, step=4)
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        _flip_a_bit(next(checkpoint.glob("tensors-*")))

    assert project.train(run, tmp_path, world_size=2) == [0, 0]

    (restored,) = (event for event in project.events(tmp_path) if event["event"] == "restore")
    assert (restored["step"], restored["quarantined"]) == (0, 2)
    assert result(tmp_path) == result(undisturbed)


def test_a_finished_run_returns_at_once(project, undisturbed):
    assert project.train(project.publish_run(), undisturbed, world_size=2) == [0, 0]

    names = [event["event"] for event in project.events(undisturbed)]
    assert "run.already_finished" in names
    assert "step" not in names and "data.open" not in names


def test_every_checkpoint_verifies_names_its_parent_and_only_the_last_ones_are_kept(undisturbed, tiny_training):
    manifests = [verify_checkpoint(path) for path in sorted((undisturbed / "checkpoints").iterdir())]

    assert [manifest.step for manifest in manifests] == [2, 4, 6]
    assert [manifest.parent for manifest in manifests] == [None, manifests[0].sha256, manifests[1].sha256]
    assert [manifest.num_samples for manifest in manifests] == [16, 32, 48]
    assert {manifest.world_size for manifest in manifests} == {2}


def test_nobody_trains_without_the_receipt_that_names_these_very_shards(project, own_project, tmp_path):
    foreign = own_project.receipt.model_copy(update={"metrics": {"other": 1.0}})
    project.workspace.publish_document(foreign)
    runs = {
        "another receipt": project.publish_run(receipt=foreign.link),
        "a missing receipt": project.publish_run(receipt=Link(kind="receipt", sha256="0" * 64)),
    }
    for name, run in runs.items():
        run_dir = tmp_path / name
        assert project.train(run, run_dir, world_size=1) == [4], name
        assert "ContractViolation" in project.log(run_dir)
        assert not (run_dir / "checkpoints").exists()


def test_a_shard_with_one_flipped_bit_is_refused_by_name(own_project, tmp_path):
    shard = next(group.shards[0] for group in own_project.manifest.groups if group.split == "train")
    _flip_a_bit(own_project.workspace.local_path(shard.file.path))

    assert own_project.train(own_project.publish_run(), tmp_path, world_size=1) == [5]
    assert shard.file.path in own_project.log(tmp_path)


def test_an_impossible_world_is_refused_with_the_numbers(project, tmp_path):
    assert project.train(project.publish_run(), tmp_path, world_size=5) == [2] * 5
    assert "5 ranks cannot share 4 replicas" in project.log(tmp_path)


@pytest.mark.parametrize(
    ("world_size", "parallel"),
    [
        pytest.param(1, {}, id="alone"),
        pytest.param(2, {}, id="exact"),
        pytest.param(2, {"mode": "fast"}, id="replicated"),
        pytest.param(2, {"mode": "fast", "shard": 2}, id="sharded"),
        pytest.param(2, {"mode": "fast", "tensor": 2}, id="tensor", marks=pytest.mark.long),
        pytest.param(2, {"mode": "fast", "pipeline": 2}, id="pipeline"),
    ],
)
def test_every_rank_accounts_for_its_life_and_for_each_step(project, tiny_training, tmp_path, world_size, parallel):
    training = lasting(tiny_training, 12, every_steps=4).model_copy(update={"parallel": ParallelSpec(**parallel)})
    run = project.publish_run(training)

    def spent(number: int) -> list[tuple[float, float]]:
        assert project.train(run, tmp_path / str(number), world_size=world_size) == [0] * world_size
        return [_unaccounted(project.events(tmp_path / str(number), rank)) for rank in range(world_size)]

    # A short life on a busy machine: a pause between two lines is no part of the work, and not there every time.
    lives = map(spent, range(3))
    assert any(all(lost_s < max(0.01 * life_s, 0.2) for lost_s, life_s in ranks) for ranks in lives)

    for rank in range(world_size):
        events = project.events(tmp_path / "0", rank)
        steps = [event for event in events if event["event"] == "step"]
        for step in steps:
            parts_s = [step[f"{part}_s"] for part in PARTS]
            assert min(parts_s) >= 0
            assert sum(parts_s) == pytest.approx(step["duration_s"], rel=0.01)
            assert step["forward_s"] > 0
            assert {"loss", "grad_norm", "lr", "tokens", "memory_bytes"} <= step.keys()
            assert (world_size > 1) == (step.get("sent_bytes", 0) > 0)
        summary = summarise_steps(events)
        assert summary is not None and summary.num_steps == 12
        assert summary.parts_s.keys() == {*PARTS, "checkpoint"}
        assert summary.loss == steps[-1]["loss"] and summary.grad_norm is not None
        assert min(summary.num_tokens, summary.peak_memory_bytes, summary.parts_s["checkpoint"].p50) > 0
        assert (world_size > 1) == bool(summary.traffic)
        (model,) = (event for event in events if event["event"] == "model")
        assert model["num_parameters"] == 2 * 300 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 24 + 2 * 16) + 16


def _unaccounted(events: list[Event]) -> tuple[float, float]:
    """Seconds of a rank's life that no span covers, and of all of it."""
    spans = sorted((e["unix_s"], e["unix_s"] + e["duration_s"]) for e in events if "duration_s" in e)
    started = next(e["unix_s"] for e in events if e["event"] == "rank.start")
    ended = events[-1]["unix_s"]
    reached, unaccounted_s = started, 0.0
    for begin, end in spans:
        unaccounted_s += max(0.0, begin - reached)
        reached = max(reached, end)
    return unaccounted_s + max(0.0, ended - reached), ended - started


@pytest.mark.long
def test_a_rank_imports_no_orchestrator_tracker_or_compiler(project):
    code = (
        "import sys, headway.training.programs.session, headway.training.programs.evaluation;"
        "import headway.training.programs.verify_worker;"
        "print([m for m in ('prefect', 'mlflow', 'great_expectations', 'duckdb', 'pyarrow', 'torch._dynamo')"
        " if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def _losses(project: Any, run_dir: Path) -> list[float]:
    first = min(run_dir.glob("attempts/*")) / "ledger" / "rank-0.jsonl"
    events = [json.loads(line) for line in first.read_text().splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"]


def _last_step(project: Any, run_dir: Path) -> int:
    return max((event["step"] for event in project.events(run_dir) if event["event"] == "step"), default=0)


def _restored_at(project: Any, run_dir: Path) -> int:
    return next(int(event["step"]) for event in project.events(run_dir) if event["event"] == "restore")


def _forget_after(run_dir: Path, *, step: int) -> None:
    """Make the run look as it did after `step`."""
    (run_dir / "result.json").unlink()
    for path in (run_dir / "checkpoints").iterdir():
        if path.name > f"step-{step:08d}":
            shutil.rmtree(path)


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
