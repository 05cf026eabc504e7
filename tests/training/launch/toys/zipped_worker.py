"""Says where its imports came from."""

from __future__ import annotations

import sys
from pathlib import Path

import headway.training.launch.node.rank_process
from headway.data_contracts.store import errors

if __name__ == "__main__":
    rank = headway.training.launch.node.rank_process.arm(Path(sys.argv[-1]))
    with rank.outcome():
        rank.mark("running", log=f"{headway.training.launch.node.rank_process.__file__} {errors.__file__} {__file__}")
