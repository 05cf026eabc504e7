"""What trials came to: a row for each, the best first, and what became of that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import yaml
from rich.console import Console
from rich.table import Table

from headway.data_contracts.types.report_text import count, figure, length
from headway.flows.console.console import headed, print_table
from headway.flows.report.summary import RetrainSummary
from headway.flows.report.summary import as_state as state_of
from headway.flows.trials.live_report import LiveReport
from headway.flows.trials.summary import TrialsSummary, cells, facts, ranking, setting_names
from headway.flows.trials.wanted import SearchPlan
from headway.tasks.core.artifacts import artifact_key, show_table
from headway.tasks.core.context import RunContext
from headway.tasks.search.branches import Part, outermost_first, parts_of
from headway.tasks.search.configuration import SHARDS, Configuration, is_of_shards, value_at
from headway.tasks.search.values import Settings, plain
from headway.tasks.stages.search import SearchResult

if TYPE_CHECKING:
    from prefect import State


def report(context: RunContext, found: SearchResult, best: RetrainSummary, live: LiveReport) -> TrialsSummary:
    """Kept beside the flow run's ledger, as a record and as a page, and shown in the Prefect UI."""
    summary = TrialsSummary(
        **dict(live.so_far(found)),
        is_decided=found.verdict is None or found.verdict.is_decided,
        verdict=verdict_text(found),
        keep=as_yaml(found.best.trial.settings, found.best.trial.configuration),
        best=best,
    )
    live.publish(summary)
    context.workspace.publish_json(f"ledger/{context.budget_scope}/trials.json", summary.model_dump(mode="json"))
    show_table(artifact_key(context.pipeline, "trials"), *table_of(summary))
    return summary


def table_of(summary: TrialsSummary) -> tuple[list[dict[str, str]], str]:
    """For Prefect: the ranking, in the order of places, and a line on it, which a description is."""
    names, rows = ranking(summary)
    verdict = f" {summary.verdict}." if summary.verdict else ""
    ended = f" Ended by its budget: {summary.ended}." if summary.ended else ""
    line = f"Trials, the one to keep first.{verdict}{ended} As a page: {summary.report}"
    return [dict(zip(names[1:], row[1:], strict=True)) for row in rows], line


def verdict_text(found: SearchResult) -> str:
    ended = [each for each in found.trials[:2] if found.levels[-1] in each.figures and each.result.error is None]
    if len(ended) < 2:
        return ""
    kept, other = (each.result.trial.number for each in ended)
    verdict = found.verdict
    if verdict is None:
        return f"trial {kept} is better than trial {other}: their intervals lie apart"
    first, second = (other, kept) if verdict.keeps_second else (kept, other)
    gap = verdict.difference
    over = f" over {count(len(verdict.seeds), 'seed')}" if len(verdict.seeds) > 1 else ""
    measured = (
        f"trial {first} less {second}, paired{over}: {_signed(gap.value)} [{_signed(gap.low)}, {_signed(gap.high)}] "
        f"{verdict.metric}"
    )
    failures = [
        f"trial {number} failed with {_seeds(each.failed_seeds)}"
        for number, each in ((first, verdict.first), (second, verdict.second))
        if each.failed_seeds
    ]
    failures_told = f"; {' and '.join(failures)}" if failures else ""
    if len(verdict.first.failed_seeds) != len(verdict.second.failed_seeds):
        return f"decided: {' and '.join(failures)}, so trial {kept} stays; {measured}"
    if verdict.is_decided:
        other_stays = f", so trial {kept} stays" if verdict.keeps_second else ""
        return f"decided: {measured}{other_stays}{failures_told}"
    if verdict.first.size_bytes == verdict.second.size_bytes:
        why = f"they are of one size, so trial {kept} stays, whose figure is better"
    else:
        small, large = sorted((verdict.first.size_bytes, verdict.second.size_bytes))
        why = f"trial {kept} stays, the smaller one ({small:,} bytes beside {large:,})"
    few = f" by rows of {count(verdict.num_keys, 'key')}" if verdict.has_few_keys else ""
    return f"undecided{few}: {measured}; {why}{failures_told}"


def _signed(number: float) -> str:
    return f"{'' if number < 0 else '+'}{figure(number)}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"


def as_yaml(settings: Settings, of: Configuration) -> str:
    """Of a pipeline file: a line for each section.

    Args:
        of: the trial that has them: a list is written whole, since a file cannot say a part of one.
    """
    said: dict[str, Any] = {"training": of.values()}
    said[SHARDS] = said["training"].pop(SHARDS)
    sections: dict[str, dict[Part, Any]] = {SHARDS: {}, "training": {}}
    for name, value in outermost_first(settings):
        parts = parts_of(name) if is_of_shards(name) else ("training", *parts_of(name))
        depth = next((place for place, part in enumerate(parts) if isinstance(part, int)), len(parts))
        section, *branches, leaf = parts[:depth]
        branch = sections[str(section)]
        for part in branches:
            branch = branch.setdefault(part, {})
        branch[leaf] = plain(value) if depth == len(parts) else value_at(said, parts[:depth])
    texts = [
        yaml.safe_dump({name: each}, default_flow_style=True, sort_keys=False, width=10_000).strip()
        for name, each in sections.items()
        if each
    ]
    # Without the outer braces, so that they can stand in a pipeline file as they are.
    return "\n".join(text[1:-1] for text in texts)


def as_state(summary: TrialsSummary) -> TrialsSummary | State[TrialsSummary]:
    """What the flow returns: where a person has to decide about the best, a state whose name says so."""
    state = state_of(summary.best)
    if isinstance(state, RetrainSummary):
        return summary
    return cast("State[TrialsSummary]", state.model_copy(update={"data": summary}))


def print_ranking(summary: TrialsSummary, console: Console) -> None:
    direction = "higher" if summary.greater_is_better else "lower"
    console.print()
    evaluated = f"{summary.num_ranking_examples:,} held-out examples of their own"
    by = f" by {summary.metric}, {direction} is better, on {evaluated}"
    console.print(headed(count(len(summary.trials), "trial"), by))
    table = Table(box=None, padding=(0, 2), header_style="dim")
    names, rows = ranking(summary)
    for name in names:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    print_table(console, table)
    for name, text in facts(summary).items():
        console.print(f"  {name:<10} {text}")
    if summary.verdict:
        console.print(f"  verdict    {summary.verdict}")
    first, *others = summary.keep.splitlines()
    console.print(f"  keep it    {first}")
    for line in others:
        console.print(f"             {line}")
    console.print(f"  report     {summary.report}")


def print_wanted(plan: SearchPlan, console: Console) -> None:
    """Settings that no score decides, and what the whole search costs in steps."""
    num_first = len(plan.drawn) or plan.num_trials // plan.rounds
    if not plan.drawn:
        trials = count(num_first, "trial")
        console.print(f"  first      {trials}, by {plan.warm_start}, the best of them first")
    table = Table(box=None, padding=(0, 2), header_style="dim")
    settings = setting_names(trial.settings for trial in plan.drawn)
    for name in ("trial", *settings):
        table.add_column(name, no_wrap=True)
    for trial in plan.drawn:
        table.add_row(str(trial.number), *cells(trial.settings, settings))
    if plan.drawn:
        print_table(console, table)
    if (later := plan.num_trials - num_first) > 0:
        console.print(f"  later      {count(later, 'trial')} more, by what those before came to")
    if plan.num_shards:
        console.print(f"  shards     {count(plan.num_shards, 'setting')} besides the file's, made once each")
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
    console.print(f"  steps      about {plan.num_steps:,}{rest}")
    if plan.num_other_seeds:
        steps = 2 * plan.num_other_seeds * plan.levels[-1]
        seeds = count(plan.num_other_seeds, "more seed")
        console.print(f"  finalists  the best two with {seeds}: {steps:,} steps besides")
    if plan.expected_s is not None:
        console.print(f"  time       about {length(plan.expected_s)} in turn, by this pipeline's last run here")
    if plan.budget:
        console.print(f"  budget     {plan.budget}, with what its trials have spent before")
