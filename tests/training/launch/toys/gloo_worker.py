"""A worker that meets its peers in a real gloo all-reduce at every step."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

from headway.training.launch.node.rank_process import RankProcess, arm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--trouble", type=json.loads, default={})
    arguments = parser.parse_args()
    rank = arm(arguments.run_dir / "by-hand")
    with rank.outcome():
        train(rank, arguments)


def train(rank: RankProcess, arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    for step in range(1, arguments.steps + 1):
        total = torch.ones(4)
        dist.all_reduce(total)
        assert total[0] == rank.world_size
        rank.ledger.event("step", step=step)
        trouble = arguments.trouble
        if (trouble.get("rank"), trouble.get("attempt"), trouble.get("step")) == (rank.rank, rank.attempt, step):
            if trouble["kind"] == "kill":
                time.sleep(0.5)  # the peers are well inside the next all-reduce
                os.kill(os.getpid(), signal.SIGKILL)
            oversleep()
    dist.destroy_process_group()


def oversleep() -> None:
    time.sleep(1000)


if __name__ == "__main__":
    main()
