"""The account of a run's life: every device-second has one name, a step counts once, and nothing is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.flows.accounts.flow_account import FlowAccount
from headway.flows.accounts.goodput import MEANING, STATES
from headway.flows.accounts.kept_accounts import account_so_far
from headway.training.launch.base.failure import Failure
from tests.flows.accounts.lives import LOST, Life, numbered


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def test_states_of_a_life_with_a_kill_a_window_and_a_queue_sum_to_wall_time_times_devices(life: Life) -> None:
    prepared = ("task snapshot", 100.0, 104.0)
    life.flow("a", 100.0, 140.0, prepared, ("devices.wait", 104.0, 109.0), stop="window closed")
    life.attempt("a", 110.0, 122.0, numbered(1, 6, 113.0), ("rendezvous", 111.0, 112.0), failure=LOST)
    life.attempt("a", 124.0, 139.0, numbered(4, 12, 127.0), ("restore", 125.0, 126.5))
    life.flow("b", 200.0, 230.0, ("task evaluate", 220.0, 228.0), ("stage.register", 228.0, 229.0))
    life.attempt("b", 202.0, 215.0, numbered(13, 20, 205.0))
    account = life.account()
    assert sum(account.parts_s.values()) == pytest.approx(account.wall_s) == 130.0
    assert sum(account.parts_device_s.values()) == pytest.approx(account.device_s) == 260.0
    assert account.parts_s["queue"] == 5.0
    assert account.parts_s["closed_window"] == 60.0
    assert account.parts_s["preparation"] == 4.0
    assert account.parts_s["evaluation"] == 8.0
    assert account.parts_s["registration"] == 1.0
    assert account.is_over


def test_a_step_counts_once_where_it_was_made_first(life: Life) -> None:
    life.flow("a", 0.0, 60.0)
    life.attempt("a", 1.0, 12.0, numbered(1, 8, 3.0), failure=LOST)
    life.attempt("a", 20.0, 40.0, numbered(5, 12, 25.0))
    account = life.account()
    assert (account.num_steps, account.num_redone_steps, account.num_tokens) == (12, 4, 120)
    assert account.parts_s["redone"] == pytest.approx(4.0)
    whole = account.parts_s["productive"] + account.parts_s["sync"] + account.parts_s["data_wait"]
    assert whole == pytest.approx(12.0)
    assert account.parts_s["sync"] == pytest.approx(12 * 0.3)
    assert account.ettr == pytest.approx(12.0 / 60.0)
    assert account.tokens_per_s == pytest.approx(2.0), "over the whole life"


def test_an_epoch_takes_its_steps_and_over_the_whole_life_what_lies_between_them(life: Life) -> None:
    life.flow("a", 0.0, 60.0, steps_per_epoch=4.0)
    life.attempt("a", 1.0, 12.0, numbered(1, 8, 3.0), failure=LOST)
    life.attempt("a", 20.0, 40.0, numbered(5, 12, 25.0))
    account = life.account()
    assert account.num_epochs == pytest.approx(3.0), "12 steps that count"
    assert account.epoch_s == pytest.approx(4.0)
    assert account.epoch_wall_s == pytest.approx(20.0)


@pytest.mark.parametrize("steps_per_epoch", [None, 0.0, -1.0, float("inf"), "many"])
def test_where_nobody_knows_how_many_steps_are_an_epoch_none_is_told(life: Life, steps_per_epoch) -> None:
    life.flow("a", 0.0, 60.0, steps_per_epoch=steps_per_epoch)
    life.attempt("a", 1.0, 12.0, numbered(1, 8, 3.0))
    account = life.account()
    assert (account.num_epochs, account.epoch_s, account.epoch_wall_s) == (None, None, None)


def test_a_roll_back_within_an_attempt_makes_steps_again(life: Life) -> None:
    life.flow("a", 0.0, 20.0)
    life.attempt("a", 0.0, 20.0, [*numbered(1, 6, 1.0), *numbered(3, 8, 8.0)])
    account = life.account()
    assert (account.num_steps, account.num_redone_steps) == (8, 4)


def test_a_recovery_is_told_by_its_parts_from_the_last_new_step_to_the_next(life: Life) -> None:
    life.flow("a", 0.0, 60.0, ("attempt.ending", 12.0, 13.0), ("attempt.backoff", 13.0, 18.0))
    life.attempt("a", 1.0, 13.0, numbered(1, 6, 3.0), failure=LOST)  # its last sign is at 9, and it hangs until 12
    life.attempt("a", 18.0, 50.0, numbered(4, 12, 22.0), ("rendezvous", 19.0, 20.0), ("restore", 20.0, 22.0))
    (recovery,) = life.account().recoveries
    assert (recovery.attempt, recovery.cause, recovery.lost_steps) == (1, "infrastructure", 3)
    assert recovery.total_s == pytest.approx(25.0 - 9.0)
    wanted = {
        "backoff": 5.0,
        "detection": 3.0,
        "redone": 3.0,
        "restore": 2.0,
        "teardown": 1.0,
        "start": 1.0,
        "rendezvous": 1.0,
    }
    assert recovery.parts_s == pytest.approx(wanted)
    assert life.account().waste_device_s == pytest.approx({"infrastructure": 32.0})


def test_attempts_that_come_no_further_are_part_of_one_recovery(life: Life) -> None:
    life.flow("a", 0.0, 60.0)
    life.attempt("a", 1.0, 10.0, numbered(1, 6, 3.0), failure=LOST)
    life.attempt("a", 11.0, 15.0, [], failure=LOST)
    life.attempt("a", 16.0, 20.0, numbered(4, 5, 17.0), failure=LOST)
    life.attempt("a", 21.0, 40.0, numbered(4, 9, 23.0))
    (recovery,) = life.account().recoveries
    assert recovery.total_s == pytest.approx(26.0 - 9.0)
    assert recovery.lost_steps == 5


def test_steps_that_a_later_attempt_makes_again_are_no_loss_of_an_earlier_failure(life: Life) -> None:
    life.flow("a", 0.0, 90.0)
    life.attempt("a", 1.0, 10.0, numbered(1, 6, 3.0), failure=LOST)
    life.attempt("a", 11.0, 30.0, numbered(5, 12, 14.0), failure=LOST)
    life.attempt("a", 31.0, 60.0, numbered(3, 15, 35.0))  # its newest checkpoint was damaged: further back
    account = life.account()
    assert [each.lost_steps for each in account.recoveries] == [2, 10]
    assert account.num_redone_steps == 12


def test_devices_are_those_of_each_attempt_and_of_the_next_one_in_between(life: Life) -> None:
    life.flow("a", 0.0, 40.0)
    life.attempt("a", 0.0, 10.0, numbered(1, 5, 2.0), world_size=4, failure=LOST)
    life.attempt("a", 20.0, 40.0, numbered(6, 9, 25.0), world_size=2)
    account = life.account()
    assert account.device_s == pytest.approx(10.0 * 4 + 30.0 * 2)
    assert sum(account.parts_device_s.values()) == pytest.approx(account.device_s)
    assert account.devices == 2


@pytest.mark.parametrize(
    ("stop", "state"), [("window closed", "closed_window"), ("requested", "stopped"), ("", "down")]
)
def test_time_between_flow_runs_has_the_name_of_what_ended_the_one_before(life: Life, stop: str, state: str) -> None:
    life.flow("a", 0.0, 10.0, stop=stop)
    life.attempt("a", 1.0, 9.0, numbered(1, 3, 2.0))
    life.flow("b", 100.0, 110.0)
    life.attempt("b", 101.0, 109.0, numbered(4, 6, 102.0))
    assert life.account().parts_s[state] == pytest.approx(90.0)


def test_a_life_ends_with_its_registration_whoever_finds_the_run_later(life: Life) -> None:
    life.flow("a", 0.0, 10.0, ("stage.register", 9.0, 10.0))
    life.attempt("a", 1.0, 9.0, numbered(1, 3, 2.0))
    life.flow("b", 1_000.0, 1_010.0, ("stage.register", 1_009.0, 1_010.0))
    life.attempt("b", 1_001.0, 1_002.0, [])
    assert (life.account().begin_unix_s, life.account().wall_s) == (0.0, 10.0)


def test_an_attempt_whose_owner_was_killed_ends_with_its_last_sign(life: Life) -> None:
    life.flow("a", 0.0, 5.0)
    life.attempt("a", 1.0, None, numbered(1, 6, 2.0))
    account = life.account()
    assert account.wall_s == 8.0
    assert not account.is_over


def test_damaged_ledgers_still_give_an_account_that_sums_up(life: Life) -> None:
    life.flow("a", 0.0, 20.0)
    life.attempt("a", 1.0, 19.0, numbered(1, 10, 2.0))
    spool = next(life.run_dir.rglob("rank-0.jsonl"))
    lines = spool.read_bytes().splitlines(keepends=True)
    spool.write_bytes(b"".join(lines[:4]) + b"\x00" * 100 + b"\n" + lines[5] + lines[6][:20])
    account = life.account()
    assert sum(account.parts_s.values()) == pytest.approx(20.0)
    assert 0 < account.num_steps < 10


def test_a_run_that_nobody_trained_here_is_refused_in_a_sentence(life: Life) -> None:
    with pytest.raises(ConfigError, match="no ledger of a flow run that trained it is here"):
        life.account()


def test_every_state_has_its_meaning() -> None:
    assert set(MEANING) == set(STATES)


OTHER = "fedcba9876543210"


def trials(life: Life, *, second_begins_s: float) -> FlowAccount:
    """Two trials of 20 s each, the first from 10 s on, of two ranks and of four; the flow run takes 100 s."""
    life.flow("t", 0.0, 100.0, ("task evaluate", 80.0, 90.0), more_runs=[OTHER])
    life.attempt("t", 10.0, 22.0, numbered(1, 8, 12.0), failure=LOST)
    life.attempt("t", 24.0, 30.0, numbered(7, 9, 25.0))
    life.run_dir = life.workspace.local_path(f"runs/{OTHER}")
    begin_s = second_begins_s
    life.attempt("t", begin_s, begin_s + 20.0, numbered(1, 12, begin_s + 3.0), world_size=4)
    found = account_so_far(life.workspace, "t")
    assert found is not None
    return found


def test_trials_in_turn_hold_their_own_devices_and_in_between_those_of_the_largest(life: Life) -> None:
    found = trials(life, second_begins_s=50.0)
    goodput = found.goodput
    assert found.run == "" and goodput.devices == 4
    assert sum(goodput.parts_s.values()) == pytest.approx(goodput.wall_s) == 100.0
    assert goodput.device_s == pytest.approx(20 * 2 + 20 * 4 + 60 * 4)
    assert sum(goodput.parts_device_s.values()) == pytest.approx(goodput.device_s)
    assert goodput.parts_device_s["evaluation"] == 40.0
    assert (goodput.num_steps, goodput.num_redone_steps, goodput.num_attempts) == (9 + 12, 2, 3)
    assert goodput.num_tokens == 210
    (recovery,) = goodput.recoveries
    assert recovery.cause == "infrastructure" and sum(goodput.wasted_device_s["infrastructure"].values()) > 0


def test_a_run_that_a_search_trained_has_an_account_of_its_own_part(life: Life) -> None:
    trials(life, second_begins_s=20.0)
    found = life.account()
    assert (found.num_steps, found.num_redone_steps, found.num_attempts) == (9, 2, 2)
    # From its first attempt to the end of its last, on its own devices; the other's are none of it.
    assert found.wall_s == 20.0 and found.device_s == pytest.approx(20 * 2)
    (recovery,) = found.recoveries
    assert recovery.cause == "infrastructure"


def test_a_trial_that_pauses_at_a_rung_holds_no_devices_until_it_goes_on(life: Life) -> None:
    """The first trains from 10 s to 20 s and, promoted, from 60 s on; the second in between, on four devices."""
    paused = Failure(cause="stopped", what="stopped at step 6 of 12.", reason="step reached")
    life.flow("t", 0.0, 100.0, more_runs=[OTHER])
    life.attempt("t", 10.0, 20.0, numbered(1, 6, 12.0), failure=paused)
    life.attempt("t", 60.0, 70.0, numbered(7, 12, 62.0))
    life.run_dir = life.workspace.local_path(f"runs/{OTHER}")
    life.attempt("t", 30.0, 50.0, numbered(1, 6, 33.0), failure=paused, world_size=4)
    found = account_so_far(life.workspace, "t")
    assert found is not None
    goodput = found.goodput
    assert goodput.device_s == pytest.approx(10 * 2 + 10 * 2 + 20 * 4 + 60 * 4)
    assert sum(goodput.parts_s.values()) == pytest.approx(100.0)
    assert sum(goodput.parts_device_s.values()) == pytest.approx(goodput.device_s)
    assert (goodput.num_steps, goodput.num_redone_steps, goodput.num_attempts) == (18, 0, 3)
    assert goodput.recoveries == [] and goodput.reached_step == 12


def test_trials_beside_each_other_hold_the_devices_of_both(life: Life) -> None:
    goodput = trials(life, second_begins_s=20.0).goodput
    # From 20 s to 30 s both train.
    assert goodput.device_s == pytest.approx(20 * 2 + 20 * 4 + 70 * 4)
    assert sum(goodput.parts_s.values()) == pytest.approx(100.0)
    assert sum(goodput.parts_device_s.values()) == pytest.approx(goodput.device_s)
