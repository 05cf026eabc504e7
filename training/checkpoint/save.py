"""Saving behind the next steps: stage, go on training, and commit when every rank's part is durable.

    main thread, at a step boundary       settle what was begun before ─ begin to stage own share ─ train on
    main thread, before the next update   wait until all is staged
    a thread of every rank                write own files ─ rank 0: wait for all parts ─ seal ─ manifest ─ retention

The threads never use the process group, which belongs to training: other ranks report to rank 0 by a small file beside
theirs. Without a manifest there is no checkpoint, so a rank may die at any moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from headway.data_contracts.store.documents import CheckpointManifest
from headway.data_contracts.store.errors import PeerFailed, RunStopped
from headway.training.checkpoint import layout, plan, recycled_files
from headway.training.checkpoint.commit import Commit, write_share
from headway.training.checkpoint.file_image import FileImage, make_header
from headway.training.checkpoint.pieces import Content, Piece, pieces_of
from headway.training.checkpoint.retention import discard_unfinished
from headway.training.checkpoint.staging import Staging
from headway.training.checkpoint.verified_files import nothing
from headway.training.launch.base.fence import NO_FENCE, AttemptFence
from headway.training.ranks.distributed import ProcessGroup

Retain = Callable[[int], None]
POLL_EVERY_S = 0.5
"""How often to look, while waiting for what is being written, whether it gets on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that is now durable."""

    step: int
    size_bytes: int
    """Of all tensors."""
    durable_s: float
    """From the call until its manifest, on rank 0; until its own file, elsewhere."""
    unix_s: float
    """When it was: who asked for it is told later, as the next one is saved."""


class Checkpointer:
    """Keeps checkpoints of one run in a folder. All ranks call `save` and `finish` at the same steps.

    As a context manager it finishes at the end of the block, also when the run was stopped. Any other error may
    leave ranks that no longer answer: then only what this rank can still do alone is done.

    Args:
        newest: the checkpoint that training continues from.
        retain: called on rank 0 with the step of each new checkpoint, in the writing thread, and once with `newest`.
        on_saved: called on every rank in the main thread, once what was begun before is durable.
        on_part: called in the main thread every now and then while it waits for this rank's writing, if that gets on.
        fence: under which it publishes.
    """

    def __init__(
        self,
        checkpoints: Path,
        process_group: ProcessGroup,
        *,
        newest: CheckpointManifest | None = None,
        retain: Retain = lambda _step: None,
        on_saved: Callable[[SavedCheckpoint], object] = lambda _saved: None,
        on_part: Callable[[], None] = nothing,
        fence: AttemptFence = NO_FENCE,
    ) -> None:
        self._fence = fence
        self._checkpoints, self._process_group, self._retain, self._on_saved = (
            checkpoints,
            process_group,
            retain,
            on_saved,
        )
        self._on_part, self._num_parts = on_part, 0
        self.newest = newest
        """The newest durable checkpoint, on rank 0."""
        self.saved_step = 0 if newest is None else newest.step
        """Of the newest checkpoint, durable or not yet; 0: none."""
        self._held: plan.Held = ()
        self._layout: tuple[plan.Held, ...] = ()
        self._images: list[FileImage] = []
        self._staging: Staging | None = None
        self._in_flight: Future[SavedCheckpoint] | None = None
        self._abandoned = threading.Event()

    def __enter__(self) -> Self:
        if self._process_group.leads and self.newest is not None:
            self._retain(self.newest.step)  # whoever kept it may have died before the older ones went
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            self._leave(kind, error)
        finally:
            if self._process_group.leads:
                recycled_files.drop(self._checkpoints)

    def _leave(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        if kind is None or issubclass(kind, RunStopped):
            self.finish()
            return
        self.finish_staging()
        # Ranks that no longer answer will bring no part; rank 0's writing thread must not wait for them.
        self._abandoned.set()
        if self._in_flight is not None and (lost := self._end_of(self._in_flight)) is not None and error is not None:
            error.add_note(f"Besides, the checkpoint of step {self.saved_step} was not completed: {lost}")

    def save(self, content: Content) -> int:
        """Take a checkpoint of this moment; it is durable some steps later. Returns the bytes of all its tensors.

        When it returns `content.tensors` may change, and `content.moments` after `finish_staging`.

        Raises:
            EnvironmentProblem: the one before could not be written; older ones are untouched.
            Superseded: a later attempt has begun.
        """
        started_s = time.perf_counter()
        # Refused before anything is copied: what is staged under a revoked fence is lost work.
        self._fence.require()
        pieces = pieces_of({**content.tensors, **content.moments})
        held = tuple(piece.slice(name) for name, piece in sorted(pieces.items()))
        directory = self._checkpoints / layout.directory_name(content.step)
        if self._process_group.leads:
            # What an interrupted save left behind has no manifest, so it is nobody's checkpoint.
            discard_unfinished(directory, self._fence)
        # A plan is made by a collective, so one rank alone cannot skip or repeat it.
        if self._settle(replan=held != self._held or not self._images):
            self._replan(held)
        shares = plan.of_rank(self._layout, self._process_group.rank, self._process_group.world_size)
        # Weights and buffers are copied before this returns; moments later, up to the next update.
        self._staging = Staging(
            self._images,
            [_shares(pieces, share) for share in shares],
            later=content.moments.keys(),
            device=self._process_group.device,
        )
        commit = Commit(
            directory=directory,
            content=content,
            layout=self._layout,
            world_size=self._process_group.world_size,
            parent=None if self.newest is None else self.newest.sha256,
            abandoned=self._abandoned,
            fence=self._fence,
        )
        # Before it is durable: the same step must not be saved twice.
        self.saved_step = content.step
        # A plain thread, not a pool: a pool's threads are joined at exit, and a hung disk would hold the process.
        self._in_flight = _started(lambda: self._write(commit, started_s), name=f"checkpoint-{content.step}")
        return commit.size_bytes

    def finish_staging(self) -> None:
        """Wait until what was saved last may change, all of it; called before each update of the weights."""
        if self._staging is not None:
            self._staging.finish()
            self._staging = None

    def finish(self) -> CheckpointManifest | None:
        """Wait until all is durable on all ranks. Returns the newest checkpoint's manifest, on rank 0.

        Raises:
            EnvironmentProblem: this rank could not write its part; `PeerFailed`: another could not.
        """
        self._settle(replan=False)
        return self.newest

    def _settle(self, *, replan: bool) -> bool:
        """Wait for the save in flight, on all ranks. Returns whether any rank asks for a new plan."""
        saved, error = None, None
        # Staging uses the images, which the next save fills again.
        self.finish_staging()
        if self._in_flight is not None:
            error = self._end_of(self._in_flight)
            saved = None if error is not None else self._in_flight.result()
            self._in_flight = None
        # Also a barrier: before anyone writes, rank 0 has cleared the place.
        try:
            # Every rank takes part whether its own part failed or not; otherwise the others would wait for it.
            answers = self._process_group.gather(torch.tensor([[error is not None, replan]], dtype=torch.uint8))
        finally:
            if error is not None:
                raise error  # rather than that peers are gone, which they may be because of it
        failed, replans = answers.any(dim=0).tolist()
        if failed:
            ranks = answers[:, 0].nonzero().flatten().tolist()
            raise PeerFailed(
                f"rank {', '.join(map(str, ranks))} could not keep its part.",
                where="checkpoint",
                advice="That rank's log says why: `headway logs`; it may be a full disk.",
            )
        if saved is not None:
            self._on_saved(saved)
        return bool(replans)

    def _end_of(self, writing: Future[SavedCheckpoint]) -> BaseException | None:
        """Wait for this rank's writing, telling that it gets on. Returns what it failed with."""
        seen = self._num_parts
        while not wait((writing,), POLL_EVERY_S).done:
            if self._num_parts != seen:
                seen = self._num_parts
                self._on_part()
        return writing.exception()

    def _count_part(self) -> None:
        # From several threads: that it changes is all that counts.
        self._num_parts += 1

    def _replan(self, held: plan.Held) -> None:
        self._held = held
        held_by_rank = [plan.from_bytes(data) for data in self._process_group.gather_bytes(plan.to_bytes(held))]
        # Several files a rank, so that several threads stage, digest and write them.
        self._layout = plan.share_out(held_by_rank, files_per_rank=plan.files_per_rank(held_by_rank))
        self._images = [
            FileImage(
                make_header({piece.tensor: (piece.dtype, piece.shape) for piece in share}),
                # Pinned memory is what the device copies into without stopping the host.
                pinned=self._process_group.device.type == "cuda",
            )
            for share in plan.of_rank(self._layout, self._process_group.rank, self._process_group.world_size)
        ]

    def _write(self, commit: Commit, started_s: float) -> SavedCheckpoint:
        try:
            # A missing folder in here most likely means a revoked fence, which is then what is raised.
            with self._fence.fenced():
                own = write_share(commit, self._process_group, self._images, on_part=self._count_part)
                if self._process_group.leads:
                    self.newest = commit.complete(own)
            durable_s, durable_unix_s = time.perf_counter() - started_s, time.time()
            # Only after the manifest: retention must not delete the last good one before its successor exists.
            if self._process_group.leads:
                self._retain(commit.content.step)
        except Exception as error:
            commit.broadcast_failure(self._process_group, error)
            raise
        return SavedCheckpoint(
            step=commit.content.step, size_bytes=commit.size_bytes, durable_s=durable_s, unix_s=durable_unix_s
        )


def _shares(pieces: Mapping[str, Piece], own: plan.Held) -> dict[str, Tensor]:
    """The part of each piece that this rank writes."""
    found = {}
    for share in own:
        piece = pieces[share.tensor]
        inside = zip(share.offsets, piece.offsets, share.shape, strict=True)
        # Views, not copies: staging reads the tensors where they are.
        found[share.tensor] = piece.local[tuple(slice(a - b, a - b + length) for a, b, length in inside)]
    return found


def _started(work: Callable[[], SavedCheckpoint], *, name: str) -> Future[SavedCheckpoint]:
    """Run it in a thread that ends with the process, if that must be."""
    future: Future[SavedCheckpoint] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        # `BaseException`: a future without a result would leave the main thread waiting for ever.
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
