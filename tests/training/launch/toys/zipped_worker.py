"""Says where its imports came from."""

from __future__ import annotations

import sys
from pathlib import Path

import training.launch.rank
from data_contracts import errors

if __name__ == "__main__":
    rank = training.launch.rank.arm(Path(sys.argv[-1]))
    with rank.outcome():
        rank.mark("running", what=f"{training.launch.rank.__file__} {errors.__file__} {__file__}")
