"""The gate says what a promotion would say, promotes nobody and writes nothing."""

from __future__ import annotations

from headway.data_contracts.store import refs
from headway.flows.ci.checks import evaluate_quality
from headway.tasks.registry import model_refs
from headway.tasks.registry.promotion_spec import PromotionSpec
from tests.tasks.conftest import MODEL, register, workspace  # noqa: F401

CHAMPION = model_refs.alias_ref(MODEL, "champion")


def crowned(workspace, registration):  # noqa: F811
    refs.move(workspace, CHAMPION, registration, expected=refs.current(workspace, CHAMPION), reason="test", detail={})
    return registration


def files(workspace) -> set[str]:  # noqa: F811
    return {str(path) for path in workspace.local_root.rglob("*")}


def test_only_a_model_that_beats_the_champion_passes_and_the_champion_stays(workspace, register) -> None:  # noqa: F811
    first = crowned(workspace, register(1)[0])
    better, equal = register(2, first), register(3, first, better=False)
    before = files(workspace)
    passed, refused = (evaluate_quality(workspace, PromotionSpec(), *each) for each in (better, equal))
    assert passed.error is None and "beats the champion" in passed.reason
    assert refused.error is not None and refused.error.exit_code == 7
    assert "does not beat the champion" in refused.reason
    assert any(line.startswith("champion: failed") for line in refused.details)
    assert refs.current(workspace, CHAMPION).target == first and files(workspace) == before


def test_a_model_that_only_waits_for_a_person_blocks_no_merge(workspace, register) -> None:  # noqa: F811
    asking = PromotionSpec(approval="required")
    assert (
        "waits for approval" in (message := evaluate_quality(workspace, asking, *register(1))).reason
        and not message.error
    )
    assert evaluate_quality(workspace, asking, *register(2, better=False)).error is not None


def test_a_first_model_is_held_against_its_baseline(workspace, register) -> None:  # noqa: F811
    assert evaluate_quality(workspace, PromotionSpec(), *register(1)).error is None
    assert evaluate_quality(workspace, PromotionSpec(), *register(2, better=False)).error is not None


def test_todays_champion_passes_whatever_the_policy_says_by_now(workspace, register) -> None:  # noqa: F811
    first, evaluation = register(1)
    crowned(workspace, first)
    message = evaluate_quality(workspace, PromotionSpec(max_model_bytes=1), first, evaluation)
    assert message.error is None and "is today's champion" in message.reason


def test_a_model_that_was_judged_against_a_former_champion_is_refused(workspace, register) -> None:  # noqa: F811
    first = crowned(workspace, register(1)[0])
    second, third = register(2, first), register(3, first)[0]
    crowned(workspace, third)
    assert "another champion than today's" in evaluate_quality(workspace, PromotionSpec(), *second).reason
