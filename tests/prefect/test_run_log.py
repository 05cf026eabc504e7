"""What the page of a flow run in Prefect says of a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOY = Path(__file__).parent / "toys" / "refused.py"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("has a cause",)])
def test_the_log_of_a_refused_run_holds_the_card_and_no_traceback_unless_another_error_is_behind_it(
    service: Any, arguments: tuple[str, ...]
) -> None:
    before = {run["id"] for run in service.api("flow_runs/filter", {})}
    subprocess.run((sys.executable, str(TOY), *arguments), env=service.environment, capture_output=True, timeout=300)
    (run,) = (run["id"] for run in service.api("flow_runs/filter", {}) if run["id"] not in before)
    logs = service.api("logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC"})
    said = "\n".join(log["message"] for log in logs)
    assert "# tiny failed in stage snapshot" in said and "**Mend the file.**" in said
    assert "DataError" in said
    assert ("Traceback" in said) == bool(arguments)
