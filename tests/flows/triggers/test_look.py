"""Whether a retrain is due: by data, drift or an event, once for each need, and until a retrain finishes."""

from __future__ import annotations

import pytest

from headway.data_contracts.store.errors import ConfigError, RefConflict
from headway.flows.triggers.evaluation import Due, Event, NotDue

pytestmark = pytest.mark.process

ROWS = "{new_data: {rows: 0.1}}"


def test_a_pipeline_that_never_finished_a_retrain_is_due(tiny) -> None:
    tiny.say(ROWS)
    found = tiny.evaluate_triggers()
    assert isinstance(found.decision, Due) and "no retrain on record has finished" in found.decision.why


def test_after_a_retrain_of_the_same_data_nothing_is_due(tiny) -> None:
    tiny.say("{new_data: {rows: 0, bytes: 0, files: 0}, drift: {psi: 0.1}}")
    tiny.retrain()
    found = tiny.evaluate_triggers()
    assert isinstance(found.decision, NotDue)
    assert [(figure.what, figure.value) for figure in found.figures] == [
        *(("rows", 0.0), ("bytes", 0.0), ("files", 0.0), ("drift", None))
    ]


@pytest.mark.parametrize(("num_rows", "is_due"), [(20, False), (21, True)])
def test_rows_are_due_above_the_share_and_not_at_it(tiny, num_rows: int, is_due: bool) -> None:
    tiny.say(ROWS)
    tiny.retrain()
    tiny.write("c", num_rows)
    assert isinstance(tiny.evaluate_triggers().decision, Due) == is_due


def test_an_edit_in_place_is_no_new_row_and_all_bytes_of_its_file(tiny) -> None:
    tiny.say("{new_data: {rows: 0.1, bytes: 0.4, files: 0.5}}")
    tiny.retrain()
    tiny.write("b", 100, x=1.0)
    found = tiny.evaluate_triggers()
    assert isinstance(found.decision, Due)
    rows, by_bytes, files = found.figures
    assert (rows.value, files.value, rows.is_over, by_bytes.is_over, files.is_over) == (0.0, 0.5, False, True, False)
    assert "0 came, 1 changed, 0 went, of 2" in files.detail


def test_files_that_went_count_as_well(tiny) -> None:
    tiny.say("{new_data: {files: 0.4}}")
    tiny.retrain()
    (tiny.folder / "data" / "b.csv").unlink()
    assert "0 came, 0 changed, 1 went, of 2" in tiny.evaluate_triggers().decision.why


def test_drift_is_measured_against_the_accepted_data_and_looking_accepts_nothing(tiny) -> None:
    tiny.say("{drift: {psi: 0.5}}")
    tiny.retrain()
    tiny.write("b", 100, x=5.0)
    first, second = tiny.evaluate_triggers(), tiny.evaluate_triggers()
    assert isinstance(first.decision, Due) and "drift: PSI of steady" in first.decision.why
    # Had the look accepted the data, the second would find them no farther off than themselves.
    assert second.figures == first.figures and isinstance(second.decision, Due)
    tiny.retrain()
    assert isinstance(tiny.evaluate_triggers().decision, NotDue)


def test_an_ask_stands_until_a_retrain_finishes_and_the_same_data_are_asked_for_once(tiny) -> None:
    tiny.say("{new_data: {rows: 0.1}, drift: {psi: 0.05}}")
    tiny.retrain()
    tiny.write("c", 60, x=9.0)
    ask = tiny.ask(tiny.evaluate_triggers())
    assert ask.triggers == ("new data", "drift")
    again = tiny.evaluate_triggers().decision
    assert isinstance(again, Due) and again.is_recorded and again.ask == ask
    tiny.write("d", 5)  # a trickle, less than the limit from what was asked for
    trickled = tiny.evaluate_triggers().decision
    assert isinstance(trickled, Due) and trickled.is_recorded and trickled.ask == ask
    tiny.write("e", 100)
    more = tiny.evaluate_triggers().decision
    assert isinstance(more, Due) and not more.is_recorded and more.ask.key != ask.key
    tiny.retrain()
    assert isinstance(tiny.evaluate_triggers().decision, NotDue)


def test_of_two_who_saw_the_same_one_ask_is_recorded(tiny) -> None:
    tiny.say(ROWS)
    one, other = tiny.evaluate_triggers(), tiny.evaluate_triggers()
    ask = tiny.ask(one)
    with pytest.raises(RefConflict):
        tiny.ask(other)
    assert tiny.status().requested == ask


def test_a_retrain_that_finishes_while_another_looks_makes_its_ask_void(tiny) -> None:
    tiny.say(ROWS)
    late = tiny.evaluate_triggers()
    tiny.retrain()
    with pytest.raises(RefConflict):
        tiny.ask(late)
    assert tiny.status().requested is None


def test_an_event_is_due_until_a_retrain_that_began_after_it(tiny) -> None:
    tiny.say("{event: shop.exported}")
    happened = {"first": 100.0}

    def newest(name: str, since_unix_s: float) -> Event | None:
        assert name == "shop.exported"
        late = [each for each, unix_s in happened.items() if unix_s >= since_unix_s]
        return Event(id=late[-1], occurred="then") if late else None

    ask = tiny.ask(tiny.evaluate_triggers(newest))
    assert ask.event == "first" and tiny.evaluate_triggers(newest).decision.ask == ask
    happened["second"] = 200.0
    assert tiny.ask(tiny.evaluate_triggers(newest)).event == "second"
    tiny.retrain(started_unix_s=150.0)  # it began between the two
    found = tiny.evaluate_triggers(newest).decision
    assert isinstance(found, Due) and found.ask.event == "second"
    tiny.retrain(started_unix_s=250.0)
    assert isinstance(tiny.evaluate_triggers(newest).decision, NotDue)


def test_without_a_server_nobody_knows_of_events(tiny) -> None:
    tiny.say("{event: shop.exported}")
    found = tiny.evaluate_triggers(None)
    assert isinstance(found.decision, NotDue) and found.figures[0].detail == "not known: no Prefect server is named"


def test_who_never_accepted_data_has_no_drift(tiny) -> None:
    tiny.say("{drift: {js: 0.1}}")
    found = tiny.evaluate_triggers()
    assert isinstance(found.decision, NotDue) and found.figures[0].detail == "no data were accepted before"


@pytest.mark.parametrize(
    ("triggers", "message"),
    [
        ("{}", "nothing triggers"),
        ("{new_data: {}}", "give rows, bytes or files"),
        ("{drift: {}}", "give psi or js"),
        ("{new_data: {row: 0.1}}", "rows"),
        ("{new_data: {rows: 0.1}, check_every: 30s}", "a minute at least"),
        ("{new_data: {rows: 0.1}, check_every: often}", "no length of time"),
        ("{event: 'Shop Exported'}", "event"),
    ],
)
def test_triggers_that_mean_nothing_are_refused_by_name(tiny, triggers: str, message: str) -> None:
    tiny.say(triggers)
    with pytest.raises(ConfigError, match=message):
        tiny.evaluate_triggers()


def test_drift_needs_a_rule_that_measures_it(tiny) -> None:
    tiny.say("{drift: {psi: 0.1}}")
    contract = tiny.folder / "contract.yaml"
    contract.write_text(contract.read_text().partition("drift:")[0])
    with pytest.raises(ConfigError, match="no drift rule"):
        tiny.evaluate_triggers()


def test_a_pipeline_without_triggers_says_how_to_get_them(tiny) -> None:
    tiny.say("null")
    with pytest.raises(ConfigError, match="has no triggers"):
        tiny.evaluate_triggers()
