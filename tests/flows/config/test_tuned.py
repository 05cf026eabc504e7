"""What was measured is taken where hardware, versions and work are the same, and the pipeline file says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import PipelineSpec, load_pipeline
from headway.flows.config.tuned import is_explicit, tuned
from headway.tasks.tuning import record
from headway.tasks.tuning.machine import machine_here
from headway.tasks.tuning.record import TunedSetting, Tuning, workload

RANKS = TunedSetting(name="ranks", taken={"launch.nodes": 1, "launch.ranks_per_node": 1}, why="")
SAVES = TunedSetting(
    name="save interval",
    taken={"training.checkpoints.every_steps": None, "training.checkpoints.every_s": 90.0},
    why="",
)


@pytest.fixture
def workspace(project: Path) -> Workspace:
    return Workspace.create(str(project / "workspace"))


def pipeline(project: Path, more: str = "") -> PipelineSpec:
    file = project / "tiny.yaml"
    file.write_text(file.read_text() + more)
    return load_pipeline(file)


def measured(of: PipelineSpec) -> Tuning:
    return Tuning(
        pipeline="tiny",
        workload=workload(of.training, of.shards.encoder),
        machine=machine_here(),
        measured_unix_s=0.0,
        took_s=1.0,
        num_steps=5,
        num_rounds=3,
        settings=(RANKS, SAVES),
        tensors_sha256="0" * 64,
    )


def test_it_takes_the_place_of_defaults_and_is_explicit_in_a_line(project: Path, workspace: Workspace) -> None:
    asked = pipeline(project)
    assert tuned(asked, workspace) == (asked, ""), "nothing was measured"
    record.keep(workspace, measured(asked))
    made, message = tuned(asked, workspace)
    assert (made.launch.world_size, made.training.checkpoints.every_steps) == (1, None)
    assert made.training.checkpoints.every_s == 90 and made.training.identity == asked.training.identity
    assert "launch.ranks_per_node 1" in message and "measured 1970-01-01 00:00 UTC" in message


@pytest.mark.parametrize(
    ("more", "world_size", "every_s"),
    [
        ("launch: {nodes: 2}\n", 2, 90.0),
        ("launch: {ranks_per_node: 1}\n", 2, 90.0),
        ("launch: {use_tuning: false}\n", 2, None),
    ],
)
def test_what_the_file_says_goes_before_it_and_keys_that_belong_together_are_taken_together(
    project: Path, workspace: Workspace, more: str, world_size: int, every_s: float | None
) -> None:
    record.keep(workspace, measured(pipeline(project)))
    made, _ = tuned(pipeline(project, more), workspace)
    assert (made.launch.world_size, made.training.checkpoints.every_s) == (world_size, every_s)


def test_an_interval_of_the_files_own_stays(project: Path, workspace: Workspace) -> None:
    record.keep(workspace, measured(pipeline(project)))
    file = project / "tiny.yaml"
    file.write_text(file.read_text().replace("max_steps: 500", "max_steps: 500, checkpoints: {every_steps: 7}"))
    asked = load_pipeline(file)
    made, _ = tuned(asked, workspace)
    assert (made.launch.world_size, made.training.checkpoints) == (1, asked.training.checkpoints)
    assert is_explicit(asked, "training.checkpoints.every_steps") and not is_explicit(
        asked, "training.checkpoints.every_s"
    )


def test_other_hardware_versions_or_work_leave_everything_as_it_is_and_say_why(
    project: Path, workspace: Workspace
) -> None:
    asked = pipeline(project)
    made = measured(asked)
    other = {
        "cores": made.machine.model_copy(update={"num_cores": 999}),
        "torch": made.machine.model_copy(update={"versions": {**made.machine.versions, "torch": "1.0"}}),
    }
    for name, machine in other.items():
        record.keep(workspace, made.model_copy(update={"machine": machine}))
        assert tuned(asked, workspace).pipeline is asked
        assert f"not taken: measured elsewhere: {name}" in tuned(asked, workspace).message
    renamed = made.machine.model_copy(update={"host": "another of the same kind"})
    record.keep(workspace, made.model_copy(update={"machine": renamed}))
    assert tuned(asked, workspace).pipeline.launch.world_size == 1
    record.keep(workspace, made)
    wider = asked.model_copy(update={"training": asked.training.model_copy(update={"global_batch_sequences": 16})})
    assert tuned(wider, workspace) == (
        wider,
        "not taken: model, batch or encoder changed since; `headway tune` measures anew",
    )
    longer = asked.model_copy(update={"training": asked.training.model_copy(update={"max_steps": 7, "seed": 3})})
    assert tuned(longer, workspace).pipeline.launch.world_size == 1


def test_a_document_that_is_damaged_or_impossible_stops_nobody(project: Path, workspace: Workspace) -> None:
    asked = pipeline(project)
    path = workspace.local_path(record.path_of("tiny"))
    for taken in ({"launch.nodes": 3}, {"training.bucket_bytes": 1}, {"launch.loader.prefetch_threads": -1}):
        settings = (TunedSetting(name="x", taken=taken, why=""),)
        record.keep(workspace, measured(asked).model_copy(update={"settings": settings}))
        assert tuned(asked, workspace).pipeline is asked
        assert "cannot have" in tuned(asked, workspace).message
    for data in (b"{", b"[]", b'{"format_version": 2}'):
        path.chmod(0o644)
        path.write_bytes(data)
        assert tuned(asked, workspace) == (asked, "")
