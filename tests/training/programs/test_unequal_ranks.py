"""Ranks of unequal speed: each has as much of a batch as it can do, and the run ends with the bits of equal ones."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.parallel import ParallelSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.share_balance import EVERY_STEPS
from headway.training.launch.base import protocol

pytestmark = pytest.mark.process
NUM_STEPS = 4 * EVERY_STEPS
HALTED_S, RUNNING_S = 0.05, 0.005
INT8 = {"kind": "int8", "islands": 4, "block": 64}


def longer(training: TrainingSpec, **changes: Any) -> TrainingSpec:
    """Of 8 replicas a step, so that there is something to share out."""
    small = {"global_batch_sequences": 8, "micro_batch_sequences": 1, "max_steps": NUM_STEPS, **changes}
    kept = {"checkpoints": CheckpointSpec(every_steps=3 * EVERY_STEPS).model_dump(mode="json")}
    return TrainingSpec.model_validate(training.model_dump(mode="json") | small | kept)


def digest(run_dir: Path) -> str:
    return str(json.loads((run_dir / "result.json").read_text())["tensors_sha256"])


def events(project: Any, run_dir: Path, name: str, rank: int = 0) -> list[dict[str, Any]]:
    return [event for event in project.events(run_dir, rank) if event["event"] == name]


@contextlib.contextmanager
def slowed(pid: int) -> Iterator[None]:
    """A process that stands still for most of the time."""
    over = threading.Event()

    def halt_and_go_on() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.wait(RUNNING_S):
                os.kill(pid, signal.SIGSTOP)
                over.wait(HALTED_S)
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=halt_and_go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def alone(shared_project, tiny_training, tmp_path_factory) -> dict[str, str]:
    """What equal runs on one rank come to, of plain gradients and of whole numbers."""
    found = {}
    for name, changes in (("plain", {}), ("int8", {"gradient_compression": INT8})):
        run_dir = tmp_path_factory.mktemp(name)
        run = shared_project.publish_run(longer(tiny_training, **changes))
        assert shared_project.train(run, run_dir, world_size=1) == [0], shared_project.log(run_dir)
        found[name] = digest(run_dir)
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", ["plain", "int8"])
def test_a_rank_that_is_slow_has_less_to_do_and_no_bit_changes(project, tiny_training, alone, tmp_path, until, name):
    changes = {"gradient_compression": INT8} if name == "int8" else {}
    ranks = project.start(
        project.publish_run(longer(tiny_training, **changes)),
        tmp_path,
        world_size=2,
        **{protocol.STRAGGLERS: "rebalance"},
    )
    until(lambda: (tmp_path / "attempts/000/ledger/rank-1.jsonl").exists() and events(project, tmp_path, "step", 1))
    with slowed(ranks[1].pid):
        codes = [rank.wait(120) for rank in ranks]
    assert codes == [0, 0], project.log(tmp_path)
    moved, of_the_other = (
        [(event["step"], event["shares"]) for event in events(project, tmp_path, "shares.moved", rank)]
        for rank in range(2)
    )
    assert moved and moved == of_the_other
    fast, slow = moved[0][1]
    assert fast > slow >= 1 and fast + slow == 8
    assert digest(tmp_path) == alone[name]


@pytest.fixture(scope="module")
def with_speeds(shared_project, tiny_training, tmp_path_factory) -> dict[str, Path]:
    """Some steps of three ranks whose speeds are given, by mode; and of one rank."""
    speeds = [{protocol.SPEEDS: json.dumps({"": speed})} for speed in (1, 5, 2)]
    found = {}
    for name, mode, of_ranks in (("exact", "exact", speeds), ("fast", "fast", speeds), ("alone", "exact", speeds[:1])):
        found[name] = tmp_path_factory.mktemp(name)
        run = shared_project.publish_run(longer(tiny_training, parallel={"mode": mode}, max_steps=5))
        codes = shared_project.train(run, found[name], world_size=len(of_ranks), of_ranks=of_ranks)
        assert codes == [0] * len(of_ranks), shared_project.log(found[name])
    return found


def test_given_speeds_share_a_batch_out_from_the_first_step_and_no_bit_changes(project, with_speeds):
    shares = [events(project, with_speeds["exact"], "step", rank)[0]["relative_share"] for rank in range(3)]
    assert shares == [3 / 8, 15 / 8, 6 / 8]
    assert digest(with_speeds["exact"]) == digest(with_speeds["alone"])


def test_in_fast_mode_replicas_have_unequal_shares_too_and_train_to_about_the_same(project, with_speeds):
    exact, fast = (
        [event["loss"] for event in events(project, with_speeds[mode], "step")] for mode in ("exact", "fast")
    )
    assert fast == pytest.approx(exact, rel=1e-4)


@pytest.mark.long
def test_exact_mode_refuses_ranks_whose_machines_compute_other_bits_and_fast_mode_takes_them(
    project, tiny_training, tmp_path
):
    unlike = [{}, {"ATEN_CPU_CAPABILITY": "default"}]
    run = project.publish_run(tiny_training)
    # One is fresh, since torch looks at its processor once, as it is imported.
    ranks = project.start(run, tmp_path / "exact", world_size=2, fresh=[1], of_ranks=unlike)
    assert [rank.wait(120) for rank in ranks] == [ConfigError.exit_code] * 2
    message = project.log(tmp_path / "exact")
    assert "ranks 0 and 1 compute with other bits (cpu_capability " in message and "parallel: {mode: fast}" in message
    fast = tiny_training.model_copy(update={"parallel": ParallelSpec(mode="fast")})
    ranks = project.start(project.publish_run(fast), tmp_path / "fast", world_size=2, fresh=[1], of_ranks=unlike)
    assert [rank.wait(120) for rank in ranks] == [0, 0], project.log(tmp_path / "fast")
