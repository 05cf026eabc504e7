"""A search in MLflow: a run that stands for it, above those of its trials, which MLflow shows folded below it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.store.documents import Link, RunSpec
from headway.tasks.core import identity
from headway.tasks.core.context import RunContext
from headway.tasks.registry import mlflow_store
from headway.tasks.search.trials_spec import DECIDES_NOTHING, TrialsSpec
from headway.tasks.search.values import Settings
from headway.training.config.training_spec import TrainingSpec

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run, RunInfo

log = logging.getLogger(__name__)

SEARCH_TAG, PARENT_TAG = "headway.search", "mlflow.parentRunId"
GOES_ON = "SCHEDULED"
"""MLflow's status of a search between two rungs: none of MLflow's words says that the same command continues it."""


class TrialFigures(NamedTuple):
    """What a trial has come to."""

    run: RunSpec
    by_step: Mapping[int, float]
    """On the examples that rank."""
    of_shards: Settings
    """Its settings of shards, which its run names by their manifest alone."""


class TrackedSearch:
    """MLflow's copy of a search; an outage costs it and nothing else.

    Args:
        training, manifest: what trials have in common: the same search of the same data is one run.
    """

    def __init__(
        self, context: RunContext, spec: TrialsSpec, training: TrainingSpec, manifest: Link, tracking_uri: str
    ) -> None:
        self._context, self._spec, self._uri = context, spec, tracking_uri
        parts = {
            "trials": spec.model_dump(mode="json", exclude=set(DECIDES_NOTHING)),
            "training": training.identity,
            "manifest": manifest.sha256,
        }
        self._key = sha256_of(parts)
        self._client: MlflowClient | None = None
        self._run: Run | None = None
        self._logged: dict[str, set[int]] = {}
        """By the digest of a trial's run: rungs whose figures MLflow has."""
        self._records: dict[str, RunInfo] = {}
        """By the same: MLflow's run of it."""
        self._best: float | None = None
        """That was last written down: a rung where none comes to its end finds no other."""
        self._status = ""
        """That was last given to the search's own run."""
        self._is_off = False

    def log(
        self,
        metric: str,
        figures: Mapping[str, TrialFigures],
        best: float | None,
        num_steps: int,
        *,
        is_over: bool,
    ) -> None:
        """What the search has come to.

        Args:
            figures: of each trial, by its name.
            best: of those at their ends; None: none is.
            num_steps: of all trials.
            is_over: whether nothing is left to be tried.
        """
        if self._is_off:
            return
        try:
            client, parent = self._client_and_run()
            self._find_records(client, [each.run for each in figures.values()])
            for name, each in figures.items():
                self._log_trial(client, parent, name, metric, each)
            if best is not None and (is_over or best != self._best):
                self._best = best
                # By steps, so that the chart says what more of them brought; with the same time again, it is one point.
                millis = parent.info.start_time
                client.log_metric(parent.info.run_id, f"best/{metric}", best, timestamp=millis, step=num_steps)
            if is_over:
                client.set_terminated(parent.info.run_id, "FINISHED")  # with its end
            elif self._status != GOES_ON:
                client.update_run(parent.info.run_id, status=GOES_ON)
                self._status = GOES_ON
        except Exception as error:
            # The ledger and the report have all of it; a search of days is not to end for a copy.
            self._is_off = True
            message = str(error).partition("\n")[0]
            log.warning("MLflow does not show the search: %s", message or type(error).__name__)

    def _client_and_run(self) -> tuple[MlflowClient, Run]:
        if self._client is None:
            self._client = mlflow_store.connect(self._uri)
        if self._run is None:
            self._run = self._find_or_create(self._client)
        return self._client, self._run

    def _find_or_create(self, client: MlflowClient) -> Run:
        pipeline = self._context.pipeline
        experiment_id = mlflow_store.find_or_create_experiment(client, self._context.workspace, pipeline)
        found = client.search_runs([experiment_id], f"tags.`{SEARCH_TAG}` = '{self._key}'", max_results=1)
        if found:
            return found[0]
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        tags = {
            SEARCH_TAG: self._key,
            "headway.pipeline": pipeline,
            "mlflow.user": identity.current_user(),
            "mlflow.source.name": f"headway trials {pipeline}",
            "mlflow.source.type": "JOB",
        }
        made = client.create_run(experiment_id, run_name=f"{pipeline} search {day} {self._key[:8]}", tags=tags)
        client.log_batch(
            made.info.run_id,
            params=mlflow_store.params_of(client, self._spec.model_dump(mode="json")),
        )
        return made

    def _find_records(self, client: MlflowClient, runs: Sequence[RunSpec]) -> None:
        """All that are new by one question: MLflow's run of each was made as it began to train, a moment ago."""
        if not (missing := {run.sha256 for run in runs} - self._records.keys()):
            return
        workspace, pipeline = self._context.workspace, self._context.pipeline
        experiment_id = mlflow_store.find_or_create_experiment(client, workspace, pipeline)
        newest = client.search_runs([experiment_id], order_by=["start_time DESC"], max_results=len(missing) + 1)
        for record in newest:
            if (sha256 := record.data.tags.get(mlflow_store.RUN_TAG)) in missing:
                self._records[sha256] = record.info

    def _log_trial(
        self,
        client: MlflowClient,
        parent: Run,
        name: str,
        metric: str,
        figures: TrialFigures,
    ) -> None:
        from mlflow.entities import Metric, RunTag

        run, by_step = figures.run, figures.by_step
        logged = self._logged.get(run.sha256)
        new = by_step.keys() - (logged or ())
        if logged is not None and not new:
            return
        if (record := self._records.get(run.sha256)) is None:
            pipeline = self._context.pipeline
            record = mlflow_store.find_or_create_run(client, self._context.workspace, pipeline, run, name).info
            self._records[run.sha256] = record
        is_first = logged is None
        # All at once: each call is a transaction, and waits for the disk.
        client.log_batch(
            record.run_id,
            metrics=[Metric(f"ranking/{metric}", by_step[step], record.start_time, step) for step in sorted(new)],
            # Those of training are parameters of every run.
            params=mlflow_store.params_of(client, figures.of_shards) if is_first else [],
            tags=[RunTag(PARENT_TAG, parent.info.run_id)] if is_first else [],
        )
        self._logged[run.sha256] = (logged or set()) | new
