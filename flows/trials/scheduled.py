"""A search by schedule: in a period's first window, once its retrain is done; later windows continue it.

The retrain comes first, so that a search of many nights keeps no night's model back.
"""

from __future__ import annotations

import datetime
import time
from typing import NamedTuple
from zoneinfo import ZoneInfo

from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.store.documents import RunSpec, Sha256
from headway.data_contracts.store.errors import RunStopped
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.calendar_periods import bounds_of
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.request import RetrainRequest
from headway.flows.report.summary import RetrainSummary
from headway.flows.run.stages import shards_of_today
from headway.flows.trials.stages import search_and_register
from headway.flows.trials.summary import TrialsSummary
from headway.flows.trials.wanted import wanted_trials
from headway.tasks.core.context import RunContext
from headway.tasks.ownership import current_search
from headway.tasks.ownership.current_run import is_permanent
from headway.tasks.ownership.current_search import Due
from headway.tasks.ownership.pipeline_history import SearchRecord, read
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.trials_spec import DECIDES_NOTHING
from headway.tasks.stages.launch import describe_run, num_training_rows
from headway.tasks.stages.starting_point import checkpoint_today


def settings_of(pipeline: PipelineSpec) -> Sha256:
    """What tells whether a search is still the one that was started."""
    parts = {
        "trials": wanted_trials(pipeline).model_dump(mode="json", exclude=set(DECIDES_NOTHING)),
        "training": pipeline.training.identity,
        "shards": pipeline.shards.identity,
    }
    return sha256_of(parts)


def is_search_due(workspace: Workspace, pipeline: PipelineSpec, request: RetrainRequest) -> bool:
    """Whether the window is to be used for one."""
    return _due(workspace, pipeline, request).what is not None


def search_when_due(run: RunContext, pipeline: PipelineSpec, request: RetrainRequest) -> RetrainSummary | None:
    """Begin or continue the period's search, in what the retrain leaves of the window.

    Returns:
        What came of the winner. None: none is due, or the next window continues it.

    Raises:
        HeadwayError: it failed; what the retrain came to stands.
        RunStopped: a person, or a bound on the cost, stopped it.
    """
    due = _due(run.workspace, pipeline, request)
    if due.what is None:
        return None
    settings, started_unix_s = settings_of(pipeline), time.time()
    run.devices.release()  # each trial takes what it needs
    try:
        started = _started(run, pipeline, due, settings)
        started_unix_s = started.started_unix_s
        made = _searched(run, pipeline, started)
    except RunStopped as stopped:
        if stopped.reason == "requested":
            current_search.end(run.workspace, run.pipeline, started_unix_s, settings, "stopped")
        if stopped.reason != "window closed":
            raise
        # The retrain has come to its end: this is no window in which nothing did.
        run.ledger.event("search.cut", message="the window closes; the next one continues the search")
        return None
    except Exception as error:
        if is_permanent(error):
            current_search.end(run.workspace, run.pipeline, started_unix_s, settings, "failed")
        raise
    end_search(run, pipeline, made, started_unix_s)
    ended = f"; ended by its budget: {made.ended}" if made.ended else ""
    keep = _in_a_line(made.keep)
    run.ledger.event("search.ended", message=f"keep trial {made.trials[0].trial} by {keep}; see {made.report}{ended}")
    return made.best


def end_search(run: RunContext, pipeline: PipelineSpec, made: TrialsSummary, started_unix_s: float) -> None:
    """Write down that it is over, and what is left for a person to do: no search changes a pipeline file."""
    of_file = Configuration(training=pipeline.training, shards=pipeline.shards)
    is_kept = of_file.with_settings(made.trials[0].settings).key() == of_file.key()
    keep = "" if is_kept else _in_a_line(made.keep)
    current_search.end(run.workspace, run.pipeline, started_unix_s, settings_of(pipeline), "ended", keep)


def settings_to_keep(workspace: Workspace, pipeline: PipelineSpec) -> str:
    """What a search found and nobody has written down, as a sentence: a retrain trains with what the file says."""
    search = read(workspace, pipeline.pipeline).search
    if search is None or not search.keep or pipeline.trials is None or search.settings != settings_of(pipeline):
        return ""
    return f"the search of {search.started_at} kept other settings than this file's: {search.keep}"


def _in_a_line(keep: str) -> str:
    return "; ".join(keep.splitlines())


class _DueSearch(NamedTuple):
    what: Due | None
    newest: SearchRecord | None
    """On record, by which it was decided."""


def _due(workspace: Workspace, pipeline: PipelineSpec, request: RetrainRequest) -> _DueSearch:
    trials, windows = pipeline.trials, pipeline.windows
    if trials is None or trials.every is None or windows is None or not request.in_window:
        return _DueSearch(None, None)
    zone = ZoneInfo(windows.time_zone)
    first, _ = bounds_of(trials.every, datetime.datetime.now(zone).date())
    begin = datetime.datetime.combine(first, datetime.time(), zone)
    newest = read(workspace, pipeline.pipeline).search
    return _DueSearch(current_search.due(newest, settings_of(pipeline), begin), newest)


def _started(run: RunContext, pipeline: PipelineSpec, due: _DueSearch, settings: Sha256) -> SearchRecord:
    if due.what == "continue" and due.newest is not None:
        message = f"the search of {due.newest.started_at} is continued, on its own code and data"
        run.ledger.event("search.started", message=message)
        return due.newest
    run.ledger.event("search.started", message="a search begins, in what is left of the window")
    _, receipt, manifest = shards_of_today(run, pipeline)
    # Of the settings of the file: it stands for the code, the environment and the start that all trials have, whenever
    # they train. The retrain of each window may move the alias that the start is named by.
    training = pipeline.training.for_rows(num_training_rows(run, manifest))
    described = describe_run(run, training, manifest).run
    if training.start_from is not None:
        described = described.model_copy(update={"start": checkpoint_today(run, training.start_from)})
    base = run.workspace.publish_document(described)
    started = SearchRecord(
        state="started",
        started_unix_s=time.time(),
        settings=settings,
        receipt=receipt,
        manifest=manifest,
        base=base,
    )
    current_search.begin(run.workspace, run.pipeline, started)
    return started


def _searched(run: RunContext, pipeline: PipelineSpec, started: SearchRecord) -> TrialsSummary:
    assert started.receipt is not None and started.manifest is not None and started.base is not None
    base = run.workspace.load(started.base, RunSpec)
    return search_and_register(run, pipeline, started.receipt, started.manifest, started.started_unix_s, base)
