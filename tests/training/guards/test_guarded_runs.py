"""A run that leaves windows out is the run that never had them: on any number of ranks, and killed at any moment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.documents import CheckpointManifest
from headway.data_contracts.store.errors import TrainingFailed
from headway.training.checkpoint.layout import committed_steps
from headway.training.checkpoint.verified_files import read_manifest
from headway.training.config.batch_ramp import BatchRampSpec
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.communication_spec import SyncSpec
from headway.training.config.guards import GuardSpec, NonFinitePolicy, SpikePolicy
from headway.training.config.shards import TRAIN
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.data.load.shard_reader import ShardReader
from headway.training.engine.batches import step_rows
from headway.training.engine.learner import Learner
from headway.training.launch.node.rank_process import RankProcess
from headway.training.parallel import gradients
from headway.training.programs import session
from headway.training.programs.session import train_run
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.process


@pytest.fixture
def marks(shared_project, tiny_training):
    """The mark of a row that is in this window and in none of the others that a test comes to."""
    reader = ShardReader(shared_project.workspace, shared_project.manifest, TRAIN)
    windows = []
    for window in range(20):
        rows = reader.gather(step_rows(tiny_training, reader, window).reshape(-1))["tokens"].tolist()
        windows.append({sum(place * token for place, token in enumerate(row, 1)) for row in rows})

    def mark(window: int) -> int:
        return min(windows[window].difference(*windows[:window], *windows[window + 1 :]))

    return mark


@pytest.fixture
def training(tiny_training: TrainingSpec, recipe_folder):
    def make(guards: GuardSpec, **poison: int) -> TrainingSpec:
        model = dict(tiny_training.recipe.model) | {kind: str(mark) for kind, mark in poison.items()}
        recipe = RecipeSpec(name="poisoned_recipe:Poisoned", model=model)
        return tiny_training.model_copy(update={"recipe": recipe, "guards": guards, "max_steps": 12})

    return make


@pytest.fixture
def train(project, recipe_folder):
    def run_here(training: TrainingSpec, run_dir: Path) -> dict[str, Any]:
        """One rank, in this process."""
        attempt = run_dir / "attempts" / f"{len(list(run_dir.glob('attempts/*'))):03d}"
        attempt.mkdir(parents=True)
        train_run(RankProcess(attempt), project.workspace, project.publish_run(training).link, run_dir)
        return result(run_dir)

    return run_here


@pytest.fixture(scope="module")
def known() -> dict[str, tuple[str, list[list[Any]]]]:
    return {}


@pytest.fixture
def whole(train, known, tmp_path):
    """The digest that an undisturbed run ends with, and what it left out; equal ones are trained once."""

    def run_once(training: TrainingSpec) -> tuple[str, list[list[Any]]]:
        key = training.model_dump_json()
        if key not in known:
            known[key] = train(training, tmp_path / "whole")["tensors_sha256"], excluded(tmp_path / "whole")
        return known[key]

    return run_once


def result(run_dir: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((run_dir / "result.json").read_bytes())
    return value


def last_manifest(run_dir: Path) -> CheckpointManifest:
    return read_manifest(run_dir / "checkpoints" / result(run_dir)["checkpoint"])


def excluded(run_dir: Path) -> list[list[Any]]:
    return json.loads(last_manifest(run_dir).scalars["guard"])["excluded"]


def events(project, run_dir: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in project.events(run_dir) if event["event"] == name]


SKIP = GuardSpec(non_finite=NonFinitePolicy(action="skip"))
ROLL_BACK = GuardSpec(non_finite=NonFinitePolicy(action="roll_back"), rewind_steps=3)


@pytest.mark.parametrize("guards", [SKIP, ROLL_BACK], ids=["skip", "roll back"])
def test_a_window_left_out_of_a_round_takes_islands_back_to_a_checkpoint_and_is_recorded(
    project, marks, training, train, recipe_folder, tmp_path, guards
):
    of_windows = training(guards, deadly=marks(7))
    apart = SyncSpec(every_steps=3, islands=of_windows.num_replicas, delay_steps=1)
    kept = CheckpointSpec(every_steps=3)
    islands = of_windows.model_copy(update={"sync": apart, "checkpoints": kept, "max_steps": 12})
    alone = train(islands, tmp_path / "alone")["tensors_sha256"]
    first = 5 if guards is ROLL_BACK else 7
    assert excluded(tmp_path / "alone") == [[first, 8, "non-finite"]]
    final = {event["step"]: event["window"] for event in events(project, tmp_path / "alone", "step")}
    assert [final[step] for step in range(1, 13)] == [*range(first), *range(8, 20 - first)]
    run, together = project.publish_run(islands), tmp_path / "together"
    together.mkdir()
    shutil.copy(recipe_folder / "poisoned_recipe.py", together)  # a rank's working folder
    assert project.train(run, together, world_size=2) == [0, 0], project.log(together)
    assert result(together)["tensors_sha256"] == alone


@pytest.mark.parametrize(
    ("guards", "trained"), [(SKIP, [*range(6), *range(7, 13)]), (ROLL_BACK, [*range(4), *range(7, 15)])]
)
def test_windows_left_out_are_recorded_and_every_other_one_is_trained_on_once(
    project, marks, training, train, tmp_path, guards, trained
):
    train(training(guards, deadly=marks(6)), tmp_path)

    final = {event["step"]: event["window"] for event in events(project, tmp_path, "step")}
    assert [final[step] for step in range(1, 13)] == trained
    first = 6 if guards is SKIP else 4
    assert excluded(tmp_path) == [[first, 7, "non-finite"]]
    assert last_manifest(tmp_path).num_samples == 8 * (trained[-1] + 1)
    (alarm,) = events(project, tmp_path, "guard")
    assert (alarm["step"], alarm["window"], alarm["alarm"]) == (7, 6, "non-finite")


def test_rolling_back_puts_the_checkpoints_aside_that_no_longer_count(project, marks, training, train, tmp_path):
    train(training(ROLL_BACK, deadly=marks(6)), tmp_path)

    assert [path.name for path in (tmp_path / "abandoned").iterdir()] == ["step-00000006.0"]
    assert [event["step"] for event in events(project, tmp_path, "restore")] == [0, 4]
    assert committed_steps(tmp_path / "checkpoints") == [8, 10, 12]


def test_rolling_back_lets_go_of_the_first_model_before_the_second_is_built(
    project, marks, training, train, tmp_path, monkeypatch
):
    models: list[weakref.ref[Any]] = []
    alive_at_build: list[int] = []

    class Watched(Learner):
        def __init__(self, *arguments: Any) -> None:
            alive_at_build.append(sum(model() is not None for model in models))
            super().__init__(*arguments[:3])  # the shards are for learners of clients
            models.append(weakref.ref(self.model))

    monkeypatch.setattr(session, "new_learner", Watched)
    train(training(ROLL_BACK, deadly=marks(6)), tmp_path)
    assert alive_at_build == [0, 0]


def test_without_an_earlier_checkpoint_rolling_back_goes_on_from_fresh_weights(
    project, marks, training, train, tmp_path
):
    spec = training(ROLL_BACK, deadly=marks(6))
    expected = train(spec, tmp_path / "usual")
    train(spec.model_copy(update={"checkpoints": CheckpointSpec(every_steps=100)}), tmp_path / "none")
    assert [event["step"] for event in events(project, tmp_path / "none", "restore")] == [0, 0]
    assert result(tmp_path / "none")["tensors_sha256"] == expected["tensors_sha256"]


@pytest.mark.long
@pytest.mark.parametrize("guards", [SKIP, ROLL_BACK])
def test_two_ranks_leave_out_the_same_and_end_with_the_same_bits(
    project, marks, training, whole, recipe_folder, tmp_path, guards
):
    spec = training(guards, deadly=marks(6))
    expected = whole(spec)
    two = tmp_path / "two"
    two.mkdir()
    shutil.copy(recipe_folder / "poisoned_recipe.py", two)  # a rank's working folder

    assert project.train(project.publish_run(spec), two, world_size=2) == [0, 0], project.log(two)

    assert (result(two)["tensors_sha256"], excluded(two)) == expected


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours handles it."""


@pytest.mark.parametrize(
    ("guards", "at_event"),
    [(SKIP, name) for name in ("guard", "checkpoint.begin")]
    + [(ROLL_BACK, name) for name in ("restore.begin", "checkpoint.begin")]
    + [  # between these
        pytest.param(guards, name, marks=pytest.mark.soak)
        for guards, names in ((SKIP, ("step.excluded", "step")), (ROLL_BACK, ("guard", "restore", "step")))
        for name in names
    ],
)
def test_killed_after_the_alarm_it_decides_the_same_again(
    project, marks, training, train, whole, monkeypatch, tmp_path, guards, at_event
):
    spec = training(guards, deadly=marks(6))
    expected = whole(spec)
    seen: list[str] = []

    def kill(event: dict[str, Any]) -> None:
        if event["event"] == "guard" or seen:
            seen.append(event["event"])
        if at_event in seen:
            raise Killed

    arm = RankProcess.__init__

    def armed(rank: RankProcess, folder: Path) -> None:
        arm(rank, folder)
        rank.ledger.listeners.append(kill)

    monkeypatch.setattr(RankProcess, "__init__", armed)
    with pytest.raises(Killed):
        train(spec, tmp_path / "killed")
    monkeypatch.setattr(RankProcess, "__init__", arm)

    assert (train(spec, tmp_path / "killed")["tensors_sha256"], excluded(tmp_path / "killed")) == expected


@pytest.mark.parametrize("guards", [SKIP, ROLL_BACK])
def test_a_run_that_goes_on_after_the_alarm_remembers_what_was_left_out(
    project, marks, training, train, tmp_path, guards
):
    spec = training(guards, deadly=marks(6))
    expected = train(spec, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000012")

    again = train(spec, tmp_path / "run")

    assert again["tensors_sha256"] == expected["tensors_sha256"]
    assert len(excluded(tmp_path / "run")) == 1
    assert [event["step"] for event in events(project, tmp_path / "run", "restore")] == [10]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_batch_that_has_grown_within_what_is_left_out_stays_so_and_no_row_of_it_comes_back(
    project, marks, training, train, monkeypatch, tmp_path, is_killed
):
    """Windows 0 to 2 have 8 rows, all others 16. The rows of window 5 are those of two usual ones, 7 and 8."""
    monkeypatch.setattr(gradients, "MEASURED_EVERY_STEPS", 1)
    ramp = {"from_sequences": 8, "by": "noise_scale", "min_measurements": 3, "factor": 1e-6}
    guards = ROLL_BACK.model_copy(update={"rewind_steps": 4})
    spec = training(guards, deadly=marks(8)).model_copy(
        update={"batch_ramp": BatchRampSpec.model_validate(ramp), "global_batch_sequences": 16, "max_steps": 7}
    )
    if is_killed:
        arm = RankProcess.__init__

        def kill(event: dict[str, Any]) -> None:
            if event["event"] == "guard":
                raise Killed

        def armed(rank: RankProcess, folder: Path) -> None:
            arm(rank, folder)
            rank.ledger.listeners.append(kill)

        monkeypatch.setattr(RankProcess, "__init__", armed)
        with pytest.raises(Killed):
            train(spec, tmp_path)
        monkeypatch.setattr(RankProcess, "__init__", arm)

    train(spec, tmp_path)

    final = {event["step"]: (event["window"], event["batch_rows"]) for event in events(project, tmp_path, "step")}
    # Steps 1 and 2 are an earlier attempt's, where one was killed.
    assert [final[step] for step in range(3, 8)] == [(window, 16) for window in range(6, 11)]
    assert excluded(tmp_path) == [[2, 6, "non-finite"]]
    assert last_manifest(tmp_path).num_samples == 3 * 8 + 8 * 16
    assert json.loads(last_manifest(tmp_path).scalars["batch_growth"])["windows"] == [3]


def test_a_spike_is_left_out_too(project, marks, training, train, tmp_path):
    spikes = GuardSpec(spike=SpikePolicy(action="skip", window_steps=8))
    train(training(spikes, terrible=marks(10)), tmp_path)
    assert excluded(tmp_path) == [[10, 11, "spike"]]


def test_a_budget_that_is_spent_stops_every_rank_with_the_weights_as_they_were(
    project, marks, training, train, tmp_path
):
    once = GuardSpec(non_finite=NonFinitePolicy(action="skip", budget=1))
    with pytest.raises(TrainingFailed, match=r"step 7: .*budget of 1 is spent"):
        train(training(once, deadly=f"{marks(6)},{marks(7)}"), tmp_path)
    assert committed_steps(tmp_path / "checkpoints") == [2, 4, 6]


@pytest.mark.long
def test_a_rank_killed_right_after_a_roll_back_costs_no_bits(
    project, marks, training, train, until, recipe_folder, tmp_path
):
    spec = training(ROLL_BACK, deadly=marks(6)).model_copy(update={"max_steps": 14})
    expected = train(spec, tmp_path / "whole")
    killed = tmp_path / "killed"
    killed.mkdir()
    shutil.copy(recipe_folder / "poisoned_recipe.py", killed)
    run = project.publish_run(spec)
    ranks = project.start(run, killed, world_size=2)
    until(lambda: bool(events(project, killed, "guard")), what="the alarm")
    os.kill(ranks[1].pid, signal.SIGKILL)
    # As its guard does: where groups are formed anew, it would wait for its peer for as long as it may.
    ranks[0].send_signal(signal.SIGTERM)
    ranks[0].wait(DEADLINE_S)

    assert project.train(run, killed, world_size=2) == [0, 0]

    assert result(killed)["tensors_sha256"] == expected["tensors_sha256"]
