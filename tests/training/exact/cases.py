"""What shall give the same bits on any number of ranks: the shipped recipes, and models that are hard to sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headway.training.config.batch_ramp import BatchRampSpec
from headway.training.config.communication_spec import FederatedSpec, IntegerCompressionSpec, OuterSpec, SyncSpec
from headway.training.config.optimizer import EmaSpec, OptimizerSpec, ParameterGroupSpec
from headway.training.config.parallel import ParallelSpec
from headway.training.config.seeds import derive
from headway.training.config.shapes import ImageShape, TabularShape, TokenShape
from headway.training.config.training_spec import LossScaleSpec, RecipeSpec, ScheduleSpec, TrainingSpec
from headway.training.recipes.classification import Classifier
from headway.training.recipes.load import load_recipe
from headway.training.recipes.protocol import Recipe

NUM_CLASSES = 5


class Own(Classifier):
    """A classifier of `x` whose model is one function away."""

    def __init__(self, build: Callable[[], nn.Module], shape: tuple[int, ...], ids: int = 0) -> None:
        self.build, self.shape, self.ids = build, shape, ids

    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        return batch["x"]

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        return ()

    def blocks(self, model: nn.Module) -> tuple[str, ...]:
        return getattr(model, "blocks", ())


class TwiceThroughOneBlock(nn.Module):
    """Tied weights, and one block that is recomputed twice in a backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_CLASSES, 16)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16))
        self.head = nn.Linear(16, NUM_CLASSES, bias=False)
        self.head.weight = self.embedding.weight
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x).mean(dim=1)
        for _ in range(2):
            hidden = hidden + checkpoint(self.block, hidden, use_reentrant=self.use_reentrant)
        return self.head(hidden)


class Sparse(nn.Module):
    """Sparse gradients, a part that no replica uses and one that some use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(50, 16, sparse=True, mode="mean")
        self.unused = nn.Linear(16, 16)
        self.sometimes = nn.Linear(16, 16)
        self.head = nn.Linear(16, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x)
        if int(x[0, 0]) % 2:
            hidden = hidden + self.sometimes(hidden)
        return self.head(torch.tanh(hidden))


class Normalised(nn.Module):
    """Batch normalisation with three kinds of momentum, one layer only used by some replicas, one used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.1))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, groups=2), nn.BatchNorm2d(8, momentum=0.3), nn.ReLU())
        self.sometimes = nn.BatchNorm2d(8, momentum=None)
        self.twice = nn.BatchNorm1d(8, affine=False)
        self.head = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        if float(x.detach()[0, 0, 0, 0]) > 0.2:
            x = self.sometimes(x)
        return self.head(self.twice(self.twice(x.mean(dim=(2, 3)))))


class Remembers(nn.Module):
    """Keeps a running mean of its own, as only the batches of one rank would show it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, NUM_CLASSES)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().mean(dim=0), 0.1)
        return self.head(x - self.mean)


class Gated(nn.Module):
    """Looks at its input twice, of a size that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.Linear(13, 37), nn.LayerNorm(37), nn.Dropout(0.1), nn.Linear(37, 13))
        self.gate = nn.Linear(13, 13)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) * torch.sigmoid(self.gate(x))


class Skipping(nn.Module):
    """Two blocks whose input others use too, and a frozen part."""

    blocks = ("first", "second")

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 13)
        self.fixed = nn.Linear(13, 13)
        self.first, self.second = Gated(), Gated()
        self.mix = nn.Linear(3, 1, bias=False)
        self.head = nn.Linear(13, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x) + self.fixed(self.stem(x))
        first = stem + torch.tanh(self.first(stem)) * stem
        second = first * self.second(first)
        return self.head(self.mix(torch.stack((stem, first, second), dim=-1)).squeeze(-1) + stem * first)


class Scaled(nn.Module):
    """A parameter without a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.scale = nn.Linear(6, NUM_CLASSES), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.scale


def narrow() -> nn.Module:
    """Of odd sizes: products of one row round by where a matrix begins."""
    return nn.Sequential(nn.Linear(7, 61), nn.Tanh(), nn.Linear(61, 37), nn.Tanh(), nn.Linear(37, NUM_CLASSES))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, NUM_CLASSES))


TOKENS = TokenShape(vocab_size=64, context_tokens=12)
SHIPPED = {
    "language-model": (TOKENS, {"width": 16, "depth": 2, "heads": 2, "hidden": 24, "tied_embeddings": True}),
    "image-classifier": (ImageShape(channels=1, height=8, width=8, num_classes=NUM_CLASSES), {"width": 8}),
    "tabular-classifier": (
        TabularShape(num_numeric=4, cardinalities=(3, 7), num_classes=NUM_CLASSES),
        {"width": 16, "depth": 2, "dropout": 0.2},
    ),
}


def shipped(name: str, **changes: Any) -> tuple[Recipe, TrainingSpec]:
    shape, model = SHIPPED[name]
    return load_recipe(name, model, shape), spec(recipe=RecipeSpec(name=name, model=model), **changes)


def own(
    build: Callable[[], nn.Module], shape: tuple[int, ...], ids: int = 0, **changes: Any
) -> tuple[Own, TrainingSpec]:
    return Own(build, shape, ids), spec(**changes)


def spec(**changes: Any) -> TrainingSpec:
    common = {
        "max_steps": 20,
        "global_batch_sequences": 32,
        "micro_batch_sequences": 4,
        "optimizer": OptimizerSpec(gradient_clip=0.5),
        "schedule": ScheduleSpec(warmup_steps=2),
    }
    return TrainingSpec(**{**common, **changes})


# Four replicas, eight and sixteen, with a learning rate that follows.
GROWING: dict[str, Any] = {
    "global_batch_sequences": 64,
    "batch_ramp": BatchRampSpec(from_sequences=16, at_steps=(1, 3)),
}
FOLLOWING = OptimizerSpec(gradient_clip=0.5, scale_with_batch="sqrt", reference_batch=32)

# The scale is too large at first, and again after two good steps, so that steps are skipped.
TOO_LARGE = LossScaleSpec(initial_exponent=14, growth_interval_steps=2)

# Short, so that each step moves it by much.
AVERAGED = EmaSpec(decay=0.7)

INT8 = IntegerCompressionSpec(kind="int8", islands=4, block=64)

ADAMW = OptimizerSpec(kind="adamw", lr=0.01, gradient_clip=0.5)


def islands(case: Callable[..., tuple[Any, TrainingSpec]], *arguments: Any, **sync: Any) -> Any:
    """Four islands of one replica, which meet every two steps after one in which gradients are summed."""
    common = {"every_steps": 2, "islands": 4, "start_after_steps": 1, "global_batch_sequences": 16, **sync}
    changes = {"max_steps": 9, "sync": SyncSpec(**{k: v for k, v in common.items() if k in SyncSpec.model_fields})}
    return partial(case, *arguments, **changes, **{k: v for k, v in common.items() if k not in SyncSpec.model_fields})


ISLANDS: dict[str, Callable[[], tuple[Any, TrainingSpec]]] = {
    "islands": islands(shipped, "language-model", global_batch_sequences=32),
    "islands-seldom": islands(own, perceptron, (6,), every_steps=4, optimizer=ADAMW),
    "islands-momentum": islands(
        shipped,
        "tabular-classifier",
        outer=OuterSpec(lr=0.7, momentum=0.9, nesterov=True),
        start_after_steps=0,
        every_steps=3,
    ),
    "islands-heavy-ball": islands(own, perceptron, (6,), outer=OuterSpec(lr=0.5, momentum=0.5), optimizer=ADAMW),
    "islands-int8": islands(own, perceptron, (6,), movements="int8"),
    "islands-int4": islands(own, perceptron, (6,), movements="int4"),
    "islands-fragments": islands(own, perceptron, (6,), every_steps=4, fragments=2),
    "islands-late": islands(own, perceptron, (6,), every_steps=4, delay_steps=2),
    "islands-late-int8-fragments": islands(
        shipped,
        "language-model",
        every_steps=4,
        fragments=2,
        delay_steps=1,
        movements="int8",
        outer=OuterSpec(lr=0.9, momentum=0.3),
    ),
    "islands-narrow": islands(
        own, narrow, (7,), global_batch_sequences=4, micro_batch_sequences=1, every_steps=4, delay_steps=2
    ),
    "islands-bf16": islands(own, perceptron, (6,), precision="bf16", optimizer=ADAMW),
    "islands-batch-ramp": islands(own, Sparse, (5,), 50, **GROWING),
}
FEDERATED: dict[str, Callable[[], tuple[Any, TrainingSpec]]] = {
    "federated": islands(
        own,
        perceptron,
        (6,),
        start_after_steps=0,
        federated=FederatedSpec(proximal=0.1, personal=("4.*",), lost_fraction=0.3, quorum=3),
        outer=OuterSpec(kind="yogi", lr=0.1, momentum=0.5),
        optimizer=ADAMW,
    ),
    "federated-adam": islands(
        own,
        narrow,
        (7,),
        start_after_steps=0,
        global_batch_sequences=8,
        micro_batch_sequences=1,
        federated=FederatedSpec(weight_by="equal"),
        outer=OuterSpec(kind="adam", lr=0.1),
    ),
    "federated-language-model": islands(
        shipped,
        "language-model",
        start_after_steps=0,
        global_batch_sequences=32,
        federated=FederatedSpec(personal=("norm.*",)),
        outer=OuterSpec(kind="adagrad", lr=0.1),
    ),
}
SITES: dict[str, Callable[[], tuple[Any, TrainingSpec]]] = {
    "sites": islands(shipped, "language-model", islands=2, global_batch_sequences=32),
    "sites-late-int8-fragments": islands(
        own,
        perceptron,
        (6,),
        islands=2,
        global_batch_sequences=32,
        every_steps=4,
        fragments=2,
        delay_steps=1,
        movements="int8",
    ),
    "sites-federated": islands(
        own,
        perceptron,
        (6,),
        islands=2,
        start_after_steps=0,
        every_steps=1,
        global_batch_sequences=32,
        federated=FederatedSpec(personal=("4.*",), proximal=0.5),
    ),
    "sites-one": islands(own, perceptron, (6,), islands=1, outer=OuterSpec(momentum=0.5), global_batch_sequences=32),
}
"""Of fewer islands than ranks."""

CASES: dict[str, Callable[[], tuple[Any, TrainingSpec]]] = {
    **{name: partial(shipped, name) for name in SHIPPED},
    **ISLANDS,
    **FEDERATED,
    **SITES,
    "islands-batch-norm": islands(own, Normalised, (3, 8, 8)),
    "bf16": partial(shipped, "language-model", precision="bf16"),
    "fp16": partial(own, perceptron, (6,), precision="fp16", loss_scale=TOO_LARGE, ema=AVERAGED),
    "compressed-bf16": partial(shipped, "language-model", gradient_compression="bf16"),
    "compressed-fp16": partial(shipped, "tabular-classifier", gradient_compression="fp16"),
    "fp16-compressed-fp16": partial(
        shipped,
        "language-model",
        precision="fp16",
        gradient_compression="fp16",
        loss_scale=LossScaleSpec(initial_exponent=11, growth_interval_steps=2),
    ),
    "int8": partial(shipped, "language-model", gradient_compression=INT8),
    "int8-fp16": partial(own, perceptron, (6,), precision="fp16", loss_scale=TOO_LARGE, gradient_compression=INT8),
    "int8-forgetful": partial(
        shipped, "tabular-classifier", gradient_compression=INT8.model_copy(update={"feedback": False})
    ),
    "int4": partial(
        own, perceptron, (6,), gradient_compression=IntegerCompressionSpec(kind="int4", islands=4, block=32)
    ),
    "int8-batch-ramp": partial(own, Normalised, (3, 8, 8), gradient_compression=INT8, **GROWING),
    "int32": partial(own, Sparse, (5,), 50, gradient_compression=IntegerCompressionSpec(kind="int32", islands=8)),
    "batch-norm": partial(own, Normalised, (3, 8, 8), ema=AVERAGED),
    "batch-norm-bf16": partial(own, Normalised, (3, 8, 8), precision="bf16"),
    "batch-ramp": partial(own, Normalised, (3, 8, 8), ema=AVERAGED, optimizer=FOLLOWING, **GROWING),
    "batch-norm-fast": partial(own, Normalised, (3, 8, 8), parallel=ParallelSpec(mode="fast")),
    "batch-norm-sharded": partial(own, Normalised, (3, 8, 8), parallel=ParallelSpec(mode="fast", shard=2)),
    "sparse": partial(own, Sparse, (5,), 50),
    "checkpointed": partial(own, partial(TwiceThroughOneBlock, False), (3,), NUM_CLASSES),
    "reentrant": partial(own, partial(TwiceThroughOneBlock, True), (3,), NUM_CLASSES),
    "remembers": partial(own, Remembers, (6,)),
    "sync-batch-norm": partial(own, lambda: nn.Sequential(nn.Linear(6, 8), nn.SyncBatchNorm(8)), (6,)),
    "half-weights": partial(own, lambda: nn.Linear(6, NUM_CLASSES).half(), (6,)),
    "compiled": partial(own, perceptron, (6,), compile=True),
    "perceptron": partial(own, perceptron, (6,)),
}


SHARDED: dict[str, Callable[..., tuple[Any, TrainingSpec]]] = {
    **{name: partial(shipped, name) for name in SHIPPED},
    **{name: CASES[name] for name in ("bf16", "fp16", "compressed-bf16", "fp16-compressed-fp16", "batch-norm-bf16")},
    "skipping": partial(own, Skipping, (6,), ema=AVERAGED),
    "batch-ramp": partial(shipped, "language-model", **GROWING),
}
"""Cases that are trained in slices too, on as many ranks as there are."""
ALL = ParallelSpec(replicate=1, shard=-1)
FOREACH = OptimizerSpec(gradient_clip=0.5, implementation="foreach")
FROZEN = FOREACH.model_copy(update={"groups": (ParameterGroupSpec(parameters=("fixed.*",), frozen=True),)})
CASES |= {
    **{
        f"{how} {name}": partial(case, optimizer=FROZEN if name == "skipping" else FOREACH, parallel=parallel)
        for name, case in SHARDED.items()
        for how, parallel in (("whole", ParallelSpec()), ("sharded", ALL))
    },
    "sharded by twos": partial(shipped, "language-model", optimizer=FOREACH, parallel=ParallelSpec(shard=2)),
    "sharded scalar": partial(own, Scaled, (6,), optimizer=FOREACH, parallel=ALL),
    "sharded sparse": partial(own, Sparse, (5,), 50, optimizer=FOREACH, parallel=ALL),
}


def batch(recipe: Any, training: TrainingSpec, step: int, replica: int) -> dict[str, Tensor]:
    """Rows of one replica, a function of step and replica alone."""
    draw = torch.Generator().manual_seed(derive(7, "rows", step, replica))
    rows = training.micro_batch_sequences
    whole = partial(torch.randint, generator=draw)
    if isinstance(recipe, Own):
        x = whole(recipe.ids, (rows, *recipe.shape)) if recipe.ids else torch.randn(rows, *recipe.shape, generator=draw)
        return {"x": x, "label": whole(NUM_CLASSES, (rows, 1))}
    name = training.recipe.name
    if name == "language-model":
        return {"tokens": whole(TOKENS.vocab_size, (rows, TOKENS.context_tokens + 1))}
    label = whole(NUM_CLASSES, (rows, 1))
    if name == "image-classifier":
        return {"image": whole(256, (rows, 1, 8, 8)), "label": label}
    ids = torch.cat([whole(size, (rows, 1)) for size in (3, 7)], dim=1)
    return {"numeric": torch.randn(rows, 4, generator=draw), "categorical": ids, "label": label}
