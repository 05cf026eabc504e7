"""What unequal shares of a batch win, and ranks that do not wait: one at half speed, and three hosts left of four.

`python -m benchmarks.unequal_ranks [--model "1 M"] [--rounds N] [--json]`

Each rank has a part of a processor by its control group, as Kubernetes limits one; that needs root and cgroups. Ranks
meet over loopback, so what is measured is work. Gangs of two and of three ranks take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.exact_gang import MODELS
from benchmarks.figures import Figure, show
from benchmarks.rank_processes import first_answer
from benchmarks.unequal_gang import ASYNCHRONOUS, Found, Request
from headway.training.launch.base.ports import free_port

PERIOD_US = 5000
"""Short beside a replica, so that a rank is slow and not halted."""
HALF_SPEED, THREE_OF_FOUR = "<= 0.75", "<= 0.80"
"""Of the time of equal shares, and of that of two hosts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="1 M")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    processors = os.cpu_count() or 1
    with contextlib.ExitStack() as stack:
        try:
            halves = stack.enter_context(groups([0.4, 0.2]))
            equal = stack.enter_context(groups([processors / 4] * 3))
        except OSError as error:
            sys.exit(f"no parts of processors: {error}")
        request = Request(
            replicas=16, micro_batch=2, model=arguments.model, rounds=arguments.rounds, moves=True, groups=tuple(halves)
        )
        uneven = run(request)
        two, three = list[float](), list[float]()
        for _ in range(2):
            for into, num_ranks in ((two, 2), (three, 3)):
                turn = {"moves": False, "groups": tuple(equal[:num_ranks]), "rounds": max(1, arguments.rounds // 2)}
                into += run(request.model_copy(update=turn)).steps_s["equal"]
    equal_s, by_speed_s = (statistics.median(uneven.steps_s[arm]) for arm in ("equal", "by speed"))
    shares = " and ".join(map(str, uneven.shares["by speed"]))
    name = f"one rank of two at half speed, shares of {shares} of 16"
    not_waiting_s = statistics.median(uneven.steps_s[ASYNCHRONOUS])
    found = [
        Figure(name="the same, asynchronous", value=not_waiting_s / equal_s, ratio_to="equal shares"),
        Figure(name=name, value=by_speed_s / equal_s, ratio_to="equal shares", target=HALF_SPEED),
        Figure(
            name="three hosts left of four",
            value=statistics.median(three) / statistics.median(two),
            ratio_to="two hosts",
            target=THREE_OF_FOUR,
        ),
    ]
    show(found, title="Time of a step", as_json=arguments.json, libraries=("torch",))


@contextlib.contextmanager
def groups(parts: Sequence[float]) -> Iterator[list[str]]:
    """Control groups that each have so many processors."""
    root, is_new = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cgroup.controllers").exists()
    made = [
        (root if is_new else root / "cpu") / f"headway{os.getpid()}-{len(parts)}-{index}" for index in range(len(parts))
    ]
    try:
        for folder, part in zip(made, parts, strict=True):
            folder.mkdir()
            quota_us = round(part * PERIOD_US)
            if is_new:
                (folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
            else:
                (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        yield [str(folder) for folder in made]
    finally:
        for folder in made:
            if folder.exists():
                folder.rmdir()


def run(request: Request) -> Found:
    """Raises `RuntimeError`: a rank failed."""
    port, world_size = free_port(), len(request.groups)
    environments = [
        {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{world_size}"}
        | {"LOCAL_WORLD_SIZE": f"{world_size}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
        for rank in range(world_size)
    ]
    command = (sys.executable, "-m", "benchmarks.unequal_gang", request.model_dump_json())
    return Found.model_validate_json(first_answer([command] * world_size, environments))


if __name__ == "__main__":
    main()
