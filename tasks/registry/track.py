"""Step records to MLflow: in batches, from the flow, behind training's back. A tracking outage stalls nobody."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store import plain_text
from headway.data_contracts.store.documents import RunSpec
from headway.data_contracts.store.publication import Workspace
from headway.tasks.registry import mlflow_store, tracked_runs
from headway.tasks.tracking.system_metrics import SystemMetrics
from headway.training.observe.ledger import Event
from headway.training.observe.step_summary import Percentiles, StepSummary

if TYPE_CHECKING:
    from headway.tasks.registry.mlflow_store import Client

log = logging.getLogger(__name__)

OF_TRAINING = (
    *("loss", "rmse", "lr", "grad_norm", "gradient_noise_scale", "batch_rows", "mfu", "memory_bytes", "sent_bytes"),
)
OF_TIME = ("data_s", "forward_s", "backward_s", "sync_s", "staging_s", "optimizer_s", "communication_s")
SERIES = {
    **{name: f"train/{name}" for name in OF_TRAINING},
    "duration_s": "time/step_s",
    **{name: f"time/{name}" for name in OF_TIME},
}
"""MLflow's name of each series of steps, by the ledger's field. MLflow puts charts of one prefix together."""
OF_EACH_STEP = SERIES["duration_s"]
FLUSH_EVERY_S = 5.0
SAMPLE_EVERY_S = 10.0
"""As MLflow's own."""
CLOSE_WITHIN_S = 30.0
INTERRUPTED_WITHIN_S = 2.0
"""The same where the flow is to end at once: nothing of it may be there for long."""
SUMMARY = "steps"
"""The event that tells what all steps came to."""
THREAD = "mlflow-series"
MAX_METRICS_PER_BATCH = 1000
"""MLflow's own limit on `log_batch`."""


class SystemSamples:
    """How busy this machine is while it trains, as MLflow shows it: below `system/`.

    MLflow's own thread for that asks the store for the run at every sample, and waits for it as long as it likes.
    """

    def __init__(self, started_unix_s: float, metric: Callable[[str, float, int, int], Any]) -> None:
        """Args:
        started_unix_s: of MLflow's run, so that the samples of a resumed one follow those before.
        metric: makes one as the client takes it.
        """
        self._metrics, self._metric = SystemMetrics(), metric
        self._started_unix_s, self._last_unix_s = started_unix_s, time.time()
        self._held: list[Any] | None = []

    def take(self) -> list[Any]:
        """Metrics of a sample that is due; the first waits for the second, since one point is no series."""
        now_unix_s = time.time()
        if now_unix_s - self._last_unix_s < SAMPLE_EVERY_S:
            return []
        self._last_unix_s = now_unix_s
        step = max(0, int((now_unix_s - self._started_unix_s) / SAMPLE_EVERY_S))
        named = self._metrics.sample().items()
        made = [self._metric(f"system/{name}", float(value), int(now_unix_s * 1000), step) for name, value in named]
        if self._held == []:
            self._held = made
            return []
        made, self._held = [*(self._held or ()), *made], None
        return made


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
        *,
        targets: str = "tokens",
        trial: str = "",
        is_here: bool = True,
    ) -> None:
        """Args:
        targets: what steps are counted in: tokens, or examples.
        trial: its name, where a flow run trains several runs.
        is_here: this machine trains, and is looked at.
        """
        self._workspace, self._tracking_uri, self._pipeline, self._run = workspace, tracking_uri, pipeline, run
        self._is_lost, self._targets, self._trial, self._is_here = is_lost, targets, trial, is_here
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
            with mlflow_store.opened(self._workspace, self._tracking_uri) as client:
                self._ship_to(client)
        except Exception as error:
            # The ledger keeps every record; MLflow's copy is a convenience and must not cost the run. What the thread
            # still does after the command's last words, when a rehearsal's folder is gone, is nothing to tell.
            if not self._is_waited_for:
                return
            if self._workspace.lost() is not None:
                return  # nor does the ledger keep them then; the flow ends of it and says so, once
            message = str(error).partition("\n")[0]
            log.warning("MLflow takes no series, the ledger keeps them: %s", message or type(error).__name__)

    def _ship_to(self, client: Client) -> None:
        record = mlflow_store.find_or_create_run(client, self._workspace, self._pipeline, self._run, self._trial)
        run_id, metric = record.info.run_id, mlflow_store.entities_of(client).Metric
        tracked_runs.end_killed(self._workspace, client)
        tracked_runs.begin(client, run_id)
        logged = _Logged(client, run_id)
        samples = SystemSamples(record.info.start_time / 1000, metric) if self._is_here else None
        while True:
            steps, ended = self._collect()
            self._workspace.require_there()  # MLflow would make its database anew in an empty mount point
            _log_steps(client, run_id, steps, logged, self._targets)
            if samples is not None and (taken := samples.take()):
                client.log_batch(run_id, metrics=taken)
            if ended:
                if self._ends_as:
                    client.set_terminated(run_id, self._ends_as)
                return

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
                if len(steps) * (len(SERIES) + 1) >= MAX_METRICS_PER_BATCH:
                    break
        return steps, False


def steps_in_words(summary: Event, targets: str) -> str:
    """What all steps came to, in Markdown for the run's page: of one point MLflow would draw a chart.

    A row for each part's percentiles, and one for the bytes of each kind of collective.
    """
    made = StepSummary.model_validate({name: summary[name] for name in StepSummary.model_fields})
    percentiles = {
        "step, s": Percentiles(p50=made.p50_s, p95=made.p95_s, p99=made.p99_s),
        **{f"{part}, s": values for part, values in made.parts_s.items()},
        **({} if made.grad_norm is None else {"grad_norm": made.grad_norm}),
    }
    rows = [(name, *(f"{value:.4g}" for value in each.model_dump().values())) for name, each in percentiles.items()]
    sent = [f"{kind} {cost.sent_bytes:,} bytes" for kind, cost in made.traffic.items()]
    return "\n".join(
        (
            f"{plain_text.markdown(made.line(targets))}\n",
            *plain_text.markdown_table(("", "p50", "p95", "p99"), rows),
            *((f"\nSent by a rank: {plain_text.markdown(', '.join(sent))}",) if sent else ()),
        )
    )


class _Logged:
    """How far each series is. Ranks may repeat steps after a restart, and MLflow would draw both points."""

    def __init__(self, client: Client, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._last_steps: dict[str, int] = {}

    def is_new(self, series: str, step: int) -> bool:
        if series not in self._last_steps:
            history = self._client.get_metric_history(self._run_id, series)
            self._last_steps[series] = max((metric.step for metric in history), default=-1)
        is_new = step > self._last_steps[series]
        self._last_steps[series] = max(step, self._last_steps[series])
        return is_new


def _log_steps(client: Client, run_id: str, steps: list[Event], logged: _Logged, targets: str) -> None:
    made, metrics = mlflow_store.entities_of(client).Metric, list[Any]()
    for event in steps:
        if event["event"] == SUMMARY:
            client.set_tag(run_id, mlflow_store.DESCRIPTION_TAG, steps_in_words(event, targets))
            continue
        step, millis = int(event["step"]), int(event["unix_s"] * 1000)
        if event["event"] == "validation":
            if logged.is_new(series := f"validation/{event['metric']}", step):
                metrics.append(made(series, float(event["value"]), millis, step))
            continue
        if not logged.is_new(OF_EACH_STEP, step):
            continue
        values = {key: float(event[name]) for name, key in SERIES.items() if name in event}
        if "rmse" in event:
            # The same thing in the label's unit; nats with the Gaussian's constant say nothing beside it.
            values.pop(SERIES["loss"], None)
        values[f"train/{targets}_per_s"] = event["tokens"] / max(event["duration_s"], 1e-9)
        metrics += [made(key, value, millis, step) for key, value in values.items()]
    for start in range(0, len(metrics), MAX_METRICS_PER_BATCH):
        client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS_PER_BATCH])
