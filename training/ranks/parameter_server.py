"""A parameter server over the ranks of a gang: each serves some of the weights, and works on all of them.

Rank 0 decides the order in which workers take weights and hand in gradients; every server follows it, so that the
weights a worker takes are of one moment. Messages are torch's own, from one rank to another, of tensors alone.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from headway.training.observe.traffic import size_bytes
from headway.training.ranks.arrival_order import Arrival, ArrivalOrder, Grant
from headway.training.ranks.distributed import ProcessGroup, collective_timeout

REQUEST, REPLY, EVENT, WEIGHTS, GRADIENT, NEVER = range(1, 7)
"""Tags: each kind of message has an order of its own between two ranks."""
TAKES, HANDS_IN, LEAVES = 1.0, 0.0, -1.0
"""What a worker asks for."""
MAX_EVENTS = 1024
"""On their way to one rank: what it has not taken is kept."""
_CLOSED_HERE = "caused pair closure"
"""What gloo says where a wait elsewhere in this process was given up."""
BREAK_S = 10.0
"""How long a thread that was woken may take to end."""
NUM_FIGURES = 3
"""A worker hands in beside a gradient, of its own choice."""


class WeightsTaken(NamedTuple):
    work: int
    version: int


Apply = Callable[[int, int, Sequence[Tensor]], None]
"""Called with the number of an update, how stale it is, and the gradients of the weights that this rank serves."""


T = TypeVar("T")


class ParameterServer:
    """One round of updates, within `with`. All ranks make one at once.

    What goes wrong in a thread, or within `with`, ends all of them here, and breaks the links: no rank waits for this
    one until a timeout.

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
        # None: something went wrong.
        self._events: queue.SimpleQueue[Grant | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Grant | None] = queue.SimpleQueue()
        self._weights: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()
        self._gradients: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sends: dict[tuple[int, int], deque[tuple[dist.Work, Tensor]]] = {}
        """Under way, by rank and tag: nobody waits for a worker that has not come to take what it was granted."""
        self._silent_since_s: dict[int, float] = {}
        """When rank 0 began to wait for what each worker asks for next; not of those that have left."""
        self._num_done = 0
        self._failing = threading.Lock()
        self._error: BaseException | None = None
        runs: list[tuple[str, Callable[[], None]]] = [("serve", self._serve)]
        if self._rank == 0:
            # One for each: a message from anybody would not be given up when a rank dies.
            others = range(1, self._num_ranks)
            runs += [(f"attend-{worker}", partial(self._attend, worker)) for worker in others]
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True) for name, run in runs
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Return when all updates are made. Raises what went wrong first."""
        with self._traffic.paused():
            if error is not None:
                self._fail(error)
            # Not by `join`, whose frames do not show that a rank waits for its peers.
            with contextlib.suppress(queue.Empty):
                for _ in self._threads:
                    self._ended.get(timeout=None if error is None else BREAK_S)
            if self._error is None:
                self._end_sends()
        if self._error is not None and self._error is not error:
            raise self._error

    # The worker's side.

    def take(self) -> WeightsTaken | None:
        """Let the worker's weights be those of one moment; None: there is no work left."""
        with self._traffic.paused():
            grant = self._ask(_request(TAKES))
            if grant.number < 0:
                if self._rank != 0:
                    self._send_now(_request(LEAVES), 0, REQUEST)
                return None
            for rank, values in enumerate(self._used):
                is_own = rank == self._rank
                flat = self._next_of(self._weights) if is_own else self._received(values, rank, WEIGHTS)
                if not is_own and len(flat):
                    # Here and not where they are sent, which another thread does: as much on the average.
                    self._traffic.sent(size_bytes(flat))
                _spread(flat, values)
        return WeightsTaken(grant.number, grant.version)

    def hand_in(self, work: int, gradients: Sequence[Sequence[Tensor]], figures: Sequence[float]) -> None:
        """Let a gradient be the next update, once it may.

        Args:
            gradients: of each rank, as `weights` has them.
        """
        with self._traffic.paused():
            self._ask(_request(HANDS_IN, work, *figures))
            for rank, values in enumerate(gradients):
                flat = _flat(values)
                if rank == self._rank:
                    self._gradients.put(flat)
                elif len(flat):
                    self._traffic.sent(size_bytes(flat))
                    self._send_now(flat, rank, GRADIENT)

    def _end_sends(self) -> None:
        for (rank, _), under_way in self._sends.items():
            for work, _ in under_way:
                with _link_to(rank):
                    work.wait()

    def _ask(self, request: Tensor) -> Grant:
        if self._rank == 0:
            self._requested(0, request.tolist())
            return self._next_of(self._replies)
        self._send_now(request, 0, REQUEST)
        return self._grant_from(0, REPLY)

    def _grant_from(self, rank: int, tag: int) -> Grant:
        numbers = torch.zeros(4, dtype=torch.int64)
        self._receive(numbers, rank, tag)
        worker, takes_weights, number, version = numbers.tolist()
        return Grant(worker, bool(takes_weights), number, version)

    def _received(self, values: Sequence[Tensor], rank: int, tag: int) -> Tensor:
        flat = torch.empty(sum(value.numel() for value in values), dtype=torch.float32)
        if len(flat):
            self._receive(flat, rank, tag)
        return flat

    def _receive(self, values: Tensor, rank: int, tag: int) -> None:
        with _link_to(rank):
            dist.recv(values, group=self._links, group_src=rank, tag=tag)

    def _send_now(self, values: Tensor, rank: int, tag: int) -> None:
        with _link_to(rank):
            dist.send(values, group=self._links, group_dst=rank, tag=tag)

    def _next_of(self, values: queue.SimpleQueue[T | None]) -> T:
        if (value := values.get()) is None:
            assert self._error is not None, "else nobody wakes this thread"
            raise self._error
        return value

    # Rank 0's decisions.

    def _attend(self, worker: int) -> None:
        """To what another rank's worker asks for, until it leaves."""
        request = _request(TAKES)
        while True:
            self._silent_since_s[worker] = time.monotonic()
            try:
                dist.recv(request, group=self._links, group_src=worker, tag=REQUEST)
            except RuntimeError as error:
                raise _no_answer(self._silent_beside(worker), error) from error
            if request[0] == LEAVES:
                del self._silent_since_s[worker]
                return
            self._requested(worker, request.tolist())

    def _silent_beside(self, worker: int) -> list[int]:
        """This rank, and others that have asked for nothing for long: some may only wait for the one that halted."""
        long_ago_s = time.monotonic() - collective_timeout().total_seconds() / 2
        since_s = dict(self._silent_since_s)  # other threads change it
        return sorted({worker, *(rank for rank, began_s in since_s.items() if began_s < long_ago_s)})

    def _requested(self, worker: int, request: Sequence[float]) -> None:
        wish, work, *figures = request
        with self._lock:  # of this rank's own worker, and of the others'
            if wish == HANDS_IN:
                self._figures[worker] = int(work), tuple(figures)
            for grant in self._order.ask(worker, takes_weights=wish == TAKES):
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
            # A worker asks for more when its last gradient is handed in: all of them are.
            if self._num_done == self._num_ranks:
                self._notify_servers(grant)

    def _notify_servers(self, event: Grant) -> None:
        self._events.put(event)
        for rank in range(1, self._num_ranks):
            self._send(torch.tensor(event), rank, EVENT)

    def _send(self, values: Tensor, rank: int, tag: int) -> None:
        if not len(values):
            return
        under_way = self._sends.setdefault((rank, tag), deque())
        with _link_to(rank):
            # Whoever asks again has what it was sent before: those end at once. A server takes its events in order.
            while len(under_way) >= (MAX_EVENTS if tag == EVENT else 1):
                under_way.popleft()[0].wait()
            work = dist.isend(values, group=self._links, group_dst=rank, tag=tag)
        assert work is not None, "this process takes part in the group"
        under_way.append((work, values))

    # The server's side.

    def _serve(self) -> None:
        while (event := self._next_event()).number >= 0:
            if not event.takes_weights:
                is_own = event.worker == self._rank
                flat = self._next_of(self._gradients) if is_own else self._received(self._own, event.worker, GRADIENT)
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
        return self._next_of(self._events) if self._rank == 0 else self._grant_from(0, EVENT)

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # raised in the thread that can, at the end of `with`
            self._fail(error)
        finally:
            self._ended.put(None)

    def _fail(self, error: BaseException) -> None:
        """Let nobody wait on, here or on another rank. What comes of it is an echo."""
        with self._failing:
            is_first = self._error is None
            # A wait that was too long closes all pairs, and the threads that this wakes may come here before it does.
            if self._error is None or (_CLOSED_HERE in str(self._error) and _CLOSED_HERE not in str(error)):
                self._error = error
        if not is_first:
            return
        for each in (self._events, self._replies, self._weights, self._gradients):
            each.put(None)
        # A message that nobody sends and that is waited for no longer: gloo closes all pairs then, which wakes whoever
        # waits on either side. Of a pair that is broken already it says so at once, and lets the others be.
        for rank in range(self._num_ranks):
            if rank != self._rank:
                with contextlib.suppress(RuntimeError):
                    work = dist.irecv(torch.zeros(1), group=self._links, group_src=rank, tag=NEVER)
                    assert work is not None, "this process takes part in the group"
                    work.wait(timedelta(milliseconds=1))


@contextlib.contextmanager
def _link_to(rank: int) -> Iterator[None]:
    """Raises `ConnectionError`, by which it is known that not this rank failed first."""
    try:
        yield
    except RuntimeError as error:
        raise _no_answer([rank], error) from error


def _no_answer(ranks: Sequence[int], error: RuntimeError) -> ConnectionError:
    *others, last = map(str, ranks)
    who = f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
    return ConnectionError(f"{who} did not answer, or a connection broke: {error}")


def _request(wish: float, work: int = 0, *figures: float) -> Tensor:
    return torch.tensor([wish, work, *(figures or [0.0] * NUM_FIGURES)], dtype=torch.float64)


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
