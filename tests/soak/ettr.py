"""A real retrain with a fault a minute: its effective training time ratio beside what Young and Daly predict.

    python -m tests.soak.ettr [--minutes 10] [--mtbf-s 60] [--seed N] [--out FILE]

First it trains for a while without a fault, which tells what a checkpoint keeps steps waiting, and how long it takes to
be durable. From that and the mean time between faults follows the interval between checkpoints. Then ranks are killed
at moments of a Poisson process. The prediction takes from the run only how many faults there were, and what it took to
be back at work; how much is lost to steps made again and to checkpoints is what it predicts. Prints one JSON object,
and exits 1 when the two differ by more than `WITHIN`. The machine is to be quiet.

Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22 (2006); its first order is Young's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.flows.accounts.goodput import FORWARD
from headway.flows.show.goodput import RunGoodput, read_goodput
from headway.training.launch.base.process_tree import process_state
from headway.training.observe.ledger import Event
from tests.e2e.project import MAX_STEPS, Project
from tests.waiting import wait_until

WITHIN = 0.02
CALM_S = 45.0
"""Of training without a fault, for what a checkpoint costs."""
CALM_EVERY_S = 3.0
SHORTEST_S = 0.5
"""Between two checkpoints, whatever the formula says of ones that cost nothing."""
BACK_AT_WORK = ("start", "rendezvous", "restore", "detection", "teardown", "backoff", "orchestration")
"""States of a recovery that are no steps."""


def interval_s(stall_s: float, mtbf_s: float) -> float:
    """The interval between checkpoints that loses least, to first order (Young): sqrt(2 x stall x mean time)."""
    return max(math.sqrt(2 * stall_s * mtbf_s), SHORTEST_S)


def predicted(*, every_s: float, stall_s: float, durable_s: float, recovery_s: float, mtbf_s: float) -> float:
    """Effective training time over all.

    Of each interval the stall is lost; of each fault the recovery, and the steps since the newest durable checkpoint,
    which is half an interval old in the mean, and as much older as it takes to be durable.
    """
    of_a_fault_s = recovery_s + every_s / 2 + durable_s
    return max(1 - of_a_fault_s / mtbf_s, 0.0) / (1 + stall_s / every_s)


def trained(project: Project, for_s: float, faults: Iterator[float]) -> tuple[RunGoodput, list[Event], int]:
    """A retrain that is asked to stop after so long: its account, rank 0's events, and how many faults there were.

    Args:
        faults: seconds from one to the next.
    """
    command = project.start("retrain", "tiny.yaml", is_fresh=True)
    wait_until(lambda: project.newest_step() > 0, what="a step", every_s=0.1)
    begun_s, num_faults = time.monotonic(), 0
    due_s = begun_s + next(faults)
    while time.monotonic() < begun_s + for_s:
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(min(max(due_s, begun_s) - time.monotonic(), begun_s + for_s - time.monotonic()))
            raise SystemExit(f"it ended by itself with {command.returncode}: {command.communicate()[1][-2000:]}")
        if time.monotonic() >= due_s:
            due_s += next(faults)
            num_faults += _kill_a_rank(project, num_faults)
    # With a word of the next step, or the last recovery would be open.
    reached = project.newest_step()
    wait_until(lambda: project.newest_step() > reached, what="a step", every_s=0.1)
    stopped = project.headway("stop", project.run_dir().name, is_fresh=True)
    assert stopped.returncode == 0, stopped.stderr
    command.communicate(timeout=120)
    events = [event for attempt in project.attempts() for event in project.rank_events(attempt)]
    return read_goodput(str(project.workspace), ""), events, num_faults


def _kill_a_rank(project: Project, number: int) -> bool:
    """Of the newest attempt; whether one was there to be killed. A fault may strike while the last one is mended."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        pid = project.rank_pid(number % 2)
        if process_state(pid) not in "ZX":
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def measured(account: RunGoodput, events: list[Event], faults: int, every_s: float) -> dict[str, Any]:
    """From the first step to the last; what came before is no matter of faults."""
    steps = [event for event in events if event["event"] == "step"]
    begin_unix_s = float(steps[0]["unix_s"])
    wall_s = float(steps[-1]["unix_s"]) + float(steps[-1]["duration_s"]) - begin_unix_s
    stalls_s = [float(event["duration_s"]) for event in events if event["event"] == "checkpoint"]
    durable_s = [float(event["durable_s"]) for event in events if event["event"] == "checkpoint.durable"]
    recoveries_s = [sum(each.parts_s.get(state, 0.0) for state in BACK_AT_WORK) for each in account.recoveries]
    found = {
        "wall_s": wall_s,
        "ettr": sum(account.parts_s.get(state, 0.0) for state in FORWARD) / wall_s,
        "faults": faults,
        "recoveries": len(account.recoveries),
        "redone_steps": account.num_redone_steps,
        "every_s": every_s,
        "checkpoints": len(stalls_s),
        "stall_s": statistics.fmean(stalls_s),
        "durable_s": statistics.fmean(durable_s),
    }
    if recoveries_s:
        rates = {"recovery_s": statistics.fmean(recoveries_s), "mtbf_s": wall_s / len(recoveries_s)}
        found |= rates
        found["predicted"] = predicted(every_s=every_s, stall_s=found["stall_s"], durable_s=found["durable_s"], **rates)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.ettr", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--mtbf-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        project = Project.create(Path(folder) / "project", Path(folder) / "prefect")
        try:
            project.edit("tiny.yaml", f"max_steps: {MAX_STEPS}", "max_steps: 1000000")
            project.edit("tiny.yaml", "width: 32, depth: 1", "width: 128, depth: 2")
            project.edit("tiny.yaml", "ranks_per_node: 2", "ranks_per_node: 2, max_attempts: 1000")
            project.edit("tiny.yaml", "every_steps: 20", f"every_steps: null\n    every_s: {CALM_EVERY_S}")
            calm = measured(*trained(project, CALM_S, itertools.repeat(math.inf)), CALM_EVERY_S)
            shutil.rmtree(project.workspace / "runs")
            every_s = round(interval_s(calm["stall_s"], arguments.mtbf_s), 2)
            project.edit("tiny.yaml", f"every_s: {CALM_EVERY_S}", f"every_s: {every_s}")
            moments = (draw.expovariate(1 / arguments.mtbf_s) for _ in itertools.count())
            found = measured(*trained(project, 60 * arguments.minutes, moments), every_s)
        finally:
            project.clean_up()
    difference = found["ettr"] - found["predicted"]
    text = json.dumps(
        {"seed": arguments.seed, "difference": difference, "within": WITHIN, "with_faults": found, "calm": calm},
        indent=1,
    )
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    return int(abs(difference) > WITHIN)


if __name__ == "__main__":
    sys.exit(main())
