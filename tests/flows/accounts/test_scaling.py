"""Scaling efficiency is the tokens that a device-second of steps makes, over those at the fewest devices."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.flows.accounts.flow_account import FlowAccount
from headway.flows.accounts.kept_accounts import all_accounts, settle
from headway.flows.accounts.scaling import Scaling, scaling_of
from headway.flows.show.goodput import print_goodput, read_goodput
from tests.flows.accounts.lives import LOST, RUN, Life, numbered


def account(folder: Path, devices: int, **changed: object) -> FlowAccount:
    """Ten steps of a second and 10 tokens each, whatever the number of devices; one attempt is lost and made again."""
    life = Life(folder)
    life.flow("a", 0.0, 60.0)
    life.attempt("a", 1.0, 12.0, numbered(1, 8, 3.0), failure=LOST, world_size=devices)
    life.attempt("a", 20.0, 40.0, numbered(5, 10, 25.0), world_size=devices)
    settle(life.workspace)
    (made,) = all_accounts(life.workspace)
    return made.model_copy(update={"run": f"{devices:016x}", **changed})


def with_tokens(made: FlowAccount, num_tokens: int) -> FlowAccount:
    return made.model_copy(update={"goodput": made.goodput.model_copy(update={"num_tokens": num_tokens})})


def test_efficiency_is_relative_to_the_fewest_devices_in_whatever_order_accounts_come(tmp_path: Path) -> None:
    one = account(tmp_path / "1", 1)
    two = with_tokens(account(tmp_path / "2", 2), 180)
    four = with_tokens(account(tmp_path / "4", 4), 300)
    for accounts in itertools.permutations((one, two, four)):
        lines = scaling_of(accounts, "p")
        assert [line.devices for line in lines] == [1, 2, 4]
        assert [line.tokens_per_s for line in lines] == pytest.approx([10.0, 18.0, 30.0])
        assert [line.efficiency for line in lines] == pytest.approx([1.0, 0.9, 0.75])


def test_at_each_number_of_devices_the_newest_run_counts_with_all_its_flow_runs(tmp_path: Path) -> None:
    two = account(tmp_path / "2", 2)
    old = with_tokens(two, 999).model_copy(update={"run": "old", "begin_unix_s": 0.0})
    new = with_tokens(two, 100).model_copy(update={"run": "new", "begin_unix_s": 100.0})
    later = with_tokens(two, 300).model_copy(update={"run": "new", "begin_unix_s": 200.0})
    (line,) = scaling_of((later, old, new), "p")
    assert (line.run, line.num_steps, line.efficiency) == ("new", 20, 1.0)
    assert line.tokens_per_device_s == pytest.approx(400 / 40)


def test_other_devices_pipelines_trials_and_changed_numbers_of_devices_are_no_part_of_it(tmp_path: Path) -> None:
    gpu = account(tmp_path / "1", 1, device="NVIDIA H100")
    older = account(tmp_path / "2", 2, begin_unix_s=-1.0)
    trials = account(tmp_path / "3", 3, run="")
    changed = account(tmp_path / "4", 4)
    changed = changed.model_copy(update={"goodput": changed.goodput.model_copy(update={"devices": 8})})
    lines = scaling_of((gpu, older, trials, changed, account(tmp_path / "5", 5, pipeline="other")), "p")
    assert [line.devices for line in lines] == [1]
    assert Scaling().lines("p") == []


def test_goodput_shows_epochs_and_scaling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], headway: Callable[..., tuple[int, str]]
) -> None:
    life = Life(tmp_path)
    life.flow("a", 0.0, 20.0, steps_per_epoch=5.0)
    life.attempt("a", 1.0, 12.0, numbered(1, 10, 2.0), world_size=1)
    settle(life.workspace)
    (kept,) = all_accounts(life.workspace)
    print_goodput(read_goodput(life.workspace.uri, RUN))
    shown = capsys.readouterr().out
    assert "2 epochs; one takes 5.0 s of steps, 10.0 s with all else" in shown
    assert "efficiency" not in shown, "one number of devices scales with nothing"

    other = with_tokens(kept, 160).goodput
    doubled = {state: 2 * seconds for state, seconds in other.parts_device_s.items()}
    other = other.model_copy(update={"devices": 2, "parts_device_s": doubled})
    two = kept.model_copy(update={"run": "f" * 16, "flow_run": "b", "goodput": other})
    life.workspace.publish_json(f"accounts/{two.run}/b.json", two.model_dump(mode="json"))
    print_goodput(read_goodput(life.workspace.uri, RUN))
    shown = capsys.readouterr().out
    assert "devices  run               steps  targets/s  a device  efficiency" in shown, shown
    assert "80.0 %" in shown
    code, text = headway("goodput", RUN, "--workspace", life.workspace.uri, "--json")
    found = json.loads(text)
    assert code == 0 and [line["efficiency"] for line in found["scaling"]] == pytest.approx([1.0, 0.8])
    assert (found["num_epochs"], found["epoch_s"]) == (pytest.approx(2.0), pytest.approx(5.0))
