"""Who becomes champion: a pure decision, from the policy and the report to one line for each check.

Nothing is promoted unproven. A limit that the policy sets and nobody can evaluate is a failed one; what the policy does
not ask for is *not evaluated*, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from headway.data_contracts.store.documents import EvaluationReport, Interval
from headway.data_contracts.types.report_text import figure
from headway.tasks.registry.promotion_decision import (
    APPROVAL,
    LIKELY_LEAK,
    CheckStatus,
    Decision,
    PromotionCheck,
    Subject,
)
from headway.tasks.registry.promotion_spec import PromotionSpec, SliceLimits
from headway.training.evaluation.measures import GREATER_IS_BETTER, MIN_KEYS, has_few_keys, shown_measure

LEAK_KEY = "say `promotion: {label_leak: allow}`"
LEAK_ADVICE = f"Take the column out of the inputs, or {LEAK_KEY} if it is known when the model is asked"
TOO_FEW = "too few examples to judge"
TOO_FEW_KEYS = "too few keys to judge"
MOST_TIMES = 10
"""As many examples as there are: a difference that takes more to be seen is none worth a champion."""
LIKELY_LEAK_ADVICE = "Look whether it is known when the model is asked; if it is not, take it out of the inputs"


def decide(policy: PromotionSpec, report: EvaluationReport, subject: Subject) -> Decision:
    """A first model must beat its baseline, a challenger the champion, beyond doubt; and all other limits hold.

    "Beyond doubt" means that the whole interval of the difference, paired on the same examples, is on the good side.
    """
    return Decision(
        model=subject.model,
        registration=subject.registration,
        evaluation=subject.evaluation,
        champion=subject.champion,
        policy=policy.model_dump(mode="json"),
        checks=(
            _permission(subject),
            _same_data(report, subject),
            _baseline(report, subject),
            _champion(policy, report, subject),
            *_floors(policy.floors, report),
            _slices(policy.slices, report, subject),
            *_shadow(policy, report, subject),
            *_label_leak(policy, subject),
            _at_most("size", subject.model_bytes, policy.max_model_bytes, "bytes"),
            _at_most(
                "latency", subject.latency_ms, policy.max_latency_ms, "ms", subject.latency_problem, subject.timed_on
            ),
            _at_most("freshness", subject.data_age_s, policy.max_data_age_s, "s old"),
            _there("signature", policy.signature, subject.has_signature),
            _there("input example", policy.input_example, subject.has_input_example),
            *_approval(policy, subject),
        ),
    )


def _permission(subject: Subject) -> PromotionCheck:
    if subject.blocked_reason:
        return PromotionCheck(name="permission", status="failed", detail=subject.blocked_reason)
    return PromotionCheck(name="permission", status="passed", detail="promotion is allowed")


def _same_data(report: EvaluationReport, subject: Subject) -> PromotionCheck:
    """The report is of this model, on the data of its own run, beside today's champion."""
    if report.checkpoint != subject.checkpoint:
        detail = f"was evaluated as another checkpoint ({report.checkpoint.short}); evaluate this one"
    elif report.manifest != subject.manifest:
        detail = f"was evaluated on other data ({report.manifest.short} instead of {subject.manifest.short})"
    elif report.compared_with != subject.champion:
        detail = "was compared with another champion than today's; run again"
    else:
        count = f"{report.num_examples:,} {report.split} examples {report.examples_sha256[:12]}"
        return PromotionCheck(
            name="data", status="passed", detail=f"evaluated on {count}", value=float(report.num_examples)
        )
    return PromotionCheck(name="data", status="failed", detail=detail)


def _baseline(report: EvaluationReport, subject: Subject) -> PromotionCheck:
    # A champion that came after the report counts as well: `_champion` refuses it, whatever the baseline says.
    if report.compared_with is not None or subject.champion is not None:
        return PromotionCheck(
            name="baseline", status="not evaluated", detail="a challenger is held against the champion"
        )
    return versus_rival(report)


def _champion(policy: PromotionSpec, report: EvaluationReport, subject: Subject) -> PromotionCheck:
    if report.compared_with is not None:
        return versus_rival(report, policy.margin)
    if subject.champion is not None:
        return PromotionCheck(name="champion", status="failed", detail="was not compared with the champion; run again")
    return PromotionCheck(name="champion", status="not evaluated", detail="there is no champion yet")


def versus_rival(report: EvaluationReport, margin: float = 0.0) -> PromotionCheck:
    """Is the model better, beyond doubt, than the champion, or for a first model than its baseline?"""
    if report.incomparable is not None:
        return PromotionCheck(
            name="champion",
            status="failed",
            detail=f"cannot be compared with the champion, which stays: {report.incomparable.reason}. Give it data "
            "that it can read, promote this model by `headway promote --override`, or start anew under another "
            f"registry.model, where it has to beat the {report.gate_baseline} alone",
        )
    own, num_examples, num_keys = report.metrics[report.metric].value, report.num_examples, report.num_keys
    if (compared := report.comparison) is not None:
        name = rival = "champion"
        value, difference, first = compared.champion_value, compared.difference, ""
        if (heldout := compared.heldout) is not None:
            own, num_examples, num_keys = heldout.value, heldout.num_examples, heldout.num_keys
            first = f"on {num_examples:,} held-out rows alone, since {heldout.reason}: "
    else:
        name, rival, first = "baseline", report.gate_baseline, "first model, "
        value, difference = report.baselines[rival], report.baseline_difference
    gain = _gain(difference, report.greater_is_better)
    is_told = not has_few_keys(num_keys)
    better = gain.low > margin and is_told
    required = f" by more than {margin:g}" if margin else ""
    # In the label's own unit, which people know; what decides stays as it is.
    lead = shown_measure(report.metric, report.metrics)
    value, own, of_difference = lead.of(value), lead.of(own), f" of {report.metric}" if lead.is_root else ""
    needed = None if better or not is_told else examples_needed(gain, margin, num_examples)
    if not is_told:
        words = f"beside the {rival}'s {figure(value)}"
    elif needed is None:
        words = f"{'beats' if better else 'does not beat'} the {rival}'s {figure(value)}{required}"
    else:
        words = f"is better than the {rival}'s {figure(value)}, and not{required} beyond doubt"
    figures = f"{first}{lead.name} {figure(own)} {words}: difference{of_difference} {_signed(difference)}"
    if not is_told:
        return PromotionCheck(
            name=name,
            status="failed",
            detail=f"{TOO_FEW_KEYS} ({num_keys} of {num_examples:,} examples, {MIN_KEYS} at least): {figures}. Rows of "
            f"one key are alike. {_way_to_more(report).capitalize()} of other keys",
            value=gain.low,
            limit=margin,
            too_few_examples=True,
            remedy="hold out rows of more keys",
        )
    return PromotionCheck(
        name=name,
        status="passed" if better else "failed",
        detail=figures if needed is None else f"{TOO_FEW} ({num_examples:,}): {figures}. {_more(needed, report)}",
        value=gain.low,
        limit=margin,
        too_few_examples=needed is not None,
        remedy="" if needed is None or not report.num_folds else "add rows, so that more of them judge it",
    )


def examples_needed(gain: Interval, margin: float, num_examples: int) -> int | None:
    """How many examples would leave the limit outside the interval, if the figure stays: its width falls with their
    root. None: the figure itself is not better, or so little that `MOST_TIMES` as many would not do."""
    lead = gain.value - margin
    if lead <= 0 or gain.low > margin:
        return None
    times = ((gain.value - gain.low) / lead) ** 2
    return math.ceil(num_examples * times) if times <= MOST_TIMES else None


def _more(needed: int, report: EvaluationReport) -> str:
    # Two digits, rounded up: it is an estimate from one sample.
    digits = 10 ** max(0, len(str(needed)) - 2)
    needed = -(-needed // digits) * digits
    if report.num_folds and (report.comparison is None or report.comparison.heldout is None):
        return f"About {needed:,} rows would tell: add some"
    return f"About {needed:,} held-out examples would tell: {_way_to_more(report)}"


def _way_to_more(report: EvaluationReport) -> str:
    share = "raise shards.heldout_fraction, or add rows"
    # Of token data there are no folds.
    return share if report.num_folds or report.gate_baseline == "bigram" else f"say evaluation.folds, {share}"


def _gain(difference: Interval, greater_is_better: bool) -> Interval:
    """A difference turned so that more is better."""
    if greater_is_better:
        return difference
    return Interval(value=-difference.value, low=-difference.high, high=-difference.low)


def _signed(interval: Interval) -> str:
    value, low, high = (
        f"{'-' if math.copysign(1, each) < 0 else '+'}{figure(abs(each))}"
        for each in (interval.value, interval.low, interval.high)
    )
    return f"{value} [{low}, {high}]"


def _floors(floors: Mapping[str, float], report: EvaluationReport) -> Iterator[PromotionCheck]:
    if not floors:
        yield _not_asked("floor")
    for metric, limit in floors.items():
        name, found = f"floor of {metric}", report.metrics.get(metric)
        if found is None:
            detail = f"the report has no {metric}; it has {', '.join(report.metrics)}"
            yield PromotionCheck(name=name, status="failed", detail=detail, limit=limit)
            continue
        greater = GREATER_IS_BETTER[metric]
        # A floor has to hold beyond doubt: the worse end of the interval counts, not the middle.
        worst = found.low if greater else found.high
        held = worst >= limit if greater else worst <= limit
        words = f"{'holds' if held else 'misses'} its floor, {'at least' if greater else 'at most'} {limit:g}"
        yield PromotionCheck(
            name=name,
            status="passed" if held else "failed",
            detail=f"{metric} {figure(found.value)} [{figure(found.low)}, {figure(found.high)}] {words}",
            value=worst,
            limit=limit,
        )


def _slice_sizes(report: EvaluationReport) -> Mapping[str, int]:
    """Of the examples on which champion and challenger were compared."""
    beside = report.comparison
    return report.slice_sizes if beside is None or beside.heldout is None else beside.heldout.slice_sizes


def _keys_of_slices(report: EvaluationReport) -> Mapping[str, int]:
    """How many keys these are of; empty: each example is drawn alone."""
    beside = report.comparison
    return report.slice_keys if beside is None or beside.heldout is None else beside.heldout.slice_keys


def _slices(limits: SliceLimits | None, report: EvaluationReport, subject: Subject) -> PromotionCheck:
    """No slice is worse than the champion's by more than it may lose, beyond doubt."""
    if limits is None:
        return _not_asked("slices")
    if report.comparison is None:
        why = "there is no champion yet" if subject.champion is None else "no champion was scored"
        return PromotionCheck(name="slices", status="not evaluated", detail=why)
    num_keys = _keys_of_slices(report)
    large = {
        name: _gain(difference, report.greater_is_better)
        for name, difference in report.comparison.slices.items()
        if _slice_sizes(report).get(name, 0) >= limits.min_examples and num_keys.get(name, MIN_KEYS) >= MIN_KEYS
    }
    small = len(report.slices) - len(large)
    # An interval of a few keys is too narrow: chance alone would look like a regression.
    fewer = f"fewer than {limits.min_examples} examples{f' or {MIN_KEYS} keys' if num_keys else ''}"
    suffix = f"; {small} not evaluated: no comparison, or {fewer}" if small else ""
    if not large:
        return PromotionCheck(name="slices", status="not evaluated", detail=f"none is large enough{suffix}")
    # By the better end, since that is what is held against the limit.
    worst = min(large, key=lambda name: large[name].high)
    # Only where the whole interval is worse: chance alone makes some slice look worse each time.
    lost = sorted(name for name, gain in large.items() if gain.high < -limits.may_lose)
    if lost:
        shown = ", ".join(f"{name} {_signed(report.comparison.slices[name])}" for name in lost)
        detail = f"{len(lost)} of {len(large)} slices regress: {shown}{suffix}"
    else:
        nearest = f"nearest to it {worst} {_signed(report.comparison.slices[worst])}"
        detail = f"none of {len(large)} slices regresses, {nearest}{suffix}"
    status: CheckStatus = "failed" if lost else "passed"
    return PromotionCheck(name="slices", status=status, detail=detail, value=large[worst].high, limit=-limits.may_lose)


def _shadow(policy: PromotionSpec, report: EvaluationReport, subject: Subject) -> Iterator[PromotionCheck]:
    """On one part of the examples it is held against the champion by a margin of its own, before it takes its place."""
    shadow = policy.shadow
    if shadow is None:
        return
    if report.compared_with is None and subject.champion is None:
        yield PromotionCheck(name="shadow", status="not evaluated", detail="there is no champion yet")
        return
    size, compared = _slice_sizes(report).get(shadow.slice, 0), report.comparison
    difference = None if compared is None else compared.slices.get(shadow.slice)
    # Too few fail here, where other slices are passed by: the policy asks for this very one.
    if difference is None or size < shadow.min_examples:
        known = "" if size else f"; there are {', '.join(report.slices) or 'none'}"
        detail = (
            f"{shadow.slice} has {size:,} examples beside the champion's, of {shadow.min_examples:,} it takes{known}"
        )
        yield PromotionCheck(name="shadow", status="failed", detail=detail, limit=shadow.margin)
        return
    if (num_keys := _keys_of_slices(report).get(shadow.slice, MIN_KEYS)) < MIN_KEYS:
        detail = f"{TOO_FEW_KEYS}: the {size:,} examples of {shadow.slice} are of {num_keys}, {MIN_KEYS} at least"
        yield PromotionCheck(name="shadow", status="failed", detail=detail, limit=shadow.margin)
        return
    gain = _gain(difference, report.greater_is_better)
    held = gain.low > shadow.margin
    words = f"{'is' if held else 'is not'} better than the champion by more than {shadow.margin:g}"
    detail = f"on the {size:,} examples of {shadow.slice} it {words}: difference {_signed(difference)}"
    status: CheckStatus = "passed" if held else "failed"
    yield PromotionCheck(name="shadow", status=status, detail=detail, value=gain.low, limit=shadow.margin)


def _label_leak(policy: PromotionSpec, subject: Subject) -> Iterator[PromotionCheck]:
    """A column that tells the label makes any model of it look perfect, and is mostly not there when it is asked."""
    leak = subject.label_leak
    if leak is None:
        return
    held = leak.passed or policy.label_leak == "allow"
    words = "" if leak.passed else "; the policy allows it" if held else f". {LEAK_ADVICE}"
    status: CheckStatus = "passed" if held else "failed"
    remedy = ""
    if leak.columns and not held:  # what could not be looked at is refused without one
        named = ", ".join(f"`{name}`" for name in leak.columns)
        remedy = f"take {named} out of the inputs in `shards.encoder`, or {LEAK_KEY} if known when the model is asked"
    yield PromotionCheck(name="label leak", status=status, detail=f"{leak.observed}{words}", remedy=remedy)
    likely = subject.likely_leak
    if likely is not None and not likely.passed:
        detail = f"{likely.observed}, which refuses nothing. {LIKELY_LEAK_ADVICE}"
        yield PromotionCheck(name=LIKELY_LEAK, status="not evaluated", detail=detail)


def _at_most(
    name: str, value: float | None, limit: float | None, unit: str, problem: str = "", on: str = ""
) -> PromotionCheck:
    if limit is None:
        found = "" if value is None else f" ({value:,.6g} {unit})"
        return PromotionCheck(name=name, status="not evaluated", detail=f"the policy sets no limit{found}", value=value)
    if value is None:
        detail = f"{name} is limited and not known{f' ({problem})' if problem else ''}"
        return PromotionCheck(name=name, status="failed", detail=detail, limit=limit)
    held, where = value <= limit, f", measured on {on}" if on else ""
    detail = f"{name} {value:,.6g} {unit}, {'within' if held else 'over'} {limit:,.6g}{where}"
    status: CheckStatus = "passed" if held else "failed"
    return PromotionCheck(name=name, status=status, detail=detail, value=value, limit=limit, measured_on=on)


def _there(name: str, required: bool, found: bool) -> PromotionCheck:
    if not required:
        return _not_asked(name)
    detail = f"the registered model has {'a' if name[0] not in 'aeiou' else 'an'} {name}"
    if found:
        return PromotionCheck(name=name, status="passed", detail=detail)
    return PromotionCheck(name=name, status="failed", detail=detail.replace("has", "has not", 1))


def _approval(policy: PromotionSpec, subject: Subject) -> Iterator[PromotionCheck]:
    """A person's word, where the policy asks for one; and one who refused is heard without being asked."""
    if subject.refused:
        yield PromotionCheck(name=APPROVAL, status="failed", detail=subject.refused)
    elif policy.approval == "required":
        status: CheckStatus = "passed" if subject.approved else "waiting"
        yield PromotionCheck(
            name=APPROVAL, status=status, detail=subject.approved or "nobody has approved or refused it yet"
        )


def _not_asked(name: str) -> PromotionCheck:
    return PromotionCheck(name=name, status="not evaluated", detail="the policy does not ask")
