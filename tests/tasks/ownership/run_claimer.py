"""A process that has a run, as a flow does, on a machine of its own: that of its HEADWAY_LOCAL.

    python run_claimer.py WORKSPACE FOLDER LEASE_S [UNTIL]

It says `owner` once it has the run, and at the end the class of what ended it. With UNTIL it trains toy workers until
that file is there; else it says, whenever it is asked by a line, whether the run is still its own, and ends in order
with its standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

import headway.training.launch.hosts.owned
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import HeadwayError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.tasks.core.context import RunContext
from headway.tasks.core.gangs import run_to_completion
from headway.tasks.ownership.run_lease import leased_run
from headway.training.checkpoint.layout import run_folder
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.observe.ledger import Ledger
from tests.training.launch.toys import toy_agent

RUN = Link(kind="run", sha256="7" * 64)


def main(uri: str, folder: str, lease_s: str, *until: str) -> int:
    workspace, spec = Workspace(uri), LaunchSpec(nodes=1, owner_lease_s=float(lease_s))
    context = RunContext(
        pipeline="tiny",
        workspace=workspace,
        base=Path(folder),
        ledger=Ledger(Path(folder) / "ledger.jsonl"),
        digests=DigestCache(Path(folder) / "digests.json"),
        scratch=Path(folder),
        budget_scope="one",
    )
    run_dir = workspace.local_path(run_folder(RUN))
    try:
        with leased_run(context, RUN, spec) as lease:
            print("owner", flush=True)
            for _ in () if until else sys.stdin:
                lease.require()
                print("owner", flush=True)
            if until:
                arguments = ("--run-dir", str(run_dir), "--until", until[0])
                gang = Gang(
                    module="toy_worker",
                    arguments=arguments,
                    nodes=1,
                    ranks_per_node=1,
                    import_path=(str(Path(toy_agent.__file__).parent),),
                    run_dir=run_dir,
                )
                with lease.naming_the_owner():
                    run_to_completion(context, spec, gang, lease.stop_if_lost)
    except HeadwayError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return error.exit_code
    print("over", flush=True)
    return 0


if __name__ == "__main__":
    headway.training.launch.hosts.owned.agent_argv = toy_agent.toy_argv
    sys.exit(main(*sys.argv[1:]))
