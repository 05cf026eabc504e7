"""Nothing is promoted unproven: every check of the policy has its line, its figure and its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.documents import (
    ChampionComparison,
    EvaluationReport,
    ExpectationVerdict,
    HeldoutComparison,
    Incomparable,
    Interval,
    Link,
)
from headway.tasks.registry.promotion import decide, versus_rival
from headway.tasks.registry.promotion_decision import Decision, PromotionCheck, Subject
from headway.tasks.registry.promotion_spec import PromotionSpec, Shadow, SliceLimits

SHA = "0" * 64
CHAMPION = Link(kind="registration", sha256="c" * 64)
CHECKPOINT, MANIFEST = Link(kind="checkpoint", sha256=SHA), Link(kind="manifest", sha256=SHA)
FIRST = Subject(
    model="tiny",
    registration=Link(kind="registration", sha256=SHA),
    evaluation=Link(kind="evaluation", sha256=SHA),
    checkpoint=CHECKPOINT,
    manifest=MANIFEST,
    champion=None,
    model_bytes=1_000,
    has_signature=True,
    has_input_example=True,
)
CHALLENGER = replace(FIRST, champion=CHAMPION)


def interval(low: float, value: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


GOOD, BAD = interval(-0.2, -0.1, -0.05), interval(0.05, 0.1, 0.2)


def report(
    over_baseline: Interval = GOOD,
    *,
    difference: Interval | None = None,
    greater_is_better: bool = False,
    slices: dict[str, tuple[Interval, int]] | None = None,
    **fields: Any,
) -> EvaluationReport:
    slices = slices or {}
    comparison = None
    if difference is not None:
        by_slice = {name: found for name, (found, _) in slices.items()}
        comparison = ChampionComparison(
            champion=CHAMPION, metric="log_loss", champion_value=2.0, difference=difference, slices=by_slice
        )
    given: dict[str, Any] = {
        "checkpoint": CHECKPOINT,
        "manifest": MANIFEST,
        "split": "heldout",
        "examples_sha256": SHA,
        "num_examples": 10,
        "metric": "log_loss",
        "greater_is_better": greater_is_better,
        "metrics": {"log_loss": interval(1.9, 2.0, 2.1), "accuracy": interval(0.7, 0.8, 0.9)},
        "slices": {name: interval(1.9, 2.0, 2.1) for name in slices},
        "slice_sizes": {name: size for name, (_, size) in slices.items()},
        "baselines": {"bigram": 3.0},
        "gate_baseline": "bigram",
        "baseline_difference": over_baseline,
        "comparison": comparison,
    }
    return EvaluationReport(**(given | fields))


def evaluated(policy: PromotionSpec | None = None, **fields: Any) -> Decision:
    """A challenger that is better than the champion, but for what the test says."""
    return decide(policy or PromotionSpec(), report(**{"difference": GOOD, **fields}), CHALLENGER)


def line(decision: Decision, name: str) -> PromotionCheck:
    (check,) = (check for check in decision.checks if check.name == name)
    return check


CASES = [
    pytest.param(interval(-0.2, -0.1, -0.05), True, id="better"),
    pytest.param(interval(-0.2, -0.1, 0.01), False, id="better only by noise"),
    pytest.param(interval(0.0, 0.0, 0.0), False, id="equal"),
    pytest.param(interval(0.05, 0.1, 0.2), False, id="worse"),
]


@pytest.mark.parametrize(("difference", "promote"), CASES)
def test_a_first_model_must_beat_its_baseline_beyond_doubt(difference: Interval, promote: bool) -> None:
    decision = decide(PromotionSpec(), report(difference), FIRST)
    assert decision.promote is promote
    assert "bigram" in decision.reason
    assert line(decision, "champion").status == "not evaluated"


@pytest.mark.parametrize(("num_keys", "promote"), [(0, True), (1, False), (9, False), (10, True)])
def test_rows_of_a_few_keys_are_too_few_to_judge_by_however_many_they_are(num_keys: int, promote: bool) -> None:
    first = decide(PromotionSpec(), report(num_keys=num_keys, num_examples=300), FIRST)
    assert first.promote is promote
    if not promote:
        assert f"too few keys to judge ({num_keys} of 300 examples, 10 at least)" in line(first, "baseline").detail
        assert line(first, "baseline").too_few_examples
    assert evaluated(num_keys=num_keys).promote is promote


@pytest.mark.parametrize(("difference", "promote"), CASES)
def test_a_challenger_must_beat_the_champion_on_the_same_examples(difference: Interval, promote: bool) -> None:
    decision = evaluated(difference=difference)
    assert decision.promote is promote
    assert "champion" in decision.reason
    assert [check.name for check in decision.failed] == ([] if promote else ["champion"])


def test_where_greater_is_better_the_comparison_turns_round() -> None:
    better, worse = BAD, GOOD
    assert versus_rival(report(worse, difference=better, greater_is_better=True)).status == "passed"
    assert versus_rival(report(better, difference=worse, greater_is_better=True)).status == "failed"
    assert versus_rival(report(better, greater_is_better=True)).status == "passed"
    assert versus_rival(report(worse, greater_is_better=True)).status == "failed"


MONTH = Shadow(slice="month = 9", margin=-0.05, min_examples=30)


@pytest.mark.parametrize(
    ("difference", "size", "message"),
    [
        pytest.param(interval(-0.1, 0.0, 0.04), 30, "", id="no worse than it may be"),
        pytest.param(interval(-0.1, 0.0, 0.06), 30, "it is not better than the champion by more than -0", id="worse"),
        pytest.param(GOOD, 29, "has 29 examples beside the champion's, of 30 it takes", id="too few"),
    ],
)
def test_a_challenger_stands_beside_the_champion_on_a_part_of_the_examples_by_a_margin_of_its_own(
    difference: Interval, size: int, message: str
) -> None:
    policy = PromotionSpec(shadow=MONTH, slices=None)
    decision = evaluated(policy, slices={"month = 9": (difference, size), "month = 8": (BAD, 99)})
    assert decision.promote == (not message) and message in decision.reason
    assert line(decision, "shadow").status == ("failed" if message else "passed")


def test_a_part_that_nobody_cut_out_promotes_nobody_but_a_first_model() -> None:
    refused = evaluated(PromotionSpec(shadow=MONTH), slices={"month = 8": (GOOD, 99)})
    assert [check.name for check in refused.failed] == ["shadow"] and "; there are month = 8" in refused.reason
    first = decide(PromotionSpec(shadow=MONTH), report(GOOD), FIRST)
    assert first.promote and line(first, "shadow").status == "not evaluated"
    assert "shadow" not in {check.name for check in evaluated().checks}, "and is no line of who does not ask"
    assert "shadow" not in PromotionSpec().model_dump(), "nor of a policy as it was written down before"


def test_a_challenger_must_be_better_by_more_than_the_margin() -> None:
    assert evaluated(PromotionSpec(margin=0.04)).promote
    refused = evaluated(PromotionSpec(margin=0.05))
    assert not refused.promote and "by more than 0.05" in refused.reason
    assert (line(refused, "champion").value, line(refused, "champion").limit) == (0.05, 0.05)


def test_a_first_model_under_a_floor_is_refused() -> None:
    kept = PromotionSpec(floors={"log_loss": 2.1, "accuracy": 0.7})
    assert decide(kept, report(), FIRST).promote
    for metric, limit in (("log_loss", 2.09), ("accuracy", 0.71)):
        refused = decide(PromotionSpec(floors={metric: limit}), report(), FIRST)
        assert [check.name for check in refused.failed] == [f"floor of {metric}"]
        assert f"{metric} " in refused.reason and "misses its floor" in refused.reason


def test_a_floor_of_a_figure_that_the_report_lacks_is_not_held() -> None:
    refused = decide(PromotionSpec(floors={"rmse": 1.0}), report(), FIRST)
    assert "the report has no rmse; it has log_loss, accuracy" in refused.reason
    with pytest.raises(ValidationError, match="no such figure: acuracy"):
        PromotionSpec(floors={"acuracy": 0.9})


def test_one_slice_that_regresses_beyond_doubt_refuses_a_model_that_is_better_on_the_whole() -> None:
    slices = {"a/": (GOOD, 30), "b/": (BAD, 30), "c/": (interval(-0.1, 0.1, 0.3), 30)}
    refused = evaluated(slices=slices)
    assert [check.name for check in refused.failed] == ["slices"]
    assert refused.reason == "1 of 3 slices regress: b/ +0.1000 [+0.0500, +0.2000]"
    assert evaluated(PromotionSpec(slices=SliceLimits(may_lose=0.05)), slices=slices).promote
    assert evaluated(PromotionSpec(slices=None), slices=slices).promote


def test_a_slice_with_few_examples_is_not_judged_and_the_line_says_so() -> None:
    decision = evaluated(slices={"a/": (GOOD, 30), "b/": (BAD, 19)})
    assert decision.promote
    assert "1 not evaluated: no comparison, or fewer than 20 examples" in line(decision, "slices").detail
    assert line(evaluated(slices={"b/": (BAD, 19)}), "slices").status == "not evaluated"
    assert line(evaluated(slices={"b/": (BAD, 20)}), "slices").status == "failed"


def test_a_slice_of_a_few_keys_neither_regresses_nor_is_better() -> None:
    slices = {"a/": (GOOD, 30), "b/": (BAD, 30)}
    assert evaluated(slices=slices, num_keys=40, slice_keys={"a/": 31, "b/": 9}).promote
    assert (
        "fewer than 20 examples or 10 keys"
        in line(evaluated(slices=slices, num_keys=40, slice_keys={"a/": 31, "b/": 9}), "slices").detail
    )
    assert not evaluated(slices=slices, num_keys=40, slice_keys={"a/": 30, "b/": 10}).promote
    few = evaluated(
        PromotionSpec(shadow=MONTH), slices={MONTH.slice: (GOOD, 99)}, num_keys=40, slice_keys={MONTH.slice: 3}
    )
    assert [check.name for check in few.failed] == ["shadow"]
    assert "too few keys to judge: the 99 examples of month = 9 are of 3, 10 at least" in few.reason


def test_slices_turn_round_too_where_greater_is_better() -> None:
    slices = {"a/": (GOOD, 30)}
    assert [c.name for c in evaluated(difference=BAD, greater_is_better=True, slices=slices).failed] == ["slices"]


OTHER = Link(kind="manifest", sha256="1" * 64)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"manifest": OTHER}, "was evaluated on other data (manifest 111111111111 instead of manifest 000000000000)"),
        ({"checkpoint": OTHER}, "was evaluated as another checkpoint"),
        ({"difference": None}, "was compared with another champion than today's; run again"),
    ],
)
def test_a_report_on_anything_else_decides_nothing(fields: dict[str, Any], message: str) -> None:
    decision = evaluated(**fields)
    assert not decision.promote and message in line(decision, "data").detail and message in decision.reason


def test_what_cannot_be_compared_with_the_champion_is_not_promoted_however_good_it_is() -> None:
    unread = {"comparison": None, "incomparable": Incomparable(champion=CHAMPION, reason="it reads no today")}
    decision = decide(PromotionSpec(), report(interval(-1.0, -0.9, -0.8), **unread), CHALLENGER)
    assert [check.name for check in decision.failed] == ["champion"]
    assert "cannot be compared with the champion, which stays: it reads no today" in decision.reason
    for way_out in ("data that it can read", "headway promote --override", "another registry.model", "beat the bigram"):
        assert way_out in decision.reason


def test_a_report_against_a_champion_that_was_replaced_decides_nothing() -> None:
    other = replace(CHALLENGER, champion=Link(kind="registration", sha256="d" * 64))
    decision = decide(PromotionSpec(), report(difference=GOOD), other)
    assert [check.name for check in decision.failed] == ["data"]


@pytest.mark.parametrize(
    ("limit", "known", "name"),
    [
        ({"max_model_bytes": 1_000}, "model_bytes", "size"),
        ({"max_latency_ms": 1_000.0}, "latency_ms", "latency"),
        ({"max_data_age_s": 1_000.0}, "data_age_s", "freshness"),
    ],
)
def test_a_limit_holds_at_its_figure_fails_beyond_it_and_fails_unknown(
    limit: dict[str, Any], known: str, name: str
) -> None:
    policy, better = PromotionSpec(**limit), report(difference=GOOD)
    cases = ((1_000, "passed"), (1_001, "failed"), (None, "failed"))
    for value, status in cases:
        decision = decide(policy, better, replace(CHALLENGER, **{known: value}))
        assert line(decision, name).status == status, value
        assert decision.promote is (status == "passed")
    assert line(decide(PromotionSpec(), better, replace(CHALLENGER, **{known: 1_001})), name).status == "not evaluated"


@pytest.mark.parametrize(("has", "name"), [("has_signature", "signature"), ("has_input_example", "input example")])
def test_a_model_that_does_not_say_what_it_takes_is_refused_unless_the_policy_allows_it(has: str, name: str) -> None:
    bare, better = replace(CHALLENGER, **{has: False}), report(difference=GOOD)
    refused = decide(PromotionSpec(), better, bare)
    assert [check.name for check in refused.failed] == [name] and "has not" in refused.reason
    allowed = decide(PromotionSpec(signature=False, input_example=False), better, bare)
    assert allowed.promote and line(allowed, name).status == "not evaluated"


def test_all_that_speaks_against_a_model_is_said_at_once() -> None:
    held = replace(CHALLENGER, blocked_reason="promotion was switched off for this run", has_signature=False)
    decision = decide(PromotionSpec(floors={"accuracy": 0.9}), report(difference=BAD), held)
    assert [check.name for check in decision.failed] == ["permission", "champion", "floor of accuracy", "signature"]
    for message in ("switched off", "does not beat the champion", "misses its floor", "has not a signature"):
        assert message in decision.reason


def test_every_check_has_one_line_whatever_comes_of_it() -> None:
    names = ["permission", "data", "baseline", "champion", "floor", "slices", "size", "latency", "freshness"]
    names += ["signature", "input example"]
    for decision in (decide(PromotionSpec(), report(), FIRST), evaluated(difference=BAD)):
        assert [check.name for check in decision.checks] == names
        assert all(check.detail for check in decision.checks)


def test_a_decision_that_only_the_clock_changed_says_the_same() -> None:
    policy, better = PromotionSpec(max_data_age_s=100.0), report(difference=GOOD)
    young, older, stale = (decide(policy, better, replace(CHALLENGER, data_age_s=age)) for age in (1.0, 2.0, 200.0))
    assert young.is_same_decision(older) and young != older
    assert not young.is_same_decision(stale)


def leaked(passed: bool) -> Subject:
    found = ExpectationVerdict(
        rule_id="label-leak",
        description="",
        severity="warning",
        passed=passed,
        observed="`outcome` alone tells `left`",
        columns=() if passed else ("outcome",),
    )
    return replace(FIRST, label_leak=found)


def test_a_model_whose_label_one_input_tells_is_not_promoted_without_a_word() -> None:
    refused = decide(PromotionSpec(), report(), leaked(passed=False))
    assert not refused.promote
    assert "`outcome` alone tells `left`" in refused.reason and "label_leak: allow" in refused.reason
    assert refused.known_remedy.startswith("take `outcome` out of the inputs")
    assert refused.remedy.startswith("Take `outcome` out") and "promotion: {label_leak: allow}" in refused.remedy
    allowed = decide(PromotionSpec(label_leak="allow"), report(), leaked(passed=False))
    assert allowed.promote and "the policy allows it" in line(allowed, "label leak").detail
    assert decide(PromotionSpec(), report(), leaked(passed=True)).promote and not allowed.known_remedy
    near = ExpectationVerdict(
        rule_id="likely-label-leak",
        description="",
        severity="warning",
        passed=False,
        observed="`fee` alone nearly tells `left`",
    )
    warned = decide(PromotionSpec(), report(), replace(leaked(passed=True), likely_leak=near))
    assert warned.promote and "`fee` alone nearly tells `left`" in line(warned, "likely label leak").detail
    assert "`fee` alone nearly tells `left`" in warned.reason and "refuses nothing" in warned.reason
    assert not any(check.name == "label leak" for check in decide(PromotionSpec(), report(), FIRST).checks)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_better_figure_on_too_few_examples_is_a_verdict_of_its_own_with_a_next_step(is_first: bool) -> None:
    unsure = interval(-0.25, -0.1, 0.05)
    judged = report(unsure) if is_first else report(difference=unsure)
    found = decide(PromotionSpec(), judged, FIRST if is_first else CHALLENGER)
    check = next(each for each in found.failed if each.name in ("baseline", "champion"))
    assert check.too_few_examples and not found.promote
    # Half the width is 0.15, and the lead 0.1: 2.25 times as many examples would tell.
    assert found.reason.startswith("too few examples to judge (10)")
    assert "About 23 held-out examples would tell: raise shards.heldout_fraction, or add rows" in found.reason
    assert "shards.heldout_fraction" in found.remedy and "recipe" not in found.remedy


def test_of_few_rows_folds_are_a_next_step_and_where_there_are_folds_only_more_rows_are() -> None:
    unsure, table = interval(-0.25, -0.1, 0.05), {"gate_baseline": "class prior", "baselines": {"class prior": 3.0}}
    plain = decide(PromotionSpec(), report(unsure, **table), FIRST)
    assert "would tell: say evaluation.folds, raise shards.heldout_fraction, or add rows" in plain.reason
    by_folds = decide(PromotionSpec(), report(unsure, **table, num_folds=5), FIRST)
    assert "About 23 rows would tell: add some" in by_folds.reason and "heldout" not in by_folds.reason
    assert by_folds.remedy == "Add rows, so that more of them judge it, and retrain."


def on_heldout(difference: Interval, **slice_sizes: int) -> EvaluationReport:
    """Its figures are of folds, and it was compared with the champion on three rows alone."""
    on = HeldoutComparison(reason="the champion has no fold models", num_examples=3, value=1.7, slice_sizes=slice_sizes)
    judged = report(difference=difference, slices={"class a": (BAD, 500)}, num_folds=5)
    assert judged.comparison is not None
    return judged.model_copy(update={"comparison": judged.comparison.model_copy(update={"heldout": on})})


def test_a_comparison_on_held_out_rows_alone_says_so_with_its_own_figures_and_slices() -> None:
    check = versus_rival(on_heldout(GOOD))
    assert check.status == "passed"
    assert check.detail.startswith("on 3 held-out rows alone, since the champion has no fold models: log_loss 1.7")
    unsure = versus_rival(on_heldout(interval(-0.25, -0.1, 0.05)))
    assert unsure.too_few_examples and "too few examples to judge (3)" in unsure.detail
    assert "About 7 held-out examples would tell" in unsure.detail
    policy = PromotionSpec(slices=SliceLimits(min_examples=30))
    few = line(decide(policy, on_heldout(GOOD, **{"class a": 29}), CHALLENGER), "slices")
    assert few.status == "not evaluated", "500 rows of folds are none of the 29 that were compared"
    enough = line(decide(policy, on_heldout(GOOD, **{"class a": 30}), CHALLENGER), "slices")
    assert enough.status == "failed"


@pytest.mark.parametrize("difference", [BAD, interval(-0.3, 0.01, 0.3), interval(-0.3, -0.01, 0.3)])
def test_a_figure_that_is_no_better_is_not_for_want_of_examples(difference: Interval) -> None:
    check = versus_rival(report(difference))
    assert check.status == "failed" and not check.too_few_examples
    assert "does not beat" in check.detail


def test_a_margin_that_is_not_reached_is_no_question_of_examples_either() -> None:
    assert not versus_rival(report(difference=GOOD), margin=0.11).too_few_examples
    assert versus_rival(report(difference=GOOD), margin=0.06).too_few_examples
