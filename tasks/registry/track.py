"""Step records to MLflow: in batches, from the flow, behind training's back. A tracking outage stalls nobody."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store.documents import RunSpec
from headway.data_contracts.store.publication import Workspace
from headway.tasks.registry import mlflow_store, tracked_runs
from headway.training.observe.ledger import Event

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

SERIES = (
    *("loss", "lr", "grad_norm", "tokens_per_s", "mfu", "memory_bytes", "sent_bytes"),
    *("duration_s", "data_s", "forward_s", "backward_s", "sync_s", "staging_s", "optimizer_s", "communication_s"),
)
FLUSH_EVERY_S = 5.0
CLOSE_WITHIN_S = 30.0
INTERRUPTED_WITHIN_S = 2.0
"""The same where the flow is to end at once: nothing of it may be there for long."""
SUMMARY = "steps"
"""The event that tells what all steps came to."""
THREAD = "mlflow-series"
MAX_METRICS_PER_BATCH = 1000
"""MLflow's own limit on `log_batch`."""


class SeriesShipper:
    """A thread that ships step records in batches; used as a context manager around training.

    Records of a resumed run that MLflow has already are not sent again. MLflow's run is RUNNING while the thread lives;
    what a killed process left RUNNING on this machine is ended as KILLED by the next that starts, and a run with which
    another machine continues is left to that.
    """

    def __init__(
        self,
        workspace: Workspace,
        tracking_uri: str,
        pipeline: str,
        run: RunSpec,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        self._workspace, self._tracking_uri, self._pipeline, self._run = workspace, tracking_uri, pipeline, run
        self._is_lost = is_lost
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._ends_as = ""
        self._is_waited_for = True
        self._thread = threading.Thread(target=self._ship, name=THREAD, daemon=True)

    def add(self, event: Event) -> None:
        """A step's record, or what all came to: `SUMMARY`."""
        self._queue.put(event)

    def __enter__(self) -> SeriesShipper:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ends_as = "" if self._is_lost() else tracked_runs.ended_as(kind)
        self._queue.put(None)
        # Prefect cancels by an exception that is no `Exception`, and kills the process soon after.
        is_interrupted = kind is not None and not issubclass(kind, Exception)
        self._thread.join(INTERRUPTED_WITHIN_S if is_interrupted else CLOSE_WITHIN_S)
        self._is_waited_for = False

    def _ship(self) -> None:
        try:
            client = mlflow_store.connect(self._tracking_uri)
            record = mlflow_store.find_or_create_run(client, self._workspace, self._pipeline, self._run)
            run_id = record.info.run_id
            tracked_runs.end_killed(self._workspace, client)
            tracked_runs.begin(client, record)
            # Ranks may repeat steps after a restart, and MLflow would draw both points.
            last_step = max((m.step for m in client.get_metric_history(run_id, "loss")), default=-1)
            while True:
                steps, ended = self._collect()
                self._workspace.require_there()  # MLflow would make its database anew in an empty mount point
                last_step = _log_steps(client, run_id, steps, last_step)
                if ended:
                    if self._ends_as:
                        client.set_terminated(run_id, self._ends_as)
                    return
        except Exception as error:
            # The ledger keeps every record; MLflow's copy is a convenience and must not cost the run. What the thread
            # still does after the command's last words, when a rehearsal's folder is gone, is nothing to tell.
            if not self._is_waited_for:
                return
            if self._workspace.lost() is not None:
                return  # nor does the ledger keep them then; the flow ends of it and says so, once
            message = str(error).partition("\n")[0]
            log.warning("MLflow takes no series, the ledger keeps them: %s", message or type(error).__name__)

    def _collect(self) -> tuple[list[Event], bool]:
        """What arrived within the flush interval, and whether that was the last of it."""
        with contextlib.suppress(queue.Empty):
            steps: list[Event] = []
            while True:
                # The first step is waited for long; those that follow close on it are sent in the same request.
                item = self._queue.get(timeout=FLUSH_EVERY_S if not steps else 0.5)
                if item is None:
                    return steps, True
                steps.append(item)
                if len(steps) * len(SERIES) >= MAX_METRICS_PER_BATCH:
                    break
        return steps, False


def summary_metrics(summary: Event) -> dict[str, float]:
    """Percentiles over all steps, such as `sync_s_p95`, and bytes by kind of collective, such as `sent_bytes_send`."""
    percentiles = {
        "duration_s": {name: summary[f"{name}_s"] for name in ("p50", "p95", "p99")},
        **{f"{part}_s": values for part, values in summary["parts_s"].items()},
        "grad_norm": summary["grad_norm"] or {},
    }
    traffic = {f"sent_bytes_{kind}": float(cost["sent_bytes"]) for kind, cost in summary["traffic"].items()}
    return traffic | {
        f"{name}_{percentile}": float(value)
        for name, values in percentiles.items()
        for percentile, value in values.items()
    }


def _log_steps(client: MlflowClient, run_id: str, steps: list[Event], last_step: int) -> int:
    from mlflow.entities import Metric

    metrics: list[Any] = []
    for event in steps:
        if event["event"] == SUMMARY:
            millis, step = int(event["unix_s"] * 1000), max(last_step, 0)
            metrics += [Metric(name, value, millis, step) for name, value in summary_metrics(event).items()]
            continue
        step = int(event["step"])
        if step <= last_step:
            continue
        last_step = step
        values = {**event, "tokens_per_s": event["tokens"] / max(event["duration_s"], 1e-9)}
        millis = int(event["unix_s"] * 1000)
        metrics += [Metric(name, float(values[name]), millis, step) for name in SERIES if name in values]
    for start in range(0, len(metrics), MAX_METRICS_PER_BATCH):
        client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS_PER_BATCH])
    return last_step
