"""What trials of hangs and slow ranks came to: a row for each way and place, as a part of the page in docs/. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from headway.training.observe.step_summary import quantile

SEEN_WITHIN_S = 5.0
"""Beyond the deadline."""
SLOW_S = 0.1
"""What a slow rank takes longer in each step, at the least: half of the last one, where steps are long."""
SLOW, HEALTHY, CUT = "slow", "nothing", "cut link"
PAGE = """\

## Who hangs, and who is slow

Each row is a way in which one rank, drawn at random, came to a halt in a gang of 2 or 4 real ranks, by the place in a
step where it did. *Seen* is the time from the last word of any rank until the attempt was found overdue and the late
rank named, stacks of all ranks included; a cut link is seen by the host's silence. *In time* is within the deadline
and {beyond:g} s; *right* are the trials that named that rank and no other. A slow rank takes {slow_ms:g} ms
longer or more in each step; where nothing happens, and in all other trials, nobody is to be called slow.

{table}

{totals}

Machine: {machine}. Taken with `{command}`, in {minutes:.0f} minutes; `hangs.json` beside this page has every trial.
Guards, agents and ranks are forks of one process that has imported torch, so that a trial is little more than its
deadline; beyond cut links they are started over ssh, and the agents are toys without torch.
"""
HEADINGS = ("what happens", "where", "trials", "deadline", "seen p50", "p95", "in time", "right", "called slow")


class HangTrial(BaseModel):
    """One attempt, what it suffered, and what was said of it."""

    gang: str
    how: str
    """`SIGSTOP`, `sleep`, `cut link`, `slow` or `nothing`."""
    phase: str = ""
    culprit: int | None
    """The rank that hung, or was slow, or lay beyond the cut link; None where there was none."""
    deadline_s: float = 0.0
    named: tuple[int, ...] = ()
    """Ranks that were found late, or lost with their host."""
    called_slow: tuple[int, ...] = ()
    seen_s: float | None = None
    """From the last word of any rank until the late one was named; None where none was."""
    connected: bool | None = None
    """Whether the ranks of the very next attempt all met; None where there was none."""
    what: str = ""
    """As the supervisor put it."""
    problem: str = ""
    """What went wrong besides."""
    was_made: bool = True
    """Whether it came to what was planned: a machine that is too busy may end an attempt before."""

    @property
    def is_hang(self) -> bool:
        return self.how not in (SLOW, HEALTHY)

    @property
    def is_right(self) -> bool:
        culprits = () if self.culprit is None else (self.culprit,)
        if self.problem:
            return False
        return (self.named == culprits) if self.is_hang else self.called_slow == culprits

    @property
    def is_in_time(self) -> bool:
        return self.seen_s is not None and self.seen_s <= self.deadline_s + SEEN_WITHIN_S

    @property
    def is_false_alarm(self) -> bool:
        """Whether somebody was called slow who was not."""
        return any(self.how != SLOW or rank != self.culprit for rank in self.called_slow)

    @property
    def held(self) -> bool:
        return self.is_right and not self.is_false_alarm and (self.is_in_time or not self.is_hang)


class HangEvidence(BaseModel):
    command: str
    machine: str
    started: str
    """ISO 8601, in UTC."""
    seed: int
    wall_s: float = 0.0
    trials: list[HangTrial] = []
    summary: list[dict[str, Any]] = []

    def with_trials(self, made: Sequence[HangTrial], wall_s: float) -> HangEvidence:
        trials = [*self.trials, *made]
        return self.model_copy(update={"trials": trials, "summary": summarise(trials), "wall_s": round(wall_s, 1)})


def summarise(trials: Sequence[HangTrial]) -> list[dict[str, Any]]:
    """A row for each way and place, sorted, of the trials that were made."""
    trials = [trial for trial in trials if trial.was_made]
    ways = sorted({(not trial.is_hang, trial.how, trial.phase) for trial in trials})
    return [_row([trial for trial in trials if (trial.how, trial.phase) == way[1:]]) for way in ways]


def _row(trials: Sequence[HangTrial]) -> dict[str, Any]:
    first, seen = trials[0], [trial.seen_s for trial in trials if trial.seen_s is not None]
    return {
        "how": first.how,
        "phase": first.phase,
        "trials": len(trials),
        "deadline_s": max(trial.deadline_s for trial in trials),
        "seen_p50_s": round(quantile(seen, 0.5), 2) if seen else None,
        "seen_p95_s": round(quantile(seen, 0.95), 2) if seen else None,
        "in_time": sum(trial.is_in_time for trial in trials) if first.is_hang else None,
        "right": sum(trial.is_right for trial in trials),
        "called_slow": sum(bool(trial.called_slow) for trial in trials),
        "problems": [trial.problem for trial in trials if trial.problem],
    }


def totals(trials: Sequence[HangTrial]) -> str:
    num_planned, trials = len(trials), [trial for trial in trials if trial.was_made]
    hangs, slow = ([t for t in trials if t.is_hang], [t for t in trials if t.how == SLOW])
    others = [trial for trial in trials if trial.how != SLOW]
    met = [trial.connected for trial in trials if trial.connected is not None]
    message = [
        f"The right rank was named in {sum(t.is_right for t in hangs)} of {len(hangs)} hangs, "
        f"{sum(t.is_in_time for t in hangs)} in time" * bool(hangs),
        f"the slow one in {sum(t.is_right for t in slow)} of {len(slow)} trials" * bool(slow),
        f"somebody was called slow in {sum(t.is_false_alarm for t in others)} of {len(others)} trials without a slow "
        f"rank" * bool(others),
        f"the next attempt's ranks met {sum(met)} of {len(met)} times" * bool(met),
        f"{num_planned - len(trials)} of {num_planned} trials ended before what was planned"
        * (len(trials) < num_planned),
    ]
    return "; ".join(filter(None, message)) + "."


def section(evidence: HangEvidence) -> str:
    """Of the page, Markdown."""
    return PAGE.format(
        beyond=SEEN_WITHIN_S,
        slow_ms=1e3 * SLOW_S,
        table=table(evidence.summary),
        totals=totals(evidence.trials),
        machine=evidence.machine,
        command=evidence.command,
        minutes=evidence.wall_s / 60,
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    for row in rows:
        count = row["trials"]
        cells = (
            *(row["how"], row["phase"], str(count), _seconds(row["deadline_s"] or None)),
            *(_seconds(row["seen_p50_s"]), _seconds(row["seen_p95_s"])),
            "" if row["in_time"] is None else f"{row['in_time']} of {count}",
            *(f"{row['right']} of {count}", str(row["called_slow"])),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:g} s"
