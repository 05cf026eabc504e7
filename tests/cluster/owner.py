"""A process that owns a run of toy workers, or watches the job that does; to be run on a host of a test.

python -m tests.cluster.owner RUN_DIR SPEC_JSON NODES real|toys MODULE WORDS...
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from headway.data_contracts.store.errors import HeadwayError
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.diagnosis.outcome import AttemptOutcome
from headway.training.launch.jobs.follow import follow
from headway.training.launch.supervise.launchers import scheduler_for
from headway.training.launch.supervise.supervisor import supervise
from headway.training.observe.ledger import Ledger, read_events
from tests.cluster.toys import start_toy_agents

TOYS = Path(__file__).parents[1] / "training" / "launch" / "toys"


def newest_step(run_dir: Path) -> int | None:
    for attempt in sorted((run_dir / "attempts").glob("*"), reverse=True):
        spools = attempt.glob("ledger/rank-*.jsonl")
        if steps := [event["step"] for spool in spools for event in read_events(spool) if event["event"] == "step"]:
            return max(steps)
    return None


def main(run_dir: Path, spec: str, nodes: str, agents: str, module: str, *words: str) -> int:
    if agents == "toys":
        start_toy_agents()
    launch, ledger = LaunchSpec(**json.loads(spec)), Ledger(run_dir / "owner.jsonl")
    gang = Gang(
        module=module,
        arguments=("--run-dir", str(run_dir), *words),
        nodes=int(nodes),
        ranks_per_node=launch.ranks_per_node,
        import_path=(str(TOYS),),
        run_dir=run_dir,
    )

    def poll() -> int | None:
        return newest_step(run_dir)

    try:
        if launch.is_detached:
            follow(scheduler_for(launch), launch, gang, ledger=ledger, budget_scope="one", poll=poll)
            outcome = AttemptOutcome(state="done")
        else:
            outcome = supervise(launch, gang, ledger=ledger, budget_scope="one", poll=poll)
    except HeadwayError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return error.exit_code
    print(json.dumps(asdict(outcome)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
