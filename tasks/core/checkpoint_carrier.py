"""Checkpoints between this machine and a remote workspace: behind the training up, and down before it begins.

Ranks write and verify on this machine's disk alone. What they commit is published by the flow, manifest last, while
they train on; so another machine continues from the newest good checkpoint when this one is lost.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from headway.data_contracts.store.documents import CheckpointManifest, Link
from headway.data_contracts.store.errors import HeadwayError, IntegrityError, Superseded
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.regular_files import read_regular
from headway.training.checkpoint.layout import (
    ABANDONED,
    MANIFEST_NAME,
    RESULT_NAME,
    SEAL_NAME,
    RunResult,
    best_step_of,
    checkpoint_path,
    committed_steps,
    directory_name,
    seal,
    step_of,
    stored_files,
)
from headway.training.observe.ledger import Ledger

POLL_EVERY_S = 1.0


class CheckpointCarrier:
    """Used as a context manager around training; does nothing where the workspace is a folder.

    Leaving it in peace publishes the rest and the run's result, or raises; leaving it by an error publishes what it
    can and lets the error pass.

    Args:
        run_folder: the run's own, in the workspace and on the local side.
        require_owned: called before each file is published or removed; raises `Superseded` where the run is another
            machine's.
    """

    def __init__(
        self,
        workspace: Workspace,
        run_folder: str,
        run: Link,
        ledger: Ledger,
        require_owned: Callable[[], None] = lambda: None,
    ) -> None:
        self._workspace, self._run_folder, self._run, self._ledger = workspace, run_folder, run, ledger
        self._require_owned = require_owned
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="checkpoint-carrier", daemon=True)
        self._published: dict[int, bytes] = {}
        """Seals of what this machine published or fetched, by step: a step that is done again has another."""
        self._bad: set[int] = set()
        self._best_by_seal: dict[bytes, int | None] = {}
        self._withdrawn: set[str] = set()
        self._untold: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()

    def __enter__(self) -> CheckpointCarrier:
        if not self._workspace.is_local:
            with self._ledger.span("checkpoints.fetch") as fields:
                self._withdraw_abandoned()  # what was put aside when nobody was left to withdraw it
                fields["step"] = self._fetch_newest()
            self.emit_pending()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._workspace.is_local:
            return
        self._ended.set()
        with self._ledger.span("checkpoints.publish"):
            # However long: two uploads of one checkpoint at a time would be in each other's way.
            self._thread.join()
            try:
                self._publish_new()
                if self._published:  # whoever pauses a run leaves one here, which may have been published before
                    self._discard_expired(max(self._published))
                if self._workspace.local_path(f"{self._run_folder}/{RESULT_NAME}").exists():
                    self._require_owned()
                    if (step := self._result_step()) is not None and step not in self._published:
                        raise IntegrityError(
                            "the run's model is not whole on this machine, so its result is not published.",
                            where=f"{self._run_folder}/checkpoints/{directory_name(step)}",
                            advice="Run again: the run goes on from its newest good checkpoint.",
                        )
                    self._workspace.publish_tree(self._run_folder, RESULT_NAME)
            except (HeadwayError, OSError) as error:
                self._note("checkpoints.unpublished", message=str(error))
                # Else the body's own error is what a person has to see.
                if kind is None:
                    raise
            finally:
                self.emit_pending()

    def emit_pending(self) -> None:
        """Write down what happened since; from the flow's own thread, as those who listen to its ledger expect."""
        with contextlib.suppress(queue.Empty):
            while True:
                name, fields = self._untold.get_nowait()
                self._ledger.event(name, **fields)

    def _note(self, event: str, **fields: Any) -> None:
        self._untold.put((event, fields))

    def _follow(self) -> None:
        while not self._ended.wait(POLL_EVERY_S):
            try:
                self._publish_new()
            except (HeadwayError, OSError) as error:
                # Training continues: the next checkpoint is another chance, and the end of training the last.
                self._note("checkpoints.unpublished", message=str(error))
                if isinstance(error, Superseded):
                    return

    def _publish_new(self) -> None:
        self._withdraw_abandoned()
        here = self._seals_here()
        wanted = self._wanted(here)
        # The newest first: it is the one that another machine would want.
        for step in sorted(here.keys() - self._bad, reverse=True):
            furthest = max(self._published, default=0)
            if self._published.get(step) == here[step] or (step < furthest and step not in wanted):
                continue
            # An older one may have been published by an attempt before.
            if (step < furthest and self._is_there(step, here[step])) or self._publish(step):
                self._published[step] = here[step]
                self._discard_expired(max(self._published))

    def _publish(self, step: int) -> bool:
        """Every file by its digest, seal and manifest last; False when retention took it away meanwhile."""
        folder = checkpoint_path(self._run_folder, step)
        try:
            started = time.perf_counter()
            files = stored_files(folder, self._manifest_here(folder))
            for file in files:
                self._require_owned()
                self._workspace.publish_expected(file)
        except FileNotFoundError:
            return False
        except IntegrityError as error:
            # It stays damaged: else it would be read and reported again every second.
            self._bad.add(step)
            self._note("checkpoint.damaged", step=step, message=str(error))
            return False
        size_bytes, took_s = sum(file.size_bytes for file in files), time.perf_counter() - started
        # No span: it runs beside the training and costs the run no time of its own.
        self._note("checkpoint.published", step=step, size_bytes=size_bytes, took_s=round(took_s, 3))
        return True

    def _discard_expired(self, newest: int) -> None:
        """What retention deleted here goes there too, its manifest first, once a newer one is safe."""
        here = self._seals_here()
        oldest = min([newest, *here.keys() - self._wanted(here)])
        for step in self._steps_there():
            if step < oldest and step not in here:
                self._remove(step)

    def _remove(self, step: int) -> None:
        folder = checkpoint_path(self._run_folder, step)
        names = self._workspace.names(folder)
        for name in sorted(names, key=lambda name: name != MANIFEST_NAME):
            self._require_owned()
            self._workspace.remove(f"{folder}/{name}")

    def _withdraw_abandoned(self) -> None:
        """What ranks put aside to do its steps again on other data: no machine shall continue from it."""
        aside = self._workspace.local_path(f"{self._run_folder}/{ABANDONED}")
        for folder in aside.iterdir() if aside.is_dir() else ():
            step, sealed = step_of(folder.name.partition(".")[0]), _seal_in(folder)
            if folder.name in self._withdrawn or step is None or sealed is None:
                continue
            # Steps that were done again on the same data came to the same checkpoint, which is good.
            if self._seals_here().get(step) != sealed and self._is_there(step, sealed):
                self._remove(step)
                self._published.pop(step, None)
            self._withdrawn.add(folder.name)

    def _fetch_newest(self) -> int | None:
        """The newest published good checkpoint, what it names as the best, and the result with its own.

        Nothing where this machine is as far.
        """
        here = self._steps_here()
        for step in reversed(self._steps_there()):
            if here and here[-1] >= step:
                return None
            if self._fetch(step):
                self._fetch_result()
                # A run whose best checkpoint is gone would have to train from before it.
                missing = self._wanted(self._seals_here()).difference(self._steps_here())
                fetched = {step, *filter(self._fetch, missing)}
                self._published = {each: sealed for each, sealed in self._seals_here().items() if each in fetched}
                return step
        return None

    def _wanted(self, here: Mapping[int, bytes]) -> set[int]:
        """The checkpoints that are a run's model, or may become it, however old they are.

        Args:
            here: seals by step.
        """
        for step, sealed in here.items():
            if sealed not in self._best_by_seal:
                with contextlib.suppress(FileNotFoundError, IntegrityError):
                    manifest = self._manifest_here(checkpoint_path(self._run_folder, step))
                    self._best_by_seal[sealed] = best_step_of(manifest)
        named = {self._best_by_seal.get(sealed) for sealed in here.values()} | {self._result_step()}
        return {step for step in named if step is not None}

    def _result_step(self) -> int | None:
        """Of this machine's result; None while there is none that can be read."""
        with contextlib.suppress(OSError, ValueError, IntegrityError):
            path = self._workspace.local_path(f"{self._run_folder}/{RESULT_NAME}")
            return RunResult.parse(read_regular(path), self._run).step
        return None

    def _is_there(self, step: int, sealed: bytes) -> bool:
        folder = checkpoint_path(self._run_folder, step)
        try:
            return seal(self._manifest_there(folder)) == sealed
        except IntegrityError:
            return False

    def _fetch(self, step: int) -> bool:
        folder = checkpoint_path(self._run_folder, step)
        try:
            manifest = self._manifest_there(folder)
            self._workspace.fetch_all(stored_files(folder, manifest))
        except IntegrityError as error:
            self._note("checkpoint.damaged", step=step, message=str(error))
            # What was fetched of it must not look like a checkpoint to the ranks.
            shutil.rmtree(self._workspace.local_path(folder), ignore_errors=True)
            return False
        return True

    def _fetch_result(self) -> None:
        path = self._workspace.local_path(f"{self._run_folder}/{RESULT_NAME}")
        data = self._workspace.read_if_there(f"{self._run_folder}/{RESULT_NAME}")
        if data is not None and not path.exists():
            Workspace(str(path.parent)).publish(RESULT_NAME, data)

    def _manifest_here(self, folder: str) -> CheckpointManifest:
        data = read_regular(self._workspace.local_path(f"{folder}/{MANIFEST_NAME}"))
        return self._checked(folder, data, read_regular(self._workspace.local_path(f"{folder}/{SEAL_NAME}")))

    def _manifest_there(self, folder: str) -> CheckpointManifest:
        return self._checked(
            folder, self._workspace.read(f"{folder}/{MANIFEST_NAME}"), self._workspace.read(f"{folder}/{SEAL_NAME}")
        )

    def _checked(self, folder: str, data: bytes, sealed: bytes) -> CheckpointManifest:
        where = f"{folder}/{MANIFEST_NAME}"
        manifest = CheckpointManifest.from_bytes(data, where=where)
        if seal(manifest) != sealed or manifest.to_bytes() != data:
            raise IntegrityError("its bytes differ from the digest beside it.", where=where)
        if manifest.run != self._run or directory_name(manifest.step) != folder.rpartition("/")[2]:
            raise IntegrityError("it belongs to another run or step.", where=where)
        return manifest

    def _seals_here(self) -> dict[int, bytes]:
        """By step; of those that retention takes away meanwhile, none."""
        folder = self._workspace.local_path(f"{self._run_folder}/checkpoints")
        found = {step: _seal_in(folder / directory_name(step)) for step in self._steps_here()}
        return {step: sealed for step, sealed in found.items() if sealed is not None}

    def _steps_here(self) -> list[int]:
        return committed_steps(self._workspace.local_path(f"{self._run_folder}/checkpoints"))

    def _steps_there(self) -> list[int]:
        """Steps that seem to be published: whether a manifest is there is asked of the object itself."""
        return sorted(_steps(self._workspace.names(f"{self._run_folder}/checkpoints")))


def _seal_in(folder: Path) -> bytes | None:
    try:
        return read_regular(folder / SEAL_NAME)
    except (OSError, IntegrityError):
        return None


def _steps(names: Iterator[str] | list[str]) -> Iterator[int]:
    return (step for step in map(step_of, names) if step is not None)
