"""Verdicts: what was found out about a check, weighed and put into words. Pure, and without a value of the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.data_contracts.engine.quarantine import Quarantine
from headway.data_contracts.rules.checks import Check
from headway.data_contracts.rules.contract import UNPARSABLE
from headway.data_contracts.scans.set_scans import SetRuleResult
from headway.data_contracts.store.documents import ExpectationVerdict, RowName
from headway.data_contracts.store.plain_text import one_line
from headway.data_contracts.store.quarantine_limit import limit_advice
from headway.data_contracts.types.report_text import count

NOT_EVALUATED = "not evaluated: no accepted snapshot"
"""What is observed where there is nothing to compare with; it refuses nothing, and nothing was found to hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckEvidence:
    """All that is known of one check. What nobody looked for is None."""

    expectation_passed: bool | None = None
    """Great Expectations' verdict; None for kinds it does not evaluate."""
    raised: str = ""
    """Kind of the error that kept the check from being evaluated."""
    unfit: str = ""
    """What of the columns kept it from being evaluated, where it was that: one is missing, or of another type."""
    num_evaluated: int = 0
    num_broken: int | None = None
    aggregate: float | None = None
    broken_rows: tuple[RowName, ...] = ()
    """The first of them."""
    finding: SetRuleResult | None = None
    """What a scan of the whole set, or a comparison with the accepted snapshot, found out."""
    actual_type: str | None = None
    actual_columns: tuple[str, ...] = ()


def verdict_of(check: Check, evidence: CheckEvidence, quarantine: Quarantine) -> ExpectationVerdict:
    """A check passes when all that evaluated it agree and none failed to.

    A quarantine rule that raised is critical whatever its severity: the rows that it quarantines would be trained on.
    """
    unknown_rows = quarantine.raised.get(check.rule_id, "")
    raised = evidence.raised or unknown_rows
    # Nothing counts as good that was not evaluated.
    passed = not raised and _holds(check, evidence)
    unjudged = evidence.unfit or f"could not be evaluated ({raised})"
    return ExpectationVerdict(
        rule_id=check.rule_id,
        description=check.description,
        severity="critical" if unknown_rows else check.severity,
        passed=passed,
        observed=unjudged if raised else _observed(check, evidence, quarantine, passed),
        broken_rows=() if passed else evidence.broken_rows,
    )


def _holds(check: Check, evidence: CheckEvidence) -> bool:
    # By the actual type, which Great Expectations would spell in its own words.
    if check.kind == "type":
        return bool(evidence.actual_type == check.arguments["type"])
    if evidence.finding is not None:
        return evidence.finding.passed
    # Neither counted nor answered: what nobody looked at does not hold.
    if check.is_row_level and evidence.num_broken is None:
        return False
    if not check.is_row_level and evidence.expectation_passed is None:
        return False
    # Two answers where there are two: the exact count, and Great Expectations' own. Both have to agree.
    counted = check.num_tolerated(evidence.num_evaluated) >= (evidence.num_broken or 0)
    return counted and evidence.expectation_passed is not False


def _observed(check: Check, evidence: CheckEvidence, quarantine: Quarantine, passed: bool) -> str:
    if check.kind == "type":
        return "the column is missing" if evidence.actual_type is None else evidence.actual_type
    if evidence.finding is not None:
        return evidence.finding.observed
    if check.kind == "columns":
        return _column_difference(check, evidence.actual_columns)
    if check.kind == "num_rows":
        return count(evidence.num_evaluated, "row")
    if check.kind == "statistic":
        inside = "within the bounds" if passed else "outside the bounds"
        return inside if evidence.aggregate is None else _figure(evidence.aggregate)
    if check.quarantine_rule and passed:
        return f"{quarantine.num_by_check[check.rule_id]:,} of {count(quarantine.num_rows, 'row')} quarantined"
    if evidence.num_broken:
        return f"{evidence.num_broken:,} of {count(evidence.num_evaluated, 'row')} break it"
    if not passed:
        return "Great Expectations says no, though the exact count finds none"
    return f"all {count(evidence.num_evaluated, 'row')} hold"


def _column_difference(check: Check, actual: tuple[str, ...]) -> str:
    names = check.arguments["names"]
    missing = [name for name in names if name not in actual]
    extra = [name for name in actual if name not in names]
    parts = [f"missing: {', '.join(missing)}"] if missing else []
    parts += [f"not in the contract: {', '.join(extra)}"] if extra else []
    return "; ".join(parts) or f"{len(actual)} columns"


def quarantine_verdict(quarantine: Quarantine, limit_ratio: float) -> ExpectationVerdict:
    """Whether few enough rows were quarantined."""
    num_rows, num_out = quarantine.num_rows, quarantine.num_quarantined
    enough = "" if quarantine.is_within_limit else f"; {limit_advice(num_out, num_rows)} is enough"
    return ExpectationVerdict(
        rule_id="quarantine",
        description=f"At most {limit_ratio * 100:.4g} % of the rows are quarantined",
        severity="critical",
        passed=quarantine.is_within_limit,
        observed=f"{num_out:,} of {count(num_rows, 'row')}, {quarantine.num_allowed:,} allowed{enough}",
    )


def unparsable_verdict(quarantine: Quarantine) -> ExpectationVerdict:
    """Which rows cannot be read as their columns' types, where those are quarantined; the limit applies to all."""
    return ExpectationVerdict(
        rule_id=UNPARSABLE,
        description="Rows that cannot be read as their columns' types are quarantined",
        severity="info",
        passed=True,
        observed=f"{quarantine.num_unparsable:,} of {count(quarantine.num_rows, 'row')} quarantined",
    )


def snapshot_verdict(num_different: int | None, num_files: int) -> ExpectationVerdict:
    """Whether the rows that were evaluated are the files of the snapshot, byte for byte."""
    found = "could not be compared" if num_different is None else f"{num_different:,} differ"
    if num_different == 0:
        found = "the file agrees" if num_files == 1 else f"all {num_files:,} files agree"
    return ExpectationVerdict(
        rule_id="snapshot",
        description="The rows checked are the files of the snapshot, by path, size and digest",
        severity="critical",
        passed=num_different == 0,
        observed=found,
    )


def with_first_row(verdict: ExpectationVerdict) -> str:
    """What was observed, and where the first row lies that breaks it."""
    if not verdict.broken_rows:
        return verdict.observed
    first = verdict.broken_rows[0]
    return f"{verdict.observed}, the first in {one_line(first.path)}, row {first.row:,}"


def is_evaluated(verdict: ExpectationVerdict) -> bool:
    return not verdict.observed.endswith(NOT_EVALUATED)


def is_accepted(verdicts: Iterable[ExpectationVerdict]) -> bool:
    """Nothing critical failed; warnings and information refuse nothing."""
    # Severity decides here alone: a warning is shown, and refuses nothing.
    return all(verdict.passed for verdict in verdicts if verdict.severity == "critical")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.6g}"
