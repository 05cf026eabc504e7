"""From the sample order to the batches of a rank's replicas, made ahead of the step that needs them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.training.config.batch_ramp import BatchPhase, BatchPhases
from headway.training.config.loader_spec import LoaderSpec
from headway.training.config.seeds import derive
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.load.device_copy import DeviceCopy, PendingCopy, as_if_alone, to_tensors
from headway.training.data.load.prefetch import Prefetcher
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.order.block_gather import BlockGather
from headway.training.data.order.client_order import ClientOrder, ClientRounds, Clients
from headway.training.data.order.exact_order import SampleOrder
from headway.training.data.order.mixing import sample_order
from headway.training.parallel.strategy import BatchShare

PROOF_SEQUENCES = 4
"""At most: no more than a micro-batch, which is what a rank's memory is known to hold."""
StepBatches = list[dict[str, Tensor]]
"""What a rank trains on in one step: a batch for each of its replicas."""


def training_order(spec: TrainingSpec, reader: ShardReader) -> SampleOrder:
    seed = derive(spec.seed, "order")
    if spec.federated is None:
        return sample_order(spec.order, reader, seed=seed)
    return ClientOrder(client_rounds(spec, reader), batch_rows=spec.global_batch_sequences, seed=seed)


def client_rounds(spec: TrainingSpec, reader: ShardReader | None = None) -> ClientRounds:
    """Whom each round draws.

    Args:
        reader: of whose rows; by default nobody's, where a learner is only tried out.
    """
    assert spec.sync is not None, "islands are clients"
    num_drawn = spec.sync.islands
    clients = Clients.alike(num_drawn) if reader is None else Clients.of(reader.datasets[0].group_rows, spec.sync)
    return ClientRounds(clients, spec.sync, seed=derive(spec.seed, "clients"))


def step_rows(
    spec: TrainingSpec, reader: ShardReader, window: int, phases: BatchPhases | None = None
) -> NDArray[np.int64]:
    """Rows of the global batch of a window, counted from 0, shape (replicas, micro batch). No worker has a say in it.

    Args:
        phases: sizes of batches, where more is known of them than the configuration says.
    """
    phases = phases or spec.batch_phases
    rows = training_order(spec, reader).rows(np.arange(phases.row(window), phases.row(window + 1)))
    return rows.reshape(-1, spec.micro_batch_sequences)


def proof_batch(reader: ShardReader, spec: TrainingSpec, device: torch.device) -> dict[str, Tensor]:
    """The first rows of the sample order, the same for every checkpoint of a run with this micro-batch."""
    num_rows = min(PROOF_SEQUENCES, spec.micro_batch_sequences)
    return to_tensors(reader.gather(step_rows(spec, reader, 0).reshape(-1)[:num_rows]), device)


class RankBatches:
    """The batches of one rank's replicas, for any window of one size: a pure function of the window.

    Args:
        phase: of which windows; by default all, and as large as the largest.
    """

    def __init__(
        self,
        reader: ShardReader,
        spec: TrainingSpec,
        *,
        share: BatchShare,
        device: torch.device,
        phase: BatchPhase | None = None,
    ) -> None:
        first_window, first_row, num_rows = phase or BatchPhase(0, 0, spec.global_batch_sequences)
        num_replicas, self._micro_batch = num_rows // spec.micro_batch_sequences, spec.micro_batch_sequences
        replicas = share.replicas(num_replicas)
        self._num_replicas, self.first_window = len(replicas), first_window
        # Numbers of rows within a global batch, cut by replica; a rank takes those of its own replicas.
        rows = np.arange(num_rows).reshape(num_replicas, self._micro_batch)
        self._blocks = BlockGather(
            reader,
            training_order(spec, reader),
            batch_rows=num_rows,
            first_row=first_row,
            share=rows[replicas].reshape(-1),
        )
        self._copy = DeviceCopy(device)
        self.steps_per_block = self._blocks.batches_per_block

    def __call__(self, window: int) -> StepBatches:
        columns = self._blocks.gather(window - self.first_window, 1, pinned=self._copy.wants_pinned)
        return next(self.steps(self._copy.send(columns), 1))

    def block(self, number: int) -> PendingCopy:
        """So many windows as `steps_per_block` says, one after another; block 0 begins with the phase."""
        return self._copy.send(self._blocks.block(number, pinned=self._copy.wants_pinned))

    def steps(self, arrival: PendingCopy, num_steps: int) -> Iterator[StepBatches]:
        """A block, cut into the steps it holds."""
        columns = {
            name: values.view(num_steps, self._num_replicas, self._micro_batch, *values.shape[1:])
            for name, values in arrival.take().items()
        }
        for step in range(num_steps):
            yield [
                {name: as_if_alone(values[step, replica]) for name, values in columns.items()}
                for replica in range(self._num_replicas)
            ]


@contextlib.contextmanager
def prefetched(batches: RankBatches, loader: LoaderSpec, *, start: int, stop: int) -> Iterator[Iterator[StepBatches]]:
    """The batches of windows [start, stop), made ahead in threads that end with the block."""
    size, begin = batches.steps_per_block, batches.first_window
    start, stop = start - begin, stop - begin

    def steps(blocks: Iterator[PendingCopy]) -> Iterator[StepBatches]:
        # Blocks begin at multiples of their size, so the first may hold steps that are done already.
        for number, block in enumerate(blocks, start // size):
            for step, made in enumerate(batches.steps(block, size), number * size):
                if start <= step < stop:
                    yield made

    with Prefetcher(
        batches.block,
        size_bytes=lambda block: block.size_bytes,
        max_bytes=loader.prefetch_bytes,
        start=start // size,
        # Rounded up: the last block may reach beyond the last step.
        stop=-(-stop // size),
        num_threads=loader.prefetch_threads,
    ) as blocks:
        yield steps(blocks)


@contextlib.contextmanager
def prefetched_by_phase(
    windows: range,
    phases: Callable[[], BatchPhases],
    batches_of: Callable[[BatchPhase], RankBatches],
    loader: LoaderSpec,
    share: Callable[[], BatchShare],
    on_growth: Callable[[int, BatchPhase, BatchPhase], None],
) -> Iterator[Iterator[StepBatches]]:
    """The batches of some windows, made ahead phase by phase, each in its own size.

    Args:
        phases: as they are known; asked at each window, since a batch may grow by what the one before came to.
        share: asked likewise, since ranks may have other parts of it from then on.
        on_growth: told of the first window of each phase but the first, and of both phases.
    """

    def made() -> Generator[StepBatches]:
        window = windows.start
        # A run that was cut between two sizes has told nobody of the second.
        before = phases().at(max(0, window - 1))
        while window < windows.stop:
            known = phases()
            phase = known.at(window)
            if phase != before:
                on_growth(window, before, phase)
            of_rank = share()
            stop = windows.stop if (end := known.end_of(phase)) is None else min(end, windows.stop)
            with prefetched(batches_of(phase), loader, start=window, stop=stop) as batches:
                for each in batches:
                    yield each
                    window += 1
                    # Changed by the step that this was: what is on its way is of the wrong size.
                    if phases().at(window) != phase or share() != of_rank:
                        break
            before = phase

    with contextlib.closing(made()) as batches:
        yield batches
