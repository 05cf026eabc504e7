"""A restore in the middle of an attempt, under the real supervisor, on a disk that is slow, or stands still."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data_contracts.store.errors import TrainingFailed
from headway.training.config.guards import GuardSpec, NonFinitePolicy
from headway.training.config.shards import TRAIN
from headway.training.config.training_spec import RecipeSpec
from headway.training.data.load.shard_reader import ShardReader
from headway.training.engine.batches import step_rows
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.supervise.supervisor import supervise
from headway.training.observe.ledger import Ledger, read_events

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("forked_agents")]

REPOSITORY = Path(__file__).resolve().parents[3]
DEADLINE_S, SLOW_READS, READ_S = 10.0, 25, 0.7
SLOW_DISK = f'''
"""A recipe of a rank whose disk takes its time for each block of a checkpoint."""

import os
import time

from poisoned_recipe import Poisoned
from headway.training.checkpoint import blocks, verified_files

blocks.BLOCK_BYTES = 1024


class SlowDisk:
    num_reads = 0

    def __getattr__(self, name):
        return getattr(os, name)

    def preadv(self, *arguments):
        SlowDisk.num_reads += 1
        while os.environ["DISK"] == "stands still" and SlowDisk.num_reads > 3:
            time.sleep(1000)
        time.sleep({READ_S} if SlowDisk.num_reads <= {SLOW_READS} else 0)
        return os.preadv(*arguments)


verified_files.os = SlowDisk()
'''


@pytest.fixture
def resume_in_the_middle(project, tiny_training, recipe_folder, tmp_path):
    """Train under the supervisor, over a roll-back from step 7 to the checkpoint of step 4."""
    reader = ShardReader(project.workspace, project.manifest, TRAIN)

    def marks_of(window: int) -> set[int]:
        rows = reader.gather(step_rows(tiny_training, reader, window).reshape(-1))["tokens"].tolist()
        return {sum(place * token for place, token in enumerate(row, 1)) for row in rows}

    mark = min(marks_of(6).difference(*(marks_of(window) for window in range(15) if window != 6)))
    (recipe_folder / "slow_disk_recipe.py").write_text(SLOW_DISK)
    model = dict(tiny_training.recipe.model) | {"deadly": str(mark)}
    training = tiny_training.model_copy(
        update={
            "recipe": RecipeSpec(name="slow_disk_recipe:Poisoned", model=model),
            "guards": GuardSpec(non_finite=NonFinitePolicy(action="roll_back"), rewind_steps=3),
            "max_steps": 8,
        }
    )

    def train(disk: str) -> Path:
        run, run_dir = project.publish_run(training), tmp_path / "run"

        def poll() -> int | None:
            spools = run_dir.glob("attempts/*/ledger/rank-0.jsonl")
            steps = [event["step"] for spool in spools for event in read_events(spool) if event["event"] == "step"]
            return steps[-1] if steps else None

        gang = Gang(
            module="headway.training.programs.worker",
            arguments=("--workspace", project.workspace.uri, "--run-spec", run.sha256, "--run-dir", str(run_dir)),
            nodes=1,
            ranks_per_node=1,
            import_path=(str(recipe_folder), str(REPOSITORY)),
            run_dir=run_dir,
            environment={"DISK": disk},
        )
        spec = LaunchSpec(nodes=1, progress_deadline_s=DEADLINE_S, max_attempts=1)
        supervise(spec, gang, ledger=Ledger(tmp_path / "owner.jsonl"), budget_scope="one", poll=poll)
        return run_dir

    return train


def test_a_restore_that_is_slower_than_the_deadline_but_gets_on_is_not_ended(resume_in_the_middle, project):
    run_dir = resume_in_the_middle("slow")

    restores = [event for event in project.events(run_dir) if event["event"] == "restore"]
    assert [event["step"] for event in restores] == [0, 4]
    assert restores[1]["duration_s"] > SLOW_READS * READ_S > 1.5 * DEADLINE_S
    assert [event for event in project.events(run_dir) if event["event"] == "heartbeat" and event["what"] == "restore"]


def test_a_restore_that_stands_still_is_ended_and_named(resume_in_the_middle):
    with pytest.raises(TrainingFailed, match=r"no sign of life within 10 s.*preadv \(slow_disk_recipe.py"):
        resume_in_the_middle("stands still")
