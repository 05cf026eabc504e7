"""What trials came to: a row for each, the best first, and what became of that."""

from __future__ import annotations

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
from headway.flows.trials.wanted import SearchPlan
from headway.tasks.core.artifacts import artifact_key, show_table
from headway.tasks.core.context import RunContext
from headway.tasks.search.trials_spec import Settings, shown
from headway.tasks.stages.search import SearchedTrial, SearchResult


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

    def _repr_html_(self) -> str:
        """For a notebook: the ranking, and below it what became of the best."""
        direction = "higher" if self.greater_is_better else "lower"
        settings = tuple(self.trials[0].settings)
        rows = [
            (*_places(place, row), *map(shown, row.settings.values()), *_rungs(self, row), _figure(row))
            for place, row in enumerate(self.trials, 1)
        ]
        ranking = notebook_card(
            f"{count(len(self.trials), 'trial')} of {self.pipeline}",
            facts={
                "ranked by": f"{self.metric}, {direction} is better",
                "on": f"{self.num_ranking_examples:,} held-out examples of their own",
                **({"steps": _steps_line(self)} if len(self.levels) > 1 else {}),
                **({"verdict": self.verdict} if self.verdict else {}),
                "keep it": self.keep,
            },
            columns=("", "trial", *settings, *_rung_names(self), self.metric),
            rows=rows,
        )
        return ranking + self.best._repr_html_()


def report(context: RunContext, found: SearchResult, best: RetrainSummary) -> TrialsSummary:
    """Kept beside the flow run's ledger, and shown in the Prefect UI."""
    score = found.score
    summary = TrialsSummary(
        pipeline=context.pipeline,
        metric=score.metric,
        greater_is_better=score.greater_is_better,
        num_ranking_examples=score.num_examples,
        levels=list(found.levels),
        trials=[_row(trial, found.levels[-1]) for trial in found.trials],
        steps_spent=found.steps_spent,
        steps_saved=found.steps_of_all - found.steps_spent,
        is_decided=found.verdict is None or found.verdict.is_decided,
        verdict=_verdict(found),
        keep=as_yaml(found.best.trial.settings),
        best=best,
    )
    context.workspace.publish_json(f"ledger/{context.budget_scope}/trials.json", summary.model_dump(mode="json"))
    rows = [
        row.settings
        | {f"at step {step:,}": row.rungs.get(step) for step in summary.levels[:-1]}
        | {summary.metric: row.value, "steps": row.steps, "trial": row.trial, "failed": row.what}
        for row in summary.trials
    ]
    show_table(artifact_key(context.pipeline, "trials"), rows, "Trials, best first")
    return summary


def _row(trial: SearchedTrial, end: int) -> TrialRow:
    result = trial.result
    row = TrialRow(
        trial=result.trial.number,
        settings=result.trial.settings,
        run=result.run.sha256[:16],
        round=trial.round,
        steps=trial.steps,
        rungs={step: figure.value for step, figure in trial.figures.items()},
    )
    if result.error is not None:
        return row.model_copy(update={"cause": result.error.cause, "what": result.error.what})
    # Without rungs there is one level, whatever the lengths of the runs.
    if (figure := trial.figures.get(end)) is None:
        return row
    return row.model_copy(update={"value": figure.value, "low": figure.low, "high": figure.high})


def _verdict(found: SearchResult) -> str:
    ended = [each for each in found.trials[:2] if found.levels[-1] in each.figures and each.result.error is None]
    if len(ended) < 2:
        return ""
    kept, other = (each.result.trial.number for each in ended)
    verdict = found.verdict
    if verdict is None:
        return f"trial {kept} is better than trial {other}: their intervals lie apart"
    first, second = (other, kept) if verdict.keeps_second else (kept, other)
    gap = verdict.difference
    measured = (
        f"trial {first} less {second}, paired: {gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}] {verdict.metric}"
    )
    if verdict.is_decided:
        return f"decided: {measured}"
    if verdict.first_bytes == verdict.second_bytes:
        why = f"they are of one size, so trial {kept} stays, whose figure is better"
    else:
        small, large = sorted((verdict.first_bytes, verdict.second_bytes))
        why = f"trial {kept} stays, the smaller one ({small:,} bytes beside {large:,})"
    return f"undecided: {measured}; {why}"


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
    for name in ("", "trial", *summary.trials[0].settings, *_rung_names(summary), summary.metric, "run"):
        table.add_column(name, no_wrap=True)
    for place, row in enumerate(summary.trials, start=1):
        cells = [*_places(place, row), *map(shown, row.settings.values()), *_rungs(summary, row)]
        table.add_row(*cells, _figure(row), row.run)
    print_table(console, table)
    if len(summary.levels) > 1:
        console.print(f"  steps      {_steps_line(summary)}")
    if summary.verdict:
        console.print(f"  verdict    {summary.verdict}")
    console.print(f"  keep it    {summary.keep}")


def _rung_names(summary: TrialsSummary) -> tuple[str, ...]:
    return tuple(f"at {step:,}" for step in summary.levels[:-1])


def _rungs(summary: TrialsSummary, row: TrialRow) -> tuple[str, ...]:
    return tuple("" if step not in row.rungs else f"{row.rungs[step]:.4f}" for step in summary.levels[:-1])


def _steps_line(summary: TrialsSummary) -> str:
    whole = summary.steps_spent + summary.steps_saved
    share = summary.steps_spent / max(whole, 1)
    return f"{summary.steps_spent:,} trained, {share:.0%} of the {whole:,} that all trials would take to their ends"


def _places(place: int, row: TrialRow) -> tuple[str, str]:
    return "-" if row.cause is not None else str(place), str(row.trial)


def _figure(row: TrialRow) -> str:
    if row.cause is not None:
        return f"failed ({row.cause}): {row.what}"
    if row.value is None:
        return f"paused at step {row.steps:,}"
    return f"{row.value:.4f} [{row.low:.4f}, {row.high:.4f}]"


def print_wanted(plan: SearchPlan, console: Console) -> None:
    """Settings that no score decides, and what the whole search costs in steps."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("trial", *plan.drawn[0].settings):
        table.add_column(name, no_wrap=True)
    for trial in plan.drawn:
        table.add_row(str(trial.number), *map(shown, trial.settings.values()))
    print_table(console, table)
    if (later := plan.num_trials - len(plan.drawn)) > 0:
        console.print(f"  later      {count(later, 'trial')} more, by what those before came to")
    if plan.num_steps is None or plan.num_steps_of_all is None:
        console.print("  steps      counted once the shards are there")
        return
    if len(plan.levels) > 1:
        rungs = "   ".join(f"{num} to {step:,}" for num, step in zip(plan.num_at_each, plan.levels, strict=True))
        of = "" if plan.rounds == 1 else f", in each of {count(plan.rounds, 'round')}"
        console.print(f"  rungs      {rungs}{of}")
    share = plan.num_steps / plan.num_steps_of_all
    of_all = f"{plan.num_steps_of_all:,} of all trials to their ends"
    rest = "" if len(plan.levels) == 1 else f", {share:.0%} of the {of_all}"
    console.print(f"  steps      {plan.num_steps:,} at most{rest}")
