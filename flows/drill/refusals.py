"""What is to be refused before anything is spent: a missing secret, a wrong world, a stranger, skewed or bad data."""

from __future__ import annotations

from headway.data_contracts.store.errors import ConfigError, ContractViolation, DataError, EnvironmentProblem
from headway.flows.drill.evidence import RunEvidence
from headway.flows.drill.sandbox import MAX_ROWS_RATIO, NUM_FILES, ROWS_A_FILE, merged, write_rows
from headway.flows.drill.trial import DrillTrial, seconds_between

SECRETS = ("DRILL_DATABASE_PASSWORD", "DRILL_BUCKET_KEY")
"""That ranks are said to need; nobody reads them."""
WRONG_RANKS = 3
"""The batch has two micro-batches."""
SKEWED, BAD = "data-skewed", "data-bad"


def forget_a_secret(trial: DrillTrial) -> None:
    """F1: variables that ranks need are not set; then somebody sets them."""
    reference = trial.reference()
    trial.planted = f"{' and '.join(SECRETS)} are not set, and ranks need them"
    needing = {"launch": {"preflight": {"environment": list(SECRETS)}}}
    ended, run = trial.retrain(needing)
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
    given = dict.fromkeys(SECRETS, "x")
    # Pods have the variables that their job names, and no other.
    in_pods = {"launch": {"kubernetes": {"environment": given}}} if trial.sandbox.launch.kubernetes else None
    changes = None if in_pods is None else merged(needing, in_pods)
    again, mended = trial.retrain(changes, environment=given)
    made = mended.steps[0].end_unix_s if mended.steps else None
    trial.figures["recover_s"] = seconds_between(again.begin_unix_s, made)
    trial.compare_bits(reference, mended)


def start_wrong_ranks(trial: DrillTrial) -> None:
    """F9: a world that cannot share the batch; then a second rank that lacks the run's key."""
    reference = trial.reference()
    wrong, run = trial.retrain({"launch": {"nodes": 1, "ranks_per_node": WRONG_RANKS}}, part="-world")
    trial.detected = wrong.code == ConfigError.exit_code
    trial.cause, trial.message = (ConfigError.cause if trial.detected else ""), wrong.message
    trial.figures["named"] = trial.detected and str(WRONG_RANKS) in wrong.message
    trial.figures["detect_s"] = round(wrong.took_s, 3)
    trial.figures["ranks_started"] = run.num_ranks_started
    trial.look_at_alert("-world")
    # From where ranks are: who starts them need not reach what they listen on.
    fault = {"how": "knock", "rank": 1, "attempt": 1, "after": trial.draw.randrange(5, 40)}
    _, met = trial.retrain({}, part="-stranger", fault=fault)
    knocked = trial.sandbox.planted() or {}
    trial.planted = f"{WRONG_RANKS} ranks for two micro-batches; of another run, a second rank 1 with a key of its own"
    trial.figures["stranger_refused"] = knocked.get("was_refused")
    trial.figures["stranger_s"] = knocked.get("took_s")
    trial.compare_bits(reference, met)


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
