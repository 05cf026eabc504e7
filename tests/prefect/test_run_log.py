"""What the page of a flow run in Prefect says of a failure."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import DataError, HeadwayError
from headway.flows.report.run_log import WithoutTraceback
from tests.warm_programs import run_program

TOY = Path(__file__).parent / "toys" / "refused.py"


def test_what_an_error_has_in_its_notes_is_not_lost_with_its_traceback() -> None:
    def says_where(error: HeadwayError) -> bool:
        record = logging.LogRecord("prefect.flow_runs", logging.ERROR, "", 0, "", None, (type(error), error, None))
        return WithoutTraceback().filter(record) and record.exc_info is not None

    error = DataError("no rows.")
    assert not says_where(error)
    error.add_note("Nor could a failure card be written")
    assert says_where(error)


@pytest.mark.parametrize("arguments", [(), ("has a cause",)])
def test_the_log_of_a_refused_run_holds_the_card_and_no_traceback_unless_another_error_is_behind_it(
    service: Any, arguments: tuple[str, ...]
) -> None:
    before = {run["id"] for run in service.api("flow_runs/filter", {})}
    run_program((sys.executable, TOY, *arguments), env=service.environment, timeout=300)
    (run,) = (run["id"] for run in service.api("flow_runs/filter", {}) if run["id"] not in before)
    logs = service.api("logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC"})
    message = "\n".join(log["message"] for log in logs)
    assert "# tiny failed in stage snapshot" in message and "**Mend the file.**" in message
    assert "DataError" in message
    assert ("Traceback" in message) == bool(arguments)
