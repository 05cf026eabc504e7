"""The board: one page of all that is known of a workspace, which needs nothing else and says what the accounts say."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.flows.accounts.kept_accounts import all_accounts
from headway.flows.accounts.probe_records import ProbeRecord, keep_probe
from headway.flows.config.profiles import PricesSpec
from headway.flows.show import board as boards
from headway.flows.show.board import Board, read_board
from headway.flows.show.board_page import render_html
from headway.tasks.ownership.pipeline_history import FailedRetrain, record_failure
from headway.training.launch.base.failure import Failure
from tests.flows.accounts.lives import LOST, Life, numbered

PRICES = PricesSpec(device_hour_usd={"any": 36.0})
DAY_S = 86400.0


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def at(life: Life, days: int = 90, prices: PricesSpec = PRICES) -> Board:
    return read_board(life.workspace.uri, days, prices)


def trained(life: Life, name: str, ago_s: float, *, fails: bool = False) -> None:
    begin_s = time.time() - ago_s
    life.flow(name, begin_s, begin_s + 60.0)
    if fails:
        life.attempt(name, begin_s, begin_s + 12.0, numbered(1, 8, begin_s + 2.0), failure=LOST)
    life.attempt(name, begin_s + 20.0, begin_s + 50.0, numbered(5, 20, begin_s + 25.0))


def test_figures_are_the_accounts_sums_and_days_before_are_left_out(life: Life) -> None:
    trained(life, "new", 3600.0, fails=True)
    life.flow("refused", time.time() - 7200, time.time() - 7190, failed=("ContractViolation", "contract", "validate"))
    old_s = time.time() - 100 * DAY_S
    life.flow("old", old_s, old_s + 60.0, has_run=False)
    board = at(life)
    assert board.tally.num_flow_runs == 2 and board.tally.outcomes == {"succeeded": 1, "failed": 1}
    assert board.tally.causes == {"contract": 1} and board.tally.interruptions == {"infrastructure": 1}
    assert board.tally.figures.steps.num_steps == 24 and len(board.tally.recoveries) == 1
    assert board.tally.cost.usd == pytest.approx(0.01 * (60.0 * 2 + 10.0))
    assert [each.flow_run for each in board.listed] == ["new", "refused"]
    assert at(life, days=3660).tally.num_flow_runs == 3
    page = render_html(board)
    for word in ("no pipeline is failing", "infrastructure", "contract in validate", "USD", "Recoveries"):
        assert word in page, word


def test_a_run_that_was_validated_shows_its_curve(life: Life) -> None:
    trained(life, "new", 3600.0)
    assert "Validation" not in render_html(at(life))
    begin_s = time.time() - 1800.0
    life.flow("validated", begin_s, begin_s + 60.0)
    steps = numbered(1, 4, begin_s + 2.0)
    life.attempt("validated", begin_s, begin_s + 50.0, steps, validated=[(2, 0.5), (4, 0.25)])
    page = render_html(at(life))
    assert page.index("Validation") < page.rindex("Step time") and "log_loss" in page


def test_the_page_needs_nothing_else_and_no_price_is_made_up(life: Life) -> None:
    trained(life, "new", 3600.0)
    page = render_html(at(life, prices=PricesSpec()))
    assert not re.findall(r"(?:src|href)\s*=|url\(|<script|https?://", page.replace("http://www.w3.org/", ""))
    assert "USD" not in page and "device-hours" in page


def test_scaling_is_shown_of_pipelines_that_trained_on_several_numbers_of_devices(life: Life) -> None:
    trained(life, "one", 3600.0)
    page = render_html(at(life))
    assert "Efficiency" not in page
    (kept,) = all_accounts(life.workspace)
    parts_s = {state: 2 * seconds for state, seconds in kept.goodput.parts_device_s.items()}
    halves = {"devices": 4, "parts_device_s": parts_s, "num_tokens": kept.goodput.num_tokens}
    other = kept.model_copy(
        update={"run": "f" * 16, "flow_run": "two", "goodput": kept.goodput.model_copy(update=halves)}
    )
    life.workspace.publish_json(f"accounts/{other.run}/two.json", other.model_dump(mode="json"))
    page = render_html(at(life))
    assert "Efficiency" in page and "100.0 %" in page and "50.0 %" in page


def test_a_pipeline_that_fails_is_the_first_word_unless_somebody_holds_it(life: Life) -> None:
    trained(life, "new", 3600.0)
    failure = FailedRetrain(
        pipeline="nightly",
        stage="launch",
        failed_unix_s=time.time(),
        host="n7",
        failure=Failure(cause="oom", what="no memory."),
        card="",
        flow_run="x",
    )
    record_failure(life.workspace, failure)
    page = render_html(at(life))
    assert "<h1>1 pipeline failing</h1>" in page and "no memory." in page


def test_a_workspace_of_many_flow_runs_keeps_the_newest_of_them_alone(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boards, "LISTED", 5)
    monkeypatch.setattr(boards, "CURVES", 2)
    for number in range(12):
        trained(life, f"f{number:02d}", 3600.0 * (20 - number))
    board = at(life)
    assert board.tally.num_flow_runs == 12
    assert [each.flow_run for each in board.listed] == ["f11", "f10", "f09", "f08", "f07"]
    assert [each.flow_run for each in board.newest] == ["f11", "f10"]


def test_no_workspace_is_no_empty_board(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="there is no workspace here"):
        read_board(str(tmp_path / "none"), 90, PRICES)


def test_a_workspace_without_a_flow_run_has_a_page(life: Life) -> None:
    assert "No flow run has ended within these days." in render_html(at(life))


def test_objectives_are_told_by_job_class_and_a_window_that_closed_too_soon_counts_once(life: Life) -> None:
    begin_s = time.time() - 3600.0
    for number in range(12):
        of = {"job_class": "critical", "in_window": True}
        life.flow(f"done {number}", begin_s, begin_s + 1.0, has_run=False, process=of)
    life.flow("cut", begin_s, begin_s + 1.0, has_run=False, stop="window closed", process=of)
    life.flow("by hand", begin_s, begin_s + 1.0, has_run=False, process={"job_class": "experiment"})
    board = at(life)
    critical, experiment = board.tally.by_class["critical"], board.tally.by_class["experiment"]
    assert (critical.num_good, critical.num_bad, critical.num_done_in_window, critical.num_cut) == (12, 0, 12, 1)
    assert critical.success == 1.0 and critical.in_window == pytest.approx(12 / 13)
    assert experiment.in_window is None and experiment.success == 1.0
    page = render_html(board)
    assert "Objectives" in page and "missed, 92.3 % of 13" in page and "100.0 % of 12" in page and "99.5 %" in page


def test_a_probe_that_failed_or_is_late_is_no_green_page(life: Life) -> None:
    trained(life, "new", 3600.0)
    now_s = time.time()
    probe = ProbeRecord(
        launcher="slurm",
        host="n7",
        flow_run="f",
        begin_unix_s=now_s - 60.0,
        end_unix_s=now_s - 10.0,
        interval_s=3600.0,
        has_succeeded=False,
        stage="launch",
        cause="infrastructure",
        message="the queue is away.",
        last_success_unix_s=None,
    )
    assert "<h1>no pipeline is failing</h1>" in render_html(at(life))
    keep_probe(life.workspace, probe)
    page = render_html(at(life))
    assert "<h1>no pipeline is failing, 1 probe is not well</h1>" in page
    assert "failed launch infrastructure" in page and "the queue is away." in page and "never" in page
    old_s = now_s - 3 * DAY_S
    well = {"begin_unix_s": old_s, "end_unix_s": old_s, "has_succeeded": True, "stage": "", "cause": "", "message": ""}
    keep_probe(life.workspace, probe.model_copy(update={"launcher": "local", **well}))
    page = render_html(at(life))
    assert "2 probes are not well" in page and "succeeded, and late" in page
