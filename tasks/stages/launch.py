"""Stage *launch*: train under the supervisor, and watch what the ranks write down."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from headway.data_contracts.store import stages
from headway.data_contracts.store.documents import (
    CheckpointManifest,
    FittedState,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
    Snapshot,
    TensorSlice,
)
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.publication import make_folder
from headway.data_contracts.types.report_text import count
from headway.tasks.core.checkpoint_carrier import CheckpointCarrier
from headway.tasks.core.context import RunContext
from headway.tasks.core.gangs import gang_for, run_to_completion
from headway.tasks.core.outlook import Outlook, look_up, would_run
from headway.tasks.core.run_result import checkpoint_here, final_checkpoint, result_files
from headway.tasks.core.slow_ranks import showing_slow_ranks
from headway.tasks.core.stage import StageOutput, find_or_make, stage_task
from headway.tasks.core.stage_records import newest_record_of
from headway.tasks.ownership import current_run
from headway.tasks.ownership.lease_acquisition import ObservedLease
from headway.tasks.ownership.run_lease import leased_run
from headway.tasks.registry import model_refs
from headway.tasks.registry.mlflow_store import require_own_files
from headway.tasks.registry.track import SeriesShipper
from headway.tasks.rows.label_unit import number_shape
from headway.tasks.rows.set_apart import require_deciding_columns
from headway.tasks.rows.validation_split import refuse_mixed
from headway.tasks.stages.starting_point import ResolvedStart, record_start, resolve_start
from headway.tasks.stages.training_watch import TrainingWatch
from headway.tasks.stages.validation_pace import record_validation, settle_validation, validation_of
from headway.training.checkpoint.layout import checkpoint_path, run_folder, step_of, stored_files
from headway.training.checkpoint.plan import size_bytes
from headway.training.config.communication_spec import OUTER_MOMENTUM, OUTER_SQUARE
from headway.training.config.execution import ExecutionSpec
from headway.training.config.optimizer import learning_rate_line
from headway.training.config.recipe_specs import GradientBoostingSpec
from headway.training.config.shapes import TokenShape
from headway.training.config.shards import TRAIN, ShardSpec
from headway.training.config.training_spec import (
    TrainingSpec,
    batch_line,
    can_share,
    length_line,
    steps_per_epoch,
    targets_of,
)
from headway.training.data.load.shard_reader import group_rows
from headway.training.data.order.client_order import Clients
from headway.training.engine.run_documents import data_shape, mixed_manifests
from headway.training.frozen.code_archive import freeze_code, freeze_environment
from headway.training.frozen.recipe_check import may_name_matrices
from headway.training.launch.base.gang import Gang, LaunchSpec, leader_spools
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.observe.ledger import SpoolTail
from headway.training.recipes.built_in import model_fields

Poll = Callable[[], int | None]


@stage_task(name="launch", task_run_name="train {context.pipeline}")
def launch(context: RunContext, training: TrainingSpec, spec: LaunchSpec, manifest: Link, tracking_uri: str) -> Link:
    """Train to the last step, over as many attempts as the budget allows; each resumes from a verified checkpoint.

    Raises:
        TrainingFailed: the budget is spent, or a rank failed for good.
        RunStopped: a stop was asked for; a checkpoint was kept and the same command continues.
    """
    training = training.for_rows(num_training_rows(context, manifest))
    with context.ledger.span("launch.freeze"):
        settled = describe_run(context, training, manifest)
        link = context.workspace.publish_document(settled.run)
        if left := current_run.not_continued(context, settled.run):
            context.ledger.event("run.not_continued", message=left)
        # Before a rank starts: should this machine die, the next window knows which run to continue.
        current_run.start(context, link.sha256)
    with current_run.abandoning_on_failure(context):
        return train(context, training, spec, settled, tracking_uri)


@stage_task(name="launch", task_run_name="carry on training {context.pipeline}")
def continue_run(context: RunContext, now: TrainingSpec, spec: LaunchSpec, cut: Link, tracking_uri: str) -> Link:
    """`launch` for a run that was described before: on its own configuration, code and data, whatever they are now.

    Args:
        now: of the pipeline file; what of it decides no bit, this attempt goes by.

    Raises:
        ConfigError: this version of Headway does not know its configuration any more, its shards hold out rows that
            have validated other runs since, or which of their rows have chosen models cannot be told.
    """
    name = context.at.run = cut.sha256[:16]
    with current_run.abandoning_on_failure(context):
        run = context.workspace.load(cut, RunSpec)
        try:
            training = ExecutionSpec.of(now).applied(TrainingSpec.model_validate(run.config))
            shards = context.workspace.load(run.manifest, ShardManifest)
            split = ShardSpec.model_validate(shards.spec)
        except ValidationError as error:
            raise ConfigError(
                f"run {name} was started by another version of Headway, which this one cannot resume.",
                where=context.pipeline,
                advice="It is given up: the next retrain takes the newest data.",
            ) from error
        taken = context.workspace.load(shards.snapshot, Snapshot)
        refuse_mixed(context.workspace, context.pipeline, split, [file.path for file in taken.files])
        require_deciding_columns(context.workspace, context.pipeline, split, taken.columns)
        context.ledger.event("run.carried_on", message=f"run {name}, started before, on its own code and data")
        return train(context, training, spec, ResolvedStart(run, ""), tracking_uri)


def num_training_rows(context: RunContext, manifest: Link) -> int:
    return context.workspace.load(manifest, ShardManifest).num_rows(TRAIN)


def train(
    context: RunContext,
    training: TrainingSpec,
    spec: LaunchSpec,
    settled: ResolvedStart,
    tracking_uri: str,
    name: str = "",
) -> Link:
    """The run, trained to its end now or before.

    Args:
        name: what people are told that its steps are of; empty where the flow run trains one run alone.
    """
    context.ledger.event("run.named", run=settled.run.link.sha256)
    return find_or_make(
        context,
        "launch",
        launch_inputs(settled.run),
        lambda: _train(context, training, spec, settled, tracking_uri, name),
        shown=name,
        exclusive=True,
    )


def record_trained(context: RunContext, run: RunSpec, name: str) -> Link:
    """The stage of a run that came to its end beside others."""
    run_dir = context.workspace.local_path(run_folder(run.link))
    records = AttemptRecords(run_dir).in_scope(context.budget_scope)
    took_s = sum(record.end_unix_s - record.start_unix_s for record in records if record.end_unix_s is not None)
    started_unix_s = min((record.start_unix_s for record in records), default=time.time())

    def made() -> StageOutput:
        files, num_steps = result_files(context, run.link), num_steps_since(run_dir, started_unix_s)
        return StageOutput(document=run, files=files, duration_s=took_s, num_steps=num_steps)

    return find_or_make(context, "launch", launch_inputs(run), made, shown=name)


def launch_inputs(run: RunSpec) -> dict[str, str]:
    return {"run": run.sha256}


class LaunchOutlook(Outlook):
    start: str | None = Field(default=None, exclude=True)
    """The registered model that training would start from."""
    rank_memory_bytes: int | None = Field(default=None, exclude=True)
    """By this pipeline's run that finished last: as `state_bytes`."""
    run: Link | None = Field(default=None, exclude=True)
    """What would be trained, or is; None while nobody can know."""
    validation: str = Field(default="", exclude=True)
    """When it would be validated; empty: never, or nobody can know yet."""


def outlook(context: RunContext, training: TrainingSpec, manifest: Link | None, world_size: int) -> LaunchOutlook:
    """Whether the run is trained, or continues from a checkpoint; training takes as long by the step as it did before.

    Args:
        manifest: None: what there is to train on is not known yet.

    Raises:
        ConfigError: the recipe, or the model to start from.
    """
    workspace, start = context.workspace, _start_today(context, training)
    last = newest_record_of(workspace, context.pipeline, "launch")
    memory_bytes = None if last is None else _rank_memory_bytes(context, last.document, training.for_one_of(world_size))
    seen, steps, link, validation = would_run(context, "launch"), [], None, None
    if manifest is not None:
        training = training.for_rows(num_training_rows(context, manifest))
        settled = describe_run(context, training, manifest)
        start, link, validation = settled.message or start, settled.run.link, validation_of(settled.run)
        seen = look_up(context, "launch", launch_inputs(settled.run))
        if seen.document is not None:
            _, checkpoint = final_checkpoint(context, link)
            seen = seen.model_copy(update={"detail": f"step {checkpoint.step:,}"})
        else:
            steps = sorted(workspace.names(f"{run_folder(link)}/checkpoints"))
    if seen.document is None and training.max_epochs is None:
        seen = _by_the_step(seen, last, training.max_steps, steps[-1] if steps else None)
    return LaunchOutlook(
        **dict(seen),
        start=start,
        rank_memory_bytes=memory_bytes,
        run=link,
        validation="" if validation is None else str(validation),
    )


def _start_today(context: RunContext, training: TrainingSpec) -> str | None:
    """What is known before there are shards: which version the URI means today."""
    if training.start_from is None:
        return None
    name, version, registration = model_refs.resolve(context.workspace, training.start_from.model, to_start_from=True)
    checkpoint = context.workspace.load(registration, Registration).checkpoint
    return f"{name} version {version}, checkpoint {checkpoint.sha256[:12]}"


def _by_the_step(seen: Outlook, last: stages.StageRecord | None, max_steps: int, newest: str | None) -> Outlook:
    """Of training that runs: how long, if each step takes as long as those of the last time.

    Args:
        newest: the folder of the checkpoint that it continues from.
    """
    if newest is not None:
        seen = seen.saying(f"from {newest}").model_copy(update={"state": "resume", "from_step": step_of(newest)})
    num_steps, num_before = (
        max_steps - (seen.from_step or 0),
        0 if last is None else last.provenance.get("num_steps", 0),
    )
    if last is None or num_before == num_steps:
        return seen
    if int(num_before) < 1:
        return seen.model_copy(update={"expected_s": None})
    took_s = float(last.provenance["duration_s"])
    line = f"by the step: the last {count(int(num_before), 'step')} took {took_s:.1f} s"
    return seen.model_copy(
        update={
            "expected_s": took_s * num_steps / int(num_before),
            "detail": "; ".join(filter(None, (seen.detail, line))),
        }
    )


def _rank_memory_bytes(context: RunContext, run: Link, training: TrainingSpec) -> int | None:
    try:
        _, manifest = final_checkpoint(context, run)
    except IntegrityError:
        return None
    return state_bytes(manifest.layout, training)


def state_bytes(layout: Iterable[TensorSlice], training: TrainingSpec) -> int:
    """Weights, gradients and optimizer state, by a checkpoint of the model.

    Args:
        training: what one rank is to do; the checkpoint may be of a run without its average, or its islands.
    """
    pieces = list(layout)
    one_model = {piece.tensor.partition(".")[2]: piece.global_shape for piece in pieces if "model." in piece.tensor[:6]}
    sizes_bytes: Counter[str] = Counter()
    for piece in pieces:
        kind, _, rest = piece.tensor.partition(".")
        moment, _, name = rest.partition(".")
        kind = moment if moment in (OUTER_MOMENTUM, OUTER_SQUARE) else kind
        # Of a run whose islands trained apart each has moments of its own.
        copies = piece.global_shape[0] if kind == "optimizer" and piece.global_shape != one_model.get(name) else 1
        sizes_bytes[kind] += size_bytes(piece) // copies
    sync = training.sync
    # Gradients are as large as the weights, and so is an average.
    if sync is None:
        return sizes_bytes["optimizer"] + (2 + (training.ema is not None)) * sizes_bytes["model"]
    # So are movements; an island has weights of its own.
    of_island = 1 + (sync.delay_steps > 0) + 2 * (sync.integers is not None)
    models = 3 + sync.outer.num_moments + sync.islands * of_island
    # No checkpoint has the moments of clients: two of each weight, at most.
    moments_bytes = sizes_bytes["optimizer"] if sync.federated is None else 2 * sizes_bytes["model"]
    # Personal weights of all clients are whole on every rank.
    return sync.islands * moments_bytes + models * sizes_bytes["model"] + sizes_bytes["clients"]


def describe_run(
    context: RunContext, training: TrainingSpec, manifest: Link, beside: RunSpec | None = None
) -> ResolvedStart:
    """Freeze code and environment, and write down everything that decides the weights.

    Args:
        beside: a run whose code and environment this one is to have, and its start, where it has one from the same
            model.

    Raises:
        ConfigError: the recipe, or the model to start from.
    """
    shards = context.workspace.load(manifest, ShardManifest)
    # Refused here, before a rank starts.
    mixed_manifests(context.workspace, training, shards)
    if training.sync is not None and training.federated is not None:
        Clients.of(group_rows(shards, TRAIN), training.sync)
    run = RunSpec(
        pipeline=context.pipeline,
        config=training.identity,
        manifest=manifest,
        receipt=shards.receipt,
        fitted=shards.fitted,
        code=freeze_code(context.workspace, training.recipe.name, (str(context.base),))
        # Another recipe may be another module, so that its code has to be frozen anew.
        if beside is None or beside.config["recipe"]["name"] != training.recipe.name
        else beside.code,
        environment=freeze_environment(context.workspace) if beside is None else beside.environment,
    )
    run = settle_validation(context, run, training, beside)
    if training.start_from is None:
        return ResolvedStart(run, "")
    is_same = beside is not None and beside.config.get("start_from") == run.config["start_from"]
    return resolve_start(context, run, training.start_from, beside.start if beside is not None and is_same else None)


def _train(
    context: RunContext,
    training: TrainingSpec,
    spec: LaunchSpec,
    settled: ResolvedStart,
    tracking_uri: str,
    name: str = "",
) -> StageOutput:
    watched, started_unix_s = watched_training(context, training, spec, settled, tracking_uri, name), time.time()
    with showing_slow_ranks(context), watched as (gang, poll):
        run_to_completion(context, spec, gang, poll)
    files = result_files(context, settled.run.link)
    return StageOutput(document=settled.run, files=files, num_steps=num_steps_since(gang.run_dir, started_unix_s))


def num_steps_since(run_dir: Path, since_unix_s: float) -> int | None:
    """How many steps were made since then: also those that were lost again, but none of an earlier part of the run.

    None where that cannot be read: it is for plans alone.
    """
    try:
        spools = [spool for spool in leader_spools(run_dir) if spool.stat().st_mtime >= since_unix_s]
        # Spools are read from their start, and a resumed attempt's holds steps of an earlier flow run.
        events = (event for spool in spools for event in SpoolTail(spool).stream())
        return sum(1 for event in events if event["event"] == "step" and event["unix_s"] >= since_unix_s)
    except OSError:
        return None


@contextlib.contextmanager
def watched_training(
    context: RunContext,
    training: TrainingSpec,
    spec: LaunchSpec,
    settled: ResolvedStart,
    tracking_uri: str,
    name: str,
    seen: ObservedLease | None = None,
) -> Iterator[tuple[Gang, Poll]]:
    """The gang of a run, and what is to be called a few times a second while it trains; at the end all is reported.

    Slow ranks are not: they are shown once for all runs that train at a time, by who trains them.
    """
    workspace, run = context.workspace, settled.run
    if context.may_register:
        # What registering would refuse is not to cost a training first.
        require_own_files(workspace, tracking_uri, context.pipeline)
    with leased_run(context, run.link, spec, seen) as lease:
        run_dir = workspace.local_path(run_folder(run.link))
        make_folder(run_dir)
        steps = step_facts(context, run, training)
        num_rows = num_training_rows(context, run.manifest)
        epoch = {} if (per_epoch := steps_per_epoch(training, num_rows)) is None else {"steps_per_epoch": per_epoch}
        bounds = {"max_attempts": spec.max_attempts, **steps, **epoch}
        named = {"trial": name} if name else {}
        context.ledger.event("run.folder", run=run.sha256, path=str(run_dir), **bounds, **named)
        lines = training_lines(context, training, spec, _context_tokens(context, run), num_rows)
        context.ledger.event("batch", message=lines.batch)
        validation = validation_of(run)
        validated = "" if validation is None or validation.every_s is None else f"; validated {validation}"
        context.ledger.event("length", message=f"{lines.length}{validated}")
        context.ledger.event("learning_rate", message=lines.rates)
        record_validation(context, run)
        if run.start is not None:
            record_start(context, settled)
            context.ledger.event("start_from", message=settled.message, checkpoint=run.start.sha256)
            fetch_start(context, run.start)
        gang = gang_for(
            context,
            spec,
            run,
            "headway.training.programs.worker",
            run_dir,
            nodes=spec.nodes,
            ranks_per_node=spec.ranks_per_node,
            possible_nodes=possible_nodes(training, spec),
            execution=ExecutionSpec.of(training),
        )
        facts = steps | ({"trial": name} if name else {})
        shipper = SeriesShipper(
            workspace,
            tracking_uri,
            context.pipeline,
            run,
            lease.is_lost,
            targets=facts["targets"],
            trial=name,
            is_here=spec.launcher == "local",
        )
        watch = TrainingWatch(
            context, run_dir, facts, shipper.add, joins_in=spec.is_detached, shape=number_shape(context.workspace, run)
        )
        carrier = CheckpointCarrier(workspace, run_folder(run.link), run.link, context.ledger, lease.require)
        # The carrier is left first: where the last checkpoint cannot be published, MLflow's run ends as failed.
        with shipper, carrier:

            def poll() -> int | None:
                workspace.require_there()  # before its loss is taken for the ranks' failure, and spends an attempt
                carrier.emit_pending()
                lease.stop_if_lost()
                return watch.poll()

            with lease.naming_the_owner():
                yield gang, poll
            # For what the ranks wrote between the last look and their end.
            poll()
            watch.sum_up()


class TrainingLines(NamedTuple):
    """What a person is told of training before it begins."""

    batch: str
    length: str
    """Steps in tokens or examples, and in epochs once rows are counted."""
    rates: str
    """Peak learning rates, how they are scaled with the batch, and their course."""


def training_lines(
    context: RunContext, training: TrainingSpec, spec: LaunchSpec, context_tokens: int | None, num_rows: int | None
) -> TrainingLines:
    return TrainingLines(
        batch=batch_line(training, world_size=spec.world_size, context_tokens=context_tokens),
        length=length_line(training, context_tokens=context_tokens, num_rows=num_rows),
        rates=_rates_line(context, training),
    )


def _rates_line(context: RunContext, training: TrainingSpec) -> str:
    if training.grows_trees:
        fields = model_fields(GradientBoostingSpec, training.recipe.model)
        return f"{fields.learning_rate:g} of each tree is added; {fields.leaves} leaves at most"
    return learning_rate_line(
        training.optimizer,
        training.schedule,
        global_batch=training.global_batch_sequences,
        max_steps=training.max_steps,
        has_matrices=may_name_matrices(training.recipe.name, (str(context.base),)),
        grows=training.batch_ramp is not None,
    )


def possible_nodes(training: TrainingSpec, spec: LaunchSpec) -> frozenset[int]:
    """Numbers of nodes, up to the whole, whose ranks can share a global batch."""
    return frozenset(n for n in range(1, spec.nodes + 1) if can_share(training, n * spec.ranks_per_node))


def fetch_start(context: RunContext, start: Link) -> None:
    """The checkpoint to start from, verified, to this machine.

    Raises:
        IntegrityError: a file of it is gone or altered.
    """
    manifest = context.workspace.load(start, CheckpointManifest)
    folder = checkpoint_path(run_folder(manifest.run), manifest.step)
    for file in stored_files(folder, manifest):
        stages.check_file(context.workspace, file, context.digests)
    checkpoint_here(context.workspace, folder, manifest)


def step_facts(context: RunContext, run: RunSpec, training: TrainingSpec) -> dict[str, Any]:
    """What every step is reported with, for people."""
    return {"max_steps": training.max_steps, "targets": targets_of(_context_tokens(context, run))}


def _context_tokens(context: RunContext, run: RunSpec) -> int:
    """Tokens that a row predicts; 1 where a row is an example of its own."""
    manifest = context.workspace.load(run.manifest, ShardManifest)
    shape = data_shape(manifest, context.workspace.load(run.fitted, FittedState))
    return shape.context_tokens if isinstance(shape, TokenShape) else 1
