"""What ends an attempt: a lost network, a damaged checkpoint, a kill, a pre-emption. Another goes on, to equal bits."""

from __future__ import annotations

import ctypes
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from headway.flows.drill.evidence import RunEvidence
from headway.flows.drill.objectives import CHECKPOINT_EVERY_STEPS, NETWORK_DEADLINE_S
from headway.flows.drill.sandbox import MAX_STEPS
from headway.flows.drill.trial import DrillTrial, NotHere, seconds_between
from headway.training.checkpoint.layout import directory_name
from headway.training.launch.base.stacks import are_whole
from headway.training.launch.diagnosis.hang_detection import stacks_text
from headway.training.observe.ledger import Event, event_end_unix_s

NUM_RANKS = 2
FIRST, LAST = CHECKPOINT_EVERY_STEPS + 5, MAX_STEPS - 3 * CHECKPOINT_EVERY_STEPS
"""Steps between which a failure comes: a checkpoint is there, and enough is left to do."""
SO_ATTACH_FILTER = 26
"""Of <asm/socket.h>."""


def lose_a_rank_and_be_preempted(trial: DrillTrial) -> None:
    """F7: SIGKILL of a rank; then, of another run, SIGTERM of the command, which a scheduler would start again."""
    reference = trial.reference()
    rank, after = trial.draw.randrange(NUM_RANKS), trial.draw.randrange(FIRST, LAST)
    fault = {"how": "kill", "rank": rank, "attempt": 1, "after": after}
    _, killed = trial.retrain({}, part="-kill", fault=fault)
    planted_unix_s = trial.planted_unix_s()
    _take_failure(trial, killed, planted_unix_s)
    trial.figures["named"] = trial.cause == "infrastructure" and _first_rank(killed) == rank
    trial.look_at_alert()
    stopped_after = trial.draw.randrange(FIRST, LAST)
    stopped = _stop_and_start_again(trial, stopped_after)
    trial.compare_bits(reference, killed, stopped)
    trial.planted = (
        f"SIGKILL of rank {rank} in step {after + 1}; SIGTERM of the command in step {stopped_after + 1} of another "
        "run, and the same command again"
    )


def _stop_and_start_again(trial: DrillTrial, after: int) -> RunEvidence:
    sent: list[float] = []

    def preempt(command: subprocess.Popen[bytes]) -> None:
        if not sent and trial.sandbox.planted() is not None:
            command.send_signal(signal.SIGTERM)
            sent.append(time.time())

    fault = {"how": "note", "rank": 0, "attempt": 1, "after": after}
    trial.retrain({}, part="-stop", fault=fault, meanwhile=preempt)
    _, stopped = trial.retrain(part="-stop")
    reached = stopped.reached(1)
    trial.figures["checkpoint_in_grace"] = bool(sent) and reached > 0 and reached == _restored_step(stopped, 2)
    trial.figures["lost_steps_of_stop"] = stopped.lost_steps(1) if sent else None
    return stopped


def damage_a_checkpoint(trial: DrillTrial) -> None:
    """F4: one bit of the newest checkpoint, any of all its files, right before a rank is lost."""
    reference = trial.reference()
    step = CHECKPOINT_EVERY_STEPS * trial.draw.randrange(2, LAST // CHECKPOINT_EVERY_STEPS)
    fault = {
        **{"how": "damage", "rank": 0, "attempt": 1, "after": step + CHECKPOINT_EVERY_STEPS // 2},
        **{"checkpoint": directory_name(step), "place": trial.draw.random()},
    }
    _, run = trial.retrain({}, fault=fault)
    planted = trial.sandbox.planted() or {}
    where = f"{planted.get('checkpoint')}/{planted.get('file')}"
    trial.planted = f"bit {planted.get('bit')} of {where} flipped, then SIGKILL of rank 0"
    _take_recovery(trial, run, trial.planted_unix_s())
    quarantined = [event for event in _events(run, 2) if event["event"] == "checkpoint.quarantined"]
    trial.detected = bool(quarantined)
    trial.figures["detect_s"] = _first_after(quarantined, trial.planted_unix_s())
    trial.message = "; ".join(str(event["what"]) for event in quarantined[:1])
    trial.cause = "integrity" if quarantined else ""
    # In quarantine it has a number behind its name.
    names = {str(event["checkpoint"]).partition(".")[0] for event in quarantined}
    trial.figures["named"] = names == {directory_name(step)}
    trial.figures["fell_back"] = _restored_step(run, 2) == step - CHECKPOINT_EVERY_STEPS
    trial.look_at_alert()
    trial.compare_bits(reference, run)


def cut_the_network(trial: DrillTrial) -> None:
    """F3: nothing that is sent to one rank arrives any more, and nobody is told; its end is the end of it."""
    if why := _why_no_filter():
        raise NotHere(why)
    reference = trial.reference()
    rank, after = trial.draw.randrange(NUM_RANKS), trial.draw.randrange(FIRST, LAST)
    patience = {"progress_deadline_s": NETWORK_DEADLINE_S, "min_progress_deadline_s": NETWORK_DEADLINE_S}
    fault = {"how": "mute", "rank": rank, "attempt": 1, "after": after}
    _, run = trial.retrain({"launch": patience}, fault=fault)
    trial.planted = f"what is sent to rank {rank} is dropped by its kernel from step {after + 1} on, without a word"
    _take_failure(trial, run, trial.planted_unix_s())
    trial.figures["named"] = trial.cause == "infrastructure"
    trial.figures["stacks_kept"] = run.run_dir is not None and all(
        are_whole(stacks_text(run.files(1).stacks(each))) for each in range(NUM_RANKS)
    )
    trial.look_at_alert()
    trial.compare_bits(reference, run)


def _why_no_filter() -> str:
    """Why this kernel lets no process drop what is sent to it; empty where it does."""
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    with socket.socket() as own:
        try:
            own.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(nothing)))
        except OSError as error:
            return f"the kernel lets no process filter what is sent to it ({error.strerror})."
    return ""


def _take_failure(trial: DrillTrial, run: RunEvidence, planted_unix_s: float | None) -> None:
    """What was recorded of the first attempt's end, and how soon another made a new step."""
    _take_recovery(trial, run, planted_unix_s)
    lost = [*run.named("rank.lost"), *run.named("attempt.overdue")]
    trial.figures["detect_s"] = _first_after(lost, planted_unix_s)
    failed = [record for record in run.records if record.state == "failed"]
    trial.detected = bool(failed)
    if failed:
        trial.cause, trial.message = failed[0].failure.cause, failed[0].failure.what_and_where


def _take_recovery(trial: DrillTrial, run: RunEvidence, planted_unix_s: float | None) -> None:
    recovered_unix_s = run.first_new_step_unix_s(1)
    trial.figures["recover_s"] = seconds_between(planted_unix_s, recovered_unix_s)
    trial.figures["lost_steps"] = None if recovered_unix_s is None else run.lost_steps(1)
    trial.figures["attempts"] = len(run.records)


def _first_rank(run: RunEvidence) -> int | None:
    return run.records[0].failure.rank if run.records else None


def _events(run: RunEvidence, attempt: int) -> list[Event]:
    return run.rank_events(attempt) if len(run.records) >= attempt else []


def _restored_step(run: RunEvidence, attempt: int) -> int | None:
    steps = [int(event["step"]) for event in _events(run, attempt) if event["event"] == "restore" and "step" in event]
    return steps[-1] if steps else None


def _first_after(events: Sequence[Mapping[str, Any]], planted_unix_s: float | None) -> float | None:
    return seconds_between(planted_unix_s, min((event_end_unix_s(dict(event)) for event in events), default=None))
