"""Whole runs on a mesh: from fresh weights over a change of the world to a checkpoint that one process proves."""

from __future__ import annotations

import json

import pytest

from headway.training.config.parallel import ParallelSpec
from headway.training.launch.base.stop_request import StopRequest
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.long


def run_on(project, tiny_training, *, precision="fp32", **parallel):
    spec = ParallelSpec.model_validate({"mode": "fast", **parallel})
    return project.publish_run(tiny_training.model_copy(update={"parallel": spec, "precision": precision}))


def losses(project, run_dir) -> list[float]:
    return [event["loss"] for event in project.events(run_dir) if event["event"] == "step"]


def test_a_sharded_run_goes_on_with_more_ranks_and_says_that_its_bits_are_others(project, tiny_training, tmp_path):
    run = run_on(project, tiny_training, replicate=1, shard=-1)
    assert project.train(run, tmp_path, world_size=2, **StopRequest(at_step=3).environment()) == [75, 75], project.log(
        tmp_path
    )

    assert project.train(run, tmp_path, world_size=4) == [0] * 4, project.log(tmp_path)

    (changed,) = (event["changed"] for event in project.events(tmp_path) if event["event"] == "restore.inexact")
    assert changed == {"mesh": ["shard 2", "shard 4"]}
    assert len(losses(project, tmp_path)) == 3


@pytest.mark.long
@pytest.mark.parametrize(
    "mesh", [{"shard": 2}, {"shard": 2, "precision": "bf16"}, {"pipeline": 2}, {"tensor": 2}], ids=str
)
def test_one_process_proves_a_checkpoint_that_a_mesh_wrote(project, tiny_training, tmp_path, mesh):
    run = run_on(project, tiny_training, **mesh)
    assert project.train(run, tmp_path, world_size=2) == [0, 0], project.log(tmp_path)

    out, checkpoint = tmp_path / "proof", tmp_path / "checkpoints" / "step-00000006"
    out.mkdir()
    arguments = ["--workspace", project.workspace.uri, "--checkpoint", str(checkpoint), "--out", str(out / "out.json")]
    (rank,) = project.start_ranks("headway.training.programs.verify_worker", arguments, out, world_size=1)

    assert rank.wait(DEADLINE_S) == 0, project.log(out)
    proof = json.loads((out / "out.json").read_bytes())
    assert proof["proof_holds"]
    assert not proof["proof_is_exact"], "another mesh adds up in another order"


def test_a_world_that_is_not_the_mesh_is_refused_before_anything_is_read(project, tiny_training, tmp_path):
    run = run_on(project, tiny_training, replicate=1, tensor=2)
    assert project.train(run, tmp_path, world_size=1) != [0]
    assert "tensor 2 = 2 ranks, and the world has 1" in project.log(tmp_path)
