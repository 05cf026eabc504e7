"""A registered version trained again, from what its run's document names, and its bits compared with the registered.

The ranks are those of a retrain, on the run's frozen code, shards, fitted state, configuration and starting point. They
work in a folder of this machine, `reproductions/<run>`, with a lock of its own: no ref, nothing of MLflow and nothing
of the run's own folder is touched. Broken off, it resumes from its newest checkpoint; finished, it is found.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.data_contracts.store import stages
from headway.data_contracts.store.documents import (
    CheckpointManifest,
    EvaluationReport,
    FittedState,
    Frozen,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
    StoredFile,
)
from headway.data_contracts.store.errors import EnvironmentProblem, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.regular_files import read_regular
from headway.tasks.core.candidate import Candidate, read_candidate, require_files
from headway.tasks.core.context import RunContext
from headway.tasks.core.gangs import gang_for
from headway.tasks.core.run_result import checkpoint_here
from headway.tasks.retention.reachability import REPRODUCTIONS
from headway.tasks.rows.heldout_parts import HeldoutParts, evaluated
from headway.tasks.rows.label_unit import number_shape
from headway.tasks.stages.launch import fetch_start, step_facts
from headway.tasks.stages.scoring import only, run_evaluation
from headway.tasks.stages.training_watch import TrainingWatch
from headway.training.checkpoint.inexactness import inexactness
from headway.training.checkpoint.layout import MANIFEST_NAME, RESULT_NAME, TensorDifference, directory_name, run_folder
from headway.training.config.checkpoints import CheckpointSpec, most_kept
from headway.training.config.execution import ExecutionSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.arrivals import SCRIPT_NAME, as_json, script_from
from headway.training.engine.run_documents import mixed_manifests, training_spec
from headway.training.evaluation.measures import metric_set_for
from headway.training.evaluation.statistics import ratio_interval
from headway.training.frozen.code_archive import environment_here
from headway.training.launch.base.gang import LaunchSpec, leader_spools
from headway.training.launch.base.protocol import write_json
from headway.training.launch.base.run_lock import owning
from headway.training.launch.supervise.supervisor import supervise
from headway.training.observe.ledger import SpoolTail
from headway.training.programs.evaluation import EvaluationRequest

EXECUTION = ExecutionSpec(checkpoints=CheckpointSpec(every_steps=None, every_s=600.0, keep_last=2), profile=None)
"""A run's document says nothing of saves. These are for resuming alone: seldom, and as few as can be."""


class EnvironmentChange(Frozen):
    """Something that must agree for bits to agree, and does not."""

    what: str
    registered: str
    here: str


class MetricComparison(Frozen):
    figure: str
    registered: float
    reproduced: float

    @property
    def agrees(self) -> bool:
        return self.registered == self.reproduced


class Reproduction(Frozen):
    """What came of it."""

    run: str
    step: int
    registered_tensors_sha256: str
    """As the run's result says it; empty where that cannot be read."""
    reproduced_tensors_sha256: str
    num_tensors: int
    tensors: tuple[TensorDifference, ...]
    """Those whose bits differ: weights, and the optimizer's state."""
    figures: tuple[MetricComparison, ...]
    """Of the registered report, and the reproduced model's on the same examples; none where it does not say which."""
    first_step_apart: int | None
    """The first step whose loss was recorded otherwise; None: there is none, or the run's own record is gone."""
    changed: tuple[EnvironmentChange, ...]
    """Of the environment, between the registered checkpoint and this machine."""
    inexact: str
    """Why the registered weights are not an undisturbed run's; empty: they are."""
    folder: str

    @property
    def agrees(self) -> bool:
        return not self.tensors and all(figure.agrees for figure in self.figures)

    @property
    def is_promised(self) -> bool:
        """Equal bits are promised in an equal environment, and of weights that an undisturbed run comes to."""
        return not self.changed and not self.inexact


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproductionRun:
    """A reproduction that may begin: everything it reads is there and whole."""

    candidate: Candidate
    report: EvaluationReport
    training: TrainingSpec
    launch: LaunchSpec
    folder: Path
    needed_bytes: int
    """Of disk, for its checkpoints."""
    free_bytes: int
    changed: tuple[EnvironmentChange, ...]
    """Versions of libraries; what else differs shows when it has been trained."""


def reproduction_folder(workspace: Workspace, run: Link) -> Path:
    return workspace.local_path(f"{REPRODUCTIONS}/{run_folder(run).rpartition('/')[2]}")


def prepare(context: RunContext, registration: Link, launch: LaunchSpec, *, again: bool = False) -> ReproductionRun:
    """Find all that a version was made from, re-hashing what changed since it was last read.

    Args:
        launch: deadlines and how ranks read; the number of ranks is the registered checkpoint's.
        again: forget an earlier reproduction.

    Raises:
        IntegrityError: a document or file is gone or altered; names it.
        ConfigError: the configuration is not one that this Headway understands.
        ContractViolation: shards that are mixed in carry no passing receipt.
        EnvironmentProblem: the disk is too full, or another process is at it.
    """
    workspace = context.workspace
    document = workspace.load(registration, Registration)
    candidate = read_candidate(workspace, document.checkpoint)
    run, training = candidate.run, EXECUTION.applied(training_spec(candidate.run))
    # Hours of training on an altered file would prove nothing: it is found before they begin.
    for file in _read_by(workspace, run, training):
        stages.check_file(workspace, file, context.digests)
    report = workspace.load(document.evaluation, EvaluationReport)
    if report.heldout_parts is not None:
        workspace.load(report.heldout_parts, HeldoutParts)
    folder = reproduction_folder(workspace, run.link)
    folder.mkdir(parents=True, exist_ok=True)
    if again:
        with owning(folder):
            _empty(folder)
    needed_bytes, free_bytes = _needed_bytes(candidate, training), shutil.disk_usage(folder).free
    here_bytes = _size_bytes(folder)
    if free_bytes + here_bytes < needed_bytes:
        raise EnvironmentProblem(
            f"its checkpoints take {needed_bytes / 1e9:,.2f} GB, and {free_bytes / 1e9:,.2f} GB are free.",
            where=str(folder),
            advice="Make room, such as by `headway clean --apply`.",
        )
    # Of ranks that did not wait for each other, one repeats the order in which they came.
    world_size = candidate.manifest.world_size
    if training.asynchronous is not None:
        world_size = 1
        _write_script(workspace.local_path(run_folder(run.link)), folder, candidate.manifest.step)
    return ReproductionRun(
        candidate=candidate,
        report=report,
        training=training,
        # Outside of mode `exact` the bits depend on the number of ranks; where they run changes nothing.
        launch=launch.model_copy(update={"nodes": 1, "ranks_per_node": world_size}),
        folder=folder,
        needed_bytes=needed_bytes,
        free_bytes=free_bytes,
        changed=_changed(json.loads(workspace.read(run.environment.path)), environment_here()),
    )


def reproduce(context: RunContext, trial: ReproductionRun) -> Reproduction:
    """Train to the last step, score the held-out examples, and compare.

    Raises:
        TrainingFailed: the budget is spent, or a rank failed for good.
        RunStopped: a stop was asked for; a checkpoint was kept and the same command continues.
        IntegrityError: of the registered checkpoint, a file that is needed for comparing is gone or altered.
        EnvironmentProblem: another process is at it.
    """
    run, folder = trial.candidate.run, trial.folder
    if run.start is not None:
        fetch_start(context, run.start)
    nodes, ranks_per_node = trial.launch.nodes, trial.launch.ranks_per_node
    gang = gang_for(
        context,
        trial.launch,
        run,
        "headway.training.programs.worker",
        folder,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        execution=EXECUTION,
    )
    facts, shape = step_facts(context, run, trial.training), number_shape(context.workspace, run)
    watch = TrainingWatch(context, folder, facts, lambda _: None, shape=shape)
    supervise(trial.launch, gang, ledger=context.ledger, budget_scope=context.budget_scope, poll=watch.poll)
    watch.poll()
    result = _result(folder)
    checkpoint = folder / "checkpoints" / directory_name(int(result["step"]))
    # No document of the workspace: a reproduction publishes nothing.
    data = read_regular(checkpoint / MANIFEST_NAME)
    ours, theirs = CheckpointManifest.from_bytes(data, where=str(checkpoint)), trial.candidate.manifest
    return Reproduction(
        run=run.sha256,
        step=ours.step,
        registered_tensors_sha256=_registered_sha256(context.workspace, run),
        reproduced_tensors_sha256=str(result["tensors_sha256"]),
        num_tensors=len({piece.tensor for piece in theirs.layout}),
        tensors=_tensors(context, trial.candidate, checkpoint, ours),
        figures=_figures(context, trial, checkpoint),
        first_step_apart=_first_step_apart(context.workspace.local_path(run_folder(run.link)), folder),
        changed=(*trial.changed, *_changed(theirs.fingerprint.model_dump(), ours.fingerprint.model_dump())),
        inexact=inexactness(theirs.scalars),
        folder=str(folder),
    )


def _read_by(workspace: Workspace, run: RunSpec, training: TrainingSpec) -> tuple[StoredFile, ...]:
    """All files but the starting point's, which are checked when they are brought."""
    own = workspace.load(run.manifest, ShardManifest)
    manifests = (own, *mixed_manifests(workspace, training, own))
    shards = (file for manifest in manifests for file in manifest.files)
    return (run.code, run.environment, *workspace.load(run.fitted, FittedState).files, *shards)


def _size_bytes(folder: Path) -> int:
    """Of all files; one that goes meanwhile is that of another process, which is refused where ranks are to start."""
    size_bytes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size_bytes += path.stat().st_size if path.is_file() else 0
    return size_bytes


def _needed_bytes(candidate: Candidate, training: TrainingSpec) -> int:
    """What retention keeps, and one more that is being written."""
    kept = most_kept(training.checkpoints, max_steps=training.max_steps, num_saved=None, validation=training.validation)
    return kept * sum(file.size_bytes for file in candidate.manifest.files)


def _empty(folder: Path) -> None:
    """But for the lock, which is held."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix != ".lock":
            path.unlink()


def _result(folder: Path) -> dict[str, Any]:
    where = folder / RESULT_NAME
    try:
        found = json.loads(read_regular(where))
        return {"step": int(found["step"]), "tensors_sha256": str(found["tensors_sha256"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError("not a readable result.", where=str(where), advice="Run again with --again.") from error


def _registered_sha256(workspace: Workspace, run: RunSpec) -> str:
    try:
        data = workspace.read_if_there(f"{run_folder(run.link)}/{RESULT_NAME}")
        return str(json.loads(data or b"{}").get("tensors_sha256", ""))
    except (ValueError, AttributeError):
        return ""


def _tensors(
    context: RunContext, candidate: Candidate, checkpoint: Path, ours: CheckpointManifest
) -> tuple[TensorDifference, ...]:
    """Equal files hold equal tensors, even where the registered ones are lost; else each tensor is compared."""
    if ours.files == candidate.manifest.files and ours.layout == candidate.manifest.layout:
        return ()
    from headway.training.checkpoint.difference import tensor_differences  # torch takes seconds to import

    require_files(context, candidate)
    registered = checkpoint_here(context.workspace, candidate.folder, candidate.manifest)
    return tuple(tensor_differences(registered, checkpoint))


def _figures(context: RunContext, trial: ReproductionRun, checkpoint: Path) -> tuple[MetricComparison, ...]:
    run, report = trial.candidate.run, trial.report
    if report.num_ranking_examples and report.heldout_parts is None:  # of an earlier version
        return ()
    if report.num_folds:  # of other models than the one that was trained again
        return ()
    request = EvaluationRequest(
        checkpoint=str(checkpoint), run=run.sha256, manifest=report.manifest.sha256, split=report.split, baselines=False
    )
    scores = run_evaluation(context, trial.launch, run, request, trial.folder / "evaluate")
    shards = context.workspace.load(report.manifest, ShardManifest)
    if report.heldout_parts is not None:
        scores = only(scores, evaluated(context.workspace, report.heldout_parts, shards, scores.examples))
    yardstick = metric_set_for(context.workspace, shards)
    found = []
    for measure in yardstick.measures:
        if measure.name in report.metrics and measure.is_defined(scores.sums):
            # As evaluation does it, so that equal sums are equal figures; the interval is not looked at.
            ratio = ratio_interval(
                measure.numerators(scores.sums), measure.denominators(scores.sums), resamples=1, confidence=0.5, seed=0
            )
            reproduced = measure.of_ratio(ratio.value)
            registered = report.metrics[measure.name].value
            found.append(MetricComparison(figure=measure.name, registered=registered, reproduced=reproduced))
    return tuple(found)


def _first_step_apart(theirs: Path, ours: Path) -> int | None:
    losses, again = _losses(theirs), _losses(ours)
    return next((step for step in sorted(losses.keys() & again.keys()) if losses[step] != again[step]), None)


def _write_script(run_dir: Path, folder: Path, num_steps: int) -> None:
    """Raises: `IntegrityError`: the run's own ledger is gone, or lacks some of it."""
    events = (event for spool in leader_spools(run_dir) for event in SpoolTail(spool).stream())
    write_json(folder / SCRIPT_NAME, as_json(script_from(events, num_steps)))


def _losses(run_dir: Path) -> dict[int, float]:
    """By step; of one that was done twice, the last."""
    found: dict[int, float] = {}
    for spool in leader_spools(run_dir):
        found |= {int(event["step"]): event["loss"] for event in SpoolTail(spool).stream() if event["event"] == "step"}
    return found


def _changed(registered: dict[str, Any], here: dict[str, Any]) -> tuple[EnvironmentChange, ...]:
    return tuple(
        EnvironmentChange(what=name, registered=str(registered.get(name, "none")), here=str(here.get(name, "none")))
        for name in sorted(registered.keys() | here.keys())
        if registered.get(name) != here.get(name)
    )
