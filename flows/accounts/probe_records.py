"""What came of each probe: a small document in the workspace that it was made for, beside those of the ones before."""

from __future__ import annotations

import contextlib
import datetime
import time

from pydantic import BaseModel, ValidationError

from headway.data_contracts.store.errors import HeadwayError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.strict_json import parse_json
from headway.flows.accounts.figures import Amount, Moment, Text

FOLDER = "probe-records"
KEPT = 100
"""Records of a launcher that stay, the newest."""
FORMAT_VERSION = 1
LATE_INTERVALS, LATE_SLACK_S = 2, 600
"""A probe is late once so many intervals, and so much more, have passed since the end of the one before."""


class ProbeRecord(BaseModel):
    """One probe, and when one last succeeded."""

    format_version: int = FORMAT_VERSION
    launcher: Text
    host: Text
    flow_run: Text
    """Empty: its retrain had not begun."""
    begin_unix_s: Moment
    end_unix_s: Moment
    interval_s: Amount
    """Until the next one is due."""
    has_succeeded: bool
    stage: Text = ""
    """The one that failed."""
    cause: Text = ""
    message: Text = ""
    last_success_unix_s: Moment | None
    """None: there was none yet."""

    def is_late(self, now_unix_s: float) -> bool:
        """Whether another one should have ended since."""
        return now_unix_s - self.end_unix_s > LATE_INTERVALS * self.interval_s + LATE_SLACK_S


def newest_probes(workspace: Workspace) -> list[ProbeRecord]:
    """Of each launcher the newest that can be read, by name."""
    found = (newest_probe(workspace, launcher) for launcher in sorted(workspace.names(FOLDER)))
    return [record for record in found if record is not None]


def newest_probe(workspace: Workspace, launcher: str) -> ProbeRecord | None:
    """None: there is none. One that is damaged, or not of its name's moment, hides none of the others.

    Nor does one that is still to come, which a clock that was wrong once, or a copied file, leaves behind for years.
    """
    latest_unix_s = time.time() + LATE_SLACK_S
    for name in _names(workspace, launcher):
        with contextlib.suppress(HeadwayError, ValidationError, ValueError):
            data = workspace.read_if_there(f"{FOLDER}/{launcher}/{name}")
            if data is not None:
                record = ProbeRecord.model_validate(parse_json(data))
                is_its_own = (record.format_version, record.launcher) == (FORMAT_VERSION, launcher)
                if is_its_own and name == _name(record) and record.end_unix_s <= latest_unix_s:
                    return record
    return None


def keep_probe(workspace: Workspace, record: ProbeRecord) -> None:
    """Write it down, and let go of what is older than the newest `KEPT` of its launcher.

    Raises:
        EnvironmentProblem: the workspace cannot be written.
    """
    folder, own = f"{FOLDER}/{record.launcher}", _name(record)
    workspace.publish_json(f"{folder}/{own}", record.model_dump(mode="json"))
    # Of this one and those before it: names of moments to come must not push out what has just been written.
    for name in [each for each in _names(workspace, record.launcher) if each <= own][KEPT:]:
        workspace.remove(f"{folder}/{name}")


def _name(record: ProbeRecord) -> str:
    """The file of a record."""
    moment = datetime.datetime.fromtimestamp(record.end_unix_s, datetime.UTC)
    return f"{moment:%Y%m%dT%H%M%S%fZ}.json"


def _names(workspace: Workspace, launcher: str) -> list[str]:
    """The newest first: names are moments."""
    return sorted((name for name in workspace.names(f"{FOLDER}/{launcher}") if name.endswith(".json")), reverse=True)
