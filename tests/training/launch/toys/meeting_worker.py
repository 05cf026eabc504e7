"""A worker that meets its peers as real ones do, and again at every step until it is told to end."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from headway.training.launch.node.rank_process import RankProcess, arm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    arguments = parser.parse_args()
    rank = arm(arguments.run_dir / "by-hand")
    with rank.outcome():
        train(rank, arguments.run_dir)


def train(rank: RankProcess, run_dir: Path) -> None:
    import torch

    from headway.training.ranks.distributed import init_process_group

    with init_process_group(rank=rank.rank, world_size=rank.world_size) as gang:
        step, is_over = 0, torch.zeros(1, 1)
        while not gang.gather(is_over).any():
            step += 1
            rank.ledger.event("step", step=step)
            time.sleep(0.05)
            is_over = torch.full((1, 1), float((run_dir / "enough").exists()))


if __name__ == "__main__":
    main()
