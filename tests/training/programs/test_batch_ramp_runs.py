"""Runs whose batch grows: the same bits on any number of ranks, killed within a size and where the next one begins."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import RunStopped
from headway.training.checkpoint.layout import committed_steps, directory_name
from headway.training.checkpoint.verified_files import read_manifest
from headway.training.config.training_spec import TrainingSpec
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.process

SIZES = {"global_batch_sequences": 32, "micro_batch_sequences": 2, "max_steps": 11}
RAMPS: dict[str, dict[str, Any]] = {
    "schedule": {"from_sequences": 8, "at_steps": [3, 7]},
    # Often enough that the size is decided by how often it was measured.
    "noise_scale": {"from_sequences": 8, "by": "noise_scale", "min_measurements": 3, "factor": 1e-6},
}


class Runs:
    def __init__(self, project: Any, training: TrainingSpec) -> None:
        self.project, self.run = project, project.publish_run(training)

    def train(self, run_dir: Path, *, world_size: int, cut: tuple[int, int, int] | None = None) -> list[int]:
        """Returns the ranks' exit codes.

        Args:
            cut: the rank that is signalled, in which step, and by what.
        """
        arguments = ["--workspace", self.project.workspace.uri, "--run-spec", self.run.sha256]
        environment = {} if cut is None else {"CUT": " ".join(map(str, map(int, cut)))}
        ranks = self.project.start_ranks(
            "tests.training.programs.ramp_worker",
            [*arguments, "--run-dir", str(run_dir)],
            run_dir,
            world_size=world_size,
            **environment,
        )
        if cut is not None:
            ranks[cut[0]].wait(DEADLINE_S)
            for other in ranks:
                if cut[2] == signal.SIGKILL:  # as their guard does
                    other.kill()
        return [rank.wait(DEADLINE_S) for rank in ranks]

    def came_to(self, run_dir: Path) -> tuple[Any, ...]:
        """Weights, position in the sample order, and all that is decided."""
        result = json.loads((run_dir / "result.json").read_bytes())
        manifest = read_manifest(run_dir / "checkpoints" / result["checkpoint"])
        return result["tensors_sha256"], manifest.num_samples, dict(manifest.scalars)


@pytest.fixture(scope="module", params=RAMPS)
def runs(request, shared_project, tiny_training) -> Runs:
    ramp = {"batch_ramp": RAMPS[request.param], **SIZES}
    return Runs(shared_project, TrainingSpec.model_validate(tiny_training.model_dump(mode="json") | ramp))


@pytest.fixture(scope="module")
def undisturbed(runs, tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("undisturbed")
    assert runs.train(run_dir, world_size=1) == [0], runs.project.log(run_dir)
    return run_dir


def steps(runs: Runs, run_dir: Path, name: str = "step") -> list[dict[str, Any]]:
    return [event for event in runs.project.events(run_dir) if event["event"] == name]


def test_the_batch_doubles_twice_and_each_change_is_told_with_its_accumulation(runs, undisturbed):
    grown = steps(runs, undisturbed, "batch.grown")
    assert [(event["rows"], event["num_micro_batches"]) for event in grown] == [(16, 8), (32, 16)]
    first, second = (event["step"] for event in grown)
    sizes = {event["step"]: event["batch_rows"] for event in steps(runs, undisturbed)}
    assert sizes == {step: 8 if step < first else 16 if step < second else 32 for step in range(1, 12)}
    assert grown[0]["what"] == f"8 -> 16 rows from step {first} on: 8 micro-batches a rank, 4 before."
    tokens = {event["step"]: event["tokens"] for event in steps(runs, undisturbed)}
    assert all(tokens[step] * 8 == tokens[1] * sizes[step] for step in sizes), "each row has as many tokens"
    _, num_samples, scalars = runs.came_to(undisturbed)
    assert num_samples == sum(sizes.values()) and scalars["tokens_seen"] == sum(tokens.values())


@pytest.mark.parametrize("world_size", [3, *(pytest.param(even, marks=pytest.mark.soak) for even in (2, 4))])
def test_it_comes_to_the_same_bits_on_any_number_of_ranks(runs, undisturbed, tmp_path, world_size):
    assert runs.train(tmp_path, world_size=world_size) == [0] * world_size, runs.project.log(tmp_path)
    assert runs.came_to(tmp_path) == runs.came_to(undisturbed)
    what = ("step", "loss", "grad_norm", "lr", "batch_rows", "gradient_noise_scale")
    ours, theirs = (
        [[event.get(name) for name in what] for event in steps(runs, each)] for each in (tmp_path, undisturbed)
    )
    assert ours == theirs


def test_killed_and_stopped_within_a_size_and_at_its_ends_it_comes_to_the_same_bits(runs, undisturbed, tmp_path):
    first, second = (event["step"] for event in steps(runs, undisturbed, "batch.grown"))
    for world_size, rank, step, number in (
        (2, 1, first, signal.SIGKILL),  # decided, and not kept yet
        (3, 0, first - 1, signal.SIGTERM),  # what is kept has the decision, and no step of the new size
        (1, 0, first + 2, signal.SIGKILL),
        (2, 1, second, signal.SIGTERM),
    ):
        codes = runs.train(tmp_path, world_size=world_size, cut=(rank, step, number))
        if number == signal.SIGKILL:
            assert codes[rank] == -signal.SIGKILL
        else:
            assert codes == [RunStopped.exit_code] * world_size, runs.project.log(tmp_path)
            assert committed_steps(tmp_path / "checkpoints")[-1] == step
            kept = read_manifest(tmp_path / "checkpoints" / directory_name(step))
            sizes = {event["step"]: event["batch_rows"] for event in steps(runs, undisturbed)}
            assert kept.num_samples == sum(sizes[each] for each in range(1, step + 1))
    assert runs.train(tmp_path, world_size=4) == [0] * 4, runs.project.log(tmp_path)
    assert runs.came_to(tmp_path) == runs.came_to(undisturbed)


@pytest.mark.parametrize("parallel", [{"shard": 2}, {"mode": "fast"}, {"mode": "fast", "pipeline": 2}])
def test_slices_meshes_and_pipelines_read_the_same_rows_in_the_same_sizes(
    shared_project, tiny_training, tmp_path, parallel
):
    ramp = {"batch_ramp": RAMPS["schedule"], **SIZES, "parallel": parallel, "max_steps": 5}
    ramp |= {"optimizer": {"implementation": "foreach"}}  # which slices need
    runs = Runs(shared_project, TrainingSpec.model_validate(tiny_training.model_dump(mode="json") | ramp))
    assert runs.train(tmp_path, world_size=2) == [0, 0], runs.project.log(tmp_path)
    assert [event["batch_rows"] for event in steps(runs, tmp_path)] == [8, 8, 8, 16, 16]
    assert runs.came_to(tmp_path)[1] == 3 * 8 + 2 * 16
