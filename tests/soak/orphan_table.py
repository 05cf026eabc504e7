"""What trials of kills came to: a row for each way of ending, and the page in docs/ that shows them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from headway.training.observe.step_summary import quantile
from tests.soak.hang_table import HangEvidence, section

GONE_WITHIN_S = 10.0
CUT_OFF_GONE_WITHIN_S = 30.0
"""Beyond a cut link."""
PAGE = """\
# What a fault costs

Each row is a way in which part of a run was ended in mid-training, tried again and again on real processes. *Gone* is
the time from there until no rank, agent or guard of what was ended is alive on any host, nor anything they started,
found by the token that all of them carry in their environment. *Flow gone* is the same for the flow and its own
servers, which say their last words in good order. *Left* are those of either alive past the bound. *Next step* is the
time until the
next attempt has made its first step, imports, rendezvous and restore included; *connected* says in how many trials
that very attempt did, and *same bits* whether the run's last weights are those of a run that nobody disturbed.

{table}

{connected}

Machine: {machine}. Taken with `{command}`, in {wall}; the JSON beside this page has every trial. On your own:

```console
$ make soak                                                              # among other things, these
$ python -m tests.soak.orphans --times 10 --json docs/faults.json        # what needs this machine alone
$ python -m tests.soak.orphans --times 10 --cluster --json docs/faults.json    # and hosts: as root, see tests/cluster
$ python -m tests.soak.orphans --times 50 --only connections         # whether the next attempt's ranks meet, alone
$ python -m tests.soak.hangs --times 100 --json docs/hangs.json      # who hangs, and who is slow: below
$ python -m tests.soak.orphans --table docs/faults.json --hangs docs/hangs.json > docs/faults.md
```

Ranks are the real worker where steps and bits are compared, and else toys that start children of their own; guards,
agents, supervisors, commands, workers and servers are always the real ones.
"""
HEADINGS = (
    *("where", "what ends", "how", "trials", "gone p50", "p95", "bound", "left", "flow gone p95"),
    *("next step p50", "p95", "target", "connected", "same bits"),
)


class Trial(BaseModel):
    """One ending, and what came of it."""

    where: str
    """`local`, `prefect`, `ssh` or `slurm`."""
    victim: str
    how: str
    bound_s: float = GONE_WITHIN_S
    gone_s: float | None = None
    """None: not within the trial's patience."""
    num_left: int = 0
    """Processes alive past the bound."""
    left: list[str] = []
    """Which those were when the bound was reached."""
    all_gone_s: float | None = None
    """Also of the command and its servers; None where they are not to end."""
    next_step_s: float | None = None
    target_s: float | None = None
    """Of the next step; None where there is to be none."""
    connected: bool | None = None
    """Whether the very next attempt made a step; None where there is to be none."""
    equal_bits: bool | None = None
    problem: str = ""
    """Why the trial could not be made to its end; empty: it was."""

    @property
    def held(self) -> bool:
        """Whether everything that is promised of such an ending was kept but its times, which a busy machine shifts."""
        return not self.problem and self.num_left == 0 and self.connected is not False and self.equal_bits is not False


class Evidence(BaseModel):
    command: str
    machine: str
    started: str
    """ISO 8601, in UTC."""
    wall_s: float
    trials: list[Trial]
    summary: list[dict[str, Any]] = []

    @property
    def failures(self) -> list[Trial]:
        return [trial for trial in self.trials if not trial.held]


def summarise(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """A row for each way of ending, in the order in which they were tried first."""
    ways = dict.fromkeys((trial.where, trial.victim, trial.how) for trial in trials)
    return [_row([each for each in trials if (each.where, each.victim, each.how) == way]) for way in ways]


def _row(trials: Sequence[Trial]) -> dict[str, Any]:
    first = trials[0]
    gone = [trial.gone_s for trial in trials if trial.gone_s is not None]
    steps = [trial.next_step_s for trial in trials if trial.next_step_s is not None]
    everybody = [trial.all_gone_s for trial in trials if trial.all_gone_s is not None]
    return {
        "where": first.where,
        "victim": first.victim,
        "how": first.how,
        "trials": len(trials),
        "gone_p50_s": _quantile(gone, 0.50),
        "gone_p95_s": _quantile(gone, 0.95),
        "bound_s": first.bound_s,
        "left": sum(trial.num_left for trial in trials),
        "all_gone_p95_s": _quantile(everybody, 0.95),
        "next_step_p50_s": _quantile(steps, 0.50),
        "next_step_p95_s": _quantile(steps, 0.95),
        "target_s": first.target_s,
        "connected": _count(trial.connected for trial in trials),
        "equal_bits": _count(trial.equal_bits for trial in trials),
        "problems": [trial.problem for trial in trials if trial.problem],
    }


def _quantile(values: list[float], fraction: float) -> float | None:
    return round(quantile(values, fraction), 2) if values else None


def _count(values: Any) -> str | None:
    """How many of how many; None where nobody was asked."""
    known = [value for value in values if value is not None]
    return f"{sum(known)} of {len(known)}" if known else None


def connected(trials: Sequence[Trial]) -> str:
    count = _count(trial.connected for trial in trials)
    return "" if count is None else f"After a fault the next attempt's process group connected {count} times."


def page(evidence: Evidence, hangs: HangEvidence | None = None) -> str:
    """The whole page, Markdown."""
    minutes = evidence.wall_s / 60
    kills = PAGE.format(
        table=table(evidence.summary),
        connected=connected(evidence.trials),
        machine=evidence.machine,
        command=evidence.command,
        wall=f"{minutes:.0f} minutes" if minutes >= 2 else f"{evidence.wall_s:.0f} seconds",
    )
    return kills if hangs is None else kills + section(hangs)


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    for row in rows:
        cells = (
            *(row["where"], row["victim"], row["how"], str(row["trials"])),
            *(_seconds(row["gone_p50_s"]), _seconds(row["gone_p95_s"]), _seconds(row["bound_s"])),
            *(str(row["left"]), _seconds(row["all_gone_p95_s"])),
            *(_seconds(row["next_step_p50_s"]), _seconds(row["next_step_p95_s"]), _seconds(row["target_s"])),
            *(row["connected"] or "", row["equal_bits"] or ""),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:g} s"
