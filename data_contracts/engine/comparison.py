"""What is compared with the last accepted snapshot, and what the gate compares with its clock."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import duckdb

from headway.data_contracts.engine.verdicts import NOT_EVALUATED
from headway.data_contracts.rules.checks import Check
from headway.data_contracts.rules.set_rules import Freshness
from headway.data_contracts.scans.distributions import (
    WORN_SHARE,
    Bins,
    bins_of,
    counting,
    cut_edges,
    distribution,
    find_baseline,
    fullest_share,
    histograms,
    is_numeric,
)
from headway.data_contracts.scans.drift import jensen_shannon, population_stability_index
from headway.data_contracts.scans.figures import Scalar
from headway.data_contracts.scans.freshness import HOUR_S
from headway.data_contracts.scans.rows_database import identifier
from headway.data_contracts.scans.set_scans import SetRuleResult
from headway.data_contracts.scans.tallies import Tallies
from headway.data_contracts.store.documents import ContractReceipt, Distribution, FreshnessObservation

MICROSECONDS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class DistributionComparison:
    findings: Mapping[str, SetRuleResult] = field(default_factory=dict)
    """By `rule_id`."""
    raised: Mapping[str, str] = field(default_factory=dict)
    """Rules that could not be evaluated, by `rule_id`, and the kind of error."""
    distributions: tuple[Distribution, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    """`RULE.psi` and `RULE.js` of every drift rule that could be evaluated."""


def compare_distributions(
    connection: duckdb.DuckDBPyConnection,
    tallies: Tallies,
    checks: Sequence[Check],
    baseline: ContractReceipt | None,
    num_rows: int,
) -> DistributionComparison:
    """Evaluate volume and drift. Without a baseline nothing is, and the next receipt is compared with this one."""
    findings: dict[str, SetRuleResult] = {}
    raised: dict[str, str] = {}
    distributions: dict[tuple[str, str, int], Distribution] = {}
    metrics: dict[str, float] = {}
    for check in checks:
        if check.kind == "volume":
            findings[check.rule_id] = evaluate_volume(check, num_rows, None if baseline is None else baseline.num_rows)
        elif check.kind == "drift":
            try:
                found = _distribution(connection, tallies, check, baseline, num_rows)
            # One rule that fails in SQL has failed; the others are evaluated all the same.
            except duckdb.Error as error:
                raised[check.rule_id] = type(error).__name__
                continue
            distributions[_key(check)] = found
            findings[check.rule_id] = evaluate_drift(check, found)
            if (pair := histograms(found)) is not None:
                metrics[f"{check.rule_id}.psi"] = population_stability_index(*pair)
                metrics[f"{check.rule_id}.js"] = jensen_shannon(*pair)
    drifting = [check for check in checks if check.kind == "drift" and check.rule_id in findings]
    # Only after all verdicts: new bins must not decide over the rows that they were made from.
    for key, found in distributions.items():
        evaluation = [check for check in drifting if _key(check) == key]
        if not all(findings[check.rule_id].passed for check in evaluation):
            continue  # the report shows how far they are apart
        with contextlib.suppress(duckdb.Error):
            distributions[key] = _evener(connection, tallies, evaluation[0], found, num_rows)
        if distributions[key] is not found:
            for check in evaluation:
                observed = f"{findings[check.rule_id].observed}; one bin holds most, so that new ones are handed on"
                findings[check.rule_id] = SetRuleResult(passed=True, observed=observed)
    return DistributionComparison(
        findings=findings, raised=raised, distributions=tuple(distributions.values()), metrics=metrics
    )


def _distribution(
    connection: duckdb.DuckDBPyConnection,
    tallies: Tallies,
    check: Check,
    baseline: ContractReceipt | None,
    num_rows: int,
) -> Distribution:
    # The accepted snapshot's bins, or two histograms could not be compared.
    accepted = None if baseline is None else find_baseline(baseline.distributions, check)
    cut = cut_edges(connection, check, num_rows) if accepted is None and is_numeric(check) else []
    return _counted(tallies, check, bins_of(check, accepted, cut), accepted)


def _key(check: Check) -> tuple[str, str, int]:
    return check.column, check.arguments["of"], check.arguments["num_bins"]


def _evener(
    connection: duckdb.DuckDBPyConnection, tallies: Tallies, check: Check, found: Distribution, num_rows: int
) -> Distribution:
    """The same values in bins of their own where the accepted ones are worn, else what was found."""
    # Bins go stale when values move: most then lie in one, and a shift inside it would not show.
    if found.baseline_counts is None or not is_numeric(check) or fullest_share(found) <= WORN_SHARE:
        return found
    bins = bins_of(check, None, cut_edges(connection, check, num_rows))
    recounted = _counted(tallies, check, bins, None)
    # New bins only where they are clearly better, for a change of bins loses the comparison's history.
    return recounted if fullest_share(recounted) <= fullest_share(found) / 2 else found


def _counted(tallies: Tallies, check: Check, bins: Bins, accepted: Distribution | None) -> Distribution:
    # Through the tallies, so that unchanged files are not counted again.
    (groups,) = tallies.total([counting(check, bins)])
    if isinstance(groups, Exception):
        raise groups
    return distribution(check, bins, groups, accepted)


def evaluate_volume(check: Check, num_rows: int, num_accepted: int | None) -> SetRuleResult:
    # Nothing accepted yet: a first snapshot cannot be too large or too small.
    if not num_accepted:
        return SetRuleResult(passed=True, observed=f"{num_rows:,} rows; {NOT_EVALUATED}")
    ratio = num_rows / num_accepted
    passed = check.arguments["min"] <= ratio <= check.arguments["max"]
    return SetRuleResult(passed=passed, observed=f"{ratio:.4g} times the {num_accepted:,} rows accepted")


def evaluate_drift(check: Check, found: Distribution) -> SetRuleResult:
    pair = histograms(found)
    if pair is None:
        return SetRuleResult(passed=True, observed=NOT_EVALUATED)
    psi, js = population_stability_index(*pair), jensen_shannon(*pair)
    max_psi, max_js = check.arguments["max_psi"], check.arguments["max_js"]
    passed = (max_psi is None or psi <= max_psi) and (max_js is None or js <= max_js)
    return SetRuleResult(passed=passed, observed=f"PSI {psi:.4g}, JS {js:.4g}")


def newest_figure(rule: Freshness) -> Scalar:
    moment = identifier(rule.column)
    # Infinity, as DuckDB has the largest number of a timestamp, has no microseconds, and would be passed by.
    endless = f"CASE WHEN isinf({moment}) AND {moment} > '1970-01-01' THEN {2**63 - 1} END"
    return Scalar(f"max(coalesce(epoch_us({moment}), {endless}))", merge="max")


def newest_rows(tallies: Tallies, rules: Sequence[Freshness]) -> tuple[FreshnessObservation, ...]:
    """The newest moment of each rule's column, in seconds since 1970 UTC."""
    values = tallies.total([newest_figure(rule) for rule in rules])
    return tuple(
        FreshnessObservation(
            rule_id=rule.id,
            description=f"The newest {rule.column} is at most {rule.max_age_h:g} hours old",
            severity=rule.severity,
            # A rule without a moment must not raise; the gate decides what a missing one means.
            unix_s=None if value is None or isinstance(value, Exception) else value / MICROSECONDS,
            max_age_s=rule.max_age_h * HOUR_S,
            max_ahead_s=rule.max_ahead_h * HOUR_S,
        )
        for rule, value in zip(rules, values, strict=True)
    )
