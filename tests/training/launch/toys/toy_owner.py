"""A process that owns a run of toy workers, to be killed by a test."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from toy_agent import toy_argv

import headway.training.launch.hosts.owned
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.node.forked_guards import forking
from headway.training.launch.supervise.supervisor import supervise
from headway.training.observe.ledger import Ledger


def main(run_dir: str, spec: str, agents: str, *arguments: str) -> None:
    if agents == "toys":
        headway.training.launch.hosts.owned.agent_argv = toy_argv
    gang = Gang(
        module="toy_worker",
        arguments=("--run-dir", run_dir, *arguments),
        nodes=2,
        ranks_per_node=1,
        import_path=(str(Path(__file__).parent),),
        run_dir=Path(run_dir),
    )
    ledger = Ledger(Path(run_dir) / "owner.jsonl")
    with forking() if agents == "forks" else contextlib.nullcontext():
        supervise(LaunchSpec(**json.loads(spec)), gang, ledger=ledger, budget_scope="one", poll=lambda: None)


if __name__ == "__main__":
    main(*sys.argv[1:])
