"""What two settings came to over seeds, as a record and in the terminal."""

from __future__ import annotations

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from headway.data_contracts.types.report_text import count
from headway.flows.console.console import headed, print_table
from headway.flows.trials.summary import cells, setting_names
from headway.tasks.core.artifacts import artifact_key, show_table
from headway.tasks.core.context import RunContext
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.values import Settings
from headway.tasks.stages.settings_comparison import SettingsComparison, differing, with_seed_of
from headway.tasks.stages.trial_scores import TrialResult


class ComparedSettings(BaseModel):
    settings: Settings
    """What it does not have in common with the other."""
    runs: dict[int, str]
    """By seed."""
    values: dict[int, float | None]
    """By seed, on the examples that rank; None: it failed. Empty where none was trained."""
    failures: dict[int, str] = {}
    """By seed, why."""


class ComparisonSummary(BaseModel):
    pipeline: str
    against: str
    """The pipeline file that the other settings are of."""
    is_same: bool
    """Whether nothing tells them apart, so that none was trained."""
    metric: str = ""
    greater_is_better: bool = False
    num_ranking_examples: int = 0
    this: ComparedSettings
    other: ComparedSettings
    difference: float | None = None
    """This less the other, paired over examples and seeds; None: of no seed both came to their ends."""
    low: float | None = None
    high: float | None = None
    outcome: str
    """`better`, `worse`, `undecided` or `same`."""
    verdict: str
    """That in words."""


def summarise_comparison(context: RunContext, found: SettingsComparison, against: str) -> ComparisonSummary:
    """Shown in the Prefect UI too."""
    this, other = (_side(*each) for each in zip(found.settings, found.results, strict=True))
    common = {"pipeline": context.pipeline, "against": against, "this": this, "other": other}
    if found.is_same:
        verdict = "nothing to compare: settings and code of training are the same"
        return ComparisonSummary(**common, is_same=True, outcome="same", verdict=verdict)
    scores = [each.score for results in found.results for each in results if each.score is not None]
    summary = ComparisonSummary(
        **common,
        is_same=False,
        metric=scores[0].metric if scores else "",
        greater_is_better=bool(scores) and scores[0].greater_is_better,
        num_ranking_examples=scores[0].num_examples if scores else 0,
        outcome="worse" if found.is_worse else "better" if found.is_better else "undecided",
        verdict=_verdict(found, this, other),
    )
    if found.verdict is not None:
        gap = found.verdict.difference
        summary = summary.model_copy(update={"difference": gap.value, "low": gap.low, "high": gap.high})
    rows = [
        {"settings": name, **dict(zip(_names(summary), cells(each.settings, _names(summary)), strict=True))}
        | {f"seed {seed}": value for seed, value in each.values.items()}
        for name, each in (("this", this), ("other", other))
    ]
    show_table(artifact_key(context.pipeline, "settings"), rows, summary.verdict)
    return summary


def _side(settings: Settings, results: list[TrialResult]) -> ComparedSettings:
    by_seed = {each.trial.training.seed: each for each in results}
    return ComparedSettings(
        settings=settings,
        runs={seed: each.run.sha256[:16] for seed, each in by_seed.items()},
        values={
            seed: None if each.score is None else each.score.figure.value
            for seed, each in by_seed.items()
            if each.score is not None or each.error is not None
        },
        failures={seed: each.error.what for seed, each in by_seed.items() if each.error is not None},
    )


def _verdict(found: SettingsComparison, this: ComparedSettings, other: ComparedSettings) -> str:
    failures = [
        f"{name} failed with {count(len(each.failures), 'seed')} ({next(iter(each.failures.values()))})"
        for name, each in (("this", this), ("the other", other))
        if each.failures
    ]
    if found.verdict is None:
        return f"{'worse' if found.is_worse else 'undecided'}: {'; '.join(failures)}"
    gap, seeds = found.verdict.difference, count(len(found.verdict.seeds), "seed")
    few = f" by rows of {count(found.verdict.num_keys, 'key')}" if found.verdict.has_few_keys else ""
    outcome = "worse" if found.is_worse else "better" if found.is_better else f"undecided{few}"
    measured = (
        f"{outcome}: this less the other, paired over {seeds}: {gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}] "
        f"{found.verdict.metric}"
    )
    return "; ".join([measured, *failures])


def _names(summary: ComparisonSummary) -> tuple[str, ...]:
    return setting_names([summary.this.settings, summary.other.settings])


def print_comparison_plan(this: Configuration, other: Configuration, num_seeds: int, console: Console) -> None:
    """What would be trained."""
    settings = differing(this, with_seed_of(other, this))
    if not settings[0]:
        console.print("  settings are the same; where code of their own is the same too, nothing is trained")
    names, table = setting_names(settings), Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("", *names):
        table.add_column(name, no_wrap=True)
    for name, each in zip(("this", "other"), settings, strict=True):
        table.add_row(name, *cells(each, names))
    print_table(console, table)
    runs = f"each with {count(num_seeds, 'seed')}, from {this.training.seed}; what was trained before is found"
    console.print(f"  runs       {runs}")


def print_comparison(summary: ComparisonSummary, console: Console) -> None:
    console.print()
    seeds = list(summary.this.values)
    if not summary.is_same:
        direction = "higher" if summary.greater_is_better else "lower"
        on = f"{summary.num_ranking_examples:,} held-out examples that rank"
        by = f", by {summary.metric}, {direction} is better, on {on}"
        console.print(headed(f"2 settings over {count(len(seeds), 'seed')}", by))
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in ("", *_names(summary), *(f"seed {seed}" for seed in seeds)):
            table.add_column(name, no_wrap=True)
        for name, each in (("this", summary.this), ("other", summary.other)):
            figures = ["failed" if value is None else f"{value:.4f}" for value in each.values.values()]
            table.add_row(name, *cells(each.settings, _names(summary)), *figures)
        print_table(console, table)
    console.print(f"  this       {summary.pipeline}")
    console.print(f"  other      {summary.against}")
    console.print(f"  verdict    {summary.verdict}")
