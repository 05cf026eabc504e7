"""An event of a run's attempts in the words of `headway logs`: what a terminal tells while it goes on, and what only
who looks for a cause asks about. Of steps, one a minute.
"""

from __future__ import annotations

from collections import defaultdict

from headway.flows.report.terminal import STAGE_WIDTH, notice_line
from headway.training.launch.base.protocol import OWNER_LOST
from headway.training.launch.diagnosis.run_events import RANK_CAME_UP, RANK_FAILED, RunEvent
from headway.training.observe.ledger import Event

STEP_EVERY_S = 60.0


class EventFormatter:
    """Called with one event after another, by time; returns the words, empty for what nobody needs."""

    def __init__(self) -> None:
        self._step_unix_s = defaultdict[tuple[str, int, int | None], float](float)

    def __call__(self, run_event: RunEvent) -> str:
        if run_event.event["event"] == "step" and not self._is_due(run_event):
            return ""
        try:
            return self._words(run_event)
        except (KeyError, TypeError, ValueError, OverflowError):
            return f"{'damaged':<{STAGE_WIDTH}} the event {run_event.event['event']} lacks what it should say."

    def _words(self, run_event: RunEvent) -> str:
        label, words = _label_and_text(run_event.event, run_event.rank)
        return notice_line(run_event.event) if not label else f"{label:<{STAGE_WIDTH}} {words}" if words else ""

    def _is_due(self, step: RunEvent) -> bool:
        step_key = (step.gang, step.attempt, step.rank)
        is_due = step.unix_s - self._step_unix_s[step_key] >= STEP_EVERY_S
        self._step_unix_s[step_key] = step.unix_s if is_due else self._step_unix_s[step_key]
        return is_due


def _label_and_text(event: Event, rank: int | None) -> tuple[str, str]:
    """Label and words; no words where there is nothing to tell, and no label where a terminal has the words."""
    match event["event"]:
        case "attempt.begin":
            return "attempt", f"{event['attempt']} begins."
        case "attempt":
            return "attempt", f"{event['attempt']} {_end(event)}"
        case "attempt.start":
            return "ranks", f"all have come up, after {event['duration_s']:.1f} s."
        case "attempt.stop":
            return "stop", f"ranks are asked to keep a checkpoint and end: {event['reason']}."
        case "attempt.overdue" | "host.missing" | "host.unreachable":
            return "attempt", str(event["what"])
        case "attempt.retry":
            return "attempt", ""  # the end of the one and the beginning of the other have said it
        case "agent.stop":
            return "guard", _on_its_own(event)
        case "rank.lost" if "ranks" in event:
            return "rank", f"rank {rank} is gone and left no word: it was killed, perhaps for want of memory."
        case name if name == RANK_CAME_UP:
            return "rank", f"rank {rank} is process {event['pid']}{' on ' if event['host'] else ''}{event['host']}."
        case name if name == RANK_FAILED:
            return "rank", f"rank {rank} failed: {event['what']}"
        case "step":
            return "step", f"{event['step']:,}: loss {event['loss']:.4f}, took {event['duration_s']:.3f} s."
        case "restore" if event.get("step") == 0:
            return "start", "at step 0."
        case "checkpoint.durable":
            size_mb = event["size_bytes"] / 1e6
            return "checkpoint", f"of step {event['step']:,} is kept: {size_mb:,.1f} MB in {event['durable_s']:.2f} s."
    return "", ""


def _end(event: Event) -> str:
    at = "" if event["step"] is None or event["state"] == "stopped" else f" at step {event['step']:,}"
    what = event["failure"]["what"]
    return f"{event['state']}{at}: {what}" if what else f"{event['state']}{at}."


def _on_its_own(event: Event) -> str:
    """Why a guard ends its ranks, where nobody told it to."""
    is_its_own = event["why"] in OWNER_LOST or str(event["why"]).endswith("came")
    return f"node {event['node']} ends its ranks: {event['why']}." if is_its_own else ""
