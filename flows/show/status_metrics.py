"""What `headway status` says, as Prometheus reads it: through node_exporter's textfile collector, say."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headway.flows.run.running_retrains import RunningRetrain
from headway.flows.show.status import Status


class Gauge(NamedTuple):
    """One value of a metric's."""

    name: str
    help: str
    labels: Mapping[str, str]
    value: float


def metrics(status: Status) -> str:
    """Lines of Prometheus's text format; of the same order for the same state."""
    lines, described = [], set()
    for gauge in sorted(_gauges(status), key=lambda each: each.name):
        if gauge.name not in described:
            described.add(gauge.name)
            lines += [f"# HELP {gauge.name} {gauge.help}", f"# TYPE {gauge.name} gauge"]
        labels = ",".join(f"{name}={_quoted(value)}" for name, value in gauge.labels.items())
        lines.append(f"{gauge.name}{{{labels}}} {gauge.value:.17g}" if labels else f"{gauge.name} {gauge.value:.17g}")
    return "\n".join(lines) + "\n"


def _gauges(status: Status) -> Iterator[Gauge]:
    at = datetime.datetime.now(datetime.UTC).timestamp()
    yield Gauge("headway_status_timestamp_seconds", "When the workspace was looked at.", {}, at)
    for model in status.models:
        named = {"model": model.model}
        yield Gauge("headway_model_versions", "Registered versions.", named, model.num_versions)
        if model.champion_since is not None:
            since = _unix_s(model.champion_since)
            yield Gauge("headway_champion_since_timestamp_seconds", "When the champion became it.", named, since)
        waits = float(model.waits is not None)
        yield Gauge("headway_model_awaits_approval", "1: a version waits for a person.", named, waits)
    for retrain in status.finished:
        of, when = {"pipeline": retrain.pipeline}, retrain.finished_unix_s
        yield Gauge("headway_retrain_finished_timestamp_seconds", "When the newest that did finished.", of, when)
    for failure in status.failed:
        what = {"pipeline": failure.pipeline, "stage": failure.stage, "cause": failure.failure.cause}
        when = failure.failed_unix_s
        yield Gauge("headway_retrain_failed_timestamp_seconds", "No retrain has finished since.", what, when)
    for running in status.running:
        yield from _running_gauges(running)
    for hold in status.held:
        yield Gauge("headway_pipeline_held", "A person holds it.", {"pipeline": hold.pipeline}, 1)
    for ask in status.requested:
        when = _unix_s(ask.requested_at)
        named = {"pipeline": ask.pipeline}
        yield Gauge("headway_retrain_asked_timestamp_seconds", "Asked for, and none has finished.", named, when)
    for waiting in status.waiting:
        named = {"pipeline": waiting.pipeline}
        yield Gauge("headway_windows_cut", "Windows in a row that closed too soon.", named, waiting.windows_cut)
        yield Gauge("headway_pipeline_starving", "1: too many of them.", named, float(waiting.starving))
    for run in status.runs:
        if run.is_running:
            named = {"pipeline": run.pipeline, "run": run.run}
            yield Gauge("headway_run_step", "Newest step of a running run.", named, run.step or 0)


def _running_gauges(running: RunningRetrain) -> Iterator[Gauge]:
    named = {"pipeline": running.pipeline, "run": running.run}
    stage = {**named, "stage": running.stage}
    yield Gauge("headway_stage_since_timestamp_seconds", "When the stage it is in began.", stage, running.since_unix_s)
    for name, described, value in (
        ("headway_run_attempt", "Attempts at training of this flow run.", running.attempt),
        ("headway_run_max_attempts", "So many it may spend.", running.max_attempts),
        ("headway_run_max_steps", "Steps of the whole run.", running.max_steps),
        ("headway_run_eta_seconds", "Seconds to its last step at this pace.", running.eta_s),
    ):
        if value is not None:
            yield Gauge(name, described, named, value)
    for rank in running.ranks:
        of = {**named, "rank": str(rank.rank)}
        yield Gauge("headway_rank_last_sign_timestamp_seconds", "Its last sign of life.", of, rank.last_sign_unix_s)
    for problem in running.problems:
        of = {**named, "role": problem.role, "pid": str(problem.pid), "state": problem.state}
        yield Gauge("headway_process_trouble", "1: a process is stopped, or silent.", of, 1)


def _unix_s(moment: str) -> float:
    return datetime.datetime.fromisoformat(moment).timestamp()


def _quoted(value: str) -> str:
    # JSON escapes quotes, backslashes and line feeds as Prometheus has them; all else stands as it is.
    return json.dumps(value.encode(errors="backslashreplace").decode(), ensure_ascii=False)
