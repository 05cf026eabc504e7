"""Sums over flow runs: what counters and histograms say. They only grow: accounts of what is over do not change."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import get_args

from headway.data_contracts.store.errors import Cause
from headway.flows.accounts.cost import costs
from headway.flows.accounts.data_figures import DataFigures
from headway.flows.accounts.figures import Histogram, TrainingFigures
from headway.flows.accounts.flow_account import PROBE, FlowAccount
from headway.flows.accounts.goodput import STATES, State, added
from headway.flows.accounts.scaling import Scaling
from headway.flows.config.profiles import PricesSpec
from headway.flows.monitoring.samples import Samples
from headway.training.launch.base.retry_budget import OWNER_WAS_LOST

CAUSES: tuple[str, ...] = get_args(Cause)
CHECKPOINT_OUTCOMES = {"save": ("ok", "failed"), "restore": ("ok", "failed"), "verify": ("ok", "failed", "corrupt")}


class Totals:
    """Of all flow runs that are over, one account at a time."""

    def __init__(self, prices: PricesSpec) -> None:
        self._prices = prices
        self._usd = {"productive": 0.0, "wasted": 0.0, "overhead": 0.0}
        self._joules = 0.0
        self.flow_runs: set[str] = set()
        """Those that were taken."""
        self._runs: Counter[tuple[str, str, str, str]] = Counter()
        """By pipeline, job class, outcome and cause."""
        self._window_runs: Counter[tuple[str, str, str]] = Counter()
        """By pipeline, job class and whether the window was long enough."""
        self._newest: dict[str, FlowAccount] = {}
        """Of each pipeline."""
        self._data: dict[str, tuple[float, DataFigures]] = {}
        """Of each pipeline, when its newest flow run that validated data ended, and what it found."""
        self._durations_s: dict[tuple[str, str], Histogram] = {}
        self._seconds: dict[State, float] = {}
        self._device_seconds: dict[State, float] = {}
        self._waste_s: dict[str, float] = {}
        self._recoveries_s: dict[tuple[str, str], Histogram] = {}
        """By job class and stage."""
        self._interruptions: Counter[str] = Counter()
        self._resumes: Counter[str] = Counter()
        self._requeues: Counter[str] = Counter()
        self._figures = TrainingFigures()
        self._ettr: dict[str, tuple[float, float]] = {}
        """Of each pipeline, when its newest flow run that trained ended, and its ratio."""
        self._epochs_s: dict[str, tuple[float, float]] = {}
        """Of each pipeline, when its newest flow run with epochs ended, and how long one takes."""
        self._scaling = Scaling()

    def take(self, account: FlowAccount) -> None:
        self.flow_runs.add(account.flow_run)
        for line in costs([account], "pipeline", self._prices):
            self._usd["productive"] += line.productive_usd
            self._usd["wasted"] += line.wasted_usd
            self._usd["overhead"] += line.usd - line.productive_usd - line.wasted_usd
            self._joules += line.joules or 0.0
        if account.job_class == PROBE:
            return  # it has families of its own
        self._runs[account.pipeline, account.job_class, account.outcome, account.cause] += 1
        if account.window_outcome:
            self._window_runs[account.pipeline, account.job_class, account.window_outcome] += 1
        newest = self._newest.get(account.pipeline)
        if newest is None or account.end_unix_s > newest.end_unix_s:
            self._newest[account.pipeline] = account
        if account.data is not None and account.end_unix_s > self._data.get(account.pipeline, (0.0, None))[0]:
            self._data[account.pipeline] = (account.end_unix_s, account.data)
        of = (account.pipeline, account.outcome)
        self._durations_s.setdefault(of, Histogram.empty("run")).take(account.end_unix_s - account.begin_unix_s)
        goodput = account.goodput
        self._seconds = added(self._seconds, goodput.parts_s)
        self._device_seconds = added(self._device_seconds, goodput.parts_device_s)
        for cause, wasted in goodput.wasted_device_s.items():
            self._waste_s[cause] = self._waste_s.get(cause, 0.0) + sum(wasted.values())
        for recovery in goodput.recoveries:
            for stage, seconds in (("total", recovery.total_s), *recovery.parts_s.items()):
                of_stage = self._recoveries_s.setdefault((account.job_class, stage), Histogram.empty("long"))
                of_stage.take(seconds)
        self._interruptions.update(account.interruptions)
        self._resumes.update(account.resumes)
        self._requeues.update(account.requeues)
        self._figures.add(account.figures)
        newest_unix_s, _ = self._ettr.get(account.pipeline, (0.0, 0.0))
        if goodput.num_attempts and goodput.device_s and account.end_unix_s > newest_unix_s:
            self._ettr[account.pipeline] = (account.end_unix_s, goodput.ettr)
        if (epoch_s := goodput.epoch_s(account.steps_per_epoch)) is not None:
            known = self._epochs_s.get(account.pipeline, (0.0, 0.0))
            self._epochs_s[account.pipeline] = max(known, (account.end_unix_s, epoch_s))
        self._scaling.take(account)

    def fill(self, samples: Samples, live: TrainingFigures, interruptions: Counter[str]) -> None:
        """Args:
        live: of flow runs that are not over.
        interruptions: of their attempts, by cause.
        """
        self._fill_runs(samples)
        for state in STATES:
            samples.value("train_time_seconds_total", self._seconds.get(state, 0.0), state=state)
            samples.value("train_device_seconds_total", self._device_seconds.get(state, 0.0), state=state)
        if self._prices.device_hour_usd:
            for use, usd in self._usd.items():
                samples.value("train_cost_usd_total", usd, use=use)
        if self._prices.device_watts:
            samples.value("train_energy_joules_total", self._joules, source="model")
        # A series that begins with its first event has no increase: what may happen is 0 from the start.
        interrupted = self._interruptions + interruptions
        for cause in sorted({*CAUSES, *self._waste_s, *interrupted}):
            samples.value("train_waste_device_seconds_total", self._waste_s.get(cause, 0.0), cause=cause)
            samples.value("train_interruptions_total", interrupted[cause], cause=cause)
        for outcome in ("ok", "failed"):
            samples.value("train_resume_total", self._resumes[outcome], outcome=outcome)
        for reason in ("attempt", "job"):
            samples.value("train_requeues_total", self._requeues[reason], reason=reason)
        for (job_class, stage), histogram in self._recoveries_s.items():
            samples.histogram("train_recovery_duration_seconds", histogram, job_class=job_class, stage=stage)
        for pipeline, (_, data) in sorted(self._data.items()):
            _fill_data(samples, pipeline, data)
        figures = deepcopy(self._figures)
        figures.add(live)
        _fill_training(samples, figures)

    def owners(self) -> dict[str, tuple[str, str]]:
        """Of each pipeline its owner and its job class, as its newest flow run had them."""
        return {pipeline: (account.owner, account.job_class) for pipeline, account in self._newest.items()}

    def _fill_runs(self, samples: Samples) -> None:
        ends = [("succeeded", ""), ("lost", OWNER_WAS_LOST.cause), *(("failed", cause) for cause in CAUSES)]
        may_be = {(pipeline, job_class, *end) for pipeline, job_class, _, _ in self._runs for end in ends}
        for each in sorted(may_be | self._runs.keys()):
            of = dict(zip(("pipeline", "job_class", "outcome", "cause"), each, strict=True))
            samples.value("train_runs_total", self._runs[each], **of)
        for pipeline, job_class in sorted({each[:2] for each in self._runs}):
            for outcome in ("done", "cut"):
                number = self._window_runs[pipeline, job_class, outcome]
                of = {"pipeline": pipeline, "job_class": job_class, "outcome": outcome}
                samples.value("train_window_runs_total", number, **of)
        for (pipeline, outcome), histogram in sorted(self._durations_s.items()):
            samples.histogram("train_run_duration_seconds", histogram, pipeline=pipeline, outcome=outcome)
        for pipeline, (_, ratio) in sorted(self._ettr.items()):
            samples.value("train_run_ettr_ratio", ratio, pipeline=pipeline)
        for pipeline, (_, epoch_s) in sorted(self._epochs_s.items()):
            samples.value("train_epoch_duration_seconds", epoch_s, pipeline=pipeline)
        for pipeline in self._scaling.pipelines:
            for line in self._scaling.lines(pipeline):
                samples.value(
                    "train_scaling_efficiency_ratio", line.efficiency, pipeline=pipeline, devices=str(line.devices)
                )


def _fill_data(samples: Samples, pipeline: str, data: DataFigures) -> None:
    for severity, number in data.num_broken.items():
        samples.value("headway_contract_broken_rules", number, pipeline=pipeline, rule_severity=severity)
    samples.value("headway_contract_quarantined_ratio", data.quarantined_ratio, pipeline=pipeline)
    for rule, index in data.drift.items():
        samples.value("headway_contract_drift_psi", index, pipeline=pipeline, rule=rule)


def _fill_training(samples: Samples, figures: TrainingFigures) -> None:
    steps, checkpoints = figures.steps, figures.checkpoints
    samples.value("train_steps_total", steps.num_steps)
    samples.value("train_tokens_total", steps.num_tokens)
    samples.value("train_nonfinite_total", steps.num_nonfinite)
    samples.value("train_excluded_batches_total", steps.num_excluded)
    for phase, histogram in steps.durations_s.items():
        samples.histogram("train_step_duration_seconds", histogram, phase=phase)
    for op, cost in sorted(steps.traffic.items()):
        samples.value("train_collective_calls_total", cost.num_calls, op=op)
        samples.value("train_collective_seconds_total", cost.busy_s, op=op)
        samples.value("train_collective_sent_bytes_total", cost.sent_bytes, op=op)
    for op, outcomes in CHECKPOINT_OUTCOMES.items():
        for outcome in outcomes:
            number = checkpoints.counts.get(op, {}).get(outcome, 0)
            samples.value("train_checkpoint_total", number, op=op, outcome=outcome)
    for op, histogram in checkpoints.durations_s.items():
        samples.histogram("train_checkpoint_duration_seconds", histogram, op=op)
