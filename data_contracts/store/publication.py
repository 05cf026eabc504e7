"""Publication: the one place that writes to a workspace, and the one way it does.

Temporary name, digest while writing, fsync, then rename (a folder) or conditional put (an object store).
A reader sees a whole file or none. Paths that come from documents never leave the workspace.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from headway.data_contracts.store.digests import (
    Algorithm,
    DigestingWriter,
    canonical_json,
    file_digest,
    sha256_bytes,
    stat_identity,
)
from headway.data_contracts.store.documents import Document, Link, StoredFile
from headway.data_contracts.store.errors import DataError, EnvironmentProblem, IntegrityError
from headway.data_contracts.store.leftovers import STAGING_SUFFIX, claimed, staging_name
from headway.data_contracts.store.object_store import Patience
from headway.data_contracts.store.places import LOCAL, PRIVATE, confined, naming_the_place
from headway.data_contracts.store.published_files import PublishedFiles, document_path, require_digest

Sync = Literal["file and name", "file", "nothing"]
"""What is safe from a power cut when a file is published: all of it; its bytes, since whoever publishes more beside it
makes all names durable at once; or nothing, since another process reads it now or never."""
RENEW_AFTER_S = 3600.0
"""What was written within this counts as new."""


class Workspace(PublishedFiles):
    """A folder or object-store prefix that holds everything of one team's pipelines."""

    @classmethod
    def create(cls, uri: str, patience: Patience | None = None) -> Workspace:
        """Open, making a folder if it is missing, and prove that it can be written, here and there.

        A folder that is made here is its user's alone (0700); one that is there keeps its mode, so that a team shares
        what it made for a group.

        Raises:
            EnvironmentProblem: not writable, not a folder, or no such bucket.
        """
        workspace = cls(uri, patience)
        probe = f".probe-{uuid.uuid4().hex}"
        place = str(workspace._local)
        # A probe file, not the mode: quotas, mounts and ACLs decide as well.
        try:
            make_folder(workspace._local, mode=PRIVATE)
            (workspace._local / probe).write_bytes(b"")
            (workspace._local / probe).unlink()
        except OSError as error:
            raise EnvironmentProblem(
                f"the {'workspace' if workspace._remote is None else 'local side'} cannot be written "
                f"({error.strerror or error}).",
                where=place,
                advice="Give a writable folder or URI with --workspace."
                if workspace._remote is None
                else f"Give a writable folder with {LOCAL}.",
            ) from error
        if workspace._remote is not None:
            # Exclusive or not is no matter here: the name is drawn.
            workspace._remote.put(probe, b"", exclusive=False)
            workspace._remote.remove(probe)
        return workspace

    def can_be_created(self) -> bool:
        """Whether it is a folder that is not there yet, and that this process may make."""
        try:
            if self._remote is not None or self._local.exists():
                return False
            # The innermost folder that exists decides whether the others can be made.
            above = next(folder for folder in self._local.parents if folder.exists())
            return above.is_dir() and os.access(above, os.W_OK | os.X_OK)
        except OSError:
            return False

    @classmethod
    def existing(cls, uri: str, patience: Patience | None = None) -> Workspace:
        """Open one that somebody has published in.

        Raises:
            EnvironmentProblem: there is none, or it cannot be used.
        """
        workspace = cls(uri, patience)
        if workspace.is_empty():
            raise EnvironmentProblem(
                "there is no workspace here.",
                where=workspace.uri,
                advice="Bring it back if it was moved or unmounted, or name another with --workspace; a new one is "
                "made by `headway retrain`.",
            )
        return workspace

    def publish_tree(self, relative: str, pattern: str = "**/*") -> tuple[StoredFile, ...]:
        """Publish what lies below a place on the local side and matches; in a folder it is published already."""
        if self._remote is None:
            return ()
        folder = self.local_path(relative)
        paths = sorted(
            path for path in folder.glob(pattern) if path.is_file() and not path.name.endswith(STAGING_SUFFIX)
        )
        return tuple(self.publish_file(path, f"{relative}/{path.relative_to(folder).as_posix()}") for path in paths)

    def publish(
        self, relative: str, data: bytes | memoryview, *, exclusive: bool = False, sync: Sync = "file and name"
    ) -> StoredFile:
        """Publish bytes under a name.

        Raises:
            FileExistsError: `exclusive`, and the name is taken; nothing was changed. An object store cannot tell a
                lost answer from a lost race but by the bytes: writers that race put something of their own in.
            EnvironmentProblem: no space left, permission lost, or the store does not answer; nothing was published.
        """
        if self._remote is not None:
            self._remote.put(confined(relative), bytes(data), exclusive=exclusive)
        else:
            with self.staged(relative, exclusive=exclusive, sync=sync) as staging:
                staging.write_bytes(data)
        return StoredFile(path=relative, size_bytes=len(data), sha256=sha256_bytes(data))

    @contextlib.contextmanager
    def staged(
        self,
        relative: str,
        *,
        exclusive: bool = False,
        prepare: Callable[[Path], object] = lambda _staging: None,
        sync: Sync = "file and name",
    ) -> Iterator[Path]:
        """A temporary local path whose file becomes `relative` when the body ends well, and nothing otherwise.

        Args:
            prepare: called with that path before there is an empty file; may put another there.
        """
        final = self.local_path(relative)
        # The staging name lies in the same file system, or the rename could not be atomic.
        staging = (self._stage_in or final.parent) / staging_name(final.name)
        # A folder that was unmounted would be made again, empty, at the mount point.
        self.require_there()
        if self._stage_in is not None:
            self._stage_in.stat()  # before a folder is made for what could not be staged
        with naming_the_place(str(final)):  # which disk it is
            made = _make_folder(final.parent)
            prepare(staging)
            # Claimed: a cleaner leaves alone what somebody holds.
            with claimed(staging):
                try:
                    yield staging
                    if sync != "nothing":
                        # Bytes before the name: after a power cut a name must never stand for a file without content.
                        fsync_path(staging)
                    self._store.put_file(confined(relative), staging, exclusive=exclusive)
                    if self._remote is None and sync == "file and name":
                        # The name is durable only once its folder is.
                        fsync_path(final.parent)
                    # Outermost last: each folder's own name lies in the one above.
                    if sync != "nothing":
                        _fsync_names(made)
                finally:
                    staging.unlink(missing_ok=True)

    def publish_file(self, local: Path, relative: str) -> StoredFile:
        """Copy a local file into the workspace, digesting on the way.

        Raises:
            DataError: it changed meanwhile; no document may name what was written.
        """
        if self._remote is not None:
            sha256, size_bytes = self._put_stable(local, relative, "sha256")
            return StoredFile(path=relative, size_bytes=size_bytes, sha256=sha256)
        with local.open("rb") as source, self.staged(relative) as staging, staging.open("wb") as target:
            # Digested on the way, so that the file is read once.
            writer = DigestingWriter(target)
            while chunk := source.read(1 << 20):
                writer.write(chunk)
        return StoredFile(path=relative, size_bytes=writer.size_bytes, sha256=writer.sha256)

    def publish_expected(self, file: StoredFile) -> None:
        """Publish from its own place on the local side a file that a document names; in a folder it is published.

        Raises:
            FileNotFoundError: it is not there.
            IntegrityError: it differs from the document, which must not be published then.
        """
        if self._remote is None:
            return
        require_digest(file, self._put_stable(self.local_path(file.path), file.path, file.algorithm)[0])

    def _put_stable(self, local: Path, relative: str, algorithm: Algorithm) -> tuple[str, int]:
        """Copy a local file to the object store. Returns its digest and size in bytes.

        Raises:
            DataError: it changed meanwhile; no document may name what was written.
        """
        assert self._remote is not None
        before = stat_identity(local.stat())
        digest = file_digest(local, algorithm)
        with naming_the_place(relative):
            self._remote.put_file(confined(relative), local, exclusive=False)
        # Digested first and sent afterwards: a file that changed in between would be stored under another's digest.
        if stat_identity(local.stat()) != before:
            raise DataError("the file changed while it was published.", where=str(local))
        return digest, before[0]

    def remove(self, relative: str) -> None:
        """Gone already is gone."""
        self._store.remove(confined(relative))

    def publish_document(self, document: Document) -> Link:
        """Content-addressed, so publishing twice is publishing once; a damaged copy is replaced."""
        link = document.link
        self.publish_addressed(document_path(link), document.to_bytes())
        return link

    def publish_addressed(self, relative: str, data: bytes) -> StoredFile:
        """Publish bytes under a name that says what they are: written only when missing, or when gone bad."""
        file = StoredFile(path=relative, size_bytes=len(data), sha256=sha256_bytes(data))
        there = None
        with contextlib.suppress(IntegrityError):  # what is no file is replaced as well
            there = self.read_if_there(relative)
        # Compared whole: a damaged copy under the right name is replaced.
        if there != data or not self.renew(relative):
            self.publish(relative, data)
        return file

    def renew(self, relative: str) -> bool:
        """Count a file that is used again as written now: what is new, no cleaning takes.

        Returns:
            Whether it is still there.
        """
        written_unix_s = self.written_unix_s(relative)
        if written_unix_s is None:
            return False
        # Rarely: for an object store renewing is a read and a write.
        if time.time() - written_unix_s > RENEW_AFTER_S:
            try:
                self._store.renew(confined(relative))
            except FileNotFoundError:
                return False
            except PermissionError:
                return True  # another's file, which only that user's cleaning could take
        return True

    def publish_json(self, relative: str, value: Any) -> StoredFile:
        return self.publish(relative, canonical_json(value))


def make_folder(folder: Path, *, mode: int = 0o777) -> None:
    """With those it lies in, where they are missing; the names of all that were are safe from a power cut.

    Args:
        mode: of the folder itself, if it is made here, less the umask.
    """
    _fsync_names(_make_folder(folder, mode))


def _make_folder(folder: Path, mode: int = 0o777) -> list[Path]:
    """Returns what was missing, innermost first."""
    try:
        folder.mkdir(mode)
        return [folder]
    except FileExistsError as error:
        if not folder.is_dir():
            # Not as if the name of a file in it were taken, which tells a writer that it lost a race.
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
        return []
    except FileNotFoundError:
        above = _make_folder(folder.parent)
        # Another process may make it at the same time.
        folder.mkdir(mode, exist_ok=True)
        return [folder, *above]


def _fsync_names(folders: Sequence[Path]) -> None:
    for folder in folders:
        fsync_path(folder.parent)


def fsync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
