"""`headway plan`: what a retrain would find and what it would run, with data, memory and time, without spending it."""

from __future__ import annotations

import contextlib

from pydantic import BaseModel, ValidationError
from rich.table import Table

from headway.data_contracts.rules.contract import Contract, load_contract
from headway.data_contracts.sources.reading import take_snapshot
from headway.data_contracts.store.documents import FittedState, Registration, RunSpec
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.stages import StageRecord
from headway.data_contracts.types.report_text import count
from headway.flows.config.first_step import synthetic_shape
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.preflight import check_request
from headway.flows.config.request import TrainingRequest
from headway.flows.console.console import headed, plain_console
from headway.flows.console.tables import print_table
from headway.flows.show.found_stages import Damages, find_stages
from headway.flows.windows.holds import shown_hold
from headway.tasks.core.brief_context import brief_context
from headway.tasks.core.context import RunContext
from headway.tasks.core.run_result import final_checkpoint
from headway.tasks.core.stage_records import STAGES, newest_record_of
from headway.tasks.ownership.pipeline_history import Hold
from headway.tasks.registry import model_refs
from headway.tasks.rows.first_rows import require_classes, require_enough_rows
from headway.tasks.stages.shard import known_fitted_state
from headway.training.checkpoint.layout import step_of
from headway.training.config.encoder_specs import CustomEncoderSpec, TokenSpec
from headway.training.config.optimizer import learning_rate_line
from headway.training.config.shapes import DataShape, TokenShape
from headway.training.config.training_spec import TrainingSpec, batch_line, length_line
from headway.training.data.encode.data_shape import data_shape, token_shape
from headway.training.frozen.code_archive import encoder_code
from headway.training.frozen.recipe_check import may_name_matrices
from headway.training.programs.rehearsal import RehearsalRequest, RehearsalResult, rehearse


class StagePlan(BaseModel):
    stage: str
    state: str
    """`found`, `resume` or `run`."""
    detail: str
    expected_s: float | None
    """From the last time this pipeline ran the stage here, training by the step; None when it never did."""
    from_step: int | None = None
    """Of training that goes on: the step of its newest checkpoint."""


class Plan(BaseModel):
    pipeline: str
    workspace: str
    num_files: int
    size_bytes: int
    stages: list[StagePlan]
    batch: str
    length: str = ""
    """Steps in tokens or examples, and in epochs once rows are counted."""
    rates: str
    """Peak learning rates, how they are scaled with the batch, and their course."""
    groups: list[str]
    """Parameters that the configuration treats otherwise; with a rehearsal, every group with its size."""
    start: str | None
    """The registered model that training would start from."""
    rehearsal: RehearsalResult | None
    """A few steps on made-up rows, where training would run and nothing tells yet what it takes."""
    rank_memory_bytes: int | None
    """Of one rank: all of it where it was rehearsed, else weights, gradients and optimizer state alone."""
    memory_note: str = ""
    """Why nothing is known of memory."""
    expected_s: float | None
    held: Hold | None = None
    """Who lets no retrain of it begin; None: nobody."""


def make_plan(request: TrainingRequest, *, may_rehearse: bool = False) -> Plan:
    """Look every key up that can be known now, reading the source but writing nothing of the pipeline's.

    Args:
        may_rehearse: measure a few training steps, in processes of their own, if no earlier run tells.

    Raises:
        ConfigError, DataError, EnvironmentProblem: what would refuse the retrain refuses the plan.
    """
    pipeline, path, workspace = check_request(request, only_looks=True)
    with contextlib.ExitStack() as looking:
        uri = workspace.uri
        if not workspace.local_root.exists():  # what is remembered of the source's files lies in one, or goes
            folder = looking.enter_context(scratch_folder("headway-plan-"))
            workspace = Workspace.create(str(folder / "workspace"))
        context = looking.enter_context(brief_context(pipeline.pipeline, workspace, path.parent))
        return _plan(context, pipeline, may_rehearse).model_copy(update={"workspace": uri})


def _plan(context: RunContext, pipeline: PipelineSpec, may_rehearse: bool) -> Plan:
    workspace, damages = context.workspace, Damages()
    context.ledger.listeners.append(damages)
    contract = load_contract(context.base / pipeline.contract)
    taken = take_snapshot(
        pipeline.source,
        base=context.base,
        cache=context.digests,
        texts=contract.texts,
        quarantined=contract.quarantined_types,
    )
    require_classes(pipeline.shards, pipeline.source, taken, base=context.base, digests=context.digests)
    require_enough_rows(pipeline.shards, pipeline.source, taken, base=context.base, digests=context.digests)
    context.digests.save()
    found = find_stages(context, pipeline, taken)
    planned = [_stage(context, pipeline, name, found, damages.by_stage) for name in STAGES]
    is_unknown = _is_unknown(planned)
    shape = _shape(context, pipeline)
    rehearsal = _rehearsal(context, pipeline, shape) if may_rehearse and is_unknown and shape is not None else None
    if rehearsal is not None:
        planned = [_with_estimate(stage, rehearsal.step_s * pipeline.training.max_steps) for stage in planned]
    costs = [stage.expected_s for stage in planned if stage.state != "found"]
    known = [cost for cost in costs if cost is not None]
    world_size = pipeline.launch.nodes * pipeline.launch.ranks_per_node
    context_tokens = _context_tokens(pipeline, shape or _likely_shape(context, pipeline, contract))
    memory_bytes = _rank_memory_bytes(context) if rehearsal is None else rehearsal.peak_bytes
    return Plan(
        pipeline=pipeline.pipeline,
        workspace=workspace.uri,
        num_files=len(taken.files),
        size_bytes=taken.size_bytes,
        stages=planned,
        batch=batch_line(pipeline.training, world_size=world_size, context_tokens=context_tokens),
        length=length_line(
            pipeline.training,
            context_tokens=context_tokens,
            num_rows=int(found["shard.rows"]) if "shard.rows" in found else None,
        ),
        rates=learning_rate_line(
            pipeline.training.optimizer,
            pipeline.training.schedule,
            global_batch=pipeline.training.global_batch_sequences,
            max_steps=pipeline.training.max_steps,
            has_matrices=may_name_matrices(pipeline.training.recipe.name, (str(context.base),)),
        ),
        groups=list(rehearsal.groups) if rehearsal else [str(group) for group in pipeline.training.optimizer.groups],
        held=shown_hold(workspace, pipeline.pipeline),
        start=found.get("start") or _start(context, pipeline),
        rehearsal=rehearsal,
        rank_memory_bytes=memory_bytes,
        memory_note=""
        if memory_bytes is not None
        else _why_unknown(pipeline, shape if is_unknown else None, may_be_rehearsed=is_unknown),
        expected_s=sum(known) if len(known) == len(costs) else None,
    )


def _is_unknown(planned: list[StagePlan]) -> bool:
    return any(stage.stage == "launch" and stage.state != "found" and stage.expected_s is None for stage in planned)


def _with_estimate(stage: StagePlan, expected_s: float) -> StagePlan:
    if stage.stage != "launch":
        return stage
    return stage.model_copy(update={"expected_s": expected_s, "detail": "as rehearsed, without exchange and saving"})


def _start(context: RunContext, pipeline: PipelineSpec) -> str | None:
    """What is known before there are shards: which version the URI means today."""
    start = pipeline.training.start_from
    if start is None:
        return None
    name, version, registration = model_refs.resolve(context.workspace, start.model)
    checkpoint = context.workspace.load(registration, Registration).checkpoint
    return f"{name} version {version}, checkpoint {checkpoint.sha256[:12]}"


def _shape(context: RunContext, pipeline: PipelineSpec) -> DataShape | None:
    """The shape of the rows to train on, where spec or fitted state tell it before there are shards."""
    encoder = pipeline.shards.encoder
    if isinstance(encoder, TokenSpec):
        return token_shape(encoder)
    fitted = known_fitted_state(context, pipeline.shards)
    if fitted is None:
        return None
    return data_shape(encoder.model_dump(mode="json"), context.workspace.load(fitted, FittedState).statistics)


def _likely_shape(context: RunContext, pipeline: PipelineSpec, contract: Contract) -> DataShape | None:
    """Of made-up rows, which the preflight has encoded already."""
    own = encoder_code(pipeline.shards.encoder, (str(context.base),))
    return None if own is None else synthetic_shape(pipeline, contract, own)


def _context_tokens(pipeline: PipelineSpec, shape: DataShape | None) -> int | None:
    """Tokens that a row predicts, 1 where it is an example; None where an encoder of the user's own has yet to say."""
    if shape is None:
        return None if isinstance(pipeline.shards.encoder, CustomEncoderSpec) else 1
    return shape.context_tokens if isinstance(shape, TokenShape) else 1


def _rehearsal(context: RunContext, pipeline: PipelineSpec, shape: DataShape) -> RehearsalResult:
    request = RehearsalRequest(
        training=pipeline.training,
        shape=shape,
        world_size=pipeline.launch.nodes * pipeline.launch.ranks_per_node,
    )
    return rehearse(request, search_path=(str(context.base),))


def _why_unknown(pipeline: PipelineSpec, shape: DataShape | None, *, may_be_rehearsed: bool) -> str:
    if not may_be_rehearsed:
        return "not known: no checkpoint of a run of this pipeline is on record"
    if shape is not None:
        return "not known before a first run or a rehearsal"
    kind = pipeline.shards.encoder.kind
    return (
        f"not known: what the encoder {kind} makes is known once it was fitted to the data, and no step is rehearsed "
        "before; `headway rehearse` runs every stage on a part of them"
    )


def _stage(
    context: RunContext, pipeline: PipelineSpec, name: str, found: dict[str, str], damages: dict[str, str]
) -> StagePlan:
    if name in found:
        return StagePlan(stage=name, state="found", detail=found[name], expected_s=0.0)
    record = newest_record_of(context.workspace, context.pipeline, name)
    expected_s = None if record is None else float(record.provenance["duration_s"])
    damage = f"what it made is damaged: {damages[name]}" if name in damages else ""
    checkpoint = found.get(f"{name}.resume")
    from_step = None if checkpoint is None else step_of(checkpoint)
    scaled = ""
    if name == "launch":
        num_steps = pipeline.training.max_steps - (from_step or 0)
        expected_s, scaled = _by_the_step(context, record, expected_s, num_steps)
    known = found.get(f"{name}.outlook") if checkpoint is None else f"from {checkpoint}"
    return StagePlan(
        stage=name,
        state="run" if checkpoint is None else "resume",
        detail="; ".join(filter(None, (known, damage, scaled))),
        expected_s=expected_s,
        from_step=from_step,
    )


def _by_the_step(
    context: RunContext, record: StageRecord | None, expected_s: float | None, num_steps: int
) -> tuple[float | None, str]:
    """What so many steps take if each takes as long as those on record; and how that was said."""
    if record is None or expected_s is None:
        return expected_s, ""
    steps_then = _recorded_steps(context, record)
    if steps_then == num_steps:
        return expected_s, ""
    if not steps_then:
        return None, ""
    scaled = f"by the step: the last {count(steps_then, 'step')} took {expected_s:.1f} s"
    return expected_s * num_steps / steps_then, scaled


def _recorded_steps(context: RunContext, record: StageRecord) -> int:
    """Steps made in the time that the record of a launch gives; 0 where nobody knows."""
    if "num_steps" in record.provenance:
        return int(record.provenance["num_steps"])
    # Written before steps were: all of the run, unless it was resumed.
    try:
        return TrainingSpec.model_validate(context.workspace.load(record.document, RunSpec).config).max_steps
    except (IntegrityError, ValidationError):  # of another version of Headway
        return 0


def _rank_memory_bytes(context: RunContext) -> int | None:
    """From this pipeline's run that finished last: its checkpoint's tensors, and gradients the size of its weights."""
    record = newest_record_of(context.workspace, context.pipeline, "launch")
    if record is None:
        return None
    try:
        _, manifest = final_checkpoint(context, record.document)
    except IntegrityError:
        return None
    stored = sum(file.size_bytes for file in manifest.files)
    return stored + stored // 2


def print_plan(plan: Plan) -> None:
    console = plain_console()
    console.print(headed(plan.pipeline, f"  {count(plan.num_files, 'file')}, {plan.size_bytes / 1e6:,.1f} MB"))
    console.print(f"workspace  {plan.workspace}\n")
    if plan.held is not None:
        console.print(f"HELD         {plan.held}\n")
    table = Table("stage", "would", "takes", "", box=None, padding=(0, 2))
    for stage in plan.stages:
        table.add_row(stage.stage, "be found" if stage.state == "found" else stage.state, _takes(stage), stage.detail)
    print_table(console, table)
    console.print(f"\n{plan.batch}")
    console.print(f"length       {plan.length}")
    console.print(f"rates        {plan.rates}")
    for group in plan.groups:
        console.print(f"group        {group}")
    if plan.start is not None:
        console.print(f"start        {plan.start}")
    if plan.rehearsal is not None:
        console.print(f"model        {plan.rehearsal.num_parameters:,} parameters")
    if plan.rank_memory_bytes is not None:
        how = "of tensors a rank, without activations" if plan.rehearsal is None else "a rank, as rehearsed"
        console.print(f"memory       about {plan.rank_memory_bytes / 1e6:,.0f} MB {how}")
    else:
        console.print(f"memory       {plan.memory_note}")
    console.print(f"time         {_time_line(plan)}, besides Prefect's and MLflow's own start")


def _takes(stage: StagePlan) -> str:
    if stage.state == "found":
        return ""
    return "not known" if stage.expected_s is None else f"{stage.expected_s:.1f} s"


def _time_line(plan: Plan) -> str:
    if plan.expected_s is not None:
        return f"about {plan.expected_s:.0f} s"
    known = sum(stage.expected_s or 0.0 for stage in plan.stages)
    return f"about {known:.0f} s and what is not known" if known else "not known before a first run"
