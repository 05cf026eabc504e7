"""A rank: `python -m headway.training.programs.worker --workspace URI --run-spec SHA256 --run-dir DIR`."""

from __future__ import annotations

import argparse
from pathlib import Path

from headway.training.launch.node.rank_process import RankProcess, arm
from headway.training.observe.process_ends import leave, record_imports


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m headway.training.programs.worker", description=__doc__)
    parser.add_argument("--workspace", required=True, metavar="URI")
    parser.add_argument(
        "--run-spec", required=True, dest="run", metavar="SHA256", help="digest of the RunSpec document"
    )
    parser.add_argument("--run-dir", required=True, metavar="DIR", type=Path)
    arguments = parser.parse_args()
    # Before torch is imported: from here on this process dies with its owner and receives SIGTERM.
    rank = arm(arguments.run_dir / "attempts" / "000")
    with rank.outcome(), rank.expendable():
        _train(rank, arguments)
    leave()


def _train(rank: RankProcess, arguments: argparse.Namespace) -> None:
    with record_imports(rank.ledger):
        from headway.data_contracts.store.documents import Link
        from headway.data_contracts.store.publication import Workspace
        from headway.training.programs.session import train_run
    train_run(rank, Workspace(arguments.workspace), Link(kind="run", sha256=arguments.run), arguments.run_dir)


if __name__ == "__main__":
    main()
