"""Accounts of flow runs: they outlive ledgers, add up to a run's life, and are made where one lacks by who looks."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from headway.flows.accounts.flow_account import FlowAccount
from headway.flows.accounts.flow_ledgers import ledger_spool, start_ticks
from headway.flows.accounts.kept_accounts import (
    account_so_far,
    all_accounts,
    keep_account,
    kept_names,
    life_of,
    read_account,
    settle,
)
from tests.flows.accounts.lives import LOST, RUN, Life, numbered

HERE = {"host": socket.gethostname(), "pid": 1, "start_ticks": -1}
"""Of a flow run that was killed on this machine: no process of that number began then."""


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def accounts(life: Life) -> dict[str, FlowAccount]:
    settle(life.workspace)
    return {account.flow_run: account for account in all_accounts(life.workspace)}


def killed_and_resumed(life: Life) -> None:
    life.flow("a", 0.0, None, process=HERE)
    life.attempt("a", 1.0, None, numbered(1, 6, 3.0))
    life.flow("b", 100.0, 140.0, ("stage.register", 138.0, 139.0))
    life.attempt("b", 101.0, 130.0, numbered(4, 12, 105.0), ("restore", 103.0, 104.0))


def test_the_account_of_a_flow_run_outlives_its_ledger_and_its_run(life: Life) -> None:
    killed_and_resumed(life)
    before = life.account()
    shutil.rmtree(life.run_dir)
    shutil.rmtree(life.workspace.local_path("ledger"))
    assert life.account() == before and before.num_steps == 12


def test_a_recovery_that_another_flow_run_completes_is_one_and_has_all_its_time(life: Life) -> None:
    killed_and_resumed(life)
    found = accounts(life)
    waits = found["a"].goodput.open_recovery
    assert waits is not None and (waits.cause, waits.lost_steps) == ("infrastructure", 0)
    (recovery,) = found["b"].goodput.recoveries
    assert (recovery.attempt, recovery.begin_unix_s, recovery.lost_steps) == (1, 9.0, 3)
    assert recovery.total_s == pytest.approx(108.0 - 9.0) == pytest.approx(sum(recovery.parts_s.values()))
    assert recovery.parts_s["down"] == pytest.approx(100.0 - 9.0)
    assert recovery.parts_s["redone"] == pytest.approx(3.0)
    assert life.account().waste_device_s == {"infrastructure": pytest.approx(2 * 99.0)}


def test_accounts_of_flow_runs_add_up_to_the_whole_life(life: Life) -> None:
    killed_and_resumed(life)
    flows = life_of(life.workspace, RUN).flows
    assert sum(flow.wall_s for flow in flows) == pytest.approx(life.account().wall_s) == 140.0
    for flow in flows:
        assert sum(flow.parts_s.values()) == pytest.approx(flow.wall_s)
        assert sum(flow.parts_device_s.values()) == pytest.approx(flow.device_s)


def test_a_run_that_is_trained_again_after_its_registration_begins_a_new_life(life: Life) -> None:
    """Such as one whose checkpoints were cleaned away."""
    killed_and_resumed(life)
    life.flow("found", 500.0, 510.0, ("stage.register", 508.0, 509.0))
    assert life.account().num_flow_runs == 2 and life.account().is_over
    life.flow("c", 1_000.0, None, process=HERE)
    life.attempt("c", 1_001.0, None, numbered(1, 6, 1_003.0))
    life.flow("d", 1_100.0, 1_140.0)
    life.attempt("d", 1_101.0, 1_130.0, numbered(4, 12, 1_105.0))
    account = life.account()
    assert (account.num_flow_runs, account.num_steps, account.num_redone_steps) == (2, 12, 3)
    assert account.begin_unix_s == 1_000.0 and not account.is_over and len(account.recoveries) == 1


def test_how_a_flow_run_ended_is_told_by_outcome_and_cause(life: Life) -> None:
    life.flow("good", 0.0, 1.0)
    life.flow("bad", 0.0, 1.0, failed=("ContractViolation", "contract", "validate"))
    life.flow("cancelled", 0.0, 1.0, failed=("CancelledRun", "", ""))
    life.flow("busy", 0.0, 1.0, failed=("RunBusy", "", ""))
    life.flow("cut", 0.0, 1.0, stop="window closed")
    life.flow("killed", 0.0, None, process=HERE)
    found = {name: (each.outcome, each.cause, each.stage) for name, each in accounts(life).items()}
    assert found == {
        "good": ("succeeded", "", ""),
        "bad": ("failed", "contract", "validate"),
        "cancelled": ("failed", "CancelledRun", ""),
        "busy": ("stopped", "busy", ""),
        "cut": ("stopped", "window closed", ""),
        "killed": ("lost", "infrastructure", ""),
    }


def test_a_flow_run_that_goes_on_has_an_account_so_far_and_none_that_is_kept(life: Life) -> None:
    here = {"host": socket.gethostname(), "pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
    life.flow("a", 0.0, None, process=here)
    life.attempt("a", 1.0, None, numbered(1, 6, 3.0))
    assert settle(life.workspace) == ["a"] and not kept_names(life.workspace)
    so_far = account_so_far(life.workspace, "a")
    assert so_far is not None and so_far.goodput.num_steps == 6
    assert life.account().num_steps == 6 and not life.account().is_over


def test_a_flow_run_of_another_machine_that_has_no_end_is_not_taken_for_a_lost_one(life: Life) -> None:
    """Machines of a cluster share a workspace, and only its own can tell whether it lives."""
    elsewhere = {"host": "n8", "pid": 1, "start_ticks": 1}
    life.flow("goes on there", 0.0, None, process=elsewhere)
    life.flow("ended there", 0.0, 5.0, process=elsewhere)
    assert settle(life.workspace) == []
    assert list(kept_names(life.workspace)) == ["ended there"]


@pytest.mark.parametrize("harm", [b"", b"{}", b"\x00", b'{"format_version":1e999}'])
def test_a_damaged_account_is_made_again_from_its_ledger(life: Life, harm: bytes) -> None:
    killed_and_resumed(life)
    whole = accounts(life)
    for path in kept_names(life.workspace).values():
        life.workspace.local_path(path).write_bytes(harm)
        assert read_account(life.workspace, path) is None
    assert accounts(life) == whole


@pytest.mark.parametrize(
    "harm",
    [
        {"end_unix_s": 1e300},
        {"begin_unix_s": 1e12},
        {"goodput": {"num_tokens": 10**400}},
        {"goodput": {"parts_device_s": {"productive": 1e308}}},
        {"goodput": {"reached_step": 10**400}},
        {"curve": {"step": [1]}},
        {"curve": {name: [1.0] * 12_000 for name in ("step", "unix_s", "loss", "step_s")}},
        {"validation": {"metric": "log_loss", "step": [1], "value": [1e300]}},
        {"validation": {"metric": "log_loss", "step": [1, 2], "value": [1.0]}},
    ],
)
def test_figures_that_no_flow_run_has_are_a_damage(life: Life, harm: dict[str, Any]) -> None:
    """Dates, sums and pictures are made of them: one such account would end every board, bill and look."""
    killed_and_resumed(life)
    whole = accounts(life)
    path = kept_names(life.workspace)["b"]
    document = json.loads(life.workspace.local_path(path).read_bytes())
    for name, value in harm.items():
        document[name] = (document[name] or {}) | value if isinstance(value, dict) else value
    life.workspace.local_path(path).write_text(json.dumps(document))
    assert read_account(life.workspace, path) is None
    assert accounts(life) == whole


@pytest.mark.parametrize(
    "harm",
    [
        f'"tokens":{(1 << 63) - 1}',
        '"tokens":10,"data_s":1e308',
        '"tokens":10,"traffic":{"all_gather":{"num_calls":1,"sent_bytes":1,"busy_s":-1e308}}',
    ],
)
def test_a_ledger_that_adds_up_to_what_no_flow_run_does_costs_its_own_account_alone(life: Life, harm: str) -> None:
    killed_and_resumed(life)
    spool = life.run_dir / "attempts" / "002" / "ledger" / "rank-0.jsonl"
    lines = [json.loads(line) for line in spool.read_text().splitlines()]
    harmed = [line | json.loads(f"{{{harm}}}") if line["event"] == "step" else line for line in lines]
    spool.write_text("".join(f"{json.dumps(line)}\n" for line in harmed))
    assert list(accounts(life)) == ["a"] and account_so_far(life.workspace, "b") is None


def test_half_a_surrogate_of_a_files_name_is_spelled_out(life: Life) -> None:
    life.flow("bad", 0.0, 1.0, failed=("DataError", "data \udc80", "validate"))
    assert accounts(life)["bad"].cause == r"data \udc80"


def test_a_flipped_bit_makes_no_account_of_another_flow_run(life: Life) -> None:
    """Whoever sums up accounts would count one twice."""
    killed_and_resumed(life)
    accounts(life)
    path = life.workspace.local_path(kept_names(life.workspace)["b"])
    path.write_bytes(path.read_bytes().replace(b'"flow_run":"b"', b'"flow_run":"c"'))
    assert sorted(accounts(life)) == ["a", "b"]


def test_a_ledger_that_names_a_run_elsewhere_leads_nowhere(life: Life, tmp_path: Path) -> None:
    life.flow("a", 0.0, 5.0)
    spool = ledger_spool(life.workspace, "a")
    spool.write_text(spool.read_text().replace(RUN + "0" * 48, "../../elsewhere/" + "0" * 48))
    account = keep_account(life.workspace, "a")
    assert account is not None and account.run == ""
    assert [path.name for path in tmp_path.iterdir()] == ["workspace"]


def test_the_curve_of_a_long_run_has_a_hundred_points_and_ends_with_its_last_step(life: Life) -> None:
    life.flow("a", 0.0, 2_000.0)
    life.attempt("a", 0.0, 2_000.0, numbered(1, 1_234, 1.0))
    curve = accounts(life)["a"].curve
    assert curve is not None and len(curve.step) == len(curve.loss) == 100
    assert curve.step[-1] == 1_234 and curve.step == sorted(set(curve.step))
    assert kept_size_bytes(life) < 20_000


def test_validations_are_a_curve_of_their_own_over_all_attempts_the_later_of_two_of_one_step(life: Life) -> None:
    life.flow("a", 0.0, 2_000.0)
    early, late = [(step, 1.0 / step) for step in range(2, 9, 2)], [(step, 2.0 / step) for step in range(8, 501, 2)]
    life.attempt("a", 0.0, 20.0, numbered(1, 8, 1.0), failure=LOST, validated=[*early, (10, math.nan)])
    life.attempt("a", 20.0, 2_000.0, numbered(7, 500, 21.0), validated=late)
    curve = accounts(life)["a"].validation
    assert curve is not None and curve.metric == "log_loss"
    assert len(curve.step) == 100 and (curve.step[0], curve.step[-1]) == (2, 500)
    assert dict(zip(curve.step, curve.value, strict=True)).items() <= {**dict(early), **dict(late)}.items()
    assert kept_size_bytes(life) < 20_000


def kept_size_bytes(life: Life) -> int:
    return sum(life.workspace.local_path(path).stat().st_size for path in kept_names(life.workspace).values())
