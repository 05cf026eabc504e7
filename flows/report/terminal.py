"""What a person sees while a retrain runs: a line a stage, a line a step, then the summary.

On a terminal the newest step stays on one line, and the trials of a search are a table below all lines; elsewhere plain
lines, one every few seconds; with `--json` nothing but JSON lines.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, TextIO

from headway.data_contracts.store import plain_text
from headway.data_contracts.types.report_text import count, figure
from headway.flows.console.console import headed, plain_console
from headway.flows.console.output import print_json
from headway.flows.report.search_table import SearchTable
from headway.training.observe.ledger import Event

if TYPE_CHECKING:
    from headway.flows.report.summary import RetrainSummary

PLAIN_STEP_EVERY_S = 5.0
SHOWN_PARTS = 5
TABLE_EVERY_S = 0.2
STAGE_WIDTH = 10

NOTICES = {
    "batch": "batch",
    "learning_rate": "rates",
    "trial": "trial",
    "tuned": "tuned",
    "tune.measured": "measured",
    "rung": "rung",
    "gang.again": "again",
    "gang.pace": "pace",
    "recipe.untried": "untried",
    "shard.excluded": "split",
    "shard.without_rows": "split",
    "fit.sample": "fit",
    "length": "length",
    "start_from": "start",
    "reproduce.begin": "reproduce",
    "reproduce.disk": "disk",
    "reproduce.changed": "changed",
    "stage.damaged": "damaged",
    "evaluate.no_xz": "xz -9",
    "evaluate.on_heldout": "champion",
    "alias.moved": "alias",
    "validate.accepted_unreadable": "contract",
    "validate.label_leak": "leak",
    "rank.lost": "rank",
    "ranks.stopped": "ranks",
    "rank.slow": "slow",
    "host.excluded": "excluded",
    "attempt.failed": "attempt",
    "attempt.tight_deadline": "deadline",
    "job.state": "job",
    "job.found": "job",
    "job.notified": "job",
    "job.requeue": "job",
    "job.again": "job",
    "job.unknown": "job",
    "attempt.retry": "retry",
    "batch.grown": "batch",
    "shares.given": "shares",
    "shares.moved": "shares",
    "federated.round": "round",
    "guard": "guard",
    "checkpoint.quarantined": "quarantine",
    "checkpoint.damaged": "damaged",
    "restore.inexact": "inexact",
    "run.inexact": "inexact",
    "run.carried_on": "carry on",
    "run.not_continued": "new run",
    "search.page": "report",
    "search.started": "search",
    "search.cut": "search",
    "search.ended": "search",
    "search.kept": "search",
    "run.went_back": "go back",
    "run.leased_remotely": "leased",
    "run.waiting": "waiting",
    "run.lost": "lost",
    "run.interrupted": "kept",
    "pipeline.starving": "starving",
    "checkpoints.unpublished": "unpublished",
}
OF_TRAINING = frozenset({"batch", "learning_rate", "length"})
"""What is said of training before it begins."""
STOPPED = frozenset({"RunStopped", "CostBoundReached", "KeyboardInterrupt", "Terminated", "TerminationSignal"})
"""How a span ends that somebody asked to end."""


def step_line(event: Event, rate_per_s: float, remaining_s: float) -> str:
    """One step, fixed columns, units."""
    what = "ex/s" if event.get("targets") == "examples" else "tok/s"
    loss = f"rmse {event['rmse']:.6g}" if "rmse" in event else f"loss {event['loss']:.4f}"
    name, step, last = event.get("trial") or "step", int(event["step"]), int(event.get("max_steps") or 0)
    return (
        f"{name:<{STAGE_WIDTH}} {step:>5}/{last:<6} {loss}   lr {event['lr']:.1e}   "
        f"{what:<5} {rate_per_s:>9,.0f}   sync {100 * event['sync_s'] / max(event['duration_s'], 1e-9):>3.0f} %   "
        f"ETA {remaining_s:>4.0f} s"
    )


def validation_line(event: Event) -> str:
    """One validation, beside the best so far."""
    name, step, last = event.get("trial") or "validation", int(event["step"]), int(event.get("max_steps") or 0)
    best = "the best so far" if event["best_step"] == step else f"best at step {event['best_step']:,}"
    ends = "; no better for long enough: training ends" if event["stale"] == event["patience"] else ""
    return f"{name:<{STAGE_WIDTH}} {step:>5}/{last:<6} {event['metric']} {event['value']:.6g}   {best}{ends}"


def stage_line(event: Event) -> str:
    name = str(event["event"]).removeprefix("stage.")
    if (outcome := event.get("outcome")) != "ok":
        # Of a run that another process works on nothing is wrong.
        state = "busy" if outcome == "RunBusy" else "stopped" if outcome in STOPPED else "FAILED"
        return f"{name:<{STAGE_WIDTH}} {state:<7} {event['duration_s']:>7.2f} s"
    state = "found" if event.get("found") else "made"
    return f"{name:<{STAGE_WIDTH}} {state:<6} {event['duration_s']:>8.2f} s   {event.get('shown', '')}".rstrip()


def is_crowding(event: Event) -> bool:
    """Whether a rank is slow beside others of the same machine: they take turns at its cores, which is no news."""
    return event["event"] == "rank.slow" and bool(event.get("one_host"))


def notice_line(event: Event) -> str:
    """What a person reads of an event that is no step; empty for most, and for an attempt at a first step."""
    name = str(event["event"])
    if name.startswith("stage.") and "duration_s" in event:
        return stage_line(event)
    if is_crowding(event) or (name == "federated.round" and event.get("what") == ""):
        return ""
    if name == "restore" and event.get("outcome") == "ok" and (event.get("step") or event.get("quarantined")):
        step = event["step"]
        what = f"resumes from the checkpoint of step {step:,}" if step else "no good checkpoint is left: begins anew"
        return f"{event.get('trial', name):<{STAGE_WIDTH}} {what}"
    if name == "restore.best" and event.get("outcome") == "ok":
        what = f"the model is the checkpoint of step {event['step']:,}, which validated best"
        return f"{event.get('trial', 'validation'):<{STAGE_WIDTH}} {what}"
    return (
        f"{NOTICES[name]:<{STAGE_WIDTH}} {event.get('message') or event.get('what') or ''}" if name in NOTICES else ""
    )


class Rate:
    """Targets (tokens or examples) a second and seconds to go, smoothed over the recent steps."""

    def __init__(self) -> None:
        self._per_s = 0.0
        self._step_s = 0.0

    def update(self, event: Event) -> tuple[float, float]:
        duration_s = max(float(event["duration_s"]), 1e-9)
        # The first step sets the rate; later ones move it little, so that one slow step does not shake the ETA.
        weight = 0.1 if self._step_s else 1.0
        self._step_s += weight * (duration_s - self._step_s)
        self._per_s += weight * (event["tokens"] / duration_s - self._per_s)
        return self._per_s, (int(event.get("max_steps") or 0) - int(event["step"])) * self._step_s


class Terminal:
    """A ledger listener that prints for people."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout  # what it is now, not when this module was imported
        self._live, self._rates = self._stream.isatty(), defaultdict[str, Rate](Rate)
        self._printed_s, self._open_line = 0.0, False
        self._validated_s = defaultdict[str, float](float)
        self._num_crowding = 0
        self._lines_before: dict[str, str] = {}
        self._search, self._num_drawn, self._drawn_s = SearchTable(), 0, 0.0

    def __call__(self, event: Event) -> None:
        name = str(event["event"])
        if self._live and self._search.take(event):
            self._draw(is_due=name != "step")
        if name == "step":
            self._step(event)
        elif name == "validation" and "value" in event:
            self._validation(event)
        elif name == "flow.card":
            self._card(event)
        elif is_crowding(event):
            self._num_crowding += 1
        elif line := notice_line(event):
            if name == "stage.launch" and self._num_crowding:
                times = count(self._num_crowding, "time")
                self._line(f"{NOTICES['rank.slow']:<{STAGE_WIDTH}} {times} a rank kept others of its machine waiting")
                self._num_crowding = 0
            # Of a flow run that trains several runs, what each of them would say alike.
            if name not in OF_TRAINING or self._lines_before.get(name) != line:
                self._line(line)
            self._lines_before[name] = line

    def _step(self, event: Event) -> None:
        line = step_line(event, *self._rates[event.get("trial") or ""].update(event))
        if self._num_drawn:
            return  # a row of the table says it
        if self._live:
            # Over the line before, and the rest of that is cleared: a step needs no line of its own.
            self._stream.write(f"\r\x1b[K{plain_text.one_line(line)}")
            self._stream.flush()
            self._open_line = True
        elif time.monotonic() - self._printed_s >= PLAIN_STEP_EVERY_S or event["step"] == event.get("max_steps"):
            self._line(line)
            self._printed_s = time.monotonic()

    def _validation(self, event: Event) -> None:
        is_last = event["stale"] == event["patience"] or event["step"] == event.get("max_steps")
        trial = str(event.get("trial") or "")
        if is_last or time.monotonic() - self._validated_s[trial] >= PLAIN_STEP_EVERY_S:
            self._line(validation_line(event))
            self._validated_s[trial] = time.monotonic()

    def _card(self, event: Event) -> None:
        from headway.flows.report.failure_card import FailureCard, print_card

        self._line("")
        print_card(FailureCard.model_validate({**event}), plain_console(self._stream))

    def _line(self, text: str) -> None:
        if self._open_line:
            self._stream.write("\n")
            self._open_line = False
        self._erase()
        self._stream.write(plain_text.lines(text) + "\n")
        self._draw(is_due=True)
        self._stream.flush()

    def _draw(self, *, is_due: bool) -> None:
        """The table anew, below all lines."""
        if not is_due and time.monotonic() - self._drawn_s < TABLE_EVERY_S:
            return
        lines = self._search.lines(shutil.get_terminal_size().columns - 1)
        if self._open_line and lines:
            self._stream.write("\n")
            self._open_line = False
        self._erase()
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()
        self._num_drawn, self._drawn_s = len(lines), time.monotonic()

    def _erase(self) -> None:
        if self._num_drawn:
            self._stream.write(f"\x1b[{self._num_drawn}A\r\x1b[J")
            self._num_drawn = 0

    def summary(self, summary: RetrainSummary) -> None:
        from headway.flows.report.summary import champion_outcome, inexact_line, next_step, proof_command, title

        console = plain_console(self._stream)
        console.print()
        console.print(headed(title(summary), f": {champion_outcome(summary)}"))
        console.print(f"  {summary.reason}")
        console.print(f"  {comparison_line(summary)}")
        if summary.leaderboard:
            console.print(f"  best first {'   '.join(summary.leaderboard)}")
        if summary.note:
            console.print(f"  asked for  {summary.note}")
        if line := inexact_line(summary):
            console.print(f"  {line}")
        console.print(f"  reports    {summary.reports['evaluation']}")
        console.print(f"             {summary.reports['contract']}")
        if "card" in summary.reports:
            console.print(f"  card       {summary.reports['card']}")
        console.print(f"  ledger     {summary.logs}")
        if summary.version:
            console.print(f"  prove it   {proof_command(summary)}")
        console.print(f"  time       {time_line(summary)}")
        if step := next_step(summary):
            console.print(f"  next       {step}")


def comparison_line(summary: RetrainSummary) -> str:
    from headway.flows.report.summary import examples_line
    from headway.tasks.registry.evaluation_report import shown

    name, own, champion, others = summary.in_label_unit
    figures = [f"{name} {shown(own)}"]
    if champion is not None:
        figures.append(f"champion {figure(champion)}")
    figures += [f"{name} {figure(value)}" for name, value in others.items()]
    return "   ".join([*figures, f"on {examples_line(summary)}"])


def time_line(summary: RetrainSummary) -> str:
    """What took longest; all of it is in `summary.json` beside the ledger, and a table artifact in Prefect."""
    largest = sorted(summary.time_s.items(), key=lambda part: -part[1])[:SHOWN_PARTS]
    shown = {name: seconds / summary.wall_s for name, seconds in largest if seconds >= 0.01 * summary.wall_s}
    rest = 1 - sum(shown.values())
    parts = [f"{name} {ratio:.0%}" for name, ratio in shown.items()] + (
        [f"the rest {rest:.0%}"] if rest >= 0.005 else []
    )
    return f"{summary.wall_s:.1f} s: {', '.join(parts)}"


class JsonLines:
    """A ledger listener for machines: every event as it happens, the summary last."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout

    def __call__(self, event: Event) -> None:
        print_json(event, self._stream)

    def summary(self, summary: RetrainSummary) -> None:
        self({"event": "summary", **summary.model_dump(mode="json")})
