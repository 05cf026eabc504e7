"""`headway plan`: what a retrain would find and what it would run, with data, memory and time, without spending it."""

from __future__ import annotations

import contextlib
import time

from pydantic import BaseModel
from rich.table import Table

from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.suites.contract_file import read_contract_file, using_contract_files
from headway.data_contracts.types.report_text import count
from headway.flows.config.first_step import check_first_step, num_label_values, synthetic_shape
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.preflight import check_contract, check_request
from headway.flows.config.request import TrainingRequest
from headway.flows.config.tuned import tuned
from headway.flows.console.console import headed, plain_console, print_table
from headway.flows.console.prefect_settings import names_no_server
from headway.flows.run.running_retrains import RunningRetrain, read_running
from headway.flows.show.cost_forecast import CostForecast, cost_lines, forecast
from headway.flows.show.first_times import data_times, model_times, with_times
from headway.flows.windows.holds import shown_hold
from headway.tasks.core.brief_context import brief_context
from headway.tasks.core.context import RunContext
from headway.tasks.core.outlook import Outlook
from headway.tasks.folds import cross_validation
from headway.tasks.ownership.pipeline_history import Hold
from headway.tasks.stages import evaluate, launch, register, shard, snapshot, validate, verify
from headway.training.config.encoder_specs import CustomEncoderSpec, ImageEncoderSpec, TabularEncoderSpec
from headway.training.config.shapes import DataShape, TokenShape
from headway.training.config.shards import TRAIN
from headway.training.config.training_spec import TrainingSpec
from headway.training.frozen.code_archive import encoder_code
from headway.training.programs.rehearsal import RehearsalRequest, RehearsalResult, rehearse
from headway.training.programs.synthetic_rows import plausible_shapes


class Plan(BaseModel):
    pipeline: str
    workspace: str
    num_files: int
    size_bytes: int
    stages: list[Outlook]
    batch: str
    max_steps: int | None = None
    """Steps of training; None: they are counted by rows, of which nobody knows how many there will be."""
    length: str = ""
    """Steps in tokens or examples, and in epochs once rows are counted."""
    rates: str
    """Peak learning rates, how they are scaled with the batch, and their course."""
    validation: str = ""
    """When the run is validated while it trains, and what follows; empty: it is not."""
    ema: str = ""
    """How weights are averaged; empty: the weights themselves are the model."""
    sync: str = ""
    """How islands of the batch train apart; empty: gradients are summed at every step."""
    tuned: str = ""
    """What of `headway tune` is taken, or why it is not; empty: there is nothing to take."""
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
    cost: CostForecast | None = None
    """None: no prices are known, see `cost_bound`."""
    running: list[RunningRetrain] = []
    """Retrains of it that go on on this machine."""
    untried: str = ""
    """Why a recipe or encoder of the user's own could not be tried here; empty: it was, or there is none."""
    held: Hold | None = None
    """Who lets no retrain of it begin; None: nobody."""


@using_contract_files()
def make_plan(request: TrainingRequest, *, may_rehearse: bool = False, trains_here: bool = True) -> Plan:
    """Look every key up that can be known now, reading the source but writing nothing of the pipeline's.

    Args:
        may_rehearse: measure a few training steps, in processes of their own, if no earlier run tells.
        trains_here: as `check_first_step` has it.

    Raises:
        ConfigError, DataError, EnvironmentProblem: what would refuse the retrain refuses the plan.
    """
    pipeline, path, workspace = check_request(request, only_looks=True, trains_here=trains_here)
    pipeline, message = tuned(pipeline, workspace)
    contract = check_contract(pipeline, path)
    untried = check_first_step(pipeline, path, contract, workspace, trains_here=trains_here)  # found: it was just tried
    with contextlib.ExitStack() as looking:
        uri = workspace.uri
        # A plan makes no workspace, and needs one to remember digests in.
        if not workspace.local_root.exists():  # what is remembered of the source's files lies in one, or goes
            folder = looking.enter_context(scratch_folder("headway-plan-"))
            workspace = Workspace.create(str(folder / "workspace"))
        context = looking.enter_context(brief_context(pipeline.pipeline, workspace, path.parent))
        return _plan(context, pipeline, may_rehearse).model_copy(
            update={"workspace": uri, "untried": untried, "tuned": message}
        )


def _plan(context: RunContext, pipeline: PipelineSpec, may_rehearse: bool) -> Plan:
    source, started_s = pipeline.source, time.perf_counter()
    taken = snapshot.take(context, pipeline.contract, source)
    taken_s = time.perf_counter() - started_s
    files = snapshot.outlook(context, source, taken)
    validated = validate.outlook(context, pipeline.contract, source, taken, pipeline.shards)
    sharded = shard.outlook(context, pipeline.shards, source, taken, validated.document)
    training = _counted(pipeline, taken, sharded.num_rows)
    trained = launch.outlook(context, training, sharded.document, pipeline.launch.world_size)
    verified = verify.outlook(context, trained.document)
    folds = cross_validation.outlook(context, pipeline.evaluation, trained.document)
    evaluated = evaluate.outlook(
        context, pipeline.evaluation, pipeline.registry, sharded.document, verified.document, folds
    )
    registered = register.outlook(context, pipeline.registry, verified.document)
    is_unknown = trained.state != "found" and trained.expected_s is None
    likely = _rehearsed_shape(context, pipeline, sharded.shape) if may_rehearse and is_unknown else None
    rehearsal = _rehearsal(context, pipeline, likely) if likely is not None else None
    max_steps = training.max_steps if training.max_epochs is None else None
    planned = [files, validated, sharded, trained, verified, *filter(None, (folds,)), evaluated, registered]
    if may_rehearse:
        planned = _with_first_times(context, pipeline, taken, taken_s, planned, rehearsal, max_steps)
    planned = _with_folds_times(pipeline, planned)
    times = [stage.expected_s for stage in planned if stage.state != "found"]
    known = [expected_s for expected_s in times if expected_s is not None]
    context_tokens = _context_tokens(context, pipeline, sharded.shape)
    lines = launch.training_lines(context, training, pipeline.launch, context_tokens, sharded.num_rows)
    memory_bytes = trained.rank_memory_bytes if rehearsal is None else rehearsal.peak_bytes
    shape = sharded.shape or _likely_shape(context, pipeline) if is_unknown else None
    return Plan(
        pipeline=pipeline.pipeline,
        workspace=context.workspace.uri,
        num_files=len(taken.files),
        size_bytes=taken.size_bytes,
        stages=planned,
        batch=lines.batch,
        max_steps=max_steps,
        length=lines.length if sharded.num_rows is not None else _likely_length(pipeline, max_steps) or lines.length,
        rates=lines.rates,
        validation=trained.validation or ("" if training.validation is None else str(training.validation)),
        ema="" if training.ema is None else str(training.ema),
        sync=str(training.sync or training.asynchronous or ""),
        groups=list(rehearsal.groups) if rehearsal else [str(group) for group in training.optimizer.groups],
        running=[each for each in read_running(context.workspace) if each.pipeline == pipeline.pipeline],
        held=shown_hold(context.workspace, pipeline.pipeline),
        start=trained.start,
        rehearsal=rehearsal,
        rank_memory_bytes=memory_bytes,
        memory_note="" if memory_bytes is not None else _why_unknown(pipeline, shape, may_be_rehearsed=is_unknown),
        expected_s=sum(known) if len(known) == len(times) else None,
        cost=forecast(context.workspace, pipeline, planned, max_steps, trained.run),
    )


def _with_first_times(
    context: RunContext,
    pipeline: PipelineSpec,
    taken: Snapshot,
    taken_s: float,
    planned: list[Outlook],
    rehearsal: RehearsalResult | None,
    max_steps: int | None,
) -> list[Outlook]:
    """With an estimate for each stage that never ran here, where one can be had."""
    if any(stage.expected_s is None for stage in planned[:3]):
        found = data_times(context, pipeline, taken, taken_s)
        planned = [with_times(stage, found, "estimated from its first rows") for stage in planned]
    if rehearsal is not None and max_steps is not None:
        found = model_times(pipeline, taken, rehearsal, max_steps)
        launched = {"launch": found.pop("launch")}
        planned = [with_times(stage, launched, "as rehearsed, without exchange and saving") for stage in planned]
        planned = [with_times(stage, found, "estimated from the rehearsal") for stage in planned]
    return planned


def _with_folds_times(pipeline: PipelineSpec, planned: list[Outlook]) -> list[Outlook]:
    """With what the folds take where none was ever trained: as often as there are, what the run itself takes."""
    times = {stage.stage: stage.expected_s for stage in planned if stage.state == "run"}
    launch_s = times.get("launch")
    if pipeline.evaluation.folds is None or launch_s is None:
        return planned
    took = {"folds": pipeline.evaluation.folds * (launch_s + (times.get("verify") or 0.0))}
    return [with_times(stage, took, "each as the run itself") for stage in planned]


def _counted(pipeline: PipelineSpec, taken: Snapshot, num_rows: int | None) -> TrainingSpec:
    """Training with its length in steps, where rows are counted or a row of the source becomes one of the shards."""
    if num_rows is None and isinstance(pipeline.shards.encoder, TabularEncoderSpec | ImageEncoderSpec):
        share = pipeline.shards.share_of(TRAIN) if pipeline.shards.split is None else 1
        num_rows = round(taken.num_rows * share)
    return pipeline.training if num_rows is None else pipeline.training.for_rows(num_rows)


def _likely_length(pipeline: PipelineSpec, max_steps: int | None) -> str:
    """In epochs and the steps that they come to before a row was counted; empty where the file says steps."""
    epochs = pipeline.training.max_epochs
    return "" if epochs is None or max_steps is None else f"{epochs:g} epochs, about {max_steps:,} steps"


def _likely_shape(context: RunContext, pipeline: PipelineSpec) -> DataShape | None:
    """Of made-up rows, which the preflight has encoded already."""
    own = encoder_code(pipeline.shards.encoder, (str(context.base),))
    if own is None:
        return None
    return synthetic_shape(pipeline, read_contract_file(context.base / pipeline.contract).contract, own)


def _context_tokens(context: RunContext, pipeline: PipelineSpec, shape: DataShape | None) -> int | None:
    """Tokens that a row predicts, 1 where it is an example; None where an encoder of the user's own has yet to say."""
    shape = shape or _likely_shape(context, pipeline)
    if shape is None:
        return None if isinstance(pipeline.shards.encoder, CustomEncoderSpec) else 1
    return shape.context_tokens if isinstance(shape, TokenShape) else 1


def _rehearsed_shape(context: RunContext, pipeline: PipelineSpec, known: DataShape | None) -> DataShape | None:
    """What is rehearsed: the data's shape where it is known, and else one that they may well have."""
    if pipeline.training.grows_trees:
        return None
    if (shape := known or _likely_shape(context, pipeline)) is not None:
        return shape
    encoder = pipeline.shards.encoder
    contract = read_contract_file(context.base / pipeline.contract).contract
    shapes = plausible_shapes(encoder, num_label_values(contract, getattr(encoder, "label", None)))
    # The largest takes as long as any of them.
    return shapes[-1] if shapes else None


def _rehearsal(context: RunContext, pipeline: PipelineSpec, shape: DataShape) -> RehearsalResult:
    request = RehearsalRequest(training=pipeline.training, shape=shape, world_size=pipeline.launch.world_size)
    return rehearse(request, search_path=(str(context.base),))


def _why_unknown(pipeline: PipelineSpec, shape: DataShape | None, *, may_be_rehearsed: bool) -> str:
    if not may_be_rehearsed:
        return "not known: no checkpoint of a run of this pipeline is on record"
    if pipeline.training.grows_trees:
        return "not known before a first run: trees hold all training rows at once, and no step of them is rehearsed"
    if shape is not None or not isinstance(pipeline.shards.encoder, CustomEncoderSpec):
        return "not known before a first run or a rehearsal"
    return (
        f"not known: what {pipeline.shards.encoder.name} makes is known once it was fitted to the data, and no step "
        "is rehearsed before; `headway rehearse` runs every stage on a part of them"
    )


def print_plan(plan: Plan) -> None:
    console = plain_console()
    console.print(headed(plan.pipeline, f"  {count(plan.num_files, 'file')}, {plan.size_bytes / 1e6:,.1f} MB"))
    console.print(f"workspace  {plan.workspace}\n")
    if plan.held is not None:
        console.print(f"HELD         {plan.held}\n")
    for retrain in plan.running:
        step = "" if retrain.step is None else f", step {retrain.step:,}"
        console.print(f"RUNNING      pid {retrain.pid} retrains it now: {retrain.stage or 'between two stages'}{step}.")
        console.print("             Below is what another would do; `headway status` shows how this one does.\n")
    table = Table("stage", "would", "takes", "", box=None, padding=(0, 2))
    for stage in plan.stages:
        table.add_row(stage.stage, "be found" if stage.state == "found" else stage.state, _takes(stage), stage.detail)
    print_table(console, table)
    if plan.untried:
        console.print(f"\nuntried      not tried on made-up rows: {plan.untried}", end="")
    console.print(f"\n{plan.batch}")
    console.print(f"length       {plan.length}")
    console.print(f"rates        {plan.rates}")
    if plan.tuned:
        console.print(f"tuned        {plan.tuned}")
    if plan.validation:
        console.print(f"validation   {plan.validation}")
    if plan.ema:
        console.print(f"ema          {plan.ema}")
    if plan.sync:
        console.print(f"sync         {plan.sync}")
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
    # Without a server configured none is started, and nothing is waited for.
    besides = "" if names_no_server() else ", besides what Prefect's and MLflow's servers take to answer"
    console.print(f"time         {_time_line(plan)}{besides}")
    for line in () if plan.cost is None else cost_lines(plan.cost):
        console.print(line)


def _takes(stage: Outlook) -> str:
    if stage.state == "found":
        return ""
    return "not known" if stage.expected_s is None else f"{stage.expected_s:.1f} s"


def _time_line(plan: Plan) -> str:
    if plan.expected_s is not None:
        return f"about {plan.expected_s:.0f} s"
    known = sum(stage.expected_s or 0.0 for stage in plan.stages)
    return f"about {known:.0f} s and what is not known" if known else "not known before a first run"
