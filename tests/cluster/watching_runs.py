"""A process that has toy workers run as elements of a scheduler's array and watches them; to be killed by a test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headway.data_contracts.store.errors import HeadwayError
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.jobs.follow import follow_all
from headway.training.launch.supervise.launchers import scheduler_for
from headway.training.observe.ledger import Ledger
from tests.cluster.detached_run import TOYS


def main(spec: str, folders: str, *arguments: str) -> int:
    launch, run_dirs = LaunchSpec.model_validate_json(spec), [Path(folder) for folder in json.loads(folders)]
    gangs = [
        Gang(
            module="toy_worker",
            arguments=("--run-dir", str(run_dir), *arguments),
            nodes=1,
            ranks_per_node=1,
            import_path=(str(TOYS),),
            run_dir=run_dir,
        )
        for run_dir in run_dirs
    ]
    ledger, scheduler = Ledger(run_dirs[0] / "owner.jsonl"), scheduler_for(launch)
    watched = [(gang, lambda: None) for gang in gangs]
    try:
        follow_all(scheduler, launch, watched, ledger=ledger, budget_scope="one", at_once=2)
    except HeadwayError as error:
        print(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
