"""What is to be done, from what should be and what is; no server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.flows.deploy.deploying import MAX_SHOWN_CHARS, in_short
from headway.flows.deploy.difference import ResourceChange, difference
from headway.flows.deploy.resources import KINDS, ExistingResource, Kind, Resource


def wanted(kind: Kind, name: str, **fields: Any) -> Resource:
    return Resource(kind=kind, name=name, fields=fields)


def found(kind: Kind, name: str, *, ours: bool = True, others: tuple[str, ...] = (), **fields: Any) -> ExistingResource:
    return ExistingResource(kind=kind, name=name, fields=fields, id=f"id-{name}", ours=ours, used_by_others=others)


def steps(changes: tuple[ResourceChange, ...]) -> list[tuple[str, str]]:
    return [(change.action, change.name) for change in changes]


def test_what_is_missing_is_created_pools_first_and_automations_last() -> None:
    made = difference([wanted(kind, kind) for kind in reversed(KINDS)], [])
    assert steps(made) == [("create", kind) for kind in KINDS]


def test_what_is_gone_from_the_files_is_removed_in_the_opposite_order_after_all_that_is_made() -> None:
    made = difference([wanted("automation", "new")], [found(kind, kind) for kind in KINDS])
    assert steps(made) == [("create", "new"), *(("remove", kind) for kind in reversed(KINDS))]


def test_a_change_names_its_fields_with_before_and_after_and_nothing_else() -> None:
    now = found("deployment", "retrain/a", description="old", version="1", path="of the server's own")
    (change,) = difference([wanted("deployment", "retrain/a", description="new", version="1")], [now])
    assert (change.action, change.id) == ("change", "id-retrain/a")
    assert [(each.field, each.before, each.after) for each in change.fields] == [("description", "old", "new")]


def test_a_field_that_the_server_lacks_is_a_change() -> None:
    (change,) = difference([wanted("variable", "team", value=[1])], [found("variable", "team")])
    assert [(each.before, each.after) for each in change.fields] == [(None, [1])]


def test_what_others_made_is_neither_changed_nor_removed() -> None:
    there = [found(kind, f"their {kind}", ours=False, value=1) for kind in KINDS]
    assert difference([], there) == ()


def test_a_name_that_others_have_is_refused_unless_it_is_adopted() -> None:
    theirs = found("deployment", "retrain/a", ours=False, tags=[])
    ours = wanted("deployment", "retrain/a", tags=["headway:p:production"])
    assert steps(difference([ours], [theirs])) == [("refuse", "retrain/a")]
    assert steps(difference([ours], [theirs], adopt=True)) == [("change", "retrain/a")]


def test_a_pool_of_others_is_used_as_it_is_even_when_adopting() -> None:
    theirs = found("work pool", "gpu-pool", ours=False, concurrency_limit=4)
    ours = wanted("work pool", "gpu-pool", concurrency_limit=None)
    for adopt in (False, True):
        assert steps(difference([ours], [theirs], adopt=adopt)) == [("leave", "gpu-pool")]


def test_a_pool_on_which_others_stand_is_not_taken_from_them() -> None:
    (change,) = difference([], [found("work pool", "shared", others=("etl/nightly",))])
    assert change.action == "leave" and "etl/nightly" in change.why


def test_doubles_that_a_lost_answer_left_are_removed_and_one_is_kept() -> None:
    there = [found("automation", "zombies", enabled=True) for _ in range(3)]
    made = difference([wanted("automation", "zombies", enabled=True)], there)
    assert steps(made) == [("remove", "zombies")] * 2


def test_of_two_with_one_name_ours_is_taken() -> None:
    there = [found("automation", "zombies", ours=False, enabled=True), found("automation", "zombies", enabled=False)]
    (change,) = difference([wanted("automation", "zombies", enabled=True)], there)
    assert change.action == "change" and change.fields[0].before is False


def test_a_name_of_another_kind_is_another_thing() -> None:
    made = difference([wanted("variable", "x")], [found("work pool", "x")])
    assert [(change.action, change.kind) for change in made] == [("create", "variable"), ("remove", "work pool")]


names = st.sampled_from(["a", "b", "c"])
resources = st.lists(
    st.builds(wanted, st.sampled_from(KINDS), names, value=st.integers(0, 2)),
    unique_by=lambda each: (each.kind, each.name),
)
founds = st.lists(
    st.builds(found, st.sampled_from(KINDS), names, ours=st.booleans(), value=st.integers(0, 2)),
    unique_by=lambda each: (each.kind, each.name),
)


@settings(max_examples=50, deadline=None)
@given(resources, founds)
def test_done_once_there_is_nothing_left_to_do_and_others_things_are_as_before(
    should: list[Resource], there: list[ExistingResource]
) -> None:
    after = after_all(difference(should, there), there)
    assert [change for change in difference(should, after) if change.action not in ("leave", "refuse")] == []
    assert [each for each in after if not each.ours] == [each for each in there if not each.ours]


@settings(max_examples=50, deadline=None)
@given(resources, founds, st.data())
def test_broken_off_anywhere_a_second_time_does_the_rest(
    should: list[Resource], there: list[ExistingResource], data: st.DataObject
) -> None:
    changes = [change for change in difference(should, there) if change.action not in ("leave", "refuse")]
    done = data.draw(st.integers(0, len(changes)))
    rest = difference(should, after_all(changes[:done], there))
    assert [str(change) for change in rest if change.action not in ("leave", "refuse")] == [
        str(change) for change in changes[done:]
    ]


def after_all(changes: Sequence[ResourceChange], there: list[ExistingResource]) -> list[ExistingResource]:
    """A server of a few lines."""
    now = {(each.kind, each.name): each for each in there}
    for change in changes:
        place = (change.kind, change.name)
        if change.action == "remove":
            del now[place]
        elif change.wanted is not None:
            now[place] = found(change.kind, change.name, **change.wanted.fields)
    return list(now.values())


def test_of_a_long_change_that_part_is_shown_in_which_it_lies() -> None:
    long = "the same words again and again, " * 5
    before, after = in_short({"body": f"{long}then this{long}"}, {"body": f"{long}then that{long}"})
    assert "then this" in before and "then that" in after
    assert max(len(before), len(after)) <= MAX_SHOWN_CHARS
    assert in_short("01:00", "01:30") == ("01:00", "01:30")
    assert in_short(None, "x" * 200)[1].startswith("xxx")
