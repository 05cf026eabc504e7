"""`headway promote`, `rollback` and `history` on models that were really trained."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from headway.flows.accounts.objectives import LEAST_EVENTS
from tests.flows.accounts.lives import Life


def message(done) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def history(here, project, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict]:
    monkeypatch.chdir(project.root)
    return lambda: message(here("history", "tiny", "--json"))


@pytest.mark.long
def test_a_champion_is_rolled_back_in_one_command_unless_the_way_back_is_damaged(
    project, here, history, retrain_here, flip_one_bit
) -> None:
    project.edit("tiny.yaml", "max_steps: 120", "max_steps: 100")
    limits = "promotion: {budget: freeze, max_latency_ms: 60000, max_model_bytes: 100000000}"
    project.edit("tiny.yaml", "registry: {model: tiny}", f"{limits}\nregistry: {{model: tiny}}")
    life = Life(project.root)
    for number in range(LEAST_EVENTS):
        begin_s = time.time() - 3600.0 - number
        broke = ("RanksLost", "infrastructure", "launch")
        life.flow(f"broke-{number}", begin_s, begin_s + 0.5, failed=broke, has_run=False)
    second, _ = retrain_here(project)
    assert (
        second.version == "2" and not second.promoted and "error budget of standard retrains is spent" in second.reason
    )
    card = Path(second.reports["card"].removeprefix("file://")).read_text()
    assert "| permission | ✖ failed |" in card and "| latency | ✔ passed |" in card and "| size | ✔ passed |" in card
    assert "**Stays challenger**" in card and "## Slices" in card

    refused = here("promote", "tiny", "2", "--why", "try it")
    assert refused.returncode in (0, 7), refused.stderr
    if refused.returncode == 7:
        assert "the policy refuses version 2" in refused.stderr and history()["champion"] == "1"
        moved = message(here("promote", "tiny", "2", "--why", "try it", "--override", "a test", "--json"))
        assert moved["to_version"] == "2" and moved["override"] == "a test"
    assert history()["champion"] == "2"

    tensors: Path = project.file("runs/*/checkpoints/step-00000120/tensors-00001-of-00002.safetensors")
    whole = tensors.read_bytes()
    flip_one_bit(tensors)
    damaged = here("rollback", "tiny", "--why", "it is slow")
    assert damaged.returncode == 5
    assert tensors.name in damaged.stderr and "The champion stays what it is" in damaged.stderr
    assert "Traceback" not in damaged.stderr and history()["champion"] == "2"

    tensors.write_bytes(whole)
    back = here("rollback", "tiny", "--why", "it is slow", "--json")
    assert (message(back)["from_version"], message(back)["to_version"], message(back)["warnings"]) == ("2", "1", [])
    assert here("verify", "models:/tiny@champion").returncode == 0, "MLflow's alias followed"

    told = here("history", "tiny")
    assert told.returncode == 0 and "rolled back" in told.stdout and "v2 -> v1" in told.stdout
    assert "it is slow" in told.stdout and "version 1 is champion" in told.stdout
    moves = [entry for entry in history()["entries"] if entry["event"] != "challenger"]
    assert [entry["to_version"] for entry in moves] == ["1", "2", "1"]
    for before, entry in pairwise(moves):
        assert entry["from_version"] == before["to_version"]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("promote", "tiny", "7", "--why", "x"), 2, "has no version 7"),
        (("promote", "tinny", "1", "--why", "x"), 2, "no model 'tinny'"),
        (("promote", "tiny", "1", "--why", " "), 2, "needs a reason"),
        (("promote", "tiny", "1", "--why", "x", "--override", " "), 2, "against the policy needs a reason"),
        (("promote", "tiny", "1", "--why", "x"), 2, "version 1 is the champion"),
        (("rollback", "tiny", "--why", "x"), 2, "no champion before today's: today's is its first"),
        (("history", "tinny"), 2, "no model 'tinny'"),
    ],
)
def test_a_move_that_cannot_be_made_is_told_in_one_line(
    project, here, monkeypatch: pytest.MonkeyPatch, arguments, code: int, named: str
) -> None:
    monkeypatch.chdir(project.root)
    done = here(*arguments)
    assert done.returncode == code
    assert named in done.stderr and len(done.stderr.splitlines()) == 1
