"""Ranks that do not wait for each other, in processes of their own; and one that repeats what they did."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.training.engine.arrivals import script_from
from headway.training.engine.asynchronous_learner import AsynchronousLearner
from headway.training.launch.base.protocol import COLLECTIVE_TIMEOUT_S
from headway.training.optimizers import muon
from headway.training.optimizers.muon import orthogonalise
from headway.training.ranks.arrival_order import Arrival
from headway.training.ranks.distributed import ProcessGroup, enable_determinism
from headway.training.ranks.parameter_server import shared_out
from tests.training.engine.asynchronous_gang import case, digest, works
from tests.warm_programs import run_program

REPOSITORY = Path(__file__).resolve().parents[3]
MUON, ADAMW = {"gradient_clip": 0.5}, {"kind": "adamw", "lr": 0.01, "gradient_clip": 0.5}
STALENESS = 3
JOB = {"steps": 24, "every": 8, "staleness": STALENESS, "optimizer": ADAMW, "world_size": 2}


def trained(folder: Path, **job: Any) -> list[dict[str, Any]]:
    job = {**JOB, **job}
    (folder / "job.json").write_text(json.dumps(job))
    program = [sys.executable, Path(__file__).with_name("asynchronous_gang.py"), folder / "job.json"]
    done = run_program(program, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(job["world_size"])]


def replayed(folder: Path, found: dict[str, Any]) -> list[str]:
    job = json.loads((folder / "job.json").read_text())
    recipe, spec = case(job)
    enable_determinism(1)
    learner = AsynchronousLearner(recipe, spec, ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))
    first = [[work, 0, 0] for work in range(len(found["rounds"][0]))]
    events: list[dict[str, Any]] = [  # of an attempt that was killed, and whose round was made again
        {"event": "asynchronous.round", "step": len(first), "arrivals": first}
    ]
    done = 0
    for arrivals in found["rounds"]:
        done += len(arrivals)
        events.append({"event": "asynchronous.round", "step": done, "arrivals": arrivals})
    learner.script = script_from(events, done)
    digests, losses, done = [], [], 0
    for arrivals in found["rounds"]:
        end = done + len(arrivals)
        updates = learner.train_round(done, works(recipe, spec, done, end))
        losses += [[update.sums.nats.hex(), update.grad_norm.hex(), update.lr] for update in updates]
        digests.append(digest(learner))
        done = end
    assert losses == found["losses"]
    return digests


def stalest(found: dict[str, Any], worker: int | None = None) -> int:
    arrivals = [arrival for arrivals in found["rounds"] for arrival in arrivals]
    return max(n - version for n, (_, version, of) in enumerate(arrivals) if worker in (None, of))


@pytest.mark.process
@pytest.mark.parametrize(("world_size", "optimizer"), [(1, ADAMW), (2, MUON), (3, ADAMW)])
def test_one_process_repeats_what_ranks_did_to_the_bit(
    tmp_path: Path, world_size: int, optimizer: dict[str, Any]
) -> None:
    found = trained(tmp_path, world_size=world_size, optimizer=optimizer, validated=10)
    assert all(rank == found[0] for rank in found), "every rank has the same weights, moments and figures"
    assert [len(arrivals) for arrivals in found[0]["rounds"]] == [8, 2, 6, 8]
    assert sorted(work for arrivals in found[0]["rounds"] for work, _, _ in arrivals) == list(range(24))
    assert stalest(found[0]) <= STALENESS
    assert replayed(tmp_path, found[0]) == found[0]["digests"]


@pytest.mark.process
def test_no_gradient_is_staler_than_the_bound_though_a_rank_halts(tmp_path: Path) -> None:
    found = trained(tmp_path, halts=True, steps=16, every=16)
    assert stalest(found[0], worker=1) >= STALENESS - 1, "rank 0 went on meanwhile"
    assert stalest(found[0]) <= STALENESS
    assert replayed(tmp_path, found[0]) == found[0]["digests"]


@pytest.mark.process
@pytest.mark.parametrize("fails", ["batch", "update", "dies"])
@pytest.mark.parametrize("failing_rank", [0, 1])
def test_a_rank_that_fails_ends_all_at_once_and_only_it_is_to_blame(
    tmp_path: Path, fails: str, failing_rank: int
) -> None:
    (tmp_path / "job.json").write_text(
        json.dumps({**JOB, "world_size": 3, "fails": fails, "failing_rank": failing_rank})
    )
    # Nobody would come to the collective's timeout within the program's.
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), COLLECTIVE_TIMEOUT_S: "3600"}
    program = [sys.executable, Path(__file__).with_name("asynchronous_gang.py"), tmp_path / "job.json"]
    assert run_program(program, env=environment, timeout=60).returncode != 0
    errors = {file.name: json.loads(file.read_text())["error"] for file in tmp_path.glob("rank-*.json")}
    expected = {f"rank-{rank}.json": "ConnectionError" for rank in range(3)} | {
        f"rank-{failing_rank}.json": "ValueError"
    }
    if fails == "dies":
        del expected[f"rank-{failing_rank}.json"]
    assert errors == expected


@pytest.mark.process
def test_rank_0_names_the_rank_that_halted_beside_those_that_wait_for_it(tmp_path: Path) -> None:
    job = {**JOB, "world_size": 3, "fails": "freezes", "failing_rank": 2}
    (tmp_path / "job.json").write_text(json.dumps(job))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), COLLECTIVE_TIMEOUT_S: "5"}
    program = [sys.executable, Path(__file__).with_name("asynchronous_gang.py"), tmp_path / "job.json"]
    assert run_program(program, env=environment, timeout=60).returncode == 0
    found = json.loads((tmp_path / "rank-0.json").read_text())
    assert found["error"] == "ConnectionError" and found["what"].startswith(
        # Whether rank 1 had its weights from rank 2 before that halted, decides whether it is silent as well.
        ("rank 2 did not answer", "ranks 1 and 2 did not answer")
    )


@pytest.mark.process
def test_without_staleness_the_order_of_ranks_does_not_show(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "one").mkdir()
    two = trained(tmp_path / "two", staleness=0)
    one = trained(tmp_path / "one", staleness=0, world_size=1)
    assert two[0]["digests"] == one[0]["digests"] and two[0]["losses"] == one[0]["losses"]
    assert stalest(two[0]) == 0


@pytest.mark.process
def test_weights_that_were_sent_are_let_go_in_mid_round(tmp_path: Path) -> None:
    found = trained(tmp_path, steps=32, every=32, counts=True)
    assert max(rank["held"] for rank in found) <= 6, "of 16 that each rank sent, about"


def alone(staleness: int = STALENESS, optimizer: dict[str, Any] = ADAMW) -> tuple[Any, Any, AsynchronousLearner]:
    recipe, spec = case({**JOB, "steps": 4, "every": 4, "staleness": staleness, "optimizer": optimizer})
    gang = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
    return recipe, spec, AsynchronousLearner(recipe, spec, gang)


def test_a_round_that_is_repeated_shows_that_it_gets_on() -> None:
    recipe, spec, learner = alone()
    learner.script = {0: tuple(Arrival(n, max(0, n - 1), n % 2) for n in range(4))}
    begun: list[int] = []
    learner.train_round(0, works(recipe, spec, 0, 4), begun.append)
    assert begun == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "arrivals",
    [
        [(0, 0, 0), (1, 2, 0), (2, 2, 0), (3, 3, 0)],  # at weights of later
        [(0, 0, 0), (1, -1, 0), (2, 2, 0), (3, 3, 0)],  # of another round
        [(0, 0, 0), (1, 1, 0), (1, 2, 0), (3, 3, 0)],  # one piece of work twice
        [(0, 0, 0), (1, 1, 0), (2, 0, 0), (3, 3, 0)],  # staler than the bound
    ],
)
def test_an_order_that_cannot_have_been_is_not_repeated(arrivals: list[tuple[int, int, int]]) -> None:
    recipe, spec, learner = alone(staleness=1)
    learner.script = {0: tuple(Arrival(*each) for each in arrivals)}
    with pytest.raises(IntegrityError, match="order of the 4 gradients after step 0 cannot have been"):
        learner.train_round(0, works(recipe, spec, 0, 4))


def test_a_matrix_moves_by_itself_whichever_rank_serves_it_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: set[int] = set()

    def noted(matrices: torch.Tensor) -> torch.Tensor:
        counts.add(len(matrices))
        return orthogonalise(matrices)

    monkeypatch.setattr(muon, "orthogonalise", noted)
    recipe, spec, learner = alone(optimizer=MUON)
    learner.train_round(0, works(recipe, spec, 0, 4))
    assert counts == {1}


def test_weights_that_are_not_fp32_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, spec, _ = alone()
    build = type(recipe).build
    monkeypatch.setattr(type(recipe), "build", lambda self: build(self).double())
    with pytest.raises(ConfigError, match="weights are fp32"):
        AsynchronousLearner(recipe, spec, ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))


def test_weights_are_served_whole_and_about_equally() -> None:
    shares = shared_out({"a": 100, "b": 60, "c": 50, "d": 5}, 2)
    assert shares == [["a", "d"], ["b", "c"]]
    assert shared_out({"a": 1}, 3) == [["a"], [], []]


def test_a_ledger_that_lacks_a_round_repeats_nothing() -> None:
    def event(step: int, count: int) -> dict[str, Any]:
        return {"event": "asynchronous.round", "step": step, "arrivals": [[0, 0, 0]] * count}

    assert list(script_from([event(8, 8), event(16, 8), event(24, 8)], 16)) == [0, 8]
    with pytest.raises(IntegrityError, match="does not say in which order gradients came from step 9 on"):
        script_from([event(8, 8), event(24, 8)], 24)


@pytest.mark.parametrize(
    "damaged",
    [{}, {"step": 8}, {"step": 8, "arrivals": [[0, 0]]}, {"step": 8, "arrivals": 3}, {"arrivals": [[0, 0, 0]]}],
)
def test_a_damaged_round_of_a_ledger_is_named(damaged: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match="damaged"):
        script_from([{"event": "asynchronous.round", **damaged}], 8)
