"""A parameter server over the ranks of a gang: each serves some of the weights, and works on all of them.

Rank 0 decides the order in which workers take weights and hand in gradients; every server follows it, so that the
weights a worker takes are of one moment. Messages are torch's own, from one rank to another, of tensors alone.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from headway.training.observe.traffic import size_bytes
from headway.training.ranks.arrival_order import Arrival, ArrivalOrder, Grant
from headway.training.ranks.distributed import ProcessGroup

REQUEST, REPLY, EVENT, WEIGHTS, GRADIENT = range(1, 6)
"""Tags: each kind of message has an order of its own between two ranks."""
NUM_FIGURES = 3
"""A worker hands in beside a gradient, of its own choice."""


class WeightsTaken(NamedTuple):
    work: int
    version: int


Apply = Callable[[int, int, Sequence[Tensor]], None]
"""Called with the number of an update, how stale it is, and the gradients of the weights that this rank serves."""


class ParameterServer:
    """One round of updates. All ranks make one at once.

    Args:
        weights: of each rank, those that it serves, in one order everywhere, as this rank's worker uses them.
        own: the ones that this rank serves, which `apply` moves.
        order: rank 0's counts.
        apply: called in a thread of its own, one update after another.
    """

    def __init__(
        self,
        process_group: ProcessGroup,
        links: dist.ProcessGroup | None,
        weights: Sequence[Sequence[Tensor]],
        own: Sequence[Tensor],
        order: ArrivalOrder,
        apply: Apply,
    ) -> None:
        self._rank, self._num_ranks = process_group.rank, process_group.world_size
        self._traffic, self._links = process_group.traffic, links
        self._used, self._own, self._apply = weights, own, apply
        self._order, self._lock = order, threading.Lock()
        self._figures: dict[int, tuple[int, tuple[float, ...]]] = {}
        """Of each worker, what it hands in, until it may."""
        self.arrivals: list[tuple[Arrival, tuple[float, ...]]] = []
        """Of rank 0, all, with their figures; of others none."""
        self._events: queue.SimpleQueue[Grant] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Grant] = queue.SimpleQueue()
        self._weights: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        self._gradients: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
        self._sends: list[tuple[dist.Work, Tensor]] = []
        """Under way: nobody waits for a worker that has not come to take what it was granted."""
        self._num_done = self._num_others_done = 0
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._guarded, args=(self._serve,), name="serve", daemon=True)]
        if self._rank == 0 and self._num_ranks > 1:
            self._threads.append(
                threading.Thread(target=self._guarded, args=(self._decide,), name="decide", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    # The worker's side.

    def take(self) -> WeightsTaken | None:
        """Let the worker's weights be those of one moment; None: there is no work left."""
        with self._traffic.paused():
            grant = self._ask(torch.tensor([1.0, *([0.0] * (NUM_FIGURES + 1))], dtype=torch.float64))
            if grant.number < 0:
                return None
            for rank, values in enumerate(self._used):
                flat = self._weights.get() if rank == self._rank else self._received(values, rank, WEIGHTS)
                _spread(flat, values)
        return WeightsTaken(grant.number, grant.version)

    def hand_in(self, work: int, gradients: Sequence[Sequence[Tensor]], figures: Sequence[float]) -> None:
        """Let a gradient be the next update, once it may.

        Args:
            gradients: of each rank, as `weights` has them.
        """
        with self._traffic.paused():
            self._ask(torch.tensor([0.0, work, *figures], dtype=torch.float64))
            for rank, values in enumerate(gradients):
                flat = _flat(values)
                if rank == self._rank:
                    self._gradients.put(flat)
                elif len(flat):
                    self._traffic.sent(size_bytes(flat))
                    dist.send(flat, group=self._links, group_dst=rank, tag=GRADIENT)

    def finish(self) -> None:
        """Return when all updates are made. Raises what went wrong in a thread."""
        with self._traffic.paused():
            for thread in self._threads:
                thread.join()
            for work, _ in self._sends:
                work.wait()
        if self._error is not None:
            raise self._error

    def _ask(self, request: Tensor) -> Grant:
        if self._rank == 0:
            self._requested(0, request.tolist())
            return self._replies.get()
        dist.send(request, group=self._links, group_dst=0, tag=REQUEST)
        return self._grant_from(0, REPLY)

    def _grant_from(self, rank: int, tag: int) -> Grant:
        numbers = torch.zeros(4, dtype=torch.int64)
        dist.recv(numbers, group=self._links, group_src=rank, tag=tag)
        worker, takes_weights, number, version = numbers.tolist()
        return Grant(worker, bool(takes_weights), number, version)

    def _received(self, values: Sequence[Tensor], rank: int, tag: int) -> Tensor:
        flat = torch.empty(sum(value.numel() for value in values), dtype=torch.float32)
        if len(flat):
            dist.recv(flat, group=self._links, group_src=rank, tag=tag)
        return flat

    # Rank 0's decisions.

    def _decide(self) -> None:
        request = torch.zeros(NUM_FIGURES + 2, dtype=torch.float64)
        # One more request than pieces of work from each worker, and this rank's own come another way.
        while self._num_others_done < self._num_ranks - 1:
            worker = dist.recv(request, group=self._links, tag=REQUEST)
            self._requested(worker, request.tolist())

    def _requested(self, worker: int, request: Sequence[float]) -> None:
        takes_weights, work, *figures = request
        with self._lock:  # of this rank's own worker, and of the others'
            if not takes_weights:
                self._figures[worker] = int(work), tuple(figures)
            for grant in self._order.ask(worker, takes_weights=bool(takes_weights)):
                self._emit(grant)

    def _emit(self, grant: Grant) -> None:
        """Servers first: they follow in this order."""
        if not grant.takes_weights:
            work, figures = self._figures.pop(grant.worker)
            self.arrivals.append((Arrival(work, grant.version, grant.worker), figures))
        if grant.number >= 0:
            self._notify_servers(grant)
        if grant.worker == 0:
            self._replies.put(grant)
        else:
            self._send(torch.tensor(grant), grant.worker, REPLY)
        if grant.number < 0:
            self._num_done += 1
            self._num_others_done += grant.worker != 0
            # A worker asks for more when its last gradient is handed in: all of them are.
            if self._num_done == self._num_ranks:
                self._notify_servers(grant)

    def _notify_servers(self, event: Grant) -> None:
        self._events.put(event)
        for rank in range(1, self._num_ranks):
            self._send(torch.tensor(event), rank, EVENT)

    def _send(self, values: Tensor, rank: int, tag: int) -> None:
        if len(values):
            work = dist.isend(values, group=self._links, group_dst=rank, tag=tag)
            assert work is not None, "this process takes part in the group"
            self._sends.append((work, values))

    # The server's side.

    def _serve(self) -> None:
        while (event := self._next_event()).number >= 0:
            if not event.takes_weights:
                is_own = event.worker == self._rank
                flat = self._gradients.get() if is_own else self._received(self._own, event.worker, GRADIENT)
                sizes = [value.numel() for value in self._own]
                parts = [part.view_as(value) for part, value in zip(torch.split(flat, sizes), self._own, strict=True)]
                self._apply(event.number, event.number - event.version, parts)
                continue
            flat = _flat(self._own)
            if event.worker == self._rank:
                self._weights.put(flat)
            else:
                self._send(flat, event.worker, WEIGHTS)

    def _next_event(self) -> Grant:
        return self._events.get() if self._rank == 0 else self._grant_from(0, EVENT)

    def _guarded(self, run: Callable[[], Any]) -> None:
        try:
            run()
        except BaseException as error:  # told by `finish`, in the thread that can
            self._error = error


def _flat(values: Sequence[Tensor]) -> Tensor:
    """A copy, in fp32 on the CPU."""
    parts = [value.detach().reshape(-1).float().cpu() for value in values]
    return torch.cat(parts) if parts else torch.zeros(0)


def _spread(flat: Tensor, values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for part, value in zip(torch.split(flat, [value.numel() for value in values]), values, strict=True):
            value.copy_(part.view_as(value))


def shared_out(sizes: Mapping[str, int], num_ranks: int) -> list[list[str]]:
    """Which weights each rank serves: whole ones, the largest first to whoever has least."""
    shares: list[list[str]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = loads.index(min(loads))
        shares[rank].append(name)
        loads[rank] += sizes[name]
    return [sorted(share) for share in shares]
