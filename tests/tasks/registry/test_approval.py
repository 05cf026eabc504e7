"""A version that passes the policy waits for a person where the policy asks for one; each answer is a line."""

from __future__ import annotations

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import EvaluationReport, Link
from headway.data_contracts.store.errors import ConfigError, PromotionRefused
from headway.flows.show.champion_history import read_history
from headway.flows.show.status import read_status
from headway.tasks.registry import champion, champion_moves, decisions, mlflow_store, model_refs, retirement
from headway.tasks.registry.model_card import card_path
from headway.tasks.registry.model_versions import ModelVersions
from headway.tasks.registry.promotion_spec import PromotionSpec
from tests.tasks.registry.champion_by_hand import DEFAULT, MODEL, champion_of, lines, promote

ASKING = PromotionSpec(approval="required")


def settle_asking(versions: ModelVersions, pair: tuple[Link, Link]) -> champion.RegistrationOutcome:
    return champion.settle(versions, *pair, ASKING)


def test_a_version_that_passes_waits_for_a_person_who_is_named_in_card_and_history(versions, register) -> None:
    workspace = versions.context.workspace
    pair = register(1)
    waits = settle_asking(versions, pair)
    assert (waits.waits, waits.promoted, waits.is_champion) == (True, False, False)
    assert waits.reason.startswith("waits for approval: first model, bits 1.5000 beats")
    assert refs.current(workspace, model_refs.alias_ref(MODEL, "champion")) is None
    assert mlflow_store.alias_version(versions.client, MODEL, "champion") is None
    card = workspace.read(card_path(MODEL, pair[0])).decode()
    assert "**Waits for approval**" in card and "| approval | … waits | nobody has approved or refused it yet |" in card
    assert settle_asking(versions, pair).waits and len(list(decisions.decisions(workspace, MODEL))) == 1
    assert (lines(workspace), decisions.awaiting(workspace, MODEL)) == ([("waits", None, "1")], "1")

    promote(versions, pair[0], decisions.last_policy(workspace, MODEL))
    assert champion_of(workspace).target == pair[0] and decisions.awaiting(workspace, MODEL) is None
    card = workspace.read(card_path(MODEL, pair[0])).decode()
    assert "**Promoted**" in card and "| approval | ✔ passed | approved by ada&#64;desk: asked for |" in card
    assert lines(workspace) == [("waits", None, "1"), ("promoted", None, "1")]
    assert not settle_asking(versions, pair).waits, "a champion waits for nothing"


def test_a_person_who_refuses_is_heard_until_another_approves_whatever_the_policy_asks(versions, register) -> None:
    workspace = versions.context.workspace
    pair = register(1)
    settle_asking(versions, pair)
    champion_moves.refuse(versions, pair[0], why="it was fitted on a holiday", by="ada@desk", policy=ASKING)
    message = "refused by ada@desk: it was fitted on a holiday"
    card = workspace.read(card_path(MODEL, pair[0])).decode()
    assert "**Refused**" in card and f"| approval | ✖ failed | {message.replace('@', '&#64;')} |" in card
    assert decisions.awaiting(workspace, MODEL) is None
    for policy in (ASKING, DEFAULT):
        again = champion.settle(versions, *pair, policy)
        assert (again.promoted, again.waits, again.reason) == (False, False, message)
    entry = read_history(workspace.uri, MODEL).entries[1]
    assert (entry.event, entry.by, entry.why) == ("refused", "ada@desk", message), (
        "and not challenger, as by the policy"
    )

    for why in ("nor is it fast", "nor is it small"):
        champion_moves.refuse(versions, pair[0], why=why, by="bob@desk", policy=ASKING)
    kept = [(entry.by, entry.why) for entry in read_history(workspace.uri, MODEL).entries[-2:]]
    assert kept == [("bob@desk", f"refused by bob@desk: {why}") for why in ("nor is it fast", "nor is it small")]

    promote(versions, pair[0], ASKING)
    assert champion_of(workspace).target == pair[0]
    with pytest.raises(ConfigError, match="version 1 is the champion of 'tiny'"):
        champion_moves.refuse(versions, pair[0], why="too late", by="ada@desk", policy=ASKING)


def test_a_version_that_waited_while_the_champion_moved_is_not_promoted_but_judged_again(versions, register) -> None:
    workspace = versions.context.workspace
    first = register(1)
    champion.settle(versions, *first)
    late = register(2, first[0])
    assert settle_asking(versions, late).waits and decisions.awaiting(workspace, MODEL) == "2"
    other = register(3, first[0])
    assert champion.settle(versions, *other).promoted
    assert decisions.awaiting(workspace, MODEL) is None, "it waits for nothing that could come"
    with pytest.raises(PromotionRefused, match="compared with another champion than today's"):
        promote(versions, late[0], ASKING)
    assert champion_of(workspace).target == other[0]

    again = workspace.load(late[1], EvaluationReport)
    assert again.comparison is not None
    today = again.model_copy(update={"comparison": again.comparison.model_copy(update={"champion": other[0]})})
    assert settle_asking(versions, (late[0], workspace.publish_document(today))).waits
    promote(versions, late[0], ASKING)
    assert champion_of(workspace).target == late[0]


def test_what_the_policy_refuses_does_not_wait_for_a_person(versions, register) -> None:
    outcome = settle_asking(versions, register(1, better=False))
    assert (outcome.waits, outcome.promoted) == (False, False)
    assert "does not beat the bigram" in outcome.reason and "waits" not in outcome.reason


def test_a_version_that_was_retired_waits_for_nobody(versions, register) -> None:
    workspace = versions.context.workspace
    (one, _), (two, _) = pairs = register(1), register(2)
    for pair in pairs:
        settle_asking(versions, pair)
    retirement.retire(versions, two, why="a leak", by="ada@desk")
    assert decisions.awaiting(workspace, MODEL) == "1", "the one before still does"
    retirement.retire(versions, one, why="a leak", by="ada@desk")
    assert decisions.awaiting(workspace, MODEL) is None


def test_a_promotion_that_the_policy_refuses_does_not_undo_what_a_person_refused(versions, register) -> None:
    workspace = versions.context.workspace
    pair = register(1, better=False)
    champion.settle(versions, *pair)
    champion_moves.refuse(versions, pair[0], why="it was fitted on a holiday", by="bob@desk", policy=DEFAULT)
    with pytest.raises(PromotionRefused, match="does not beat the bigram") as refused:
        promote(versions, pair[0])
    assert "holiday" not in str(refused.value), "that would not have stood in the way"
    said = "refused by bob@desk: it was fitted on a holiday"
    assert decisions.current_refusal(workspace, MODEL, pair[0]) == said
    assert lines(workspace)[-1] == ("refused", None, "1")
    assert read_status(workspace.uri).models[0].challenger_reason.endswith(said)

    promote(versions, pair[0], override="it is needed today")
    assert champion_of(workspace).target == pair[0]
    assert not decisions.current_refusal(workspace, MODEL, pair[0]), "who promotes it takes the refusal back"


def test_a_version_that_was_retired_is_said_to_be_by_status_at_once(versions, register) -> None:
    workspace = versions.context.workspace
    pair = register(1, better=False)
    champion.settle(versions, *pair)
    retirement.retire(versions, pair[0], why="a leak", by="ada@desk")
    said = read_status(workspace.uri).models[0].challenger_reason
    assert said.startswith("retired by ada@desk: a leak; ") and "does not beat the bigram" in said
    champion.settle(versions, *pair)
    assert read_status(workspace.uri).models[0].challenger_reason.count("retired by ada@desk") == 1
