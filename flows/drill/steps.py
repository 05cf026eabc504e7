"""What disturbs steps and ends none, or ends them in order: a slow rank, a NaN, want of memory, a busy machine."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from headway.flows.drill.alert_figures import MOST_PRESSURE, pressure
from headway.flows.drill.evidence import MadeStep, Metrics
from headway.flows.drill.sandbox import MICRO_BATCH
from headway.flows.drill.trial import DrillTrial, NotHere, seconds_between
from headway.flows.monitoring.machine import PRESSURE

NUM_RANKS = 2
EARLY = 40
"""Failures that take many steps to be seen come before this one."""
SLOW_S = 0.03
"""Several times what a step takes."""
BURNERS = 3
PRESSURE_EVERY_S = 1.0
LAST_LOSSES = 20
FAST = {"training": {"parallel": {"mode": "fast"}}}


def slow_a_rank(trial: DrillTrial) -> None:
    """F2: from a step on, one rank takes longer in each forward pass, and the other waits for it."""
    reference = trial.reference()
    rank, after = trial.draw.randrange(NUM_RANKS), trial.draw.randrange(5, EARLY)
    _, run = trial.retrain({}, fault={"how": "slow", "rank": rank, "attempt": 1, "after": after, "seconds": SLOW_S})
    trial.planted = f"{1000 * SLOW_S:g} ms more in each forward pass of rank {rank}, from step {after + 1} on"
    slow = run.named("rank.slow")
    trial.detected = bool(slow)
    trial.message = str(slow[0]["what"]) if slow else ""
    trial.cause = "rank.slow" if slow else ""
    trial.figures["named"] = {(int(event["rank"]), event["part"]) for event in slow} == {(rank, "forward")}
    begin_unix_s = trial.planted_unix_s()
    if slow and begin_unix_s is not None:
        seen_unix_s = float(slow[0]["unix_s"])
        trial.figures["detect_s"] = seconds_between(begin_unix_s, seen_unix_s)
        trial.figures["detect_steps"] = sum(begin_unix_s <= step.end_unix_s <= seen_unix_s for step in run.steps)
    trial.look_at_alert()
    trial.compare_bits(reference, run)


def spoil_a_loss(trial: DrillTrial) -> None:
    """F5: one micro-batch of one rank has a loss of NaN, and so the gradient of all."""
    reference = trial.reference()
    rank, after = trial.draw.randrange(NUM_RANKS), trial.draw.randrange(5, EARLY)
    _, run = trial.retrain({}, fault={"how": "nan", "rank": rank, "attempt": 1, "after": after})
    trial.planted = f"a loss of NaN on rank {rank} in step {after + 1}"
    alarms = [
        event
        for each in range(NUM_RANKS)
        for event in (run.rank_events(1, each) if run.records else [])
        if event["event"] == "guard" and event["alarm"] == "non-finite"
    ]
    trial.detected = bool(alarms)
    trial.message = str(alarms[0]["what"]) if alarms else ""
    trial.cause = str(alarms[0]["alarm"]) if alarms else ""
    trial.figures["named"] = {(event["rank"], event["step"]) for event in alarms} == {
        (each, after + 1) for each in range(NUM_RANKS)
    }
    trial.figures["detect_steps"] = int(alarms[0]["step"]) - after if alarms else None
    trial.figures["detect_s"] = seconds_between(
        trial.planted_unix_s(), min((float(event["unix_s"]) for event in alarms), default=None)
    )
    later = (step.end_unix_s for step in run.steps if step.step > after)
    trial.figures["recover_s"] = seconds_between(trial.planted_unix_s(), min(later, default=None))
    trial.figures["attempts"] = len(run.records)
    trial.figures["loss_difference"] = _difference(run.steps, reference.steps, _last_losses)
    trial.look_at_alert()


def run_out_of_memory(trial: DrillTrial) -> None:
    """F6: the kernel refuses memory to one rank, for as long as its micro-batch is not halved."""
    reference = trial.reference(FAST, "undisturbed-fast")
    rank, rows = trial.draw.randrange(NUM_RANKS), MICRO_BATCH // 2
    fault = {"how": "memory", "rank": rank, "attempt": None, "after": 0, "rows": rows}
    _, run = trial.retrain(FAST, fault=fault)
    trial.planted = f"RLIMIT_AS on rank {rank}, at each micro-batch of more than {rows} rows"
    failed = [record for record in run.records if record.state == "failed"]
    trial.detected = bool(failed)
    if failed:
        failure = failed[0].failure
        trial.cause, trial.message = failure.cause, f"{failure.what_and_where} {failure.advice}"
        trial.figures["detect_s"] = seconds_between(trial.planted_unix_s(), failed[0].end_unix_s)
    halved = [
        str(event["what"])
        for record in run.records
        for event in run.rank_events(record.attempt)
        if event["event"] == "run.inexact"
    ]
    trial.figures["named"] = {record.failure.cause for record in failed} == {"oom"} and bool(halved)
    trial.figures["recover_s"] = seconds_between(trial.planted_unix_s(), run.first_new_step_unix_s(1))
    trial.figures["attempts"] = len(run.records)
    trial.figures["loss_difference"] = _difference(run.steps, reference.steps, lambda steps: steps[0].loss)
    trial.look_at_alert()


def contend(trial: DrillTrial) -> None:
    """F8: the sandbox shares one processor with processes that never wait."""
    if not PRESSURE.joinpath("cpu").exists():
        raise NotHere("the kernel tells no pressure (/proc/pressure).")
    reference = trial.reference()
    processor = trial.draw.choice(sorted(os.sched_getaffinity(0)))
    burners = _Burners(trial, processor)
    fault = {"how": "note", "rank": 0, "attempt": 1, "after": trial.draw.randrange(5, EARLY)}
    _, run = trial.retrain({}, fault=fault, meanwhile=burners.watch, before=burners.settle)
    burners.end()
    trial.planted = f"{BURNERS} processes that never wait on processor {processor}, which the ranks may not leave"
    trial.detected = burners.seen_s is not None
    trial.figures["detect_s"] = burners.seen_s
    slow = run.named("rank.slow")
    trial.cause = "pressure of the processors" if trial.detected else ""
    trial.message = "; ".join(str(event["what"]) for event in slow)
    trial.figures["ranks_blamed"] = len({int(event["rank"]) for event in slow})
    trial.figures["attempts"] = len(run.records)
    trial.compare_bits(reference, run)


class _Burners:
    def __init__(self, trial: DrillTrial, processor: int) -> None:
        self._trial, self._processor = trial, processor
        self._burners: list[subprocess.Popen[bytes]] = []
        self._before: Metrics | None = None
        self._begin_s = self._looked_s = 0.0
        self.seen_s: float | None = None
        """How long it took until the exporter's figure showed it."""

    def settle(self) -> None:
        """In the new process: it and its children stay on this processor; the others are left to who works there."""
        os.sched_setaffinity(0, {self._processor})

    def watch(self, _command: subprocess.Popen[bytes]) -> None:
        trial, now_s = self._trial, time.monotonic()
        if not self._burners:
            if trial.sandbox.planted() is None:
                return
            self._before = trial.start_alert()
            self._begin_s = self._looked_s = now_s
            burn = (sys.executable, "-P", "-I", "-S", "-c", "while True: pass")
            self._burners = [trial.sandbox.start(burn, {}, before=self.settle) for _ in range(BURNERS)]
        elif self.seen_s is None and now_s - self._looked_s > PRESSURE_EVERY_S:
            self._looked_s = now_s
            assert self._before is not None
            if pressure(self._before, Metrics(trial.sandbox.workspace)) > MOST_PRESSURE:
                self.seen_s = round(now_s - self._begin_s, 3)
                trial.look_at_alert()

    def end(self) -> None:
        for burner in self._burners:
            burner.kill()
            self._trial.sandbox.end(burner)


def _last_losses(steps: list[MadeStep]) -> float:
    return statistics.fmean(step.loss for step in steps[-LAST_LOSSES:])


def _difference(steps: list[MadeStep], wanted: list[MadeStep], of: Callable[[list[MadeStep]], float]) -> float | None:
    if not steps or not wanted:
        return None
    return abs(of(steps) - of(wanted)) / max(abs(of(wanted)), 1e-12)
