"""What a search came to, as a record: the same for the terminal, a notebook, the Prefect UI and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, computed_field

from headway.data_contracts.store.errors import Cause
from headway.data_contracts.types.notebook_card import notebook_card
from headway.data_contracts.types.report_text import count, figure, length
from headway.flows.report.summary import RetrainSummary
from headway.tasks.search.earlier_trials import SearchedData
from headway.tasks.search.values import Settings, shown
from headway.training.launch.supervise.step_pace import pace_line


class TrialRow(BaseModel):
    trial: int
    settings: Settings
    run: str
    value: float | None = None
    """Of the trained model, on the examples that rank; None: it paused at a rung, or failed."""
    low: float | None = None
    high: float | None = None
    round: int = 1
    steps: int = 0
    """How far it was trained."""
    rungs: dict[int, float] = {}
    """By step, what it came to there on the examples that rank."""
    later: dict[int, int] = {}
    """By rung, the later step that its figure is of, where the checkpoint of the rung itself was gone."""
    other_seeds: dict[int, float | None] = {}
    """Of a finalist: by seed, what the same settings came to with it; None: they failed."""
    cause: Cause | None = None
    what: str = ""
    """Why it failed."""


class SideBySide(BaseModel):
    """What trials that trained side by side cost each other."""

    at_once: int
    """Trials, at most."""
    step_s: float
    """Of a step, with so many."""
    alone_s: float | None
    """Of a step of the same trials while no other trained; None: not measured."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float | None:
        return self.step_s / self.alone_s if self.alone_s else None


class SearchSoFar(BaseModel):
    """What is known of a search at any time."""

    pipeline: str
    data: SearchedData | None = None
    """What it is made on."""
    metric: str
    """Empty: none was scored yet."""
    greater_is_better: bool
    num_ranking_examples: int
    levels: list[int]
    """The steps at which trials were compared, the last of them the end of training."""
    trials: list[TrialRow]
    """The one to keep first; then those that came furthest, the best first; those that failed last."""
    warm_start: str = ""
    """Which trials of an earlier search proposed the first round; empty: none."""
    ended: str = ""
    """What of its budget ended the search before all was tried; empty: nothing did."""
    steps_spent: int
    """That all runs of these trials have taken, whenever: the furthest step of each."""
    steps_saved: int
    """That training each of them to its end would have taken besides."""
    num_starts: int = 0
    """Attempts at these runs, whenever: each trained on from where the one before ended."""
    device_hours: float = 0.0
    """For which devices were held meanwhile, scoring between attempts included."""
    usd: float | None = None
    """For these, by the prices of the profile; None: none is known."""
    side_by_side: SideBySide | None = None
    """None: none trained beside another in this flow run."""
    report: str = ""
    """Where the search's page lies."""


class TrialsSummary(SearchSoFar):
    is_decided: bool
    """Whether the best can be told apart from the second on the examples that rank; one alone is."""
    verdict: str
    """That in words; empty where only one was trained to its end."""
    keep: str
    """What to write into the pipeline file, so that every retrain takes the best one's settings."""
    best: RetrainSummary
    """What became of the first, evaluated on other examples."""

    def _repr_html_(self) -> str:
        """For a notebook: the ranking, and below it what became of the best."""
        direction = "higher" if self.greater_is_better else "lower"
        columns, rows = ranking(self)
        shown_ranking = notebook_card(
            f"{count(len(self.trials), 'trial')} of {self.pipeline}",
            facts={
                "ranked by": f"{self.metric}, {direction} is better",
                "on": f"{self.num_ranking_examples:,} held-out examples of their own",
                **facts(self),
                **({"verdict": self.verdict} if self.verdict else {}),
                "keep it": self.keep,
            },
            columns=columns,
            rows=rows,
        )
        return shown_ranking + self.best._repr_html_()


def setting_names(settings: Iterable[Settings]) -> tuple[str, ...]:
    """Of all trials: some vary beside certain values of others alone."""
    return tuple(dict.fromkeys(name for each in settings for name in each))


def cells(settings: Settings, names: Sequence[str]) -> tuple[str, ...]:
    """As a table has them; empty where a setting did not vary."""
    return tuple(shown(settings[name]) if name in settings else "" for name in names)


def facts(summary: SearchSoFar) -> dict[str, str]:
    """What is said of a search besides its ranking, by name."""
    pace = summary.side_by_side
    said = {
        "trials": progress_line(summary),
        "steps": steps_line(summary) if len(summary.levels) > 1 else "",
        "spent": spent_line(summary),
        "pace": "" if pace is None else pace_line(pace.at_once, pace.step_s, pace.alone_s),
        "warm start": summary.warm_start,
        "ended": summary.ended and f"by its budget: {summary.ended}",
    }
    return {name: text for name, text in said.items() if text}


def num_by_end(summary: SearchSoFar) -> tuple[int, int, int]:
    """Trials that came to their ends, that have not, and that failed."""
    failed = sum(row.cause is not None for row in summary.trials)
    ended = sum(row.cause is None and row.value is not None for row in summary.trials)
    return ended, len(summary.trials) - ended - failed, failed


def progress_line(summary: SearchSoFar) -> str:
    """How many trials are where."""
    ended, _, failed = num_by_end(summary)
    others = Counter(max(row.rungs, default=0) for row in summary.trials if row.cause is None and row.value is None)
    first = summary.levels[0]
    parts = [
        *([f"{ended} at the end"] if ended else []),
        *(
            f"{others[step]} at step {step:,}" if step else f"{others[step]} before step {first:,}"
            for step in sorted(others, reverse=True)
        ),
        *([f"{failed} failed"] if failed else []),
    ]
    return ", ".join(parts)


def spent_line(summary: SearchSoFar) -> str:
    """Empty where nobody wrote it down."""
    if not summary.num_starts:
        return ""
    hours = summary.device_hours
    devices = f"{hours:,.2f} device hours" if hours >= 1 else f"{length(3600 * hours)} of a device"
    usd = "" if summary.usd is None else f", {summary.usd:,.2f} USD"
    return f"{devices}{usd}, {count(summary.num_starts, 'start')}"


def rung_names(summary: SearchSoFar) -> tuple[str, ...]:
    return tuple(f"at {step:,}" for step in summary.levels[:-1])


def rung_figures(summary: SearchSoFar, row: TrialRow) -> tuple[str, ...]:
    return tuple("" if step not in row.rungs else _rung_figure(row, step) for step in summary.levels[:-1])


def _rung_figure(row: TrialRow, step: int) -> str:
    where = f" of step {row.later[step]:,}" if step in row.later else ""
    return f"{figure(row.rungs[step])}{where}"


def steps_line(summary: SearchSoFar) -> str:
    whole = summary.steps_spent + summary.steps_saved
    share = summary.steps_spent / max(whole, 1)
    return f"{summary.steps_spent:,} trained, {share:.0%} of the {whole:,} that all trials would take to their ends"


def ranking(summary: SearchSoFar) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Names of columns, the place's empty, and the row of each trial, the one to keep first."""
    settings = setting_names(row.settings for row in summary.trials)
    names = ("", "trial", *settings, *rung_names(summary), summary.metric or "figure", "run")
    rows = [
        (
            *("-" if row.cause is not None else str(place), str(row.trial)),
            *(*cells(row.settings, settings), *rung_figures(summary, row)),
            *(final_figure(row), row.run),
        )
        for place, row in enumerate(summary.trials, start=1)
    ]
    return names, rows


def final_figure(row: TrialRow) -> str:
    if row.cause is not None:
        return f"failed ({row.cause}): {row.what}"
    if row.value is None:
        return f"paused at step {row.steps:,}" if row.steps else ""
    others = ", ".join(
        f"{'failed' if value is None else figure(value)} with seed {seed}" for seed, value in row.other_seeds.items()
    )
    low, high = (figure(row.value if each is None else each) for each in (row.low, row.high))
    return f"{figure(row.value)} [{low}, {high}]{f'; {others}' if others else ''}"
