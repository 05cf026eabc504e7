"""What learns: a model with its gradients and optimizer, and all of its state as named tensors."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint.pieces import Piece, State, pieces_of
from headway.training.checkpoint.proof import evaluation_mode
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.gradient_noise import GradientNoise
from headway.training.optimizers.scheduled import ScheduledOptimizer
from headway.training.optimizers.weight_average import WeightAverage
from headway.training.parallel.choose_strategy import choose_strategy
from headway.training.parallel.gradients import clip_factor
from headway.training.parallel.precision import LossScaler
from headway.training.parallel.strategy import Batch, BatchShare
from headway.training.ranks.communication import tree_sum
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.protocol import Recipe

_Own = dict[str, tuple[str, Tensor]]
"""What lies on this rank, by name: the parameter or buffer whose layout it has, and its values."""


class Sums(NamedTuple):
    """Over all replicas of one step, the same on every rank."""

    nats: float
    num_tokens: int
    stop: bool
    save: bool = False
    replica_square: float | None = None
    """The squared norm of the gradient of one replica, of its summed and scaled loss; None: not measured."""
    replica_s: tuple[float, ...] | None = None
    """What one replica took each rank, without its waits for others; None: not measured."""

    @property
    def loss(self) -> float:
        """Mean nats a token."""
        return self.nats / max(1, self.num_tokens)


class Learner:
    """A model in training, from fresh weights.

    Raises:
        ConfigError: the model cannot be trained as the configuration asks.
    """

    def __init__(self, recipe: Recipe, spec: TrainingSpec, process_group: ProcessGroup) -> None:
        self._spec = spec
        self._strategy = choose_strategy(recipe, spec, process_group)
        self.traffic = process_group.traffic
        self.model = self._strategy.model
        # Buffers change in the forward pass; a step that is not taken has to restore them.
        self._buffers = [value for value in model_tensors(self.model).values() if not isinstance(value, nn.Parameter)]
        self._optimizer = ScheduledOptimizer(self._strategy, recipe, spec)
        self._scaler = LossScaler(spec)
        self._average = None if spec.ema is None else WeightAverage(self._strategy.parameters, spec.ema)
        self._noise = GradientNoise(spec.micro_batch_sequences)
        self.times_replicas = False
        """Whether `exchange` says what one replica took each rank, of ranks that each have the whole model."""

    has_converged = False
    """A network is trained for as many steps as it was given."""

    @property
    def share(self) -> BatchShare:
        """Which part of every global batch this rank is to be given."""
        return self._strategy.share

    def backward(self, step: int, micro_batches: Sequence[Batch], num_replicas: int | None = None) -> Tensor:
        """Gradients of this rank's share. Returns nats and tokens of each, float64 (micro-batches, 2).

        Args:
            num_replicas: of the global batch; None: each rank has as many.
        """
        num_replicas = num_replicas or self.share.num_replicas(len(micro_batches))
        self._batch_rows = num_replicas * self._spec.micro_batch_sequences
        self._strategy.clock.take_s()  # evaluations since the last step are none of its own
        self._buffers_before = [(buffer, buffer.clone()) for buffer in self._buffers]
        self._num_replicas = num_replicas
        started_s, stood_still_s = time.perf_counter(), self.traffic.stood_still_s
        rows = self._strategy.backward(step, micro_batches, num_replicas=num_replicas, loss_scale=self._scaler.scale)
        waited_s = self.traffic.stood_still_s - stood_still_s
        self._replica_s = (time.perf_counter() - started_s - waited_s) / len(micro_batches)
        return rows

    def share_by(self, speeds: Sequence[float]) -> None:
        """Let faster ranks have more replicas of the next batches; all ranks call it, between two steps."""
        self._strategy.share_by(tuple(speeds))

    def exchange(self, own: Tensor, *, stop: bool, save: bool = False) -> Sums:
        """Sum gradients and losses over all ranks, in the same tree. What any rank wishes is everybody's wish."""
        # As columns beside the losses: wishes need no collective of their own.
        beside = [stop, save, *([self._replica_s] if self.times_replicas else ())]
        wishes = torch.tensor([beside], dtype=torch.float64).expand(own.shape[0], len(beside))
        squares = self._strategy.replica_squares()
        rows = self._strategy.exchange(torch.cat((own, wishes, *(() if squares is None else (squares,))), dim=1))
        replica_s = None
        if self.times_replicas:
            firsts = self.share.bounds(self._num_replicas)[:-1]
            replica_s, rows = tuple(rows[list(firsts), 4].tolist()), torch.cat((rows[:, :4], rows[:, 5:]), dim=1)
        # In tree order like gradients, so the loss that is shown has the same bits on any number of ranks.
        nats, num_tokens, num_stops, num_saves, *square = tree_sum(rows).tolist()
        return Sums(nats, int(num_tokens), num_stops > 0, num_saves > 0, square[0] if square else None, replica_s)

    def gradient_norm(self, sums: Sums) -> float:
        """Norm of the gradient of the mean loss a token, before clipping."""
        return self._strategy.gradient_norm() / self._divisor(sums)

    def overflowed(self, sums: Sums, gradient_norm: float) -> bool:
        """Whether the gradient overflowed in fp16 alone. The loss scale is halved then, and the step is lost."""
        # Too large a scale leaves the loss finite; one that is not finite either is for the guard.
        return math.isfinite(sums.nats) and not math.isfinite(gradient_norm) and self._scaler.back_off()

    def update(self, step: int, sums: Sums, gradient_norm: float, *, lr_factor: float | None = None) -> float:
        """One optimizer step on the gradient, whose norm is finite. Returns the learning rate.

        Args:
            lr_factor: what peak learning rates are multiplied by; None: the schedule's.
        """
        if sums.replica_square is not None:
            # Without the loss scale, which changes from step to step.
            unscaled = gradient_norm * max(1, sums.num_tokens)
            self._noise.take(sums.replica_square / self._scaler.scale**2, unscaled**2, self._batch_rows)
        factor = clip_factor(gradient_norm, self._spec.optimizer.gradient_clip)
        # Clipping, the mean over tokens and the loss scale are one factor: one pass over the gradients, one rounding.
        self._strategy.scale_gradients(factor / self._divisor(sums))
        self._scaler.succeed()
        # Steps that fp16 skipped moved no moment, so they do not count for bias correction.
        num_updates = step + 1 - self._scaler.num_skipped
        lr = self._optimizer.step(step, num_updates=num_updates, batch_rows=self._batch_rows, factor=lr_factor)
        if self._average is not None:
            self._average.update(num_updates)
        return lr

    def discard(self) -> None:
        """Undo what a step leaves behind that is not taken: in buffers, and for the next exchange of gradients."""
        for buffer, before in self._buffers_before:
            buffer.copy_(before)
        self._strategy.discard()

    @property
    def noise_scale(self) -> float | None:
        """Of the gradient, in rows, over the last steps; None where it is not measured, or not known yet."""
        return self._noise.scale

    def _divisor(self, sums: Sums) -> float:
        return self._scaler.scale * max(1, sums.num_tokens)

    @property
    def num_parameters(self) -> int:
        """Of the whole model, however it lies over the ranks."""
        return self._strategy.num_parameters

    def parts_s(self) -> Mapping[str, float]:
        """Seconds of the step's computation that were `forward`, and `sync`, once it is finished."""
        return self._strategy.clock.take_s()

    def tensors(self) -> State:
        """All tensors of its state that lie on this rank."""
        return {**self.weights(), **self.moments()}

    def weights(self) -> State:
        """Its parameters and persistent buffers, which the model's own code may change any time.

        As `model.<name>`; of an average, the weights that it is of are `trained.<name>`.
        """
        return self._pieces(self._own_weights())

    def moments(self) -> State:
        """The optimizer's state, as `optimizer.<moment>.<name>`, and an average of weights, as `model.<name>`.

        What the next exchange of gradients adds to them is `exchange.<what>.<name>`.

        `update`, `load`, `evaluating` and `proof_loss` alone change it; what `exchange` is of a step that is over, a
        `backward` after the next `update` does.
        """
        return {**self._pieces(self._own_moments()), **self._exchange_state()}

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """In evaluation mode, with the weights that are evaluated, exported and served: of an average, with that."""
        # Once for many passes: a mode is set module by module.
        with evaluation_mode(self.model), self._model_in_place():
            yield

    def begin_from_model(self) -> None:
        """Train on from `model.<name>`, which another run's model was written into."""
        if self._average is not None:
            self._average.begin_training()

    def full_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All state of all ranks, one whole tensor after another, sorted by name; all ranks take all of them."""
        return self._strategy.full_tensors(self.tensors())

    def scalars(self) -> dict[str, float]:
        """The rest of its state but the step."""
        return {**self._scaler.scalars(), **self._noise.scalars()}

    def load(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float | int | str]) -> None:
        """Take over state laid out as `tensors()` is, and what `scalars()` gave.

        Raises:
            IntegrityError: a tensor or a scalar is missing, or a tensor has another shape.
        """
        self._scaler.load(scalars)
        self._noise.load(scalars)
        own = {name: piece.local for name, piece in pieces_of(self.tensors()).items()}
        for name in sorted(own.keys() | tensors.keys()):
            if name not in own or name not in tensors or own[name].shape != tensors[name].shape:
                raise IntegrityError(f"tensor {name} does not fit the configuration.", where="checkpoint")
        # Checked as a whole first: a model that is half loaded would train on.
        for name, value in own.items():
            value.copy_(tensors[name])

    def proof_loss(self, batch: Batch) -> float:
        """Mean loss a token in nats, of the model that is evaluated, in evaluation mode; all ranks call it."""
        with self._model_in_place():
            return self._strategy.proof_loss(batch)

    def measures(self, batch: Batch) -> Mapping[str, Tensor]:
        """The recipe's, of rows that each rank may have others of; all ranks call it, within `evaluating`."""
        return self._strategy.measures(batch)

    def _exchange_state(self) -> dict[str, Piece]:
        return {f"exchange.{name}": piece for name, piece in self._strategy.exchange_state().items()}

    def _own_weights(self) -> _Own:
        # Parameters of the strategy win: where the model is sharded they are this rank's slices.
        weights = model_tensors(self.model) | dict(self._strategy.parameters)
        averaged = self._averages().keys()
        # Whoever reads `model.` alone, to evaluate, export or fine-tune, has the model.
        return {
            f"{'trained' if name in averaged else 'model'}.{name}": (name, value.detach())
            for name, value in weights.items()
        }

    def _own_moments(self) -> _Own:
        moments = self._optimizer.tensors()
        own = {f"optimizer.{name}": (name.partition(".")[2], value) for name, value in moments.items()}
        return own | {f"model.{name}": (name, value) for name, value in self._averages().items()}

    def _model_in_place(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._average is None else self._average.in_place()

    def _averages(self) -> Mapping[str, Tensor]:
        return {} if self._average is None else self._average.values

    def _pieces(self, own: _Own) -> State:
        return {name: self._strategy.piece(like, value) for name, (like, value) in own.items()}


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, each once even if tied, and persistent buffers."""
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    persistent = model.state_dict(keep_vars=True)
    return parameters | {name: value for name, value in model.named_buffers() if name in persistent}


def load_model_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `model.<name>` tensors into a model.

    Raises:
        IntegrityError: one is missing, has another shape, or has no place in the model.
    """
    own = model_tensors(model)
    given = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    for name in sorted(own.keys() | given.keys()):
        if name not in own or name not in given or own[name].shape != given[name].shape:
            raise IntegrityError(f"tensor model.{name} does not fit the recipe's model.", where="checkpoint")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(given[name])
