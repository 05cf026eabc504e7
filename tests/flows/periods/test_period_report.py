"""A report on a period: its figures are the accounts' sums, beside those of the period before, and what to decide."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.published_files import document_path
from headway.flows.config.calendar_periods import Period
from headway.flows.config.profiles import PricesSpec
from headway.flows.periods import decisions
from headway.flows.periods.page import written
from headway.flows.periods.reading import bounds, day, read_period, slow_hosts
from headway.flows.periods.record import PeriodReport
from headway.flows.report.written_report import to_html, to_markdown
from headway.tasks.ownership.pipeline_history import FailedRetrain, record_failure
from headway.tasks.prove.scrub import scrub
from headway.training.launch.base.failure import Failure
from tests.flows.accounts.lives import LOST, Life, numbered, verdicts
from tests.tasks.past_work import Maker

PRICES = PricesSpec(device_hour_usd={"any": 36.0}, device_watts={"any": 360.0})
NOON_S = datetime.datetime(2026, 11, 11, 12, tzinfo=datetime.UTC).timestamp()
"""A Wednesday."""
WEEK_S = 7 * 86400.0
HOSTILE = "<b>[link](x)</b> | \x1b[31m"


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def at(life: Life, period: Period = "week", of: str = "2026-11-11") -> PeriodReport:
    return read_period(life.workspace.uri, period, PRICES, day(of))


@pytest.mark.parametrize(
    ("period", "of", "begin", "end"),
    [
        ("week", "2026-11-11", "2026-11-09", "2026-11-16"),
        ("week", "2026-11-15", "2026-11-09", "2026-11-16"),
        ("week", "2027-01-01", "2026-12-28", "2027-01-04"),
        ("week", None, "2026-11-16", "2026-11-23"),
        ("month", "2026-12-31", "2026-12-01", "2027-01-01"),
        ("month", "2028-02-29", "2028-02-01", "2028-03-01"),
        ("month", None, "2026-10-01", "2026-11-01"),
        ("quarter", "2026-11-30", "2026-10-01", "2027-01-01"),
        ("quarter", None, "2026-07-01", "2026-10-01"),
    ],
)
def test_a_period_is_of_the_calendar_and_the_last_that_is_over_unless_a_day_is_named(
    period: Period, of: str | None, begin: str, end: str
) -> None:
    today = datetime.date(2026, 11, 26)
    found = bounds(period, None if of is None else day(of), today)
    assert [each.isoformat() for each in found] == [begin, end]


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "", "0001-01-01", "9999-12-31"])
def test_what_is_no_day_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no date"):
        day(text)


def test_figures_are_sums_of_the_period_beside_those_of_the_one_before(life: Life) -> None:
    life.flow("now", NOON_S, NOON_S + 60.0)
    life.attempt("now", NOON_S, NOON_S + 12.0, numbered(1, 8, NOON_S + 2.0), failure=LOST)
    life.attempt("now", NOON_S + 20.0, NOON_S + 50.0, numbered(5, 20, NOON_S + 25.0))
    life.flow("refused", NOON_S + 100.0, NOON_S + 110.0, failed=("ContractViolation", "contract", "validate"))
    life.flow("broken", NOON_S + 200.0, NOON_S + 220.0, failed=("RanksLost", "infrastructure", "launch"))
    life.flow("before", NOON_S - WEEK_S, NOON_S - WEEK_S + 30.0, has_run=False)
    life.flow("long ago", NOON_S - 2 * WEEK_S, NOON_S - 2 * WEEK_S + 30.0, has_run=False)
    found = at(life)
    assert (found.begin, found.end, found.is_over) == ("2026-11-09", "2026-11-16", True)
    assert found.now.outcomes == {"succeeded": 1, "failed": 2} and found.before.num_flow_runs == 1
    assert found.now.success == 0.5, "what broke a contract is left out"
    assert found.now.num_recoveries == 1 and found.now.recovery_p50_s == found.now.recovery_p95_s
    assert [each.flow_run for each in found.failed] == ["broken", "refused"]
    assert found.causes == {"contract": 1, "infrastructure": 1}
    assert sum(line.usd for line in found.by_pipeline) == pytest.approx(found.now.cost.usd)
    assert sum(line.usd for line in found.by_cause) == pytest.approx(found.now.cost.usd)
    assert sum(use.device_hours for use in found.devices) == pytest.approx(found.now.cost.device_hours)
    assert at(life, "month").now.num_flow_runs == 4 and at(life, "quarter").now.num_flow_runs == 5
    assert found.now.by_class["standard"].success == 0.5 and found.now.by_class["standard"].in_window is None
    tables = [section.table for section in written(found, has_prices=False).sections if section.table]
    row = next(row for table in tables for row in table.rows if row[0] == "standard retrains that succeeded")
    assert row[1:] == ("50.0 %", "100.0 %", "99.0 %")
    assert any("50.0 % of standard retrains succeeded" in each and "infrastructure" in each for each in found.decide)
    assert any(each.startswith("Recoveries from infrastructure took") for each in found.decide)


def test_a_period_without_flow_runs_is_a_report_too(life: Life) -> None:
    found = at(life)
    assert found.now.num_flow_runs == 0 and found.decide == []
    text = written(found, has_prices=True)
    assert text.word == "Nothing to decide"
    for page in (to_html(text), to_markdown(text)):
        assert "Failed flow runs" in page and "none" in page


def test_what_is_to_be_decided_begins_with_what_is_lost(life: Life) -> None:
    made = Maker(life.workspace).run(7, Maker(life.workspace).data(7), finished=False)
    weights = f"runs/{made.run.sha256[:16]}/checkpoints/step-00000003/tensors.safetensors"
    data = life.workspace.read(weights)
    life.workspace.publish(weights, bytes([data[0] ^ 1]) + data[1:])
    scrub(life.workspace)
    failed = FailedRetrain(
        pipeline="p",
        host="h",
        flow_run="f",
        run="",
        stage="launch",
        failed_unix_s=time.time(),
        failure=Failure(what="it broke", cause="infrastructure"),
        card="",
    )
    record_failure(life.workspace, failed)
    first, second = at(life).decide
    assert first.startswith(weights) and "damaged" in first
    assert second.startswith("p: its newest retrain failed (infrastructure)")
    assert written(at(life), has_prices=False).state == "bad"


def test_what_contracts_said_of_the_newest_data_is_shown_and_warnings_are_to_be_decided(life: Life) -> None:
    life.flow("old", NOON_S, NOON_S + 10.0, has_run=False, verdicts=verdicts())
    said = verdicts("age-drifts", HOSTILE, quarantined=2, age=0.31, a_column=0.1)
    life.flow("new", NOON_S + 60.0, NOON_S + 70.0, has_run=False, verdicts=said)
    life.flow("q", NOON_S, NOON_S + 10.0, has_run=False, process={"pipeline": "q"}, verdicts=verdicts())
    found = at(life)
    assert [each.pipeline for each in found.data] == ["p", "q"]
    (decide,) = found.decide
    assert decide.startswith("p: 2 rules of its contract warned of the newest data, first age-drifts.")
    notes = to_markdown(written(found, has_prices=False))
    row = next(line for line in notes.splitlines() if line.startswith("| p |") and "age" in line)
    for text in ("98", "2.0 %", "warning 2", "age 0.31"):
        assert text in row
    assert at(life, of="2026-11-02").data == []


def test_devices_are_told_by_how_much_of_the_period_they_were_in_use(life: Life) -> None:
    life.flow("now", NOON_S, NOON_S + 60.0)
    life.attempt("now", NOON_S, NOON_S + 50.0, numbered(1, 20, NOON_S + 2.0))
    (use,) = at(life).devices
    assert use.in_use == pytest.approx(use.device_hours / (use.most_devices * 7 * 24)) and use.device_hours > 0
    assert "of the week in use" in to_markdown(written(at(life), has_prices=False))


def test_files_that_nothing_needs_are_counted_and_damage_that_hides_them_is_told(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Maker(life.workspace)
    made.run(7, made.data(7), finished=False)
    for file in Path(life.workspace.uri).rglob("*"):
        if file.is_file():
            os.utime(file, (NOON_S - 1e7, NOON_S - 1e7))
    stale = at(life).stale
    assert stale.num_files > 0 and stale.size_bytes > 0
    monkeypatch.setattr(decisions, "MANY_STALE_BYTES", 1)
    assert any("headway clean" in each for each in at(life).decide)
    life.workspace.publish(document_path(made.run(8, made.data(8), finished=False).run), b"{")
    assert "Nobody knows" in to_markdown(written(at(life), has_prices=False))


def test_recoveries_of_a_class_are_held_to_its_objective(life: Life) -> None:
    wait_s = 700.0
    life.flow("now", NOON_S, NOON_S + 7 * wait_s, process={"job_class": "experiment"})
    for number in range(6):
        begin_s = NOON_S + number * wait_s
        failure = LOST if number < 5 else None
        steps = numbered(1 + 4 * number, 4 + 4 * number, begin_s + 2.0)
        life.attempt("now", begin_s, begin_s + 8.0, steps, failure=failure)
    found = at(life)
    of_class = found.now.by_class["experiment"]
    assert of_class.num_recoveries == 5 and 600 < (of_class.recovery_p95_s or 0) < wait_s
    assert any(each.startswith("Recoveries of experiment retrains took") for each in found.decide)
    assert "experiment retrains: recovery, 95th percentile" in to_markdown(written(found, has_prices=False))


def test_a_slow_host_is_named_beside_the_fastest_of_its_pipeline_and_few_steps_say_nothing() -> None:
    steps = {
        ("p", "fast"): (200, 200.0),
        ("p", "slow"): (200, 300.0),
        ("p", "few"): (9, 90.0),
        ("q", "one"): (200, 9e3),
    }
    (slow,) = slow_hosts(steps)
    assert (slow.host, slow.pipeline, slow.step_s, slow.ratio) == ("slow", "p", 1.5, 1.5)


def test_text_of_pipelines_and_failures_is_markup_in_neither_form(life: Life) -> None:
    life.flow("odd", NOON_S, NOON_S + 10.0, failed=("Odd", HOSTILE, HOSTILE))
    text = written(at(life), has_prices=True)
    page, notes = to_html(text), to_markdown(text)
    assert "<b>[link]" not in page and "\x1b" not in page + notes
    assert "[link](x)" not in notes.replace("\\", "\0") and "<b>" not in notes
