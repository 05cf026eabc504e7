"""A person moves the champion: as the policy says or against it with a reason, and back; each move is a line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import EvaluationReport, Interval, Link
from headway.data_contracts.store.errors import ConfigError, PromotionRefused, RefConflict
from headway.flows.show.champion_history import read_history
from headway.flows.show.status import read_status
from headway.tasks.core.context import RunContext
from headway.tasks.registry import (
    champion,
    champion_moves,
    decisions,
    mlflow_aliases,
    mlflow_store,
    model_refs,
    retirement,
)
from headway.tasks.registry.model_card import card_path, render
from headway.tasks.registry.model_versions import ModelVersions
from headway.tasks.registry.promotion_spec import PromotionSpec
from headway.training.observe.ledger import read_events
from tests.tasks.registry.champion_by_hand import DEFAULT, MODEL, back, champion_of, lines, promote


def alias_moves(versions: ModelVersions) -> int:
    """How often somebody was told of an alias that was moved outside Headway."""
    events = read_events(Path(versions.context.scratch) / "ledger.jsonl")
    return sum(event["event"] == "alias.moved" for event in events)


def test_a_held_back_model_is_promoted_by_hand_if_the_policy_allows_it(versions, register) -> None:
    held = dataclasses.replace(versions.context, blocked_promotion="not now")
    registration, evaluation = register(1)
    champion.settle(ModelVersions(held, lambda: versions.client, MODEL, versions.store), registration, evaluation)
    workspace = versions.context.workspace
    promote(versions, registration)
    entry = champion_of(workspace)
    assert (entry.target, entry.reason) == (registration, "asked for")
    assert (entry.detail["by"], entry.detail["how"], entry.detail["from"]) == ("ada@desk", "promote", None)
    assert mlflow_store.alias_version(versions.client, MODEL, "champion") == "1"
    assert lines(workspace) == [("challenger", None, "1"), ("promoted", None, "1")]


def test_a_version_that_the_policy_refuses_stays_what_it_is_and_its_card_says_why(versions, settle) -> None:
    first = settle(1)
    worse = settle(2, first, better=False)
    workspace = versions.context.workspace
    with pytest.raises(PromotionRefused, match="does not beat the champion") as refused:
        promote(versions, worse)
    assert refused.value.exit_code == 7
    assert "--override" in refused.value.advice and "new data" in refused.value.advice
    assert "today's champion" not in refused.value.advice, "it was judged against that"
    assert champion_of(workspace).target == first
    card = workspace.read(card_path(MODEL, worse)).decode()
    assert "**Stays challenger**" in card and "| champion | ✖ failed |" in card
    assert lines(workspace) == [("promoted", None, "1"), ("challenger", "1", "2")], "told once, decided twice"


def test_a_version_that_too_few_examples_judge_is_refused_with_what_to_do_about_that(versions, register) -> None:
    first, judged = register(1)
    champion.settle(versions, first, judged)
    unsure, evaluation = register(2, first)
    workspace = versions.context.workspace
    report = workspace.load(evaluation, EvaluationReport)
    assert report.comparison is not None
    better = report.comparison.model_copy(update={"difference": Interval(value=-0.1, low=-0.25, high=0.05)})
    champion.settle(versions, unsure, workspace.publish_document(report.model_copy(update={"comparison": better})))
    with pytest.raises(PromotionRefused, match="too few examples to judge") as refused:
        promote(versions, unsure)
    assert "shards.heldout_fraction" in refused.value.advice and "--override" in refused.value.advice
    assert "another recipe" not in refused.value.advice


TWICE = Interval(value=0.2, low=0.1, high=0.3)
REFUSALS = {
    "worse": ({"difference": TWICE}, "| champion | ✖ failed | bits 1.5000 does not beat the champion's 2.0000"),
    "equal": ({"difference": Interval(value=0, low=0, high=0)}, "difference +0.0000 [+0.0000, +0.0000]"),
    "better only by noise": ({"difference": Interval(value=-0.1, low=-0.3, high=0.01)}, "[-0.3000, +0.0100]"),
    "regressing on a slice": ({"slices": {"a/": TWICE}}, "| slices | ✖ failed | 1 of 1 slices regress: a/ +0.2000"),
    "evaluated on other data": ({}, "| data | ✖ failed | was evaluated on other data (manifest 111111111111"),
    "a first model under the floor": ({}, "| floor of accuracy | ✖ failed | accuracy 0.8000 [0.7000, 0.9000] misses"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_each_refusal_leaves_the_champion_and_its_reason_is_in_the_card(versions, register, case: str) -> None:
    fields, message = REFUSALS[case]
    workspace, policy, champion_before = versions.context.workspace, DEFAULT, None
    if not case.startswith("a first"):
        champion_before = register(1)[0]
        champion.settle(versions, *register(1))
    registration, evaluation = register(2, champion_before)
    report = workspace.load(evaluation, EvaluationReport)
    if report.comparison is not None:
        comparison = report.comparison.model_copy(update=fields)
        report = report.model_copy(update={"comparison": comparison, "slices": comparison.slices})
    if case == "regressing on a slice":
        report = report.model_copy(update={"slice_sizes": {"a/": 20}})
    if case == "evaluated on other data":
        report = report.model_copy(update={"manifest": Link(kind="manifest", sha256="1" * 64)})
    if case == "a first model under the floor":
        policy = PromotionSpec(floors={"accuracy": 0.75})
        accuracy = Interval(value=0.8, low=0.7, high=0.9)
        report = report.model_copy(update={"metrics": {**report.metrics, "accuracy": accuracy}})
    outcome = champion.settle(versions, registration, workspace.publish_document(report), policy)
    assert not outcome.promoted
    now = refs.current(workspace, model_refs.alias_ref(MODEL, "champion"))
    assert (None if now is None else now.target) == champion_before
    assert message in workspace.read(card_path(MODEL, registration)).decode()
    assert message in versions.client.get_model_version(MODEL, outcome.version).description


def test_an_override_promotes_it_and_is_kept_with_its_reason(versions, settle) -> None:
    first = settle(1)
    worse = settle(2, first, better=False)
    workspace = versions.context.workspace
    promote(versions, worse, override="the old one leaks")
    assert champion_of(workspace).target == worse
    assert "**Promoted against the policy**: the old one leaks" in workspace.read(card_path(MODEL, worse)).decode()
    last = read_history(workspace.uri, MODEL).entries[-1]
    assert (last.event, last.override, last.failed) == ("promoted", "the old one leaks", ["champion"])
    assert decisions.last_policy(workspace, MODEL) == DEFAULT


def test_a_version_is_retired_once_unless_it_is_the_champion_or_the_way_back(versions, settle, register) -> None:
    workspace = versions.context.workspace
    one = settle(1)
    two = settle(2, one)
    for target, named in ((two, "version 2 is the champion"), (one, "version 1 is the one that a rollback")):
        with pytest.raises(ConfigError, match=named):
            retirement.retire(versions, target, why="old", by="ada@desk")
    three = settle(3, two)
    retirement.retire(versions, one, why="old", by="ada@desk")
    retirement.retire(versions, one, why="very old", by="bob@desk")
    assert [entry.reason for entry in refs.history(workspace, model_refs.retired_ref(MODEL))] == ["old"]
    assert versions.client.get_model_version(MODEL, "1").tags[retirement.RETIRED_TAG] == "old (ada@desk)"
    with pytest.raises(ConfigError, match=r"version 1 of 'tiny' was retired on .* by ada@desk: old"):
        model_refs.resolve(workspace, f"models:/{MODEL}/1")
    with pytest.raises(ConfigError, match="was retired"):
        champion_moves.rollback_target(workspace, MODEL, "1")
    with pytest.raises(ConfigError, match="was retired"):
        promote(versions, one, override="retired while it was verified")
    with pytest.raises(ConfigError, match="was retired"):
        champion_moves.rollback(versions, one, expected=champion_of(workspace), why="it was slow", by="ada@desk")
    assert champion_moves.rollback_target(workspace, MODEL)[1] == two
    assert champion_of(workspace).target == three and "by ada&#64;desk: old" in render(workspace, MODEL, one, "1")

    four = register(4, three)
    held = dataclasses.replace(versions.context, blocked_promotion="not now")
    champion.settle(ModelVersions(held, lambda: versions.client, MODEL, versions.store), *four)
    retirement.retire(versions, four[0], why="a leak", by="ada@desk")
    again = champion.settle(versions, *four)
    assert not again.promoted and again.reason == "was retired by ada@desk: a leak"


def test_a_report_that_judges_against_a_former_champion_does_not_promote_by_hand(versions, settle) -> None:
    first = settle(1)
    late = settle(2)  # judged when there was none
    with pytest.raises(PromotionRefused, match="another champion than today's"):
        promote(versions, late)
    assert champion_of(versions.context.workspace).target == first


def test_the_status_says_why_a_challenger_is_not_champion(versions, settle) -> None:
    first = settle(1)
    settle(2, first, better=False)
    (model,) = read_status(versions.context.workspace.uri).models
    assert (model.champion, model.challenger) == ("1", "2") and "champion" in model.challenger_reason
    settle(3, first)
    (model,) = read_status(versions.context.workspace.uri).models
    assert (model.champion, model.challenger_reason) == ("3", "")


def test_the_champion_is_not_promoted_again(versions, settle) -> None:
    first = settle(1)
    with pytest.raises(ConfigError, match="version 1 is the champion of 'tiny' already"):
        promote(versions, first)


def test_rollbacks_go_further_back_each_time_and_never_to_what_was_rolled_back_from(versions, settle) -> None:
    one = settle(1)
    two = settle(2, one)
    three = settle(3, two)
    workspace = versions.context.workspace
    assert champion_of(workspace).target == three
    back(versions)
    assert champion_of(workspace).target == two
    (model,) = read_status(workspace.uri).models
    assert (model.champion, model.rolled_back_from, model.reason) == ("2", "3", "it was slow")
    assert mlflow_store.alias_version(versions.client, MODEL, "champion") == "2"
    back(versions)
    assert champion_of(workspace).target == one
    with pytest.raises(ConfigError, match="no champion before today's: versions 2, 3 came later") as refused:
        back(versions)
    assert "`headway promote tiny 3 --why WHY`" in refused.value.advice
    assert lines(workspace) == [
        *(("promoted", None, "1"), ("promoted", "1", "2"), ("promoted", "2", "3")),
        *(("rolled back", "3", "2"), ("rolled back", "2", "1")),
    ]
    assert [entry.why for entry in read_history(workspace.uri, MODEL).entries][-2:] == ["it was slow"] * 2


def test_a_rollback_goes_to_the_version_that_is_named_if_it_was_champion(versions, settle) -> None:
    one = settle(1)
    two = settle(2, one)
    settle(3, two)
    settle(4, two, better=False)
    workspace = versions.context.workspace
    back(versions, "1")
    assert champion_of(workspace).target == one
    with pytest.raises(ConfigError, match="version 4 of 'tiny' was never champion"):
        back(versions, "4")
    with pytest.raises(ConfigError, match="version 1 is the champion of 'tiny' already"):
        back(versions, "1")


def test_what_was_rolled_back_from_does_not_return_by_the_next_retrain(versions, settle, register) -> None:
    one = settle(1)
    two = settle(2, one)
    back(versions)
    outcome = champion.settle(versions, two, register(2, one)[1])
    assert not outcome.promoted and "does not return by itself" in outcome.reason
    assert champion_of(versions.context.workspace).target == one


def test_a_rollback_from_a_champion_that_is_no_more_changes_nothing(versions, settle) -> None:
    one = settle(1)
    two = settle(2, one)
    now, target = champion_moves.rollback_target(versions.context.workspace, MODEL)
    three = settle(3, two)
    with pytest.raises(RefConflict):
        champion_moves.rollback(versions, target, expected=now, why="late", by="ada@desk")
    assert champion_of(versions.context.workspace).target == three
    assert mlflow_store.alias_version(versions.client, MODEL, "champion") == "3"


def test_a_move_in_mlflow_is_reported_and_what_a_person_asks_headway_for_wins_over_it(versions, settle) -> None:
    one = settle(1)
    two = settle(2, one)
    versions.client.set_registered_model_alias(MODEL, "champion", "1")
    three = settle(3, two, better=False)
    assert alias_moves(versions) == 1 and mlflow_store.alias_version(versions.client, MODEL, "champion") == "1"
    promote(versions, three, override="whatever MLflow says")
    assert alias_moves(versions) == 2 and mlflow_store.alias_version(versions.client, MODEL, "champion") == "3"
    versions.client.set_registered_model_alias(MODEL, "champion", "1")
    back(versions)
    assert alias_moves(versions) == 3 and mlflow_store.alias_version(versions.client, MODEL, "champion") == "2"


def test_an_alias_that_another_writer_has_set_and_not_yet_noted_is_no_strangers(versions, register) -> None:
    (one, _), (two, _), (three, _) = register(1), register(2), register(3)
    first = champion.set_champion(versions.context, MODEL, one, expected=None, why="", detail={"version": "1"})
    mlflow_aliases.sync_mlflow_aliases(versions)
    second = champion.set_champion(versions.context, MODEL, two, expected=first, why="", detail={"version": "2"})
    versions.client.set_registered_model_alias(MODEL, "champion", versions.ensure(two))  # and its writer is killed
    champion.set_champion(versions.context, MODEL, three, expected=second, why="", detail={"version": "3"})
    mlflow_aliases.sync_mlflow_aliases(versions)
    assert mlflow_store.alias_version(versions.client, MODEL, "champion") == versions.ensure(three)
    assert alias_moves(versions) == 0


def test_an_alias_that_is_given_again_while_the_champion_moves_ends_where_the_champion_is(
    versions, register, monkeypatch
) -> None:
    (one, _), (two, _) = register(1), register(2)
    client = versions.client
    first = champion.set_champion(versions.context, MODEL, one, expected=None, why="", detail={"version": "1"})
    mlflow_aliases.sync_mlflow_aliases(versions)
    client.delete_registered_model_alias(MODEL, "champion")
    set_alias, overtaken = client.set_registered_model_alias, []

    def late(*arguments: str) -> None:
        if not overtaken:
            overtaken.append(True)
            champion.set_champion(versions.context, MODEL, two, expected=first, why="", detail={"version": "2"})
            mlflow_aliases.sync_mlflow_aliases(ModelVersions(versions.context, lambda: client, MODEL, versions.store))
        set_alias(*arguments)

    monkeypatch.setattr(client, "set_registered_model_alias", late)
    mlflow_aliases.sync_mlflow_aliases(versions)
    assert overtaken and mlflow_store.alias_version(client, MODEL, "champion") == versions.ensure(two)


def test_a_projection_that_another_host_overtook_is_repeated(versions, register, monkeypatch) -> None:
    """Its alias was set late, over the newer one: it sees that the ref moved on, and brings the alias after it."""
    (one, _), (two, _) = register(1), register(2)
    workspace, client = versions.context.workspace, versions.client
    first = champion.set_champion(versions.context, MODEL, one, expected=None, why="", detail={"version": "1"})
    set_alias, overtaken = client.set_registered_model_alias, []

    def late(*arguments: str) -> None:
        if not overtaken:
            overtaken.append(True)
            champion.set_champion(versions.context, MODEL, two, expected=first, why="", detail={"version": "2"})
            mlflow_aliases.sync_mlflow_aliases(ModelVersions(versions.context, lambda: client, MODEL, versions.store))
        set_alias(*arguments)

    monkeypatch.setattr(client, "set_registered_model_alias", late)
    mlflow_aliases.sync_mlflow_aliases(versions)
    assert mlflow_store.alias_version(client, MODEL, "champion") == versions.ensure(two)
    assert champion_of(workspace).target == two


def test_a_model_whose_refs_are_gone_is_not_called_unknown(context: RunContext) -> None:
    context.workspace.publish(f"models/{MODEL}/a/model.json", b"{}")
    context.workspace.publish(f"cards/{MODEL}/a.md", b"# a version")
    with pytest.raises(ConfigError, match="nothing names a version of it"):
        read_history(context.workspace.uri, MODEL)


def test_a_registration_that_was_interrupted_is_no_lost_history(context: RunContext) -> None:
    context.workspace.publish(f"models/{MODEL}/a/model.json", b"{}")
    with pytest.raises(ConfigError, match="was interrupted") as caught:
        read_history(context.workspace.uri, MODEL)
    assert "Give the command again" in caught.value.advice


def test_a_model_nobody_registered_has_no_history(context: RunContext) -> None:
    context.workspace.publish("refs/models/other/note", b"{}")
    for name in (MODEL, f"../{MODEL}"):
        with pytest.raises(ConfigError, match=f"no model '{name}' in this workspace"):
            read_history(context.workspace.uri, name)
