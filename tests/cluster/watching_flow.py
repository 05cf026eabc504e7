"""A process that has toy workers run as a Slurm job and watches them, as a flow does; to be killed by a test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from training.launch.follow import follow
from training.launch.slurm import Slurm
from training.launch.spec import Gang, LaunchSpec
from training.ledger import Ledger


def main(spec: str, gang: str) -> None:
    fields = json.loads(gang)
    run_dir = Path(fields["run_dir"])
    follow(
        Slurm(),
        LaunchSpec.model_validate_json(spec),
        Gang(**fields | {"run_dir": run_dir}),
        ledger=Ledger(run_dir / "owner.jsonl"),
        budget_scope="one",
        poll=lambda: None,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
