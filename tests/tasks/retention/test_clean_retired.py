"""Cleaning takes what a retired version alone stands on, and nothing of a champion."""

from __future__ import annotations

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link, Registration
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.tasks.registry import decisions, model_refs
from headway.tasks.registry.promotion_decision import Decision, PromotionCheck
from tests.tasks.past_work import Made, Maker, refs_of
from tests.tasks.retention.cleanings import cleaned, dangling, everything


def retired(workspace: Workspace, made: Made, evaluation: Link) -> tuple[Link, Link]:
    """Registration and decision of a version that is given up."""
    names = workspace.names(f"documents/{Registration.kind}")
    links = [Link(kind=Registration.kind, sha256=name.removesuffix(".json")) for name in names]
    (registration,) = (link for link in links if workspace.load(link, Registration).checkpoint == made.checkpoint)
    decision = Decision(
        model="tiny",
        registration=registration,
        evaluation=evaluation,
        champion=None,
        policy={},
        checks=(PromotionCheck(name="baseline", status="failed", detail="worse"),),
    )
    decisions.record(workspace, decision, version="1", by="a test")
    refs.move(workspace, model_refs.retired_ref("tiny"), registration, expected=None, reason="old", detail={"by": "a"})
    return registration, decision.link


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(
    ("anywhere", "shares_data"),
    [
        *(("folder", shares_data) for shares_data in (True, False)),
        pytest.param("bucket", True, marks=pytest.mark.process),
        pytest.param("bucket", False, marks=pytest.mark.soak),
    ],
    indirect=["anywhere"],
)
def test_what_a_retired_version_alone_stands_on_goes_and_its_history_stays(anywhere: Workspace, shares_data) -> None:
    maker = Maker(anywhere)
    first = maker.data(1)
    data = [first, first if shares_data else maker.data(2)]
    made = [maker.run(number, data[number]) for number in (0, 1)]
    reports = [maker.evaluate(made[number], data[number]) for number in (0, 1)]
    needed = [maker.register(made[number], reports[number], number + 1) for number in (0, 1)]
    registration, decision = retired(anywhere, made[0], reports[0])
    gone = cleaned(anywhere)
    still = {*made[1].files, *needed[1]}
    assert still <= everything(anywhere), "the other version is whole"
    assert gone >= {*made[0].files, *needed[0]} - still - {document_path(registration)}
    assert f"cards/tiny/{registration.sha256[:16]}.md" in everything(anywhere)
    assert document_path(registration) in everything(anywhere) and document_path(decision) in everything(anywhere)
    assert {who for who, _ in dangling(anywhere)} == {document_path(registration), document_path(decision)}
    assert [entry.number for entry in refs.history(anywhere, refs_of("tiny"))] == [1, 2]
    assert cleaned(anywhere) == set(), "and a second cleaning finds no fault with that"


@pytest.mark.parametrize("later", [(), ("other",)])
def test_a_champion_and_the_one_before_stay_whole_even_if_somebody_retired_them_at_that_moment(
    workspace: Workspace, later: tuple[str, ...]
) -> None:
    maker = Maker(workspace)
    data = maker.data(1)
    made = [maker.run(number, data) for number in (0, 1)]
    reports = [maker.evaluate(each, data) for each in made]
    needed = [maker.register(made[number], reports[number], number + 1) for number in (0, 1)]
    registration, _ = retired(workspace, made[0], reports[0])
    other = Link(kind=Registration.kind, sha256=needed[1][0].rpartition("/")[2].removesuffix(".json"))
    for link in (registration, *(other for _ in later)):
        name = model_refs.alias_ref("tiny", "champion")
        refs.move(workspace, name, link, expected=refs.current(workspace, name), reason="", detail={"version": "1"})
    cleaned(workspace)
    assert {*made[0].files, *needed[0]} <= everything(workspace) and dangling(workspace) == set()
