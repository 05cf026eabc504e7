"""A search's page while it goes on, and where it was stopped or failed: what there is by then, beside the ledger."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from headway.data_contracts.store.documents import Link, ShardManifest
from headway.data_contracts.store.errors import ConfigError, HeadwayError, RunStopped
from headway.flows.accounts.cost import HOUR_S
from headway.flows.accounts.spending import expected_kind
from headway.flows.config.cost_bound import known_prices
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.console.environment import project_folder
from headway.flows.trials.search_page import render_html
from headway.flows.trials.summary import SearchSoFar, SideBySide, TrialRow
from headway.tasks.core.context import RunContext
from headway.tasks.search.budget import spent_by
from headway.tasks.search.earlier_trials import SearchedData
from headway.tasks.search.pace import ProgressReader
from headway.tasks.stages.search import SearchedTrial, SearchResult
from headway.training.checkpoint.layout import run_folder

log = logging.getLogger(__name__)

PAUSE_PER_COST = 400
"""Seconds between two pages, for each that the last one took: what is drawn is to delay no search."""


class LiveReport:
    """
    Args:
        manifest: the shards of the pipeline file's own settings.
        taken_unix_s: when their data were.
    """

    def __init__(
        self,
        context: RunContext,
        pipeline: PipelineSpec,
        manifest: Link,
        taken_unix_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context, self._num_devices = context, pipeline.launch.world_size
        snapshot = context.workspace.load(manifest, ShardManifest).snapshot
        self._data = SearchedData(snapshot=snapshot.sha256, unix_s=taken_unix_s)
        self._usd_per_device_hour = _usd_per_device_hour(context, pipeline)
        self._path = f"ledger/{context.budget_scope}/trials.html"
        self._clock, self._next_s = clock, -1.0
        self._progress_of = ProgressReader(context.budget_scope)
        self._found: SearchResult | None = None
        self._is_announced = False

    @contextlib.contextmanager
    def of_its_end(self) -> Iterator[None]:
        """Where what is done inside ends badly, the page says so."""
        try:
            yield
        except BaseException as error:
            if self._found is not None:
                is_stop = isinstance(error, RunStopped) or not isinstance(error, Exception)
                reason = error.what if isinstance(error, HeadwayError) else type(error).__name__
                self._try_to_publish(self._found, f"{'Stopped' if is_stop else 'Failed'}: {reason}")
            raise

    def observe(self, found: SearchResult) -> None:
        """Whenever trials were ranked. What comes too soon after the last page is drawn with what comes next."""
        self._found = found
        if (began_s := self._clock()) < self._next_s:
            return
        is_published = self._try_to_publish(found, "The search goes on")
        ended_s = self._clock()
        self._next_s = ended_s + PAUSE_PER_COST * (ended_s - began_s)
        if is_published and not self._is_announced:
            self._is_announced = True
            message = f"{self._context.workspace.uri_of(self._path)}, made anew while the search goes on"
            self._context.ledger.event("search.page", message=message)

    def _try_to_publish(self, found: SearchResult, state: str) -> bool:
        try:
            self.publish(self.so_far(found), state)
        except Exception as error:
            # The ledger has all of it; a search of days is not to end for a page.
            log.warning("the page of the search was not written: %s", str(error).partition("\n")[0])
            return False
        return True

    def publish(self, summary: SearchSoFar, state: str = "") -> None:
        """
        Args:
            state: empty: the search came to its end, and whatever goes wrong after that is none of its own.
        """
        self._context.workspace.publish(self._path, render_html(summary, time.time(), state).encode())
        if not state:
            self._found = None

    def so_far(self, found: SearchResult) -> SearchSoFar:
        context, score = self._context, found.score
        runs = [each.run for trial in found.trials for each in (trial.result, *trial.other_seeds)]
        folders = (context.workspace.local_path(run_folder(run)) for run in runs)
        spent = spent_by(map(self._progress_of, folders))
        device_hours = spent.held_s * self._num_devices / HOUR_S
        return SearchSoFar(
            pipeline=context.pipeline,
            data=self._data,
            metric="" if score is None else score.metric,
            greater_is_better=score is not None and score.greater_is_better,
            num_ranking_examples=0 if score is None else score.num_examples,
            levels=list(found.levels),
            trials=[_row(trial, found.levels[-1]) for trial in found.trials],
            warm_start=found.warm_start,
            ended=found.ended,
            steps_spent=found.steps_spent,
            steps_saved=found.steps_of_all - found.steps_spent,
            num_starts=spent.num_starts,
            device_hours=device_hours,
            usd=None if self._usd_per_device_hour is None else device_hours * self._usd_per_device_hour,
            side_by_side=None if found.pace is None else SideBySide(**found.pace._asdict()),
            report=context.workspace.uri_of(self._path),
        )


def _usd_per_device_hour(context: RunContext, pipeline: PipelineSpec) -> float | None:
    """None: no price is known. A search without a bound needs none."""
    with contextlib.suppress(ConfigError):
        if (prices := known_prices(project_folder())) is not None:
            is_here = pipeline.launch.launcher == "local"
            return prices.price_of(expected_kind(context.workspace, context.pipeline, is_here=is_here))
    return None


def _row(trial: SearchedTrial, end: int) -> TrialRow:
    result = trial.result
    row = TrialRow(
        trial=result.trial.number,
        settings=result.trial.settings,
        run=result.run.sha256[:16],
        round=trial.round,
        steps=trial.steps,
        rungs={step: figure.value for step, figure in trial.figures.items()},
        later=trial.later,
        other_seeds={
            each.trial.training.seed: None if each.score is None else each.score.figure.value
            for each in trial.other_seeds
        },
    )
    if result.error is not None:
        return row.model_copy(update={"cause": result.error.cause, "what": result.error.what})
    # Without rungs there is one level, whatever the lengths of the runs.
    if (figure := trial.figures.get(end)) is None:
        return row
    return row.model_copy(update={"value": figure.value, "low": figure.low, "high": figure.high})
