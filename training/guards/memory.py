"""Out of memory: the next attempt halves the micro-batch and keeps the global batch.

A rank that runs out may have left a collective half done, in backward or in front of its peers, so it does not try to
agree on anything: it leaves a note in the run's folder, tells what took the memory, and fails. Its peers fail at the
torn connection, or are ended by their guards. All ranks of the next attempt take rank 0's word for the note, and every
checkpoint from then on says that its bits are not those of an undisturbed run.

In exact mode bits depend on the micro-batch, so there the run stops with advice.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from headway.data_contracts.store.errors import HeadwayError, TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.training.config.training_spec import TrainingSpec
from headway.training.launch.base.failure import cause_of
from headway.training.launch.base.fence import NO_FENCE, AttemptFence
from headway.training.launch.base.protocol import read_json, write_json
from headway.training.ranks.distributed import ProcessGroup

NOTE_NAME = "smaller-micro-batch.json"
NUM_SHOWN = 20
HISTORY_ENTRIES = 10_000
"""The allocator's last deeds that are remembered, with the Python lines that asked for them: some 2 us each."""


class OutOfMemory(HeadwayError):
    """No smaller micro-batch can help, or none is allowed."""

    cause = "oom"
    exit_code = TrainingFailed.exit_code


class SmallerMicroBatch(OutOfMemory):
    """The next attempt takes half the micro-batch."""

    retryable = True


def out_of_memory(
    error: BaseException, spec: TrainingSpec, run_dir: Path, *, of_batches: bool = True, fence: AttemptFence = NO_FENCE
) -> OutOfMemory:
    """What follows when training runs out of memory; leaves the note if something can be tried.

    Args:
        spec: as this attempt has it, with what an earlier one halved already.
        of_batches: whether it was for a batch; otherwise for weights and state, and smaller batches are of no help.
        fence: under which the note is left.

    Raises:
        Superseded: a later attempt has begun; no note was left.
    """
    rows, what = spec.micro_batch_sequences, f"out of memory ({' '.join(str(error).split())[:200]})."
    if not of_batches:
        return OutOfMemory(
            what,
            where="weights and optimizer state",
            advice="Split the model over more ranks (training.parallel), shrink it, or use more memory.",
        )
    if spec.parallel.mode == "exact":
        return OutOfMemory(
            what,
            where=f"micro-batch of {rows}",
            advice=f"Set training.micro_batch_sequences to {max(1, rows // 2)}: another run, since in exact mode bits "
            "depend on it. Or shard the model (training.parallel), use mode `fast`, or more memory.",
        )
    # An odd micro-batch cannot be halved and keep the global batch.
    if rows % 2:
        return OutOfMemory(what, where=f"micro-batch of {rows}", advice="Split the model further, or shrink it.")
    # Only under the fence: a note of an attempt that was overtaken would halve the next one's batch too.
    with fence.fenced():
        note = {"micro_batch_sequences": rows // 2}
        Workspace(str(run_dir), stage_in=fence.folder).publish_json(NOTE_NAME, note)
    return SmallerMicroBatch(what, where=f"micro-batch of {rows}", advice=f"The next attempt takes {rows // 2}.")


@contextlib.contextmanager
def explaining_out_of_memory(
    spec: TrainingSpec, run_dir: Path, *, report: Path, device: torch.device, of_batches: bool, fence: AttemptFence
) -> Iterator[None]:
    """Raises, in place of torch's error:

    OutOfMemory: once what took the memory is written into `report`.
    Superseded: a later attempt has begun.
    """
    try:
        yield
    except OutOfMemory:
        # The error of an inner call has its report already.
        raise
    except Exception as error:
        if cause_of(error) != "oom":
            raise
        failure = out_of_memory(error, spec, run_dir, of_batches=of_batches, fence=fence)
        # After the note, which matters more, and in an attempt's own file.
        write_json(report, what_took_memory(device))
        raise failure from error


def with_noted_micro_batch(spec: TrainingSpec, run_dir: Path, process_group: ProcessGroup) -> TrainingSpec:
    """The configuration with the micro-batch that an earlier attempt noted, the same on every rank."""
    # Rank 0 alone reads: ranks that saw different notes would train on different batches.
    note = read_json(run_dir / NOTE_NAME) if process_group.leads and spec.parallel.mode != "exact" else None
    noted = 0 if note is None else int(note["micro_batch_sequences"])
    agreed = int.from_bytes(process_group.from_leader(noted.to_bytes(8, "big")), "big")
    return spec if agreed == 0 else spec.model_copy(update={"micro_batch_sequences": agreed})


def remember_allocations(device: torch.device) -> None:
    """From now on, let the allocator of a GPU remember what it did, for `what_took_memory`."""
    if device.type == "cuda":
        torch.cuda.memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=HISTORY_ENTRIES, device=device
        )


def what_took_memory(device: torch.device) -> dict[str, Any]:
    """For a person: the largest tensors that Python still knows; on a GPU also the allocator's account and history."""
    report: dict[str, Any] = {"tensors": largest_tensors()}
    if device.type == "cuda":
        snapshot = torch.cuda.memory._snapshot(device)
        report["summary"] = torch.cuda.memory_summary(device)
        report["segments"] = snapshot["segments"]
        report["history"] = [entry for trace in snapshot["device_traces"] for entry in trace]
    return report


def largest_tensors() -> list[dict[str, Any]]:
    """By storage, so that a view does not count again; largest first."""
    found: dict[int, torch.Tensor] = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            # A DTensor has no memory of its own: its slice is a tensor that is found by itself.
            with contextlib.suppress(RuntimeError):
                # By storage, and the first object seen stands for it.
                found.setdefault(thing.untyped_storage().data_ptr(), thing)
    largest = sorted(found.values(), key=lambda tensor: -tensor.untyped_storage().nbytes())[:NUM_SHOWN]
    return [
        {
            "bytes": tensor.untyped_storage().nbytes(),
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "device": str(tensor.device),
            "kind": type(tensor).__name__,
        }
        for tensor in largest
    ]
