"""What was measured is taken where hardware, versions and work are the same, and the pipeline file says nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headway.data_contracts.store.documents import Link, ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import PipelineSpec, load_pipeline
from headway.flows.config.tuned import for_run, is_explicit, tuned, why_ranks_stay, with_settings
from headway.tasks.tuning import record
from headway.tasks.tuning.machine import machine_here
from headway.tasks.tuning.record import TunedSetting, Tuning, workload
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import TrainingSpec

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


@pytest.mark.parametrize(
    "change",
    [
        {"taken": {"launch.nodes": 3}},
        {"taken": {"launch.nodes": 1.0}},
        {"taken": {"launch.nodes": True}},
        {"taken": {"launch.ranks_per_node": 10**9}},
        {"taken": {"launch.hosts": 2}},
        {"taken": {"launch.loader.no_such_key": 2}},
        {"taken": {"training.seed": 3}},
        {"taken": {"training.max_steps": 3}},
        {"taken": {"training.bucket_bytes": 1}},
        {"taken": {"training.bucket_bytes": 1 << 60}},
        {"taken": {"launch.loader.prefetch_threads": -1}},
        {"taken": {"launch.loader.prefetch_bytes": None}},
        {"taken": {"training.checkpoints.every_s": 1e300}},
        {"taken": {"training.checkpoints.every_steps": None}},
        {"measured_unix_s": 1e20},
        {"measured_unix_s": -1.0},
        {"format_version": 2},
        {"pipeline": "another"},
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"format_version": 2}',
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_document_that_is_damaged_or_impossible_stops_nobody(
    project: Path, workspace: Workspace, change: dict[str, Any] | bytes
) -> None:
    asked = pipeline(project)
    if isinstance(change, bytes):
        data = change
    else:
        document = measured(asked).model_dump(mode="json") | {"settings": [{"name": "x", "why": "", "taken": {}}]}
        document["settings"][0] |= {"taken": change["taken"]} if "taken" in change else {}
        data = json.dumps(document | {name: value for name, value in change.items() if name != "taken"}).encode()
    path = workspace.local_path(record.path_of("tiny"))
    path.parent.mkdir()
    path.write_bytes(data)
    made, message = tuned(asked, workspace)
    assert made is asked
    assert message.startswith("not taken: ") and message.isprintable(), message


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_what_lies_in_its_place_stops_nobody(project: Path, workspace: Workspace, put: Callable[[Path], None]) -> None:
    path = workspace.local_path(record.path_of("tiny"))
    path.parent.mkdir()
    put(path)
    _, message = tuned(pipeline(project), workspace)
    assert message == "not taken: tuning/tiny.json is no measurement that this Headway can use."


def test_what_it_says_of_a_machine_is_one_printable_line(project: Path, workspace: Workspace) -> None:
    asked = pipeline(project)
    made = measured(asked)
    rude = {"host": "a\x1b[2Jb\n" * 1000, "processor": made.machine.processor}
    record.keep(workspace, made.model_copy(update={"machine": made.machine.model_copy(update=rude)}))
    _, message = tuned(asked, workspace)
    assert "on a\\x1b[2Jb" in message and message.isprintable() and len(message) < 400
    rude["processor"] = "\x1b[31m" * 1000
    record.keep(workspace, made.model_copy(update={"machine": made.machine.model_copy(update=rude)}))
    _, message = tuned(asked, workspace)
    assert message.startswith("not taken: measured elsewhere: processor") and message.isprintable()
    assert len(message) < 400


@pytest.mark.parametrize("more", ["launch: {nodes: 2, min_nodes: 1}\n", "launch: {min_nodes: 1}\n"])
def test_where_ranks_may_not_be_tuned_the_rest_is_taken(project: Path, workspace: Workspace, more: str) -> None:
    asked = pipeline(project, more)
    record.keep(workspace, measured(asked))
    made, message = tuned(asked, workspace)
    assert (made.launch, made.training.checkpoints.every_s) == (asked.launch, 90.0)
    assert "launch" not in message and why_ranks_stay(asked)


@pytest.mark.parametrize("keeps", ["keep_every_steps: 200", "keep_best: 2", "every_s: 5"])
def test_what_is_said_of_which_checkpoints_are_kept_leaves_when_they_are_saved(
    project: Path, workspace: Workspace, keeps: str
) -> None:
    file = project / "tiny.yaml"
    file.write_text(file.read_text().replace("max_steps: 500", f"max_steps: 500, checkpoints: {{{keeps}}}"))
    asked = load_pipeline(file)
    record.keep(workspace, measured(asked))
    made, _ = tuned(asked, workspace)
    assert (made.launch.world_size, made.training.checkpoints) == (1, asked.training.checkpoints)


def test_what_comes_of_it_still_knows_what_the_file_says(project: Path, workspace: Workspace) -> None:
    asked = pipeline(project)
    record.keep(workspace, measured(asked))
    made, _ = tuned(asked, workspace)
    assert is_explicit(made, "training.max_steps") and is_explicit(made, "launch.nodes")
    assert not is_explicit(made, "training.seed") and not is_explicit(made, "launch.min_nodes")


@dataclass
class Described:
    """A workspace that has one run, of this workload."""

    training: TrainingSpec
    shards: ShardSpec

    def load(self, link: Link, kind: type) -> Any:
        of_shards = SimpleNamespace(spec=self.shards.model_dump(mode="json"))
        return of_shards if kind is ShardManifest else SimpleNamespace(config=self.training.identity, manifest=link)


def test_a_run_of_another_workload_is_continued_with_the_files_ranks_and_the_measured_interval(
    project: Path, workspace: Workspace
) -> None:
    asked = pipeline(project)
    record.keep(workspace, measured(asked))
    made, _ = tuned(asked, workspace)
    link = Link(kind="run", sha256="0" * 64)

    def continued(**changes: Any) -> PipelineSpec:
        then = Described(asked.training.model_copy(update=changes), asked.shards)
        return for_run(made, asked, cast(Workspace, then), link)

    assert continued(max_steps=70, seed=9) == made, "what a step does is the same"
    other = continued(global_batch_sequences=16)
    assert (other.launch, other.training.bucket_bytes) == (asked.launch, asked.training.bucket_bytes)
    assert other.training.checkpoints == made.training.checkpoints != asked.training.checkpoints
    assert for_run(asked, asked, workspace, link) is asked, "nothing was taken"
    assert for_run(made, asked, workspace, link) is asked, "a run that cannot be read"


def test_settings_that_would_come_to_another_model_make_no_pipeline(project: Path) -> None:
    of = pipeline(project)
    assert with_settings(of, {"training.seed": 7}) is None and with_settings(of, {"training.max_steps": 1}) is None
    assert with_settings(of, {"training.bucket_bytes": 4096}) is not None
