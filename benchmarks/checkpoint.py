"""What keeping a checkpoint costs: beside a raw fsync write and a cold read of the same bytes, and torch's own savers.

`python -m benchmarks.checkpoint [--megabytes N] [--rounds N] [--no-peers] [--folder DIR] [--json]`

A stall is how long training stands still: the call, and the next update's wait for what is still copied. Lost is that
and what the step between them takes longer than alone, beside the copies, the digests and the writing. Durable is how
long until all is safe, while training stands still. On one rank and on two, whose raw write is that of both at once.
All take turns in one run; the first round, which allocates, is told apart. The others measure what a run meets from
then on that has as many checkpoints as it keeps: a new one is written over the files of one that expired. Beside it,
one in new files, as the first ones are. The raw write is of a new file, and beside it over an old one.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Figure, show

Times = dict[str, list[dict[str, float]]]
"""Seconds by method, round and phase."""
STALL, DURABLE = "<= 0.2", "<= 1.1"
BESIDE = "headway, beside a step"
LIBRARIES = ("torch", "safetensors", "xxhash", "blake3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=240, help="of all tensors")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = []
    for world_size in (1, 2):
        with tempfile.TemporaryDirectory(prefix="headway-benchmark-", dir=arguments.folder) as folder:
            works = [str(arguments.megabytes), str(arguments.rounds), "-" if arguments.no_peers else "peers"]
            found += figures(measured([folder, *works], world_size), world_size)
    show(found, title=f"Checkpoints of {arguments.megabytes} MB", as_json=arguments.json, libraries=LIBRARIES)


def measured(arguments: list[str], world_size: int) -> Times:
    """Run the ranks to their end.

    Raises:
        RuntimeError: one failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.checkpoint_work", *arguments],
            env={**environment, "RANK": str(rank), "WORLD_SIZE": str(world_size)},
            stdout=subprocess.PIPE,
        )
        for rank in range(world_size)
    ]
    message = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"ranks ended with {[rank.returncode for rank in ranks]}")
    times: Times = json.loads(message[0])
    return times


def figures(times: Times, world_size: int) -> list[Figure]:
    """Medians over the rounds of what each took in relation to the raw write, or cold read, of its own round."""
    ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"

    def ratio(method: str, phase: str, *, to: str = "raw", rounds: slice = slice(1, None)) -> float:
        pairs = zip(times[method][rounds], times[to][rounds], strict=True)
        return statistics.median(own[phase] / other["durable"] for own, other in pairs)

    raw, cold = f"raw write and fsync, {ranks}", f"cold read, {ranks}"
    found = [
        Figure(name=raw, value=statistics.median(each["durable"] for each in times["raw"][1:]), unit="s"),
        Figure(
            name=f"raw write over an old file and fsync, {ranks}", value=ratio("raw over old", "durable"), ratio_to=raw
        ),
        Figure(
            name=f"stall, {ranks}",
            value=ratio(BESIDE, "stall"),
            ratio_to=raw,
            target=STALL if world_size == 1 else "",
        ),
        Figure(name=f"stall, of it the update's wait, {ranks}", value=ratio(BESIDE, "wait"), ratio_to=raw),
        Figure(name=f"lost, {ranks}", value=ratio(BESIDE, "lost"), ratio_to=raw),
        Figure(
            name=f"a step beside it, {ranks}",
            value=statistics.median(each["beside"] / each["alone"] for each in times[BESIDE][1:]),
            ratio_to=f"the step alone, {ranks}",
        ),
        Figure(name=f"durable, {ranks}", value=ratio("headway", "durable"), ratio_to=raw, target=DURABLE),
        Figure(name=f"durable beside a step, {ranks}", value=ratio(BESIDE, "durable"), ratio_to=raw),
        Figure(name=f"durable in new files, {ranks}", value=ratio("headway, new", "durable"), ratio_to=raw),
        Figure(
            name=f"first stall, {ranks}",
            value=ratio(BESIDE, "stall", rounds=slice(0, 1)),
            ratio_to=raw,
        ),
        Figure(
            name=f"verify with XXH3-128, written by {ranks}",
            value=ratio("verify", "durable", to="cold read"),
            ratio_to=cold,
        ),
        Figure(
            name=f"read with BLAKE3, written by {ranks}",
            value=ratio("cold read", "blake3", to="cold read"),
            ratio_to=cold,
        ),
    ]
    for method in ("torch.save", "dcp.save", "dcp.async_save"):
        for phase in ("stall", "durable") if method in times else ():
            if phase in times[method][0]:
                found.append(Figure(name=f"{method}: {phase}, {ranks}", value=ratio(method, phase), ratio_to=raw))
    return found


if __name__ == "__main__":
    main()
