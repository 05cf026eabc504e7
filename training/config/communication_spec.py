"""What travels between ranks, and how often: gradients as whole numbers, and islands that train apart from each other.

Costs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.training.config.parallel import is_power_of_two

LARGEST_SUM = {"int4": 7, "int8": 127, "int32": 1 << 24}
"""Of all islands: of `int4`, so that two numbers fit into a byte; beyond 2^24 fp32 does not hold every whole number."""
MAX_ISLANDS = 64
OUTER_MOMENTUM, OUTER_SQUARE = "outer_momentum", "outer_square"
"""The outer update's moments in checkpoints: `optimizer.outer_momentum.<name>`."""


class IntegerCompressionSpec(Frozen):
    """Each island rounds its gradient to whole numbers under a scale that all share, and sums them.

    Whole numbers add up to the same sum in any order, and so on any number of ranks.
    """

    kind: Literal["int4", "int8", "int32"] = Field(
        description="`int4`: an eighth of the bytes of fp32, with 4 islands three values. `int8`: a quarter. `int32`: "
        "as many, and next to no rounding."
    )
    islands: int = Field(
        default=4,
        strict=True,
        description="Equal parts of the global batch that are each rounded once, a power of two. As many ranks at most "
        "can share a batch. The fewer, the finer they are rounded: int8 to 127 / islands levels.",
    )
    feedback: bool = Field(
        default=True,
        description="Each island adds what rounding took off to its next gradient. Its state: a gradient an island.",
    )
    block: int = Field(
        default=256, strict=True, description="Elements that share a scale, a power of two from 32 to 65,536."
    )

    @model_validator(mode="after")
    def _are_powers_of_two(self) -> Self:
        _require_islands(self.islands)
        if not self.levels:
            most = 1 << LARGEST_SUM[self.kind].bit_length() - 1
            raise ValueError(f"{self.kind} has room for {most} islands at most, given {self.islands}")
        if not is_power_of_two(self.block) or not 32 <= self.block <= 65_536:
            raise ValueError(f"block: {self.block} is no power of two from 32 to 65,536")
        return self

    @property
    def levels(self) -> int:
        """The largest number that an island may say, so that the sum of all fits."""
        return LARGEST_SUM[self.kind] // self.islands

    @property
    def numbers_a_word(self) -> int:
        """How many travel in one."""
        return 2 if self.kind == "int4" else 1

    def elements_together(self, num_ranks: int) -> int:
        """Of how many a bucket is made up, so that blocks are whole and ranks can each add up an equal part."""
        return math.lcm(self.block, self.numbers_a_word * num_ranks)


class OuterSpec(Frozen):
    """How the mean movement of the islands moves the weights that they share."""

    kind: Literal["sgd", "adagrad", "adam", "yogi"] = Field(
        default="sgd",
        description="`sgd`: the mean movement itself. The others divide it by the root of its own squares, weight by "
        "weight (FedOpt, Reddi et al., 2021).",
    )
    lr: float = Field(default=1.0, gt=0, le=10, description="What the mean movement is multiplied by; 1: the average.")
    momentum: float = Field(
        default=0.0, ge=0, lt=1, description="What the movement keeps of the ones before; 0: none, and no state."
    )
    nesterov: bool = Field(default=False, description="Nesterov's momentum.")
    square_decay: float = Field(
        default=0.99, ge=0, lt=1, description="What squares keep of the ones before; of adam and yogi."
    )
    epsilon: float = Field(
        default=1e-3, gt=0, le=1, description="Added to the root of the squares, which begin as its own square."
    )

    @model_validator(mode="after")
    def _fit_each_other(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum")
        if self.nesterov and self.is_adaptive:
            raise ValueError(f"nesterov is of `kind: sgd`, given {self.kind}")
        for name in ("square_decay", "epsilon"):
            takes = self.is_adaptive and (name == "epsilon" or self.kind != "adagrad")
            if not takes and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} does nothing with `kind: {self.kind}`")
        return self

    @model_serializer(mode="wrap")
    def _without_what_does_nothing(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Runs of `kind: sgd` keep the keys that they had when there was no other."""
        fields: dict[str, Any] = written(self)
        if self.is_adaptive:
            return fields
        return {name: value for name, value in fields.items() if name not in ("kind", "square_decay", "epsilon")}

    def __str__(self) -> str:
        """For a person."""
        momentum = f", {'Nesterov ' if self.nesterov else ''}momentum {self.momentum:g}" if self.momentum else ""
        if not self.is_adaptive:
            return ("averaged" if self.lr == 1 and not momentum else f"outer lr {self.lr:g}") + momentum
        return f"outer {self.kind}, lr {self.lr:g}{momentum}"

    @property
    def is_adaptive(self) -> bool:
        """Whether it keeps squares of movements."""
        return self.kind != "sgd"

    @property
    def num_moments(self) -> int:
        """How many tensors it keeps of each weight."""
        return (self.momentum > 0) + self.is_adaptive


class FederatedSpec(Frozen):
    """Islands are clients, drawn anew for each round, that train on rows of their own alone.

    A client is a group of the shards. FedAvg (McMahan et al., 2017), FedProx (Li et al., 2020), FedOpt by the outer
    update (Reddi et al., 2021), FedPer by personal weights (Arivazhagan et al., 2019).
    """

    weight_by: Literal["rows", "equal"] = Field(
        default="rows", description="What a client's movement counts by in the mean: its training rows, or equally."
    )
    proximal: float = Field(
        default=0.0,
        ge=0,
        le=1e3,
        description="Pulls a client's weights to the shared ones: adds half of it times their squared distance to the "
        "loss (FedProx).",
    )
    personal: tuple[str, ...] = Field(
        default=(),
        description="Patterns of weights that never leave their client, such as `head.*`. The model that is evaluated "
        "and registered has their mean over clients.",
    )
    quorum: int = Field(
        default=1, gt=0, strict=True, description="Answers that a round needs. With fewer it is void: no weight moves."
    )
    lost_fraction: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of answers, drawn by hash, that get lost or come when their round is over.",
    )

    def __str__(self) -> str:
        """For a person."""
        proximal = f", proximal {self.proximal:g}" if self.proximal else ""
        personal = f", {', '.join(self.personal)} personal" if self.personal else ""
        lost = f", {self.lost_fraction:.0%} of answers lost" if self.lost_fraction else ""
        return f"movements weighted {'by rows' if self.weight_by == 'rows' else 'equally'}{proximal}{personal}{lost}"


class SyncSpec(Frozen):
    """Islands of the global batch that train apart for some steps, each on weights and moments of its own.

    Then their movements are averaged, and an outer update moves the weights that all go on from: local SGD (Stich,
    2019), DiLoCo (Douillard et al., 2023), fragment by fragment Streaming DiLoCo (Douillard et al., 2025).
    """

    every_steps: int = Field(gt=0, strict=True, description="Steps that islands train apart before they meet.")
    islands: int = Field(
        default=4,
        strict=True,
        description="Equal parts of the global batch that train apart, a power of two. "
        "Of more ranks, as many share each.",
    )
    start_after_steps: int = Field(
        default=0, ge=0, strict=True, description="Steps at first in which gradients are summed as usual (post-local)."
    )
    outer: OuterSpec = Field(OuterSpec(), description="How the mean movement moves the weights that islands share.")
    movements: Literal["fp32", "int8", "int4"] = Field(
        default="fp32",
        description="What movements travel in. `int8`: a quarter of the bytes, `int4`: an eighth; what rounding took "
        "off is added to an island's next movement.",
    )
    fragments: int = Field(
        default=1,
        gt=0,
        le=MAX_ISLANDS,
        strict=True,
        description="Parts of the weights that meet in turn, one every `every_steps / fragments` steps.",
    )
    delay_steps: int = Field(
        default=0,
        ge=0,
        strict=True,
        description="Steps of the next round that movements may take to arrive; islands train on meanwhile.",
    )
    federated: FederatedSpec | None = Field(
        default=None,
        exclude_if=lambda federated: federated is None,
        description="Islands are clients with rows of their own, and this many of all clients are drawn for a round.",
    )

    @model_validator(mode="after")
    def _fit_each_other(self) -> Self:
        _require_islands(self.islands)
        if self.movements != "fp32":
            IntegerCompressionSpec(kind=self.movements, islands=self.islands)  # refuses more than there is room for
        if self.every_steps % self.fragments:
            raise ValueError(f"every_steps {self.every_steps} is no multiple of fragments {self.fragments}")
        if self.delay_steps >= self.period_steps:
            raise ValueError(
                f"delay_steps {self.delay_steps}: movements have to arrive before the next ones leave, which is after "
                f"{self.period_steps} steps (every_steps / fragments)"
            )
        return self

    @model_validator(mode="after")
    def _clients_have_whole_rounds(self) -> Self:
        if self.federated is None:
            return self
        for name in ("start_after_steps", "movements", "fragments", "delay_steps"):
            if getattr(self, name) != (default := type(self).model_fields[name].default):
                raise ValueError(f"federated: a client's answer is whole and of its round; leave {name} at {default}")
        if self.federated.quorum > self.islands:
            raise ValueError(
                f"federated.quorum: {self.islands} clients (islands) are drawn a round, and never are "
                f"{self.federated.quorum} answers there"
            )
        return self

    @property
    def period_steps(self) -> int:
        """From one meeting to the next."""
        return self.every_steps // self.fragments

    @property
    def integers(self) -> IntegerCompressionSpec | None:
        """How movements travel as whole numbers; None where they do not."""
        if self.movements == "fp32":
            return None
        # Of a rank that is measured alone they may be any number, which was checked as a part of all.
        return IntegerCompressionSpec(kind=self.movements).model_copy(update={"islands": self.islands})

    @property
    def keeps_weights_apart(self) -> bool:
        """Whether islands go into a round with weights that are not the shared ones."""
        return self.fragments > 1 or self.delay_steps > 0

    def is_apart(self, step: int) -> bool:
        """Whether islands train apart in a step, counted from 0."""
        return step >= self.start_after_steps

    def round_end(self, step: int, max_steps: int, is_due: Callable[[int], bool]) -> int:
        """How many steps are done when ranks meet next, of which so many are.

        Args:
            is_due: whether so many steps are followed by a validation, which all ranks begin at once.
        """
        next_period = (step - self.start_after_steps) // self.period_steps + 1
        end = min(max_steps, self.start_after_steps + next_period * self.period_steps)
        return first_due(step, end, is_due)

    def leaving(self, done: int, max_steps: int) -> range:
        """Which fragments are exchanged once so many steps are done, which ended a round."""
        if done == max_steps or not self.keeps_weights_apart:
            return range(self.fragments)
        period, rest = divmod(done - self.start_after_steps, self.period_steps)
        return range(0) if rest else range((period - 1) % self.fragments, (period - 1) % self.fragments + 1)

    def on_their_way(self, done: int, max_steps: int) -> range:
        """Fragments that have left and not arrived when so many steps are done, after what arrives then."""
        since = (done - self.start_after_steps) % self.period_steps
        left = done - since
        if done >= max_steps or left <= self.start_after_steps or since >= self.delay_steps:
            return range(0)
        return self.leaving(left, max_steps)

    def __str__(self) -> str:
        """For a person."""
        outer = self.outer
        if self.federated is not None:
            return f"{self.islands} clients a round of {self.every_steps:,} steps; {self.federated}, {outer}"
        start = f" after {self.start_after_steps:,} steps" if self.start_after_steps else ""
        parts = f", in {self.fragments} fragments" if self.fragments > 1 else ""
        late = f", {self.delay_steps} steps late" if self.delay_steps else ""
        return (
            f"{self.islands} islands train apart{start} and meet every {self.every_steps:,} steps{parts}{late}; "
            f"movements {self.movements}, {outer}"
        )


class AsynchronousSpec(Frozen):
    """Ranks do not wait for each other: each takes weights and a batch, and hands in its gradient when it has one.

    Mode `fast` alone: who comes first decides the bits. A parameter server over all ranks with bounded staleness (Ho et
    al., 2013) and learning rates that fall with it (Zhang et al., 2016).
    """

    staleness: int = Field(
        default=8,
        ge=0,
        le=1024,
        strict=True,
        description="Updates at most between taking weights and handing in their gradient; 0: one rank at a time.",
    )
    lr_by_staleness: bool = Field(default=True, description="Divide a gradient's learning rate by 1 + its staleness.")
    meet_every_steps: int = Field(
        default=50,
        gt=0,
        strict=True,
        description="Updates after which ranks meet: losses are looked at, stops and checkpoints happen there.",
    )

    def __str__(self) -> str:
        """For a person."""
        lr = ", lr / (1 + staleness)" if self.lr_by_staleness else ""
        return (
            f"asynchronous, staleness {self.staleness} at most{lr}; ranks meet every {self.meet_every_steps:,} updates"
        )


def first_due(step: int, end: int, is_due: Callable[[int], bool]) -> int:
    """How many steps are done when the first validation behind `step` is due, `end` at most."""
    return next((done for done in range(step + 1, end) if is_due(done)), end)


def _require_islands(islands: int) -> None:
    if not is_power_of_two(islands) or islands > MAX_ISLANDS:
        raise ValueError(f"islands: {islands} is no power of two from 1 to {MAX_ISLANDS}")
