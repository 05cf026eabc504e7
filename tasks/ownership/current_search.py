"""The search that a pipeline is at: begun by its schedule, ended; an event of the pipeline's history each.

One that a window cut is finished in the next windows, on the data and the code that it began with: else a pipeline
whose data change daily would start its trials anew in every window.
"""

from __future__ import annotations

import datetime
from typing import Literal

from headway.data_contracts.store.documents import Sha256
from headway.data_contracts.store.publication import Workspace
from headway.tasks.ownership.pipeline_history import PipelineEvent, SearchRecord, SearchState, append

Due = Literal["begin", "continue"]


def due(newest: SearchRecord | None, settings: Sha256, period_start: datetime.datetime) -> Due | None:
    """What a window has to do about searches; None: nothing before the next period.

    Args:
        newest: the one on record.
        settings: of the pipeline file as it is.
        period_start: when the week, month or quarter of now began.
    """
    if newest is None:
        return "begin"
    is_same = newest.settings == settings
    if newest.state == "started":
        return "continue" if is_same and newest.manifest is not None else "begin"
    # What failed with these settings would fail again in every window; what a person stopped, a person begins again.
    if newest.state == "failed" and not is_same:
        return "begin"
    return "begin" if newest.started_unix_s < period_start.timestamp() else None


def begin(workspace: Workspace, pipeline: str, record: SearchRecord) -> None:
    """Before the first trial trains: should this machine die, the next window knows which search to continue."""
    append(workspace, pipeline, lambda before: _with(before, record), why="search started")


def end(
    workspace: Workspace, pipeline: str, started_unix_s: float, settings: Sha256, state: SearchState, keep: str = ""
) -> None:
    """It is over, and needs its data no more. One that was started since by another flow run goes on."""
    record = SearchRecord(state=state, started_unix_s=started_unix_s, settings=settings, keep=keep)

    def ended(before: PipelineEvent) -> PipelineEvent | None:
        is_newer = before.search is not None and before.search.started_unix_s > started_unix_s
        return None if is_newer else _with(before, record)

    append(workspace, pipeline, ended, why=f"search {state}")


def _with(before: PipelineEvent, record: SearchRecord) -> PipelineEvent:
    # What one search kept stays to be written down until another has come to its end.
    if record.state != "ended" and before.search is not None and before.search.settings == record.settings:
        record = record.model_copy(update={"keep": before.search.keep})
    return before.model_copy(update={"event": "search", "search": record})
