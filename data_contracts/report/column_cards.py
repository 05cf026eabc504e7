"""What the report's pictures show of a receipt: shares of bins, drift beside its limit, and what broke, by column."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from headway.data_contracts.report.columns import ColumnCard, DriftFigure, State
from headway.data_contracts.report.distribution_picture import Bar
from headway.data_contracts.rules.checks import compile_checks
from headway.data_contracts.rules.contract import Contract
from headway.data_contracts.scans.drift import jensen_shannon, population_stability_index
from headway.data_contracts.store.documents import ContractReceipt, Distribution, ExpectationVerdict


def column_cards(receipt: ContractReceipt, contract: Contract) -> tuple[ColumnCard, ...]:
    """A card for each distribution of the receipt."""
    verdicts = {verdict.rule_id: verdict for verdict in receipt.verdicts}
    failed: dict[str, list[ExpectationVerdict]] = {}
    for check in compile_checks(contract):
        verdict = verdicts.get(check.rule_id)
        if check.column and verdict is not None and not verdict.passed:
            failed.setdefault(check.column, []).append(verdict)
    return tuple(_card(found, contract, failed) for found in receipt.distributions)


def _card(found: Distribution, contract: Contract, failed: Mapping[str, list[ExpectationVerdict]]) -> ColumnCard:
    problems = failed.get(found.column, [])
    labels = _labels(found)
    num_now, num_before = sum(found.counts), sum(found.baseline_counts or ())
    before = found.baseline_counts or (None,) * len(found.counts)
    bars = tuple(
        Bar(
            label=label,
            share=count / num_now if num_now else 0.0,
            baseline_share=None if accepted is None else accepted / num_before if num_before else 0.0,
        )
        for label, count, accepted in zip(labels, found.counts, before, strict=True)
    )
    return ColumnCard(
        name=found.column,
        type=contract.columns[found.column].type + (", lengths" if found.of == "lengths" else ""),
        state=_state(problems),
        problems=tuple(f"{verdict.rule_id}: {verdict.observed}" for verdict in problems),
        bars=bars if num_now or num_before else (),
        is_numeric=not found.categories,
        ends=_ends(found),
        null_share=_null_share(num_now, found.num_nulls, found.num_nans),
        baseline_null_share=(
            None
            if found.baseline_counts is None
            else _null_share(num_before, found.baseline_num_nulls or 0, found.baseline_num_nans or 0)
        ),
        drift=_drift(found, contract),
    )


def _state(problems: list[ExpectationVerdict]) -> State:
    if not problems:
        return "good"
    return "bad" if any(verdict.severity == "critical" for verdict in problems) else "warn"


def _null_share(num_values: int, num_nulls: int, num_nans: int) -> float:
    total = num_values + num_nulls + num_nans
    return num_nulls / total if total else 0.0


def _labels(found: Distribution) -> tuple[str, ...]:
    if found.categories:
        return (*found.categories, "other")
    if found.num_hashed:
        return tuple(f"values of group {place} of {found.num_hashed}" for place in range(found.num_hashed))
    if not found.edges:
        return ("all values",)
    shown = [f"{edge:,.6g}" for edge in found.edges]
    inner = (f"above {low} to {high}" for low, high in itertools.pairwise(shown))
    return (f"up to {shown[0]}", *inner, f"above {shown[-1]}")


def _ends(found: Distribution) -> tuple[str, str, str]:
    """What stands below the first, the middle and the last bin."""
    if found.num_hashed:
        return "", f"{found.num_hashed} groups of values, by digest", ""
    if not found.edges:
        return "", "", ""
    middle = found.edges[len(found.edges) // 2] if len(found.edges) > 2 else None
    return f"≤ {found.edges[0]:,.4g}", "" if middle is None else f"{middle:,.4g}", f"> {found.edges[-1]:,.4g}"


def _drift(found: Distribution, contract: Contract) -> tuple[DriftFigure, ...]:
    """Each figure that a rule of the contract limits, by the rule that limits it most."""
    if found.baseline_counts is None:
        return ()
    before = [*found.baseline_counts, found.baseline_num_nulls or 0, found.baseline_num_nans or 0]
    now = [*found.counts, found.num_nulls, found.num_nans]
    asked = [rule for rule in contract.drift if found.column in rule.columns and rule.of == found.of]
    psi_limits = [rule.max_psi for rule in asked if rule.max_psi is not None]
    js_limits = [rule.max_js for rule in asked if rule.max_js is not None]
    figures = []
    if psi_limits:
        psi = population_stability_index(before, now)
        figures.append(DriftFigure(measure="PSI", value=psi, limit=min(psi_limits)))
    if js_limits:
        figures.append(DriftFigure(measure="JS", value=jensen_shannon(before, now), limit=min(js_limits)))
    return tuple(figures)
