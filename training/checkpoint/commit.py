"""The commit of a checkpoint: parts that are durable, then the seal, then the manifest. Runs in a writing thread."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError
from torch import Tensor

from headway.data_contracts.store.digests import Algorithm
from headway.data_contracts.store.documents import CheckpointFile, CheckpointManifest, Frozen, ProofBatch
from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.places import naming_the_place
from headway.data_contracts.store.publication import Sync, Workspace, fsync_path
from headway.data_contracts.store.regular_files import read_regular
from headway.training.checkpoint import layout, plan, recycled_files
from headway.training.checkpoint.blocks import publish_blocks
from headway.training.checkpoint.file_image import FileImage, make_header
from headway.training.checkpoint.pieces import dtype_name
from headway.training.checkpoint.verified_files import nothing
from headway.training.launch.base.fence import NO_FENCE, AttemptFence
from headway.training.ranks.distributed import PATIENCE_S, ProcessGroup

if TYPE_CHECKING:
    from headway.training.checkpoint.pieces import Content

PARTS_PATIENCE_S = PATIENCE_S / 2
"""How much later than rank 0 another rank may be done writing. Ranks that are done wait for rank 0's word in a meeting;
it gives up well before they do, so that all of them learn who is missing."""
POLL_EVERY_S = 0.005


class Part(Frozen):
    """What a rank tells rank 0 when it is done, by a file in the checkpoint's folder that rank 0 takes away."""

    files: tuple[CheckpointFile, ...]
    problem: str = ""


def part_name(rank: int) -> str:
    return f"part-{rank:05d}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """One checkpoint on its way to the disk.

    Args:
        layout: what each file holds, in the order of ranks.
        parent: digest of the manifest before.
        abandoned: set when other ranks may be gone; nobody is waited for then.
    """

    directory: Path
    content: Content
    layout: tuple[plan.Held, ...]
    world_size: int
    parent: str | None
    abandoned: threading.Event
    fence: AttemptFence = NO_FENCE

    @property
    def size_bytes(self) -> int:
        return sum(plan.size_bytes(piece) for share in self.layout for piece in share)

    @property
    def store(self) -> Workspace:
        return Workspace(str(self.directory), stage_in=self.fence.folder)

    def complete(self, own: Sequence[CheckpointFile]) -> CheckpointManifest:
        """On rank 0: wait for the others' parts, then make the checkpoint exist. The last of `own` is the proof batch.

        Raises:
            EnvironmentProblem: a rank failed or is late; it is named.
        """
        *files, proof = own
        files += [*self._parts_of_others(), proof]
        recycled_files.drop(self.directory.parent)  # nobody took them
        content = self.content
        manifest = CheckpointManifest(
            run=content.run,
            step=content.step,
            num_samples=content.num_samples,
            world_size=self.world_size,
            parent=self.parent,
            files=tuple(files),
            layout=tuple(piece for share in self.layout for piece in share),
            scalars=dict(content.scalars),
            proof=ProofBatch(file=layout.PROOF_NAME, loss_hex=content.proof_loss.hex()),
            fingerprint=content.fingerprint,
        )
        # The seal first: the manifest makes the checkpoint exist, and must never stand without its digest.
        self.store.publish(layout.SEAL_NAME, layout.seal(manifest))
        self.store.publish(layout.MANIFEST_NAME, manifest.to_bytes())
        return manifest

    def broadcast_failure(self, process_group: ProcessGroup, error: Exception) -> None:
        """Let rank 0 know that it need not wait; it finds out anyway when this rank ends."""
        if not process_group.leads:
            # Best effort: the disk that failed may be the one that this word would be written to.
            with contextlib.suppress(Exception):
                part = Part(files=(), problem=f"{type(error).__name__}: {error}")
                self.store.publish(part_name(process_group.rank), part.model_dump_json().encode())

    def _parts_of_others(self) -> list[CheckpointFile]:
        missing = dict.fromkeys(range(1, self.world_size))
        found: dict[int, tuple[CheckpointFile, ...]] = {}
        deadline_s = time.monotonic() + PARTS_PATIENCE_S
        while True:
            # Decided before the look, so that a part which arrives at the last moment is still found.
            is_last_look = self.abandoned.is_set() or time.monotonic() > deadline_s
            for rank in list(missing):
                part = self._take(rank)
                if part is not None and part.problem:
                    # At once, not at the deadline: without this part the checkpoint cannot come about.
                    raise EnvironmentProblem(f"rank {rank} could not write its part: {part.problem}", where=self._where)
                if part is not None:
                    found[rank] = part.files
                    del missing[rank]
            if not missing:
                return [file for rank in sorted(found) for file in found[rank]]
            if is_last_look:
                raise EnvironmentProblem(
                    f"rank {', '.join(map(str, missing))} did not say that its part is written.",
                    where=self._where,
                    advice="See that rank's log, and whether its node sees the same folder.",
                )
            # Woken as soon as the save is abandoned, instead of sleeping through it.
            self.abandoned.wait(POLL_EVERY_S)

    def _take(self, rank: int) -> Part | None:
        path = self.directory / part_name(rank)
        if not path.exists():
            return None
        try:
            # It may be one of the next attempt's, which saves the same step.
            path = self.fence.take_out(path)
            part = Part.model_validate_json(read_regular(path))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise EnvironmentProblem("is not what a rank writes.", where=str(path)) from error
        path.unlink()
        return part

    @property
    def _where(self) -> str:
        return f"checkpoint of step {self.content.step}"


def write_share(
    commit: Commit, process_group: ProcessGroup, images: Sequence[FileImage], *, on_part: Callable[[], None] = nothing
) -> tuple[CheckpointFile, ...]:
    """Write this rank's files, all at once, and tell rank 0, which writes the proof batch as its last one.

    Their names are durable then, but for rank 0's, which the seal's publication takes along.

    Args:
        on_part: called after each part that is written or digested, in threads of this one's.
    """
    # The numbers of files follow the ranks, so the layout's order gives each file its name.
    first = process_group.rank * len(images)
    checkpoints = commit.directory.parent
    names = [layout.file_name(first + index, len(commit.layout)) for index in range(len(images))]
    digesters = ThreadPoolExecutor(num_digesters(), "checkpoint-digests")
    work = [
        partial(
            publish_blocks,
            commit.store,
            name,
            image.data,
            # Its own spare of the same name, so that ranks never compete for one.
            prepare=partial(recycled_files.take, checkpoints, name, image.header.size_bytes),
            # Only the file: one fsync of the folder serves all names below.
            sync="file",
            wait_for=image.wait_for,
            digesters=digesters,
            on_part=on_part,
        )
        for name, image in zip(names, images, strict=True)
    ]
    if process_group.leads:
        proof = partial(publish_tensors, commit.store, layout.PROOF_NAME, commit.content.proof_batch, sync="file")
        work.append(proof)
    with (
        naming_the_place(str(commit.directory)),
        digesters,
        ThreadPoolExecutor(len(work), "checkpoint-file") as pool,
    ):
        # All at once: the disk and the digests work in parallel, one thread a file.
        own = tuple(pool.map(partial(recycled_files.with_room, checkpoints), work))
    # Rank 0's names become durable with the seal's publication, which syncs the folder.
    if not process_group.leads:
        fsync_path(commit.directory)
        # The part only tells rank 0; after a crash nobody reads it, so it need not be durable.
        part = Part(files=own).model_dump_json().encode()
        recycled_files.with_room(
            checkpoints, lambda: commit.store.publish(part_name(process_group.rank), part, sync="nothing")
        )
    return own


def num_digesters() -> int:
    """At most half of the processors: training goes on with the others."""
    return min(plan.MAX_FILES, max(1, len(os.sched_getaffinity(0)) // 2))


def publish_tensors(
    store: Workspace,
    relative: str,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    algorithm: Algorithm = "blake3",
    sync: Sync = "file and name",
    on_part: Callable[[], None] = nothing,
) -> CheckpointFile:
    """Write whole tensors into one safetensors file."""
    places = {name: (dtype_name(value.dtype), tuple(value.shape)) for name, value in tensors.items()}
    image = FileImage(make_header(places, metadata))
    image.stage(tensors)
    return publish_blocks(store, relative, image.view(), algorithm=algorithm, sync=sync, on_part=on_part)
