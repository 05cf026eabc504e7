"""A plan looks, says why a stage would run again, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest

from headway.data_contracts.sources.reading import take_snapshot
from headway.data_contracts.store import refs, stages
from headway.data_contracts.store.documents import FittedState, Link, RunSpec
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.data_contracts.suites import contract_file
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.flows.accounts.flow_ledgers import start_ticks
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.config.request import RetrainRequest
from headway.flows.show.plan import Plan, make_plan, print_plan
from headway.tasks.core.brief_context import brief_context
from headway.tasks.rows.fitted_refs import detail_of, fitted_ref
from headway.tasks.rows.ranking_split import remember_ranking
from headway.tasks.rows.validation_split import require_apart


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))


def plan(project: Path, *, may_rehearse: bool = False) -> Plan:
    request = RetrainRequest(pipeline="tiny.yaml", workspace=str(project / "workspace"))
    return make_plan(request, may_rehearse=may_rehearse)


def keep_snapshot(project: Path) -> Link:
    """What stage *snapshot* leaves in the workspace."""
    workspace = Workspace.create(str(project / "workspace"))
    source = load_pipeline(project / "tiny.yaml").source
    taken = take_snapshot(source, base=project, cache=DigestCache(project / "digests"))
    inputs = {"source": source.model_dump(mode="json"), "content": taken.sha256}
    link = workspace.publish_document(taken)
    stages.record(workspace, "snapshot", inputs, link, provenance=made_by("tiny", duration_s=2.0))
    return link


def made_by(pipeline: str, *, duration_s: float, unix_s: float = 1.0) -> dict[str, str | float]:
    return {"pipeline": pipeline, "unix_s": unix_s, "duration_s": duration_s}


def keep_run(project: Path, pipeline: str, *, max_steps: int, duration_s: float, num_steps: int | None = None) -> None:
    """What stage *launch* leaves of a run in the workspace, but for its checkpoints.

    Args:
        num_steps: made in its last part, which is what took so long; None: nobody could read how many.
    """
    workspace = Workspace.create(str(project / "workspace"))
    file, link = workspace.publish("code/some", b""), keep_snapshot(project)
    training = load_pipeline(project / "tiny.yaml").training.model_copy(update={"max_steps": max_steps})
    run = RunSpec(
        pipeline=pipeline,
        config=training.model_dump(mode="json"),
        manifest=link,
        receipt=link,
        fitted=link,
        code=file,
        environment=file,
    )
    provenance = made_by(pipeline, duration_s=duration_s) | ({} if num_steps is None else {"num_steps": num_steps})
    stages.record(workspace, "launch", {"by": pipeline}, workspace.publish_document(run), provenance=provenance)


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


def test_planning_leaves_no_folder_and_no_open_file(project: Path) -> None:
    plan(project)
    before = open_files()
    plan(project)
    assert open_files() == before
    assert not list((project / "scratch").iterdir())


@pytest.mark.process
def test_planning_makes_no_workspace_and_names_the_one_that_a_retrain_would_make(project: Path) -> None:
    for may_rehearse in (False, True):
        made = plan(project, may_rehearse=may_rehearse)
        assert made.workspace == str(project / "workspace") and made.num_files == 1
        assert not (project / "workspace").exists()


def test_planning_refuses_a_workspace_that_cannot_be_made(project: Path) -> None:
    (project / "workspace").write_text("a file")
    with pytest.raises(EnvironmentProblem):
        plan(project)
    request = RetrainRequest(pipeline="tiny.yaml", workspace=str(project / "workspace" / "below"))
    with pytest.raises(EnvironmentProblem):
        make_plan(request)


def test_a_stage_that_is_damaged_would_run_and_the_plan_says_why(project: Path) -> None:
    link = keep_snapshot(project)
    found = plan(project).stages[0]
    assert (found.stage, found.state) == ("snapshot", "found")

    path = project / "workspace" / document_path(link)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    damaged = plan(project).stages[0]
    assert (damaged.state, damaged.expected_s) == ("run", 2.0)
    assert "damaged" in damaged.detail and document_path(link) in damaged.detail


def test_a_split_that_would_evaluate_on_what_has_validated_is_refused_before_anything_is_planned(project: Path) -> None:
    workspace, shards = Workspace.create(str(project / "workspace")), load_pipeline(project / "tiny.yaml").shards
    with brief_context("tiny", workspace, project) as context:
        require_apart(context, shards.model_copy(update={"heldout_fraction": 0.1, "validation_fraction": 0.5}), ())
    assert plan(project).stages
    text = (project / "tiny.yaml").read_text()
    (project / "tiny.yaml").write_text(text + "shards: {heldout_fraction: 0.6}\n")
    with pytest.raises(ConfigError, match="takes in rows that have validated"):
        plan(project)


def test_a_split_is_refused_under_which_nothing_tells_any_more_what_has_ranked(project: Path) -> None:
    workspace, shards = Workspace.create(str(project / "workspace")), load_pipeline(project / "tiny.yaml").shards
    by_key = {"split_by": "key", "split_key": "user"}
    with brief_context("tiny", workspace, project) as context:
        remember_ranking(context, 0.5, shards.model_copy(update={"split_salt": "before"}), {})
        assert plan(project).stages, "by paths, which the source still has"
        remember_ranking(context, 0.5, shards.model_copy(update=by_key), {})
    with pytest.raises(ConfigError, match=r"ranked trials .* while shards\.split_key was 'user' cannot be told"):
        plan(project)


def test_memory_is_unknown_while_no_run_has_finished(project: Path) -> None:
    assert plan(project).rank_memory_bytes is None


def test_a_stage_is_expected_to_take_as_long_as_the_last_time(project: Path) -> None:
    workspace, link = Workspace.create(str(project / "workspace")), keep_snapshot(project)
    inputs = sorted(({"number": number} for number in range(4)), key=lambda made: stages.stage_key("shard", made))
    for made, unix_s in zip(inputs, [2.0, 4.0, 1.0, 3.0], strict=True):  # the newest is neither first nor last by name
        provenance = made_by("tiny", unix_s=unix_s, duration_s=10 * unix_s)
        stages.record(workspace, "shard", made, link, provenance=provenance)
    assert {stage.stage: stage.expected_s for stage in plan(project).stages}["shard"] == 40.0


@pytest.mark.long
@pytest.mark.process
def test_a_plan_says_learning_rates_as_scaled_groups_and_what_a_run_would_start_from(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = "{parameters: ['head.*'], lr_multiplier: 10}"
    optimizer = f"{{lr: 0.01, scale_with_batch: sqrt, reference_batch: 2, groups: [{group}]}}"
    text = (project / "tiny.yaml").read_text().replace("max_steps", f"optimizer: {optimizer}, max_steps")
    (project / "tiny.yaml").write_text(text)
    print_plan(plan(project))
    message = capsys.readouterr().out
    assert "others (adamw) 0.01 x sqrt(8 / 2 rows) = 0.02" in message and "head.*: lr x 10" in message

    (project / "tiny.yaml").write_text(text.replace("max_steps", "start_from: models:/nobody@champion, max_steps"))
    with pytest.raises(ConfigError, match=r"no model 'nobody'"):
        plan(project)


@pytest.mark.process
def test_before_a_first_run_training_is_rehearsed_and_a_recorded_time_is_believed_instead(project: Path) -> None:
    made = plan(project, may_rehearse=True)
    assert made.groups[-1].startswith("muon: 4 tensors") and "adamw" in made.groups[0]
    assert made.rehearsal is not None and made.rank_memory_bytes == made.rehearsal.peak_bytes
    expected = {stage.stage: stage.expected_s for stage in made.stages}
    assert expected["launch"] == pytest.approx(made.rehearsal.start_s + 500 * made.rehearsal.step_s)

    keep_run(project, "tiny", max_steps=500, duration_s=7.0, num_steps=500)
    made = plan(project, may_rehearse=True)
    assert made.rehearsal is None
    assert {stage.stage: stage.expected_s for stage in made.stages}["launch"] == 7.0


def test_times_of_another_pipeline_say_nothing_of_this_one(project: Path) -> None:
    workspace, link = Workspace.create(str(project / "workspace")), keep_snapshot(project)
    keep_run(project, "large", max_steps=1000, duration_s=137.0)
    stages.record(workspace, "shard", {}, link, provenance=made_by("large", duration_s=15.8))
    made = plan(project)
    expected = {stage.stage: stage.expected_s for stage in made.stages}
    assert (expected["shard"], expected["launch"], made.expected_s) == (None, None, None)


def test_training_is_expected_to_take_as_long_by_the_step_as_the_last_run(project: Path) -> None:
    keep_run(project, "tiny", max_steps=100, duration_s=7.0, num_steps=100)
    launch = next(stage for stage in plan(project).stages if stage.stage == "launch")
    assert launch.expected_s == pytest.approx(35.0) and launch.detail == "by the step: the last 100 steps took 7.0 s"


@pytest.mark.parametrize(("num_steps", "expected_s"), [(100, 35.0), (500, 7.0), (0, None), (None, None)])
def test_of_a_run_that_was_resumed_only_the_steps_since_then_are_held_against_the_time_since_then(
    project: Path, num_steps: int | None, expected_s: float | None
) -> None:
    keep_run(project, "tiny", max_steps=500, duration_s=7.0, num_steps=num_steps)
    launch = next(stage for stage in plan(project).stages if stage.stage == "launch")
    assert launch.expected_s == (None if expected_s is None else pytest.approx(expected_s))


@pytest.mark.process
def test_a_first_plan_of_a_table_says_how_long_and_how_much_before_anything_was_fitted(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(project / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    text = (project / "tiny.yaml").read_text()
    table = "shards: {encoder: {kind: tabular, numeric: [num_lines], label: has_nul}}"
    recipe = "recipe: {model: {width: 16, depth: 1, heads: 2, hidden: 32}}"
    (project / "tiny.yaml").write_text(text.replace(recipe, "recipe: {name: tabular-classifier}") + table + "\n")
    made = plan(project, may_rehearse=True)
    assert [stage.stage for stage in made.stages if stage.expected_s is None] == []
    assert made.expected_s is not None and made.rank_memory_bytes is not None
    print_plan(made)
    message = capsys.readouterr().out
    assert "not known" not in message and message.count("estimated from") == 6
    assert message.splitlines()[-1] == f"time         about {made.expected_s:.0f} s"

    workspace, link = Workspace.create(str(project / "workspace")), keep_snapshot(project)
    shards = load_pipeline(project / "tiny.yaml").shards
    fitted = FittedState(
        encoder="tabular",
        spec=shards.encoder.model_dump(mode="json"),
        snapshot=link,
        receipt=link,
        files=(),
        libraries={},
        statistics={
            "numeric": [{"column": "num_lines", "num_values": 3, "mean": 2.0, "deviation": 1.0}],
            "categorical": [],
            "label": {"column": "has_nul", "values": [0, 1]},
        },
    )
    kept = workspace.publish_document(fitted)
    refs.move(workspace, fitted_ref("tiny"), kept, expected=None, reason="first", detail=detail_of(shards))
    made = plan(project, may_rehearse=True)
    assert made.rehearsal is not None and made.rank_memory_bytes == made.rehearsal.peak_bytes


def test_a_plan_reads_the_contract_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    real = contract_file.read_contract_text
    monkeypatch.setattr(contract_file, "read_contract_text", lambda path: (read.append(path), real(path))[1])
    plan(project)
    assert len(read) == 1


def test_a_retrain_that_runs_now_is_named_before_what_another_would_do(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_snapshot(project)
    begin = {"event": "flow.begin", "unix_s": 1.0, "flow_run": "f", "host": socket.gethostname()}
    process = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
    for pipeline in ("tiny", "other"):
        spool = Workspace(str(project / "workspace")).local_path(f"ledger/{pipeline}/flow.jsonl")
        spool.parent.mkdir(parents=True)
        spool.write_text(json.dumps({**begin, **process, "pipeline": pipeline}, separators=(",", ":")) + "\n")
    made = plan(project)
    assert [each.pipeline for each in made.running] == ["tiny"]
    print_plan(made)
    assert f"pid {os.getpid()} retrains it now" in capsys.readouterr().out
