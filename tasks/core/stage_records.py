"""The stages of a retrain, and what they left behind, by when they did."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.stages import StageRecord, parse_record
from headway.data_contracts.store.strict_json import MAX_RECORD_BYTES

STAGES = ("snapshot", "validate", "shard", "launch", "verify", "folds", "evaluate", "register")
"""In the order in which they run; `folds` where a pipeline asks for cross-validation alone."""


def newest_record(
    workspace: Workspace, stage: str, is_wanted: Callable[[StageRecord], bool] = lambda _: True
) -> StageRecord | None:
    """The wanted record made last; one that cannot be read, or does not say when, is passed over."""
    records = []
    for name in workspace.names(f"stages/{stage}"):
        with contextlib.suppress(IntegrityError):
            where = f"stages/{stage}/{name}"
            record = parse_record(workspace.read(where, MAX_RECORD_BYTES), where)
            numbers = {key: value for key, value in record.provenance.items() if key != "pipeline"}
            # Nothing else looks at them: provenance is no part of a key.
            is_usable = all(isinstance(number, float) for number in numbers.values())
            if is_usable and {"unix_s", "duration_s"} <= numbers.keys() and is_wanted(record):
                records.append(record)
    return max(records, key=lambda record: float(record.provenance["unix_s"]), default=None)


def newest_record_of(workspace: Workspace, pipeline: str, stage: str) -> StageRecord | None:
    """The record that this pipeline made last: what a stage takes says nothing of another pipeline's."""
    return newest_record(workspace, stage, lambda record: record.provenance.get("pipeline") == pipeline)
