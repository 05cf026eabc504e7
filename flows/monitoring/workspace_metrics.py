"""All metrics of a workspace at a moment: what is kept, what is over, what goes on, and the machine."""

from __future__ import annotations

import datetime
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric

from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.figures import TrainingFigures
from headway.flows.accounts.kept_accounts import all_accounts, settle
from headway.flows.accounts.probe_records import ProbeRecord, newest_probes
from headway.flows.config.profiles import PricesSpec
from headway.flows.monitoring.devices import DeviceFigures
from headway.flows.monitoring.live import LiveFlow, LiveFlows
from headway.flows.monitoring.machine import fill_machine
from headway.flows.monitoring.package_energy import PackageEnergy
from headway.flows.monitoring.samples import Samples
from headway.flows.monitoring.totals import Totals
from headway.flows.run.running_retrains import RunningRetrain, read_running
from headway.flows.show.status import KeptStatus, read_kept
from headway.tasks.prove.scrub import ScrubReport


class WorkspaceMetrics:
    """Looks anew each time; what is over is read once.

    A collector of `prometheus_client`.

    Args:
        prices: without any, nothing is said of costs.
    """

    def __init__(self, workspace: Workspace, prices: PricesSpec | None = None) -> None:
        self._workspace = workspace
        self._totals, self._live = Totals(prices or PricesSpec()), LiveFlows(workspace)
        self._devices, self._packages = DeviceFigures(), PackageEnergy()
        self._looking = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """Raises `HeadwayError` or `OSError`: the workspace cannot be looked at."""
        with self._looking:
            started = time.perf_counter()
            # One that went away would look like one where nothing is known.
            Workspace.existing(self._workspace.uri)
            samples = Samples()
            running = self._fill_training(samples)
            for retrain in running:
                _fill_retrain(samples, retrain, self._live.known[retrain.flow_run])
            fill_kept(samples, read_kept(self._workspace))
            fill_probes(samples, newest_probes(self._workspace))
            fill_machine(samples, self._workspace.local_root)
            self._packages.fill(samples)
            self._devices.fill(samples)
            samples.value("headway_status_timestamp_seconds", time.time())
            samples.value("headway_look_duration_seconds", time.perf_counter() - started)
            return samples.families()

    def _fill_training(self, samples: Samples) -> list[RunningRetrain]:
        totals = self._totals
        running = read_running(self._workspace, ended=totals.flow_runs)
        settle(self._workspace, without=totals.flow_runs)
        for account in all_accounts(self._workspace, without=totals.flow_runs):
            totals.take(account)
        # One that ended between the two looks counts as over, and once.
        running = [retrain for retrain in running if retrain.flow_run not in totals.flow_runs]
        live = self._live.look(running)
        figures, interruptions = TrainingFigures(), Counter[str]()
        for retrain in running:
            figures.add(live[retrain.flow_run].figures)
            interruptions.update(live[retrain.flow_run].interruptions())
        totals.fill(samples, figures, interruptions)
        owners = totals.owners()
        owners.update((each.pipeline, (live[each.flow_run].owner, live[each.flow_run].job_class)) for each in running)
        fill_owners(samples, owners)
        # Prometheus refuses what has one value twice: of a pipeline's retrains, some of which may wait, the one that
        # began last speaks.
        return list({retrain.pipeline: retrain for retrain in running}.values())


def fill_owners(samples: Samples, owners: Mapping[str, tuple[str, str]]) -> None:
    """Args:
    owners: owner and job class, by pipeline.
    """
    for pipeline, (owner, job_class) in sorted(owners.items()):
        samples.value("headway_pipeline_info", 1, pipeline=pipeline, owner=owner, job_class=job_class)


def _fill_retrain(samples: Samples, retrain: RunningRetrain, live: LiveFlow) -> None:
    pipeline, steps = retrain.pipeline, live.figures.steps
    names = {"flow_run": retrain.flow_run, "run": retrain.run, "stage": retrain.stage}
    samples.value("train_run_info", 1, pipeline=pipeline, **names)
    for name, value in (
        ("train_run_stage_since_timestamp_seconds", retrain.since_unix_s),
        ("train_run_attempt", retrain.attempt),
        ("train_run_max_attempts", retrain.max_attempts),
        ("train_run_step", retrain.step),
        ("train_run_max_steps", retrain.max_steps),
        ("train_run_eta_seconds", retrain.eta_s),
        ("train_run_last_step_timestamp_seconds", live.last_step_unix_s),
        ("train_loss", steps.loss),
        ("train_grad_norm", steps.grad_norm),
        ("train_gradient_noise_scale_rows", steps.gradient_noise_scale),
        ("train_mfu_ratio", steps.mfu),
        ("train_tokens_per_second", retrain.targets_per_s),
        ("train_checkpoint_last_durable_timestamp_seconds", retrain.checkpoint_unix_s),
    ):
        if value is not None:
            samples.value(name, value, pipeline=pipeline)
    for rank in retrain.ranks:
        for name, value in (
            ("train_rank_heartbeat_timestamp_seconds", rank.last_sign_unix_s),
            ("train_rank_step", rank.step),
            ("train_rank_work_ratio", rank.work_ratio),
        ):
            if value is not None:
                samples.value(name, value, pipeline=pipeline, rank=str(rank.rank))
    for role, state in sorted({(problem.role, problem.state) for problem in retrain.problems}):
        samples.value("train_process_problem", 1, pipeline=pipeline, role=role, state=state)


def fill_kept(samples: Samples, kept: KeptStatus) -> None:
    _fill_scrub(samples, kept.scrub)
    for model in kept.models:
        samples.value("headway_model_versions", model.num_versions, model=model.model)
        if model.champion_since is not None:
            since_unix_s = _unix_s(model.champion_since)
            samples.value("headway_champion_since_timestamp_seconds", since_unix_s, model=model.model)
        samples.value("headway_model_awaits_approval", float(model.waits is not None), model=model.model)
    for retrain in kept.finished:
        name = "headway_retrain_finished_timestamp_seconds"
        samples.value(name, retrain.finished_unix_s, pipeline=retrain.pipeline)
    for failed in kept.failed:
        what = {"pipeline": failed.pipeline, "stage": failed.stage, "cause": failed.failure.cause}
        samples.value("headway_retrain_failed_timestamp_seconds", failed.failed_unix_s, **what)
    for hold in kept.held:
        samples.value("headway_pipeline_held", 1, pipeline=hold.pipeline)
    for ask in kept.requested:
        asked_unix_s = _unix_s(ask.requested_at)
        samples.value("headway_retrain_asked_timestamp_seconds", asked_unix_s, pipeline=ask.pipeline)
    for waiting in kept.waiting:
        samples.value("headway_windows_cut", waiting.windows_cut, pipeline=waiting.pipeline)
        samples.value("headway_pipeline_starving", float(waiting.starving), pipeline=waiting.pipeline)


def _fill_scrub(samples: Samples, report: ScrubReport | None) -> None:
    if report is None:
        return
    samples.value("headway_scrub_timestamp_seconds", report.looked_unix_s)
    if report.oldest_check_unix_s is not None:
        samples.value("headway_scrub_oldest_check_timestamp_seconds", report.oldest_check_unix_s)
    samples.value("headway_scrub_unchecked_files", report.num_never_checked)
    samples.value("headway_scrub_damaged_files", len(report.damaged))


def fill_probes(samples: Samples, records: Iterable[ProbeRecord]) -> None:
    for record in records:
        launcher = record.launcher
        samples.value("headway_probe_success", float(record.has_succeeded), launcher=launcher)
        samples.value("headway_probe_timestamp_seconds", record.end_unix_s, launcher=launcher)
        if record.last_success_unix_s is not None:
            last_unix_s = record.last_success_unix_s
            samples.value("headway_probe_last_success_timestamp_seconds", last_unix_s, launcher=launcher)
        samples.value("headway_probe_duration_seconds", record.end_unix_s - record.begin_unix_s, launcher=launcher)
        samples.value("headway_probe_interval_seconds", record.interval_s, launcher=launcher)


def _unix_s(moment: str) -> float:
    return datetime.datetime.fromisoformat(moment).timestamp()
