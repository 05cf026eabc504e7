"""What exact elasticity costs: steps beside those of torch's DDP, or sharded beside FSDP2, on the same rows, in turn.

`python -m benchmarks.exact [--rounds N] [--model "5 M"|"20 M"] [--only CASE ...] [--json]`

DDP accumulates the same micro-batches without synchronisation (`no_sync`); it is also given larger ones, and smaller
buckets. The slow link is two network namespaces with a token bucket of 1 Gbit/s between them; that needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence

from benchmarks.exact_gang import MODELS, Request, Taken
from benchmarks.figures import Figure, show
from benchmarks.rank_processes import first_answer
from benchmarks.slow_hosts import LINK, slow_hosts, why_no_slow_hosts
from headway.training.launch.base.ports import free_port

LIMIT = "<= 1.05"
RATE = "1gbit"
CASES: dict[str, tuple[int, tuple[int, ...]]] = {
    "2 ranks": (2, (1, 2, 4)),
    "4 ranks": (4, (1, 2)),
    "2 ranks over 1 Gbit/s": (2, (1, 2, 4)),
    "2 ranks, sharded": (2, (1, 4)),
}
"""Ranks, and replicas of each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", choices=sorted(MODELS), default="5 M", help="parameters of the language model")
    parser.add_argument("--only", nargs="*", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found: list[Figure] = []
    for case in arguments.only:
        num_ranks, counts = CASES[case]
        request = Request(
            world_size=num_ranks,
            replicas_per_rank=counts,
            rounds=arguments.rounds,
            model=arguments.model,
            is_sharded="sharded" in case,
        )
        for count, taken in measured(request, slow="Gbit" in case).items():
            found += figures(f"{case}, {count} replicas each", taken)
    show(found, title="Exact elasticity beside DDP", as_json=arguments.json, libraries=("torch",))


def measured(request: Request, *, slow: bool) -> dict[str, Taken]:
    """What steps took, by replicas a rank; nothing where a slow link cannot be made."""
    if not slow:
        return run(request, [()] * request.world_size, {})
    reason = why_no_slow_hosts()
    if reason:
        print(f"skipped: no link of {RATE} ({reason})", file=sys.stderr)
        return {}
    with slow_hosts(request.world_size, RATE) as hosts:
        request = request.model_copy(update={"master": hosts[0].address})
        return run(request, [host.prefix for host in hosts], {"GLOO_SOCKET_IFNAME": LINK})


def run(request: Request, prefixes: Sequence[Sequence[str]], environment: dict[str, str]) -> dict[str, Taken]:
    """Raises `RuntimeError`: a rank failed."""
    command = (sys.executable, "-m", "benchmarks.exact_gang")
    request = request.model_copy(update={"port": free_port()})
    commands = [(*prefix, *command, request.model_dump_json(), str(rank)) for rank, prefix in enumerate(prefixes)]
    found: dict[str, Taken] = json.loads(first_answer(commands, [environment] * len(commands)))
    return found


def figures(case: str, taken: Taken) -> list[Figure]:
    """Medians over rounds of what a step of exact replicas took over one of DDP's in the same round."""
    wall, processor = 0, 1

    def ratio(arm: str, what: int = wall) -> float:
        pairs = zip(taken["exact"], taken[arm], strict=True)
        return statistics.median(ours[what] / theirs[what] for ours, theirs in pairs)

    def median_s(arm: str) -> float:
        return statistics.median(each[wall] for each in taken[arm])

    if "fsdp2" in taken:
        return [
            Figure(name=f"step, {case}", value=median_s("exact"), unit="s"),
            Figure(name=f"exact, {case}", value=ratio("fsdp2"), ratio_to="FSDP2, one reduce-scatter a step"),
            Figure(
                name=f"exact, {case}", value=ratio("fsdp2, slices"), ratio_to="FSDP2, one reduce-scatter a micro-batch"
            ),
            Figure(name=f"exact, {case}, processor seconds", value=ratio("fsdp2", processor), ratio_to="FSDP2"),
        ]
    best = min((arm for arm in taken if arm != "exact"), key=median_s)
    return [
        Figure(name=f"step, {case}", value=median_s("exact"), unit="s"),
        Figure(name=f"exact, {case}", value=ratio("ddp"), ratio_to="DDP, same micro-batches", target=LIMIT),
        Figure(
            name=f"exact, {case}, processor seconds", value=ratio("ddp", processor), ratio_to="DDP, same micro-batches"
        ),
        Figure(
            name=f"exact, {case}", value=ratio("ddp, small buckets"), ratio_to="DDP, same micro-batches, 2 MB buckets"
        ),
        Figure(name=f"exact, {case}", value=ratio(best), ratio_to=f"DDP at its best ({best})"),
    ]


if __name__ == "__main__":
    main()
