"""Staging: the moment of a save is kept, and training goes on while most of the copies are still to be made.

    main thread     copy weights and buffers ─ forward ─ backward ─ wait for the moments' copies ─ update
    own thread                     copy the moments, run by run
    writers                        write each file as far as it is there

Whatever a model's own code can reach is copied at once: a forward pass writes buffers, and a recipe's may write
weights. The optimizer's moments it cannot reach. They change in the update alone, and that waits: after CheckFreq
(Mohan et al., FAST '21), which trusts the weights, too. Should one change nevertheless, torch's count of its changes
tells, and no checkpoint comes of it.

On CUDA copies are enqueued: at once on the stream that trains, the moments' on one beside it, for which the update's
stream waits instead of the host.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint.file_image import CopyRun, FileImage

Tensors = Mapping[str, Tensor]


class _Copy(NamedTuple):
    image: FileImage
    run: CopyRun
    tensors: Tensors


class Staging:
    """The copies of one save. Once this is made all tensors may change, but those that come later.

    Args:
        images: to be filled; who writes them waits for what is there.
        tensors: of each image, by the names in its header.
        later: names of those that stay as they are until `finish` has returned.
    """

    def __init__(
        self,
        images: Sequence[FileImage],
        tensors: Sequence[Tensors],
        *,
        later: Collection[str] = (),
        device: torch.device,
    ) -> None:
        self._images, self._device = images, device
        kept = [{name: value for name, value in values.items() if name in later} for values in tensors]
        # torch counts in-place changes of a tensor; the count at the end tells whether the copy is of one moment.
        self._counts = [(name, value, value._version) for values in kept for name, value in values.items()]
        self._lock = threading.Lock()
        self._is_over, self._failure = False, ""
        copies = [
            [_Copy(image, run, {name: values[name] for name in run.names}) for run in image.runs(values)]
            for image, values in zip(images, kept, strict=True)
        ]
        # What lies before the first late tensor is there as soon as the copies at once are made.
        self._first_stops = [
            image.header.entries[own[0].run.names[0]].start if own else image.header.size_bytes
            for image, own in zip(images, copies, strict=True)
        ]
        # By turns, so that all files grow.
        self._copies = [each for turn in itertools.zip_longest(*copies) for each in turn if each is not None]
        # Reset before any copy: the writer must not take the last save's bytes for this one's.
        for image in images:
            image.begin()
        self._events: list[torch.cuda.Event] = []
        self._copy_at_once([{name: values[name] for name in values if name not in later} for values in tensors])
        self._done = threading.Event()
        # After the copies at once: the thread may release bytes only when all before them are there.
        threading.Thread(target=self._continue, name="checkpoint-stage", daemon=True).start()

    def finish(self) -> None:
        """Return once the tensors that come later may change; on CUDA, once what is enqueued next may change them."""
        if self._events:
            # On the device: the host goes on, and the stream of the update waits.
            torch.cuda.current_stream(self._device).wait_event(self._events[-1])
        else:
            self._done.wait()
        with self._lock:
            self._look_for_changes()
            self._is_over = True

    def _copy_at_once(self, tensors: Sequence[Tensors]) -> None:
        if self._device.type == "cuda":
            for image, values in zip(self._images, tensors, strict=True):
                image.enqueue(values)
            beside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            # The copies must see the weights as the enqueued work leaves them.
            beside.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(beside):
                self._events.append(_event())
                for copy in self._copies:
                    copy.image.enqueue(copy.tensors)
                    self._events.append(_event())
        elif len(self._images) == 1:
            self._images[0].copy(tensors[0])
        else:
            # One thread a file: a single thread copies at a fraction of the memory's speed.
            with ThreadPoolExecutor(len(self._images), "checkpoint-stage") as pool:
                list(pool.map(FileImage.copy, self._images, tensors))

    def _continue(self) -> None:
        """In a thread: copy what comes later, or wait for the device's copies, and say how far each image is there."""
        try:
            if self._events:
                self._events[0].synchronize()
            for image, stop in zip(self._images, self._first_stops, strict=True):
                image.reach(stop)
            for number, copy in enumerate(self._copies, start=1):
                # Images grow in order, so that writers start while later parts are still copied.
                if self._events:
                    self._events[number].synchronize()
                else:
                    copy.image.copy(copy.tensors)
                # Before the last bytes are released: afterwards the file could be complete with a torn moment.
                if copy.run.stop == copy.image.header.size_bytes:
                    self._require_unchanged()
                copy.image.reach(copy.run.stop)
        # Whatever it was, the writers that wait for these images have to learn of it.
        except BaseException as error:
            for image in self._images:
                image.fail(error)
        finally:
            self._done.set()

    def _require_unchanged(self) -> None:
        with self._lock:
            # After `finish` the update may change the moments, and rightly so.
            if not self._is_over:
                self._look_for_changes()
            if self._failure:
                raise IntegrityError(
                    f"{self._failure} changed while it was copied.",
                    where="checkpoint",
                    advice="No checkpoint was kept of that step. Only the optimizer's step may change its state.",
                )

    def _look_for_changes(self) -> None:
        changed = next((name for name, value, count in self._counts if value._version != count), "")
        self._failure = self._failure or changed


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
