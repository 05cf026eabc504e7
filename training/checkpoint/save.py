"""Saving behind the next steps: stage, go on training, and commit when every rank's part is durable.

    main thread, at a step boundary       settle what was begun before ─ begin to stage own share ─ train on
    main thread, before the next update   wait until all is staged
    a thread of every rank                write own files ─ rank 0: wait for all parts ─ seal ─ manifest ─ retention

The threads never use the process group, which belongs to training: other ranks tell rank 0 by a small file beside
theirs. Without a manifest there is no checkpoint, so a rank may die at any moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from data_contracts.documents import CheckpointManifest, DeviceFingerprint, Link
from data_contracts.errors import PeerFailed, RunStopped
from training.checkpoint import layout, plan, spares
from training.checkpoint.agreement import gathered
from training.checkpoint.blocks import nothing
from training.checkpoint.commit import Commit, write_share
from training.checkpoint.file_image import FileImage, make_header
from training.checkpoint.pieces import Piece, State, pieces_of
from training.checkpoint.retention import discard_unfinished
from training.checkpoint.staging import Staging
from training.distributed import Gang
from training.launch.mandate import NO_MANDATE, Mandate

Retain = Callable[[int], None]
LOOK_EVERY_S = 0.5
"""How often to look, while waiting for what is being written, whether it gets on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What a checkpoint says: the same on every rank, but for the pieces it holds of `tensors`."""

    run: Link
    step: int
    num_samples: int
    tensors: State
    """Those that may change as soon as `Checkpointer.save` has returned: weights and buffers."""
    scalars: Mapping[str, float | int | str]
    proof_batch: Mapping[str, Tensor]
    proof_loss: float
    fingerprint: DeviceFingerprint
    moments: State = field(default_factory=dict)
    """More of them, which nothing changes before `Checkpointer.finish_staging` has returned: the optimizer's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint that is now durable."""

    step: int
    size_bytes: int
    """Of all tensors."""
    durable_s: float
    """From the call until its manifest, on rank 0; until its own file, elsewhere."""


class Checkpointer:
    """Keeps checkpoints of one run in a folder. All ranks call `save` and `finish` at the same steps.

    As a context manager it finishes at the end of the block, also when the run was stopped. Any other error may
    leave ranks that no longer answer: then only what this rank can still do alone is done.

    Args:
        newest: the checkpoint that training continues from.
        retain: called on rank 0 with the step of each new checkpoint, in the writing thread, and once with `newest`.
        on_saved: called on every rank in the main thread, once what was begun before is durable.
        on_part: called in the main thread every now and then while it waits for this rank's writing, if that gets on.
        mandate: under which it publishes.
    """

    def __init__(
        self,
        checkpoints: Path,
        gang: Gang,
        *,
        newest: CheckpointManifest | None = None,
        retain: Retain = lambda _step: None,
        on_saved: Callable[[Saved], object] = lambda _saved: None,
        on_part: Callable[[], None] = nothing,
        mandate: Mandate = NO_MANDATE,
    ) -> None:
        self._mandate = mandate
        self._checkpoints, self._gang, self._retain, self._on_saved = checkpoints, gang, retain, on_saved
        self._on_part, self._num_parts = on_part, 0
        self.newest = newest
        """The newest durable checkpoint, on rank 0."""
        self.saved_step = 0 if newest is None else newest.step
        """Of the newest checkpoint, durable or not yet; 0: none."""
        self._held: plan.Held = ()
        self._layout: tuple[plan.Held, ...] = ()
        self._images: list[FileImage] = []
        self._staging: Staging | None = None
        self._in_flight: Future[Saved] | None = None
        self._abandoned = threading.Event()

    def __enter__(self) -> Self:
        if self._gang.leads and self.newest is not None:
            self._retain(self.newest.step)  # whoever kept it may have died before the older ones went
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            self._leave(kind, error)
        finally:
            if self._gang.leads:
                spares.drop(self._checkpoints)

    def _leave(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        if kind is None or issubclass(kind, RunStopped):
            self.finish()
            return
        self.finish_staging()
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
        began_s = time.perf_counter()
        self._mandate.require()
        pieces = pieces_of({**content.tensors, **content.moments})
        held = tuple(piece.slice(name) for name, piece in sorted(pieces.items()))
        directory = self._checkpoints / layout.directory_name(content.step)
        if self._gang.leads:
            # What an interrupted save left behind has no manifest, so it is nobody's checkpoint.
            discard_unfinished(directory, self._mandate)
        if self._settle(replan=held != self._held or not self._images):
            self._replan(held)
        shares = plan.of_rank(self._layout, self._gang.rank, self._gang.world_size)
        self._staging = Staging(
            self._images,
            [_shares(pieces, share) for share in shares],
            later=content.moments.keys(),
            device=self._gang.device,
        )
        commit = Commit(
            directory=directory,
            content=content,
            layout=self._layout,
            world_size=self._gang.world_size,
            parent=None if self.newest is None else self.newest.sha256,
            abandoned=self._abandoned,
            mandate=self._mandate,
        )
        self.saved_step = content.step
        self._in_flight = _started(lambda: self._write(commit, began_s), name=f"checkpoint-{content.step}")
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
        self.finish_staging()
        if self._in_flight is not None:
            error = self._end_of(self._in_flight)
            saved = None if error is not None else self._in_flight.result()
            self._in_flight = None
        # Also a barrier: before anyone writes, rank 0 has cleared the place.
        try:
            answers = self._gang.gather(torch.tensor([[error is not None, replan]], dtype=torch.uint8))
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

    def _end_of(self, writing: Future[Saved]) -> BaseException | None:
        """Wait for this rank's writing, telling that it gets on. Returns what it failed with."""
        seen = self._num_parts
        while not wait((writing,), LOOK_EVERY_S).done:
            if self._num_parts != seen:
                seen = self._num_parts
                self._on_part()
        return writing.exception()

    def _count_part(self) -> None:
        # From several threads: that it changes is all that counts.
        self._num_parts += 1

    def _replan(self, held: plan.Held) -> None:
        self._held = held
        held_by_rank = [plan.from_bytes(data) for data in gathered(self._gang, plan.to_bytes(held))]
        # Several files a rank, so that several threads stage, digest and write them.
        self._layout = plan.share_out(held_by_rank, files_per_rank=plan.files_per_rank(held_by_rank))
        self._images = [
            FileImage(
                make_header({piece.tensor: (piece.dtype, piece.shape) for piece in share}),
                pinned=self._gang.device.type == "cuda",
            )
            for share in plan.of_rank(self._layout, self._gang.rank, self._gang.world_size)
        ]

    def _write(self, commit: Commit, began_s: float) -> Saved:
        try:
            with self._mandate.upheld():
                own = write_share(commit, self._gang, self._images, on_part=self._count_part)
                if self._gang.leads:
                    self.newest = commit.complete(own)
            durable_s = time.perf_counter() - began_s
            if self._gang.leads:
                self._retain(commit.content.step)
        except Exception as error:
            commit.tell_failure(self._gang, error)
            raise
        return Saved(step=commit.content.step, size_bytes=commit.size_bytes, durable_s=durable_s)


def save_checkpoint(
    checkpoints: Path, content: Content, gang: Gang, *, newest: CheckpointManifest | None = None
) -> CheckpointManifest | None:
    """Write `checkpoints/step-NNNNNNNN/` and wait for it, all ranks together. Returns the manifest, on rank 0.

    Raises:
        EnvironmentProblem: no space left, or writing is refused; older checkpoints are untouched.
    """
    with Checkpointer(checkpoints, gang, newest=newest) as checkpointer:
        checkpointer.save(content)
        return checkpointer.finish()


def _shares(pieces: Mapping[str, Piece], own: plan.Held) -> dict[str, Tensor]:
    """The part of each piece that this rank writes."""
    found = {}
    for share in own:
        piece = pieces[share.tensor]
        inside = zip(share.offsets, piece.offsets, share.shape, strict=True)
        found[share.tensor] = piece.local[tuple(slice(a - b, a - b + length) for a, b, length in inside)]
    return found


def _started(work: Callable[[], Saved], *, name: str) -> Future[Saved]:
    """Run it in a thread that ends with the process, if that must be."""
    future: Future[Saved] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
