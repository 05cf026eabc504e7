"""What is to be refused before anything is spent: a missing secret, a wrong world, a stranger, skewed or bad data."""

from __future__ import annotations

import secrets
import subprocess
import time

from headway.data_contracts.store.errors import ConfigError, ContractViolation, DataError, EnvironmentProblem
from headway.flows.drill.evidence import RunEvidence
from headway.flows.drill.sandbox import MAX_ROWS_RATIO, NUM_FILES, ROWS_A_FILE, write_rows
from headway.flows.drill.trial import DrillTrial, seconds_between
from headway.training.launch.base.channel import connect

SECRETS = ("DRILL_DATABASE_PASSWORD", "DRILL_BUCKET_KEY")
"""That ranks are said to need; nobody reads them."""
WRONG_NODES = 3
"""The batch has two micro-batches."""
ONCE_S = 3.0
SKEWED, BAD = "data-skewed", "data-bad"


def forget_a_secret(trial: DrillTrial) -> None:
    """F1: variables that ranks need are not set; then somebody sets them."""
    reference = trial.reference()
    trial.planted = f"{' and '.join(SECRETS)} are not set, and ranks need them"
    ended, run = trial.retrain({"launch": {"preflight": {"environment": list(SECRETS)}}})
    _take_card(trial, run)
    first = run.records[0] if run.records else None
    if first is not None:
        trial.figures["detect_s"] = seconds_between(first.start_unix_s, first.end_unix_s)
    trial.figures["named"] = (
        ended.code == EnvironmentProblem.exit_code
        and trial.cause == EnvironmentProblem.cause
        and all(name in trial.message for name in SECRETS)
    )
    trial.figures["attempts"] = len(run.records)
    trial.figures["ranks_started"] = run.num_ranks_started
    trial.look_at_alert()
    again, mended = trial.retrain(environment=dict.fromkeys(SECRETS, "x"))
    made = mended.steps[0].end_unix_s if mended.steps else None
    trial.figures["recover_s"] = seconds_between(again.begin_unix_s, made)
    trial.compare_bits(reference, mended)


def start_wrong_ranks(trial: DrillTrial) -> None:
    """F9: a world that cannot share the batch; then a second rank that lacks the run's key."""
    reference = trial.reference()
    wrong, run = trial.retrain({"launch": {"nodes": WRONG_NODES}}, part="-world")
    trial.detected = wrong.code == ConfigError.exit_code
    trial.cause, trial.message = (ConfigError.cause if trial.detected else ""), wrong.message
    trial.figures["named"] = trial.detected and str(WRONG_NODES) in wrong.message
    trial.figures["detect_s"] = round(wrong.took_s, 3)
    trial.figures["ranks_started"] = run.num_ranks_started
    trial.look_at_alert("-world")
    stranger = _Stranger(trial)
    fault = {"how": "note", "rank": 0, "attempt": 1, "after": trial.draw.randrange(5, 40)}
    _, met = trial.retrain({}, part="-stranger", fault=fault, meanwhile=stranger.knock)
    trial.planted = f"{WRONG_NODES} ranks for two micro-batches; of another run, a second rank 1 with a key of its own"
    trial.figures["stranger_refused"] = stranger.was_refused
    trial.figures["stranger_s"] = stranger.took_s
    trial.compare_bits(reference, met)


class _Stranger:
    """Asks for a place in the gang, as a rank would that somebody started by hand."""

    def __init__(self, trial: DrillTrial) -> None:
        self._trial = trial
        self.was_refused: bool | None = None
        self.took_s: float | None = None

    def knock(self, _command: subprocess.Popen[bytes]) -> None:
        if self.was_refused is not None or (planted := self._trial.sandbox.planted()) is None:
            return
        run = RunEvidence(self._trial.sandbox.workspace, f"{self._trial.name}-stranger")
        place = None if run.run_dir is None else run.files(int(planted["attempt"])).read_store()
        if place is None:
            return
        started_s = time.monotonic()
        try:
            channel = connect(place.address, place.port, secrets.token_hex(32), within_s=0.0, once_s=ONCE_S)
        except OSError:
            self.was_refused = True
        else:
            channel.connection.close()
            self.was_refused = False
        self.took_s = round(time.monotonic() - started_s, 3)


def feed_uneven_data(trial: DrillTrial) -> None:
    """F10: a file that is many times as large as the others; then values that no contract allows."""
    sandbox = trial.sandbox
    rows = [ROWS_A_FILE] * NUM_FILES
    rows[trial.draw.randrange(NUM_FILES)] *= 6
    write_rows(sandbox.project / SKEWED, sandbox.seed, rows)
    write_rows(sandbox.project / BAD, sandbox.seed, [ROWS_A_FILE] * NUM_FILES, scale=1000.0)
    trial.start_alert()
    trial.planted = f"a file of {max(rows):,} rows beside {NUM_FILES - 1} of {ROWS_A_FILE:,}; then values out of range"
    skewed, run = trial.retrain({"source": {"uri": SKEWED}})
    _take_card(trial, run)
    trial.figures["named"] = (
        skewed.code == DataError.exit_code and "group" in trial.message and f"{MAX_ROWS_RATIO:g}" in trial.message
    )
    starts = run.named("flow.begin")
    cards = run.named("flow.card")
    if starts and cards:
        trial.figures["detect_s"] = seconds_between(float(starts[0]["unix_s"]), float(cards[0]["unix_s"]))
    trial.look_at_alert()
    bad, refused = trial.retrain({"source": {"uri": BAD}}, part="-contract")
    failure = refused.card.get("failure", {})
    trial.figures["contract_named"] = (
        bad.code == ContractViolation.exit_code and failure.get("cause") == ContractViolation.cause
    )
    trial.message += f" Then: {failure.get('what', bad.message)}"
    trial.figures["ranks_started"] = run.num_ranks_started + refused.num_ranks_started


def _take_card(trial: DrillTrial, run: RunEvidence) -> None:
    failure = run.card.get("failure", {})
    trial.detected = bool(failure)
    trial.cause = str(failure.get("cause", ""))
    trial.message = ": ".join(filter(None, (str(failure.get("where", "")), str(failure.get("what", "")))))
