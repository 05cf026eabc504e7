"""What a search came to, as a record: the same for the terminal, a notebook, the Prefect UI and the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel

from headway.data_contracts.store.errors import Cause
from headway.data_contracts.types.notebook_card import notebook_card
from headway.data_contracts.types.report_text import count, figure
from headway.flows.report.summary import RetrainSummary
from headway.tasks.search.values import Settings, shown


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


class TrialsSummary(BaseModel):
    pipeline: str
    metric: str
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
    is_decided: bool
    """Whether the best can be told apart from the second on the examples that rank; one alone is."""
    verdict: str
    """That in words; empty where only one was trained to its end."""
    keep: str
    """What to write into the pipeline file, so that every retrain takes the best one's settings."""
    best: RetrainSummary
    """What became of the first, evaluated on other examples."""
    report: str = ""
    """Where the search's page lies."""

    def _repr_html_(self) -> str:
        """For a notebook: the ranking, and below it what became of the best."""
        direction = "higher" if self.greater_is_better else "lower"
        columns, rows = ranking(self)
        shown_ranking = notebook_card(
            f"{count(len(self.trials), 'trial')} of {self.pipeline}",
            facts={
                "ranked by": f"{self.metric}, {direction} is better",
                "on": f"{self.num_ranking_examples:,} held-out examples of their own",
                **({"steps": steps_line(self)} if len(self.levels) > 1 else {}),
                **({"warm start": self.warm_start} if self.warm_start else {}),
                **({"ended": f"by its budget: {self.ended}"} if self.ended else {}),
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


def rung_names(summary: TrialsSummary) -> tuple[str, ...]:
    return tuple(f"at {step:,}" for step in summary.levels[:-1])


def rung_figures(summary: TrialsSummary, row: TrialRow) -> tuple[str, ...]:
    return tuple("" if step not in row.rungs else _rung_figure(row, step) for step in summary.levels[:-1])


def _rung_figure(row: TrialRow, step: int) -> str:
    where = f" of step {row.later[step]:,}" if step in row.later else ""
    return f"{figure(row.rungs[step])}{where}"


def steps_line(summary: TrialsSummary) -> str:
    whole = summary.steps_spent + summary.steps_saved
    share = summary.steps_spent / max(whole, 1)
    return f"{summary.steps_spent:,} trained, {share:.0%} of the {whole:,} that all trials would take to their ends"


def ranking(summary: TrialsSummary) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Names of columns, the place's empty, and the row of each trial, the one to keep first."""
    settings = setting_names(row.settings for row in summary.trials)
    names = ("", "trial", *settings, *rung_names(summary), summary.metric, "run")
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
        return f"paused at step {row.steps:,}"
    others = ", ".join(
        f"{'failed' if value is None else figure(value)} with seed {seed}" for seed, value in row.other_seeds.items()
    )
    low, high = (figure(row.value if each is None else each) for each in (row.low, row.high))
    return f"{figure(row.value)} [{low}, {high}]{f'; {others}' if others else ''}"
