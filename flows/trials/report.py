"""What trials came to: a row for each, the best first, and what became of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import yaml
from prefect import State
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from headway.data_contracts.store.errors import Cause
from headway.data_contracts.types.notebook_card import notebook_card
from headway.data_contracts.types.report_text import count
from headway.flows.console.console import headed, print_table
from headway.flows.report.summary import RetrainSummary
from headway.flows.report.summary import as_state as state_of
from headway.tasks.core.artifacts import artifact_key, show_table
from headway.tasks.core.context import RunContext
from headway.tasks.core.trials_spec import Settings, Trial, shown
from headway.tasks.stages.trials import TrialResult


class TrialRow(BaseModel):
    trial: int
    settings: Settings
    run: str
    value: float | None = None
    """On the examples that rank; None: it failed."""
    low: float | None = None
    high: float | None = None
    cause: Cause | None = None
    what: str = ""
    """Why it failed."""


class TrialsSummary(BaseModel):
    pipeline: str
    metric: str
    greater_is_better: bool
    num_ranking_examples: int
    trials: list[TrialRow]
    """Best first, and those that failed last."""
    keep: str
    """What to write into the pipeline file, so that every retrain takes the best one's settings."""
    best: RetrainSummary
    """What became of the first, evaluated on other examples."""

    def _repr_html_(self) -> str:
        """For a notebook: the ranking, and below it what became of the best."""
        direction = "higher" if self.greater_is_better else "lower"
        settings = tuple(self.trials[0].settings)
        rows = [
            (*_places(place, row), *map(shown, row.settings.values()), _figure(row))
            for place, row in enumerate(self.trials, 1)
        ]
        ranking = notebook_card(
            f"{count(len(self.trials), 'trial')} of {self.pipeline}",
            facts={
                "ranked by": f"{self.metric}, {direction} is better",
                "on": f"{self.num_ranking_examples:,} held-out examples of their own",
                "keep it": self.keep,
            },
            columns=("", "trial", *settings, self.metric),
            rows=rows,
        )
        return ranking + self.best._repr_html_()


def report(context: RunContext, ranked: Sequence[TrialResult], best: RetrainSummary) -> TrialsSummary:
    """Kept beside the flow run's ledger, and shown in the Prefect UI."""
    first = ranked[0].score
    assert first is not None  # else ranking had failed
    summary = TrialsSummary(
        pipeline=context.pipeline,
        metric=first.metric,
        greater_is_better=first.greater_is_better,
        num_ranking_examples=first.num_examples,
        trials=[_row(results) for results in ranked],
        keep=as_yaml(ranked[0].trial.settings),
        best=best,
    )
    context.workspace.publish_json(f"ledger/{context.budget_scope}/trials.json", summary.model_dump(mode="json"))
    rows = [
        row.settings | {summary.metric: row.value, "trial": row.trial, "failed": row.what} for row in summary.trials
    ]
    show_table(artifact_key(context.pipeline, "trials"), rows, "Trials, best first")
    return summary


def _row(results: TrialResult) -> TrialRow:
    row = TrialRow(trial=results.trial.number, settings=results.trial.settings, run=results.run.sha256[:16])
    if results.score is not None:
        figure = results.score.figure
        return row.model_copy(update={"value": figure.value, "low": figure.low, "high": figure.high})
    assert results.error is not None
    return row.model_copy(update={"cause": results.error.cause, "what": results.error.what})


def as_yaml(settings: Settings) -> str:
    """Of a pipeline file, in one line."""
    training: dict[str, object] = {}
    for name, value in settings.items():
        *branches, leaf = name.split(".")
        branch = training
        for part in branches:
            branch = branch.setdefault(part, {})  # type: ignore[assignment]
        branch[leaf] = value
    text: str = yaml.safe_dump({"training": training}, default_flow_style=True, sort_keys=False, width=10_000)
    # Without the outer braces, so that it can stand in a pipeline file as it is.
    return text.strip()[1:-1]


def as_state(summary: TrialsSummary) -> TrialsSummary | State[TrialsSummary]:
    """What the flow returns: where a person has to decide about the best, a state whose name says so."""
    state = state_of(summary.best)
    if not isinstance(state, State):
        return summary
    return cast("State[TrialsSummary]", state.model_copy(update={"data": summary}))


def print_ranking(summary: TrialsSummary, console: Console) -> None:
    direction = "higher" if summary.greater_is_better else "lower"
    console.print()
    evaluated = f"{summary.num_ranking_examples:,} held-out examples of their own"
    by = f" by {summary.metric}, {direction} is better, on {evaluated}"
    console.print(headed(count(len(summary.trials), "trial"), by))
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("", "trial", *summary.trials[0].settings, summary.metric, "run"):
        table.add_column(name, no_wrap=True)
    for place, row in enumerate(summary.trials, start=1):
        figure = _figure(row)
        cells = [*_places(place, row), *map(shown, row.settings.values())]
        table.add_row(*cells, figure, row.run)
    print_table(console, table)
    console.print(f"  keep it    {summary.keep}")


def _places(place: int, row: TrialRow) -> tuple[str, str]:
    return "-" if row.value is None else str(place), str(row.trial)


def _figure(row: TrialRow) -> str:
    if row.value is None:
        return f"failed ({row.cause}): {row.what}"
    return f"{row.value:.4f} [{row.low:.4f}, {row.high:.4f}]"


def print_wanted(trials: Sequence[Trial], console: Console) -> None:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("trial", *trials[0].settings):
        table.add_column(name, no_wrap=True)
    for trial in trials:
        table.add_row(str(trial.number), *map(shown, trial.settings.values()))
    print_table(console, table)
