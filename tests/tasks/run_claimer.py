"""A process that has a run, as a flow does, on a machine of its own: that of its HEADWAY_LOCAL.

    python run_claimer.py WORKSPACE FOLDER LEASE_S [UNTIL]

It says `owner` once it has the run, and at the end the class of what ended it. With UNTIL it trains toy workers until
that file is there; else it says, whenever it is asked by a line, whether the run is still its own, and ends in order
with its standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

import training.launch.owned
from data_contracts.digest_cache import DigestCache
from data_contracts.documents import Link
from data_contracts.errors import HeadwayError
from data_contracts.publication import Workspace
from tasks.context import RunContext
from tasks.gangs import run_to_its_end
from tasks.run_claims import claimed_run
from tests.training.launch.toys import toy_agent
from training.checkpoint.layout import run_folder
from training.launch.spec import Gang, LaunchSpec
from training.ledger import Ledger

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
        with claimed_run(context, RUN, spec) as claim:
            print("owner", flush=True)
            for _ in () if until else sys.stdin:
                claim.require()
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
                with claim.telling_who_has_it():
                    run_to_its_end(context, spec, gang, claim.stop_if_lost)
    except HeadwayError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return error.exit_code
    print("over", flush=True)
    return 0


if __name__ == "__main__":
    training.launch.owned.agent_argv = toy_agent.toy_argv
    sys.exit(main(*sys.argv[1:]))
