"""Short trials of what moves no bit, by the ranks that would train: step times, and what a save costs.

A gang of its own runs `python -m headway.training.programs.tuning`. Settings take turns within each round, in an order
that moves on, so that a machine that slows down slows all of them down. Each trial begins from the same weights and
makes the same steps; the digest of what comes out tells whether a setting moved a bit after all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from headway.training.launch.node.rank_process import arm
from headway.training.observe.process_ends import leave, record_imports
from headway.training.programs.tuning_request import ANSWER_NAME, MODULE, REQUEST_NAME, TuningRequest


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--workspace", required=True, metavar="URI")
    parser.add_argument("--run-spec", required=True, dest="run", metavar="SHA256")
    parser.add_argument("--run-dir", required=True, metavar="DIR", type=Path)
    arguments = parser.parse_args()
    rank = arm(arguments.run_dir / "attempt")
    with rank.outcome(), rank.expendable():
        with record_imports(rank.ledger):
            from headway.data_contracts.store.documents import Link
            from headway.data_contracts.store.publication import Workspace
            from headway.training.programs.tuning_trials import measure
        request = TuningRequest.model_validate_json((arguments.run_dir / REQUEST_NAME).read_bytes())
        run = Link(kind="run", sha256=arguments.run)
        answer = measure(rank, Workspace(arguments.workspace), run, arguments.run_dir, request)
        if rank.rank == 0:
            Workspace(str(arguments.run_dir)).publish_json(ANSWER_NAME, answer.model_dump(mode="json"))
    leave()


if __name__ == "__main__":
    main()
