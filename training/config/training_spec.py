"""What is trained and how: one frozen tree. What of it decides bits is `RunSpec.config`.

World size is absent on purpose: in exact mode the weights do not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.training.config.batch_ramp import BatchPhases, BatchRampSpec
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.communication_spec import AsynchronousSpec, FederatedSpec, IntegerCompressionSpec, SyncSpec
from headway.training.config.guards import GuardSpec
from headway.training.config.optimizer import EmaSpec, OptimizerSpec, ScheduleSpec
from headway.training.config.order_spec import OrderSpec
from headway.training.config.parallel import (
    MeshShape,
    ParallelSpec,
    is_power_of_two,
    mesh_shape,
    replica_shares,
    shares_of,
)
from headway.training.config.recipe_specs import GRADIENT_BOOSTING, GradientBoostingSpec
from headway.training.config.start_spec import StartFrom
from headway.training.config.validation import ValidationSpec

if TYPE_CHECKING:
    pass


DEFAULT_STEPS = 1000
DEFAULT_BUCKET_BYTES = 2 << 20
"""Small enough that one travels while the next is made, and that a slow link is kept busy both ways."""
DECIDES_NO_BIT: Final = ("checkpoints", "profile", "bucket_bytes")
"""Fields that decide no bit, and so are in no run's key; see `headway.training.config.execution`."""
Scalar = bool | int | float | str
Rounding = Literal["none", "bf16", "fp16"]


class RecipeSpec(Frozen):
    name: str = Field(default="language-model", description="A built-in recipe, or `package.module:Class` of your own.")
    model: dict[str, Scalar | tuple[Scalar, ...]] = Field(
        default_factory=dict, description="The recipe's own fields, such as width, depth and heads, or lists of such."
    )


class LossScaleSpec(Frozen):
    """Dynamic loss scaling, in use where anything is held in fp16. Scales are powers of two."""

    initial_exponent: int = Field(
        default=10, ge=-24, le=24, description="The first scale is 2 to this power; it multiplies the summed loss."
    )
    growth_interval_steps: int = Field(
        default=2000, gt=0, description="Steps without overflow after which the scale doubles; an overflow halves it."
    )


class TrainingSpec(Frozen):
    recipe: RecipeSpec = Field(RecipeSpec(), description="The network and its loss.")
    start_from: StartFrom | None = Field(default=None, description="A registered model to start from; empty: none.")
    optimizer: OptimizerSpec = Field(OptimizerSpec(), description="How gradients become steps.")
    schedule: ScheduleSpec = Field(ScheduleSpec(), description="The learning rate over the run.")
    ema: EmaSpec | None = Field(
        default=None,
        exclude_if=lambda ema: ema is None,
        description="The model is an exponential moving average of the weights; empty: the weights themselves.",
    )
    order: OrderSpec = Field(OrderSpec(), description="The order in which samples are read.")
    guards: GuardSpec = Field(GuardSpec(), description="What happens to a bad step.")
    validation: ValidationSpec | None = Field(
        default=None,
        exclude_if=lambda validation: validation is None,
        description="When the run is validated on rows apart, whether it ends once it has converged, and which "
        "checkpoint is its model. Needs `shards.validation_fraction` or `shards.split.validation`.",
    )
    profile: ProfileSpec | None = Field(default=None, description="Steps of which every rank keeps a profiler trace.")
    parallel: ParallelSpec = Field(ParallelSpec(), description="How ranks share the model and the batch.")
    max_steps: int = Field(default=DEFAULT_STEPS, gt=0, description="Optimizer steps in all.")
    max_epochs: float | None = Field(
        default=None,
        gt=0,
        exclude_if=lambda epochs: epochs is None,
        description="Passes over the training rows, in place of `max_steps`: steps are counted once the shards are "
        "there, and the run is described by them, so that a resumed run ends where it would have ended.",
    )
    global_batch_sequences: int = Field(default=8, gt=0, description="Rows of one optimizer step.")
    batch_ramp: BatchRampSpec | None = Field(
        default=None,
        exclude_if=lambda ramp: ramp is None,
        description="A smaller batch at first, which doubles up to `global_batch_sequences`, by a schedule or by the "
        "gradient noise scale; empty: one size throughout.",
    )
    micro_batch_sequences: int = Field(
        default=4, gt=0, description="Rows of one logical replica. It decides bits; the number of workers does not."
    )
    seed: int = Field(default=0, ge=0, description="Seed of initial weights, sample order and every random stream.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="Arithmetic of forward and backward; weights and optimizer stay fp32."
    )
    loss_scale: LossScaleSpec = Field(LossScaleSpec(), description="The scale of the loss in `fp16`.")
    gradient_compression: Annotated[
        Annotated[Rounding, Tag("text")] | Annotated[IntegerCompressionSpec, Tag("mapping")],
        # Else a problem of one would be told of both.
        Discriminator(lambda value: "mapping" if isinstance(value, Mapping | IntegerCompressionSpec) else "text"),
    ] = Field(
        default="none",
        description="What gradients are rounded to, replica by replica, and travel in between ranks; a mapping with "
        "`kind: int8`: whole numbers, island by island.",
    )
    sync: SyncSpec | None = Field(
        default=None,
        exclude_if=lambda sync: sync is None,
        description="Islands of the batch train apart and meet every so many steps; empty: gradients are summed at "
        "every step.",
    )
    asynchronous: AsynchronousSpec | None = Field(
        default=None,
        exclude_if=lambda asynchronous: asynchronous is None,
        description="Of mode `fast`: ranks train without waiting for each other; empty: they meet at every step.",
    )
    compile: bool = Field(default=False, description="Compile the model's training pass with `torch.compile`.")
    num_threads: int = Field(default=1, gt=0, description="Threads of a rank. More cores: more ranks, not threads.")
    bucket_bytes: int = Field(
        default=DEFAULT_BUCKET_BYTES,
        ge=4096,
        description="Of mode `exact`: how much of the gradients travels at a time, as fp32. Sums keep "
        "their shape, so it decides no bit.",
    )
    checkpoints: CheckpointSpec = Field(CheckpointSpec(), description="When checkpoints are saved, and which are kept.")

    @field_validator("gradient_compression", mode="before")
    @classmethod
    def _whole_numbers_are_a_mapping(cls, value: Any) -> Any:
        if value in ("int4", "int8", "int32"):
            raise ValueError(f"whole numbers are said by a mapping: {{kind: {value}}}")
        if not isinstance(value, str | Mapping | IntegerCompressionSpec):
            raise ValueError("must be none, bf16, fp16, or a mapping such as {kind: int8}")
        return value

    @model_validator(mode="after")
    def _batch_is_whole_replicas(self) -> Self:
        replicas, rest = divmod(self.global_batch_sequences, self.micro_batch_sequences)
        is_exact = self.parallel.mode == "exact"
        if rest or (is_exact and not is_power_of_two(replicas)):
            raise ValueError(
                f"global batch {self.global_batch_sequences} / micro batch {self.micro_batch_sequences} = "
                f"{self.global_batch_sequences / self.micro_batch_sequences:g} replicas, "
                f"which must be {'a power of two (1, 2, 4, 8, ...)' if is_exact else 'a whole number'}"
            )
        return self

    @model_validator(mode="after")
    def _batch_ramp_fits(self) -> Self:
        if (ramp := self.batch_ramp) is None:
            return self
        if self.grows_trees:
            raise ValueError("batch_ramp: trees are grown on all training rows, and have no batch")
        problem = ramp.problem(global_batch=self.global_batch_sequences, micro_batch=self.micro_batch_sequences)
        if problem is not None:
            raise ValueError(f"batch_ramp: {problem}")
        if ramp.by == "noise_scale":
            if self.parallel.mode != "exact":
                raise ValueError("batch_ramp: the noise scale is measured in parallel.mode exact alone; by: schedule")
            if self.order.mix:
                raise ValueError("batch_ramp: the noise scale is not measured with order.mix; by: schedule")
            if self.max_epochs is not None:
                raise ValueError(
                    "batch_ramp: by: noise_scale decides how many rows a step has, so no number of steps is so many "
                    "epochs; give max_steps"
                )
        return self

    @model_validator(mode="after")
    def _length_is_given_once(self) -> Self:
        if self.max_epochs is None:
            return self
        # The default does not count: a configuration that is written out and read again has it.
        if self.max_steps != DEFAULT_STEPS:
            raise ValueError("max_epochs takes the place of max_steps: give one of them")
        if self.order.mix:
            raise ValueError("max_epochs counts passes over one dataset: with order.mix give max_steps")
        return self

    @model_validator(mode="after")
    def _has_weights_to_average(self) -> Self:
        if self.ema is not None and self.grows_trees:
            raise ValueError("ema: trees are grown one after another, and have no weights to average")
        return self

    @model_validator(mode="after")
    def _can_be_validated(self) -> Self:
        if self.validation is not None and self.grows_trees:
            raise ValueError("validation: trees are grown on all training rows, and end by their own rule")
        return self

    @model_validator(mode="after")
    def _has_buckets(self) -> Self:
        if self.bucket_bytes != DEFAULT_BUCKET_BYTES and self.parallel.mode == "fast":
            raise ValueError("bucket_bytes: of mode `exact` alone, where it decides no bit")
        return self

    @model_validator(mode="after")
    def _islands_fit(self) -> Self:
        if self.islands is None:
            return self
        name = self.islands_are_of
        if self.grows_trees:
            raise ValueError(f"{name}: trees have no gradient that travels")
        if self.parallel.mode == "fast" or self.parallel.shard != 1:
            others = "" if self.integers is None else "; bf16 and fp16 go with any"
            kind = "" if self.integers is None else f" {self.integers.kind}"
            raise ValueError(f"{name}{kind}: of mode `exact` without `shard`{others}")
        fewest = self.first_batch_sequences // self.micro_batch_sequences
        if self.islands > fewest:
            raise ValueError(
                f"{name}.islands: {self.islands} islands need as many replicas, and a step has {fewest} "
                f"(batch {self.first_batch_sequences} / micro batch {self.micro_batch_sequences}); "
                f"say islands: {fewest}, or lower micro_batch_sequences"
            )
        return self

    @model_validator(mode="after")
    def _islands_can_train_apart(self) -> Self:
        if self.sync is None:
            return self
        if self.gradient_compression != "none":
            raise ValueError("sync: movements travel in place of gradients; say sync.movements: int8 for fewer bytes")
        if self.precision == "fp16":
            raise ValueError("sync: a loss scale is one for all ranks, and islands train apart; say precision: bf16")
        if self.ema is not None:
            raise ValueError("sync: an average of weights needs them at every step, and islands meet every few; no ema")
        if self.batch_ramp is not None and self.batch_ramp.by == "noise_scale":
            raise ValueError("sync: the noise scale is measured where gradients meet at every step; by: schedule")
        if self.max_epochs is None and self.sync.start_after_steps >= self.max_steps:
            raise ValueError(
                f"sync.start_after_steps {self.sync.start_after_steps:,}: islands never train apart in "
                f"{self.max_steps:,} steps"
            )
        return self

    @model_validator(mode="after")
    def _clients_have_rounds_of_their_own(self) -> Self:
        if self.federated is None or self.sync is None:
            return self
        if self.max_epochs is not None:
            raise ValueError("sync.federated: clients are drawn, and no number of steps is an epoch; give max_steps")
        if self.batch_ramp is not None:
            raise ValueError("sync.federated: a client's rows of a round are drawn by the batch; no batch_ramp")
        if self.order.mix or self.order.shuffle != "exact":
            raise ValueError("sync.federated: clients have orders of their own; no order.mix, no shuffle: window")
        for name, policy in (("non_finite", self.guards.non_finite), ("spike", self.guards.spike)):
            if policy.action in ("skip", "roll_back"):
                raise ValueError(
                    f"sync.federated: guards.{name} {policy.action} leaves out a step's rows, and a round is whole; "
                    "say stop. A client whose answer is not finite is left out by itself"
                )
        validation, every = self.validation, self.sync.every_steps
        if validation is None:
            return self
        if not validation.is_settled:
            raise ValueError("sync.federated: validations are between rounds; give validation.every_steps")
        if any(step % every for step in validation.first_due(self.max_steps)):
            raise ValueError(f"sync.federated: validations are between rounds, after multiples of {every} steps")
        return self

    @model_validator(mode="after")
    def _ranks_need_not_wait(self) -> Self:
        if self.asynchronous is None:
            return self
        parallel = self.parallel
        if parallel.mode != "fast" or (parallel.pipeline, parallel.shard, parallel.tensor) != (1, 1, 1):
            raise ValueError("asynchronous: of `parallel: {mode: fast}` without pipeline, shard and tensor")
        refused = {
            "sync": self.sync is not None,
            "gradient_compression": self.gradient_compression != "none",
            "ema": self.ema is not None,
            "batch_ramp": self.batch_ramp is not None,
            "precision fp16": self.precision == "fp16",
            "trees": self.grows_trees,
        }
        if names := [name for name, given in refused.items() if given]:
            raise ValueError(f"asynchronous: not with {', '.join(names)}, which need all ranks at a step")
        for name, policy in (("non_finite", self.guards.non_finite), ("spike", self.guards.spike)):
            if policy.action in ("skip", "roll_back"):
                raise ValueError(f"asynchronous: later updates stand on one; guards.{name} stops, not {policy.action}")
        return self

    @model_validator(mode="after")
    def _slices_do_not_decide_bits(self) -> Self:
        if self.parallel.mode == "fast" or self.parallel.shard == 1:
            return self
        if self.compile:
            raise ValueError("compile: in mode `exact` only without `shard`")
        if self.optimizer.implementation == "fused":
            raise ValueError(
                "optimizer.implementation fused rounds a tensor's last elements in its own way, and with `shard` the "
                "number of ranks decides which these are; mode `exact` takes foreach there"
            )
        return self

    def for_rows(self, num_rows: int) -> TrainingSpec:
        """The same with its length in steps: whole batches nearest to `max_epochs` passes over so many rows.

        Trees are one step an iteration, and so no more steps than iterations.

        Raises:
            ConfigError: these are so few that islands never train apart.
        """
        if self.grows_trees:
            default = GradientBoostingSpec.model_fields["iterations"].default
            iterations = self.recipe.model.get("iterations", default)
            if isinstance(iterations, tuple):
                raise ConfigError("must be a whole number, given a list.", where="training.recipe.model.iterations")
            max_steps = min(self.max_steps, int(iterations))
            return self.model_copy(update={"max_steps": max_steps})
        if self.max_epochs is None:
            return self
        max_steps = max(1, self.batch_phases.windows_nearest(self.max_epochs * num_rows))
        if self.sync is not None and self.sync.start_after_steps >= max_steps:
            raise ConfigError(
                f"islands never train apart: {self.max_epochs:g} passes over {num_rows:,} rows are {max_steps:,} "
                f"steps, and gradients are summed in the first {self.sync.start_after_steps:,}.",
                where="training.sync.start_after_steps",
                advice="Say fewer, or train for more epochs.",
            )
        return self.model_copy(update={"max_steps": max_steps, "max_epochs": None})

    @property
    def identity(self) -> dict[str, Any]:
        """All that may show in the weights, with every default written out."""
        return self.model_dump(mode="json", exclude={*DECIDES_NO_BIT})

    @property
    def integers(self) -> IntegerCompressionSpec | None:
        """How gradients travel as whole numbers; None where they do not."""
        compression = self.gradient_compression
        return compression if isinstance(compression, IntegerCompressionSpec) else None

    @property
    def federated(self) -> FederatedSpec | None:
        """What islands are as clients; None where they are parts of one batch."""
        return None if self.sync is None else self.sync.federated

    @property
    def islands(self) -> int | None:
        """Of which a rank has whole ones; None: it has whole replicas."""
        has_islands = self.sync or self.integers
        return None if has_islands is None else has_islands.islands

    @property
    def islands_are_of(self) -> Literal["sync", "gradient_compression"]:
        """The field that says how many islands there are."""
        return "gradient_compression" if self.sync is None else "sync"

    def for_one_of(self, world_size: int) -> TrainingSpec:
        """With as many islands as each of so many ranks has, for one that is measured alone."""
        has_islands = self.sync or self.integers
        if has_islands is None:
            return self
        # Of the rank that has most.
        islands = max(shares_of(has_islands.islands, min(world_size, has_islands.islands)))
        update: dict[str, Any] = {"islands": islands}
        if self.federated is not None:
            # Else every round of a part of its clients would be void.
            update["federated"] = self.federated.model_copy(update={"quorum": min(self.federated.quorum, islands)})
        return self.model_copy(update={self.islands_are_of: has_islands.model_copy(update=update)})

    @property
    def rounding(self) -> Rounding:
        """What every node of the tree is rounded to."""
        compression = self.gradient_compression
        return "none" if isinstance(compression, IntegerCompressionSpec) else compression

    @property
    def grows_trees(self) -> bool:
        """Whether each step reads the whole training split on one rank, in place of a batch."""
        return self.recipe.name == GRADIENT_BOOSTING

    @property
    def num_replicas(self) -> int:
        """V, the logical replicas of one global batch, of the largest: each is one micro-batch."""
        return self.global_batch_sequences // self.micro_batch_sequences

    @property
    def first_batch_sequences(self) -> int:
        """Rows of the first optimizer step, which no later one has fewer of."""
        return self.global_batch_sequences if self.batch_ramp is None else self.batch_ramp.from_sequences

    @property
    def batch_phases(self) -> BatchPhases:
        """The sizes of batches, as far as the configuration decides them."""
        first = BatchPhases.of(self.first_batch_sequences)
        return first if self.batch_ramp is None else first.doubled_at(*self.batch_ramp.at_steps)


def replicas_per_rank(spec: TrainingSpec, world_size: int) -> int:
    """How many micro-batches a rank runs in turn at most, of the largest batch; in exact mode, logical replicas.

    Raises:
        ConfigError: this world cannot share each global batch, or its ranks do not make up the mesh.
    """
    if spec.grows_trees:
        if world_size > 1:
            raise ConfigError(
                f"trees are grown by one rank, which has all training rows, and there are {world_size} ranks.",
                where="launch.nodes",
                advice="Say nodes: 1 and ranks_per_node: 1; `training.num_threads` gives it more cores.",
            )
        return 1
    if spec.asynchronous is not None:
        return spec.num_replicas  # each has whole batches
    shape = mesh_shape(spec.parallel, world_size)
    fewest = spec.first_batch_sequences // spec.micro_batch_sequences
    if splits_no_model(shape, world_size):
        if spec.sync is not None and world_size > spec.sync.islands:
            _refuse_uneven_islands(spec.sync.islands, fewest, world_size)
        else:
            _refuse_more_than(spec.islands or fewest, spec, world_size)
        return max(replica_shares(spec.num_replicas, world_size, islands=spec.islands))
    _refuse_uneven(spec, world_size, shape.num_shares)
    accumulation = fewest // shape.num_shares
    if accumulation < shape.pipeline:
        name = "global_batch_sequences" if spec.batch_ramp is None else "batch_ramp.from_sequences"
        raise ConfigError(
            f"{shape.pipeline} pipeline stages need as many micro-batches at least, and a step has {accumulation} "
            f"({_smallest(spec)} / micro batch {spec.micro_batch_sequences} / "
            f"{shape.num_shares} shares).",
            where="training.parallel.pipeline",
            advice=f"Lower micro_batch_sequences, raise {name}, or use fewer stages.",
        )
    return spec.num_replicas // shape.num_shares


def can_share(spec: TrainingSpec, world_size: int) -> bool:
    """Whether so many ranks can share a global batch."""
    try:
        replicas_per_rank(spec, world_size)
    except ConfigError:
        return False
    return True


def splits_no_model(shape: MeshShape, world_size: int) -> bool:
    """Whether each rank has the whole model, and so may have any part of a batch."""
    return shape.num_shares == world_size and shape.shard == 1


def _refuse_more_than(num_units: int, spec: TrainingSpec, world_size: int) -> None:
    if world_size <= num_units:
        return
    if spec.integers is not None:
        raise ConfigError(
            f"{world_size} ranks cannot share {num_units} islands: each rank has one at least.",
            where="training.gradient_compression.islands",
            advice=f"Start {num_units} ranks or fewer, or raise islands, which rounds int8 more coarsely.",
        )
    larger = "" if spec.batch_ramp is None else ", or batch_ramp.from_sequences"
    raise ConfigError(
        f"{world_size} ranks cannot share {num_units} replicas ({_smallest(spec)} / micro batch "
        f"{spec.micro_batch_sequences}): each rank has one at least.",
        where="world size",
        advice=f"Start {num_units} ranks or fewer, or change micro_batch_sequences{larger}.",
    )


def _refuse_uneven_islands(islands: int, num_replicas: int, world_size: int) -> None:
    of_island, rest = divmod(world_size, islands)
    if rest or of_island > num_replicas // islands:
        possible = [islands * each for each in range(1, num_replicas // islands + 1)]
        raise ConfigError(
            f"{world_size} ranks cannot share {islands} islands of {num_replicas // islands} replicas: each island "
            "needs as many ranks as the others, and each rank a replica.",
            where="training.sync.islands",
            advice=f"Start {islands} ranks or fewer, or {' or '.join(map(str, possible[1:])) or 'raise islands'}.",
        )


def _refuse_uneven(spec: TrainingSpec, world_size: int, num_shares: int) -> None:
    # What shares the smallest batch shares each larger one: they are multiples of it.
    fewest = spec.first_batch_sequences // spec.micro_batch_sequences
    if fewest % num_shares:
        ranks_per_share = world_size // num_shares
        possible = [n * ranks_per_share for n in range(1, fewest + 1) if fewest % n == 0]
        larger = "" if spec.batch_ramp is None else ", or batch_ramp.from_sequences"
        raise ConfigError(
            f"{world_size} ranks cannot share {fewest} replicas ({_smallest(spec)} / micro batch "
            f"{spec.micro_batch_sequences}) evenly, as ranks that split a model have to.",
            where="world size",
            advice=f"Start {' or '.join(map(str, possible))} ranks, or change micro_batch_sequences{larger}.",
        )


def _smallest(spec: TrainingSpec) -> str:
    """The batch that the fewest ranks can share, for a person."""
    if spec.batch_ramp is None:
        return f"global batch {spec.global_batch_sequences}"
    return f"the first batch, batch_ramp.from_sequences {spec.first_batch_sequences},"


def targets_of(context_tokens: int | None) -> str:
    """What a person counts a batch in: with one token a row, rows are examples; None: nobody knows yet."""
    return "rows" if context_tokens is None else "examples" if context_tokens == 1 else "tokens"


def batch_line(spec: TrainingSpec, *, world_size: int, context_tokens: int | None) -> str:
    """The batch arithmetic in one line, for a person.

    Args:
        context_tokens: that a row predicts, as `targets_of` has it.
    """
    if spec.grows_trees:
        return "rows/step  all training rows: each tree is grown on the whole split"
    replicas_per_rank(spec, world_size)  # refuses an impossible world
    what = targets_of(context_tokens)
    row = f" x {context_tokens} seq" if what == "tokens" else ""
    if spec.asynchronous is not None:
        return (
            f"{what}/step  {spec.micro_batch_sequences} micro{row} x {spec.num_replicas} accumulation = "
            f"{spec.global_batch_sequences * (context_tokens or 1):,}, each step on one of {world_size} ranks"
        )
    shape = mesh_shape(spec.parallel, world_size)
    is_replicated = spec.parallel.mode == "exact" and shape.shard == 1
    together = "" if shape.num_shares == world_size else f" of {world_size // shape.num_shares}"
    ranks = f"{shape.num_shares} {'groups' if together else 'ranks'}{together}"
    accumulation = _accumulation(spec, spec.global_batch_sequences, shape.num_shares)
    shared = (
        f"{ranks} x {accumulation} accumulation"
        if spec.num_replicas % shape.num_shares == 0
        else f"{spec.num_replicas} on {ranks} ({accumulation} each)"
    )
    return (
        f"{what}/step  {spec.micro_batch_sequences} micro{row} x {shared} = "
        f"{spec.global_batch_sequences * (context_tokens or 1):,}{'' if is_replicated else f'   ({shape})'}"
        f"{_ramp_of(spec, shape.num_shares)}"
    )


def _accumulation(spec: TrainingSpec, rows: int, num_shares: int) -> str:
    """How many micro-batches of so many rows each share has."""
    shares = replica_shares(rows // spec.micro_batch_sequences, num_shares, islands=spec.islands)
    return f"{min(shares)}" if min(shares) == max(shares) else f"{min(shares)} to {max(shares)}"


def _ramp_of(spec: TrainingSpec, num_shares: int) -> str:
    """How the batch comes to its size, with the accumulation of each one; empty where it has it from the start."""
    if (ramp := spec.batch_ramp) is None:
        return ""

    def size(rows: int) -> str:
        return f"{rows} rows (accumulation {_accumulation(spec, rows, num_shares)})"

    first = f"; batch ramp from {size(ramp.from_sequences)}"
    if ramp.by == "noise_scale":
        return (
            f"{first}, twice as many once the noise scale is {ramp.factor:g} x the batch, up to "
            f"{size(spec.global_batch_sequences)}"
        )
    _, *later = spec.batch_phases.phases
    grown = "".join(f", {size(each.rows)} after step {each.first_window:,}" for each in later)
    is_cut = spec.max_epochs is None and later[-1].first_window >= spec.max_steps
    return first + grown + (f" (not reached in {spec.max_steps:,} steps)" if is_cut else "")


def length_line(spec: TrainingSpec, *, context_tokens: int | None, num_rows: int | None) -> str:
    """How long training is in one line, for a person.

    Args:
        context_tokens: that a row predicts, as `targets_of` has it.
        num_rows: to train on; None where nobody knows yet.
    """
    if spec.max_epochs is not None:
        return (
            f"{spec.max_epochs:g} epochs; steps are counted once rows are"
            if num_rows is None
            else length_line(spec.for_rows(num_rows), context_tokens=context_tokens, num_rows=num_rows)
        )
    if spec.grows_trees:
        rows = "" if num_rows is None else f", each on {num_rows:,} rows"
        return f"at most {spec.for_rows(num_rows or 0).max_steps:,} iterations{rows}"
    # Of a batch that grows by what is measured nobody knows more than the bound.
    is_bound = spec.batch_ramp is not None and spec.batch_ramp.by == "noise_scale"
    num_seen = spec.max_steps * spec.global_batch_sequences if is_bound else spec.batch_phases.row(spec.max_steps)
    most = "at most " if is_bound else ""
    seen = f"{spec.max_steps:,} steps = {most}{num_seen * (context_tokens or 1):,} {targets_of(context_tokens)}"
    # Of datasets mixed in, each has epochs of its own; clients are drawn, and their rows come as often.
    is_shown = num_rows and not spec.order.mix and spec.federated is None
    if not (is_shown and num_rows):
        return seen
    epochs = num_seen / num_rows
    return f"{seen} = {f'{epochs:,.0f}' if epochs >= 10 else f'{epochs:.2g}'} epochs of {num_rows:,} rows"


def steps_per_epoch(spec: TrainingSpec, num_rows: int) -> float | None:
    """Steps in which each row is seen once, over the whole run.

    None of trees, where datasets with epochs of their own are mixed, of clients that are drawn, and where the batch
    grows by what is measured.
    """
    if spec.grows_trees or spec.order.mix or spec.federated is not None or not num_rows:
        return None
    if spec.batch_ramp is None:
        return num_rows / spec.global_batch_sequences
    if spec.batch_ramp.by == "noise_scale":
        return None
    return spec.max_steps * num_rows / spec.batch_phases.row(spec.max_steps)


class ProfileSpec(Frozen):
    first_step: int = Field(default=10, gt=0, description="First step of the trace, counted from 1.")
    num_steps: int = Field(default=3, gt=0, description="Steps to trace.")
