"""Through real workers and checkpoints: what a precision keeps beside tensors comes back, on any number of ranks."""

from __future__ import annotations

import json
import shutil

import pytest

from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.parallel import ParallelSpec
from headway.training.config.training_spec import LossScaleSpec
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.long


@pytest.mark.parametrize("parallel", [ParallelSpec(), ParallelSpec(replicate=1, shard=-1)], ids=["whole", "sharded"])
def test_a_run_in_fp16_goes_on_with_its_loss_scale_on_another_number_of_ranks(
    project, tiny_training, tmp_path, parallel
):
    """The scale is too large at first, and again and again, so that steps before and after the resume overflow."""
    run = project.publish_run(
        tiny_training.model_copy(
            update={
                "parallel": parallel,
                "optimizer": tiny_training.optimizer.model_copy(update={"implementation": "foreach"}),
                "precision": "fp16",
                "gradient_compression": "bf16",
                "loss_scale": LossScaleSpec(initial_exponent=20, growth_interval_steps=1),
                "max_steps": 8,
                "checkpoints": CheckpointSpec(every_steps=4),
            }
        )
    )
    assert project.train(run, tmp_path / "whole", world_size=1) == [0]
    assert project.train(run, tmp_path / "resumed", world_size=4) == [0] * 4
    (tmp_path / "resumed" / "result.json").unlink()
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "step-00000008")
    assert project.train(run, tmp_path / "resumed", world_size=2) == [0, 0]

    whole, resumed = (
        json.loads((tmp_path / name / "checkpoints" / "step-00000008" / "manifest.json").read_bytes())
        for name in ("whole", "resumed")
    )
    assert whole["scalars"] == resumed["scalars"]
    assert 0 < whole["scalars"]["loss_scale_skipped_steps"] < 8
    digests = [
        json.loads((tmp_path / name / "result.json").read_bytes())["tensors_sha256"] for name in ("whole", "resumed")
    ]
    assert digests[0] == digests[1]
    outcomes = [event["outcome"] for event in project.events(tmp_path / "resumed") if event["event"] == "step"]
    assert outcomes.count("overflowed") > 0

    out, checkpoint = tmp_path / "proof.json", tmp_path / "resumed" / "checkpoints" / "step-00000008"
    arguments = ["--workspace", project.workspace.uri, "--checkpoint", str(checkpoint), "--out", str(out)]
    (verifier,) = project.start_ranks("headway.training.programs.verify_worker", arguments, tmp_path, world_size=1)
    assert verifier.wait(DEADLINE_S) == 0, project.log(tmp_path)
    assert json.loads(out.read_bytes())["proof_is_exact"], "the proof is that of the fp32 weights"
