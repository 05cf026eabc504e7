"""A process that has toy workers run as a scheduler's job and watches them, as a flow does; to be killed by a test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.stop_request import StopRequest
from headway.training.launch.jobs.follow import follow
from headway.training.launch.supervise.launchers import scheduler_for
from headway.training.observe.ledger import Ledger
from tests.cluster.toys import start_toy_agents


def main(spec: str, gang: str, agents: str) -> None:
    if agents == "toys":
        start_toy_agents()
    fields = json.loads(gang)
    run_dir = Path(fields["run_dir"])
    launch = LaunchSpec.model_validate_json(spec)
    follow(
        scheduler_for(launch),
        launch,
        Gang(**fields | {"run_dir": run_dir, "stop": StopRequest(**fields.get("stop", {}))}),
        ledger=Ledger(run_dir / "owner.jsonl"),
        budget_scope="one",
        poll=lambda: None,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
