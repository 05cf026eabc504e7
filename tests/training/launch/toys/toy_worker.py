"""A worker without torch: counts steps, remembers where it was, and misbehaves when told to.

python -m toy_worker --run-dir DIR --steps 20 --trouble '{"kind": "kill", "rank": 1, "attempt": 1, "step": 3}'
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from headway.data_contracts.store.errors import ContractViolation, RunStopped, TrainingFailed
from headway.training.launch.base.protocol import read_json, write_json
from headway.training.launch.node.rank_process import RankProcess, arm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--until", type=Path, help="goes on beyond the last step until this is there")
    parser.add_argument("--in-step", action="store_true", help="begins no step before all have done the last one")
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--slow-on", default="", help="a host on which it says that its steps are slow")
    parser.add_argument("--slow-by-s", type=float, default=0.0, help="how much so")
    parser.add_argument("--trouble", type=json.loads, default={})
    parser.add_argument("--deaf", action="store_true", help="ignores requests to stop")
    parser.add_argument("--expendable", action="store_true", help="never comes to work that is worth keeping")
    parser.add_argument("--children", action="store_true", help="starts processes of its own")
    parser.add_argument("--last-words", help="what it fails with in the end")
    arguments = parser.parse_args()
    if arguments.trouble.get("kind") == "early exit":
        sys.stderr.write("the early bird\n")
        raise SystemExit(3)
    rank = arm(arguments.run_dir / "by-hand")
    with rank.outcome():
        if arguments.expendable:
            with rank.expendable():
                rank.ledger.event("heartbeat", what="expendable", num_done=0)
                hang_here()
        count(rank, arguments)


def count(rank: RankProcess, arguments: argparse.Namespace) -> None:
    checkpoint = arguments.run_dir / f"checkpoint-{rank.rank}.txt"
    if arguments.children:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        # Unchecked: the shell may be ended with the attempt, whose end is told by what ended it.
        subprocess.run(["sh", "-c", "setsid sleep 601 & exit 0"], check=False)
    first = int(checkpoint.read_text()) if checkpoint.exists() else 0
    if arguments.in_step:
        tell_peers(rank, first)  # which may be its last step already
    for step in itertools.count(first + 1):
        if step > arguments.steps and (arguments.until is None or arguments.until.exists()):
            break
        time.sleep(arguments.step_s)
        rank.ledger.event("step", step=step, **parts_of_a_step(arguments.slow_on, arguments.slow_by_s))
        print(f"toy {rank.rank} at {step}", flush=True)
        if arguments.in_step:
            wait_for_peers(rank, step)
        if (rank.stop_requested or rank.stop_at.at_step == step) and not arguments.deaf:
            checkpoint.write_text(str(step))
            raise RunStopped(f"stopped at step {step}.")
        misbehave(rank, arguments.trouble, step)
    if arguments.in_step:
        tell_peers(rank, sys.maxsize)  # one that saw later that it is enough waits for nobody
    if arguments.last_words:
        raise RuntimeError(arguments.last_words)


def tell_peers(rank: RankProcess, step: int) -> None:
    write_json(rank.attempt_dir / f"done-{rank.rank}", {"step": step})


def wait_for_peers(rank: RankProcess, step: int) -> None:
    """As an all-reduce would, but that a rank in it still hears of a stop, and one that is ahead waits for nobody."""
    tell_peers(rank, step)
    done = [rank.attempt_dir / f"done-{peer}" for peer in range(rank.world_size)]
    while any((read_json(each) or {"step": 0})["step"] < step for each in done) and not rank.stop_requested:
        time.sleep(0.005)


def parts_of_a_step(slow_on: str, slow_by_s: float) -> dict[str, float]:
    """What a real worker writes down, where some host is to be slow."""
    if not slow_on:
        return {}
    here = os.environ.get("TOY_HOST") or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    waited_s = 0.0 if here == slow_on else slow_by_s
    forward_s = 0.2 + slow_by_s - waited_s
    return {"data_s": 0.1, "forward_s": forward_s, "backward_s": 0.2, "sync_s": waited_s, "optimizer_s": 0.0}


def crash_here() -> None:
    ctypes.string_at(0)


def misbehave(rank: RankProcess, trouble: dict[str, object], step: int) -> None:
    if trouble.get("rank", 0) != rank.rank or trouble.get("attempt", rank.attempt) != rank.attempt:
        return
    if trouble.get("step") != step:
        return
    kind = trouble["kind"]
    if kind == "kill":
        print("in the middle of a li", end="", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "crash":
        crash_here()
    elif kind == "halt":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "hang":
        hang_here()
    elif kind == "compute":
        begin_s = time.process_time()
        while time.process_time() - begin_s < float(str(trouble["seconds"])):
            pass
    elif kind == "fill the disk":
        with contextlib.suppress(OSError), (rank.attempt_dir / "filler").open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(512))
    elif kind == "raise":
        raise ValueError("the dog ate it")
    elif kind == "contract":
        raise ContractViolation("no receipt.", where="here", advice="Validate first.")
    elif kind == "not finite":
        raise TrainingFailed("the loss is not finite.", where="step 3")
    elif kind == "memory":
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
    elif kind == "stop":
        raise RunStopped("the window closes.")


def hang_here() -> None:
    while True:
        time.sleep(1000)


if __name__ == "__main__":
    main()
