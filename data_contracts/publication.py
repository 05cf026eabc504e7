"""Publication: the one place that writes to a workspace, and the one way it does.

Temporary name, digest while writing, fsync, then rename (a folder) or conditional put (an object store).
A reader sees a whole file or none. Paths that come from documents never leave the workspace.

A workspace has a *local side*: the folder on this machine where runs in progress, spools and databases lie. A folder
is its own local side; an object store's is a cache folder of its own, which can be lost without losing what was
published. `local_path` names a place there, `fetch` brings a published file, `publish_tree` hands a folder on.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from data_contracts.digests import DigestingWriter, canonical_json, sha256_bytes, sha256_file, stat_identity
from data_contracts.documents import Document, Link, StoredFile
from data_contracts.errors import DataError, EnvironmentProblem, IntegrityError
from data_contracts.full_disk import is_out_of_space
from data_contracts.leftovers import STAGING_SUFFIX, claimed, staging_name
from data_contracts.object_store import ObjectStore, Patience, endpoint_of, open_file_system

D = TypeVar("D", bound=Document)

LOCAL = "HEADWAY_LOCAL"
"""Environment: the folder that holds the local sides of remote workspaces; `headway` in the user's cache by default."""
COPIES = "copies"


def confined(relative: str) -> str:
    """`relative` itself, or `IntegrityError` when it could leave the folder it is relative to."""
    parts = relative.split("/")
    if not relative or "\\" in relative or "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise IntegrityError(f"path {relative!r} leaves the workspace.", advice="The document was tampered with.")
    return relative


def document_path(link: Link) -> str:
    return f"documents/{link.kind}/{link.sha256}.json"


class FileDigests(Protocol):
    """Remembers digests: of local files by their stat identity, of objects by their ETag, where they have one."""

    def digest(self, path: Path) -> tuple[str, int]: ...

    def lookup_remote(self, uri: str, size_bytes: int, etag: str) -> str | None: ...

    def remember_remote(self, uri: str, size_bytes: int, etag: str, sha256: str) -> None: ...


def local_side(uri: str, endpoint: str) -> Path:
    """The folder on this machine that belongs to a remote workspace."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(os.environ.get(LOCAL) or f"{cache}/headway").absolute()
    return folder / sha256_bytes(f"{endpoint} {uri}".encode())[:16]


class Workspace:
    """A folder or object-store prefix that holds everything of one team's pipelines.

    Args:
        uri: a folder, or a URI that fsspec knows. Credentials come from the environment, never from here.
        patience: how long an object store is tried.
    """

    def __init__(self, uri: str, patience: Patience | None = None) -> None:
        self.fs, root = open_file_system(uri)
        is_folder = "file" in (self.fs.protocol if isinstance(self.fs.protocol, tuple) else (self.fs.protocol,))
        self.root = str(Path(root).resolve()) if is_folder else root.rstrip("/")
        self.uri = self.root if is_folder else uri.rstrip("/")
        self._remote = None if is_folder else ObjectStore(self.fs, self.root, self.uri, patience)
        self._local = Path(self.root) if is_folder else local_side(self.uri, endpoint_of(self.fs))

    @classmethod
    def create(cls, uri: str, patience: Patience | None = None) -> Workspace:
        """Open, making a folder if it is missing, and prove that it can be written, here and there.

        Raises:
            EnvironmentProblem: not writable, not a folder, or no such bucket.
        """
        workspace = cls(uri, patience)
        probe = f".probe-{uuid.uuid4().hex}"
        place = str(workspace._local)
        try:
            workspace._local.mkdir(parents=True, exist_ok=True)
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
            workspace._remote.put(probe, b"", exclusive=False)
            workspace._remote.remove(probe)
        return workspace

    def path(self, relative: str) -> str:
        """A path as the workspace's file system takes it."""
        return f"{self.root}/{confined(relative)}"

    def uri_of(self, relative: str) -> str:
        """A name for a person, or for another program, to find the file under."""
        return f"{self.uri}/{confined(relative)}"

    def local_path(self, relative: str) -> Path:
        """A place on the local side: the workspace itself where that is a folder."""
        path = self._local / confined(relative)
        if not path.resolve().is_relative_to(self._local.resolve()):
            raise IntegrityError("a link leads out of the workspace.", where=str(path))
        return path

    @property
    def is_local(self) -> bool:
        """Whether the workspace is a folder, its own local side."""
        return self._remote is None

    @property
    def local_root(self) -> Path:
        """The local side."""
        return self._local

    def fetch(self, file: StoredFile) -> Path:
        """A published file on this machine, verified: itself in a folder, a kept copy of a remote one.

        Raises:
            IntegrityError: gone, or different.
        """
        if self._remote is None:
            self.verify(file)
            return self.local_path(file.path)
        copy = self.local_path(f"{COPIES}/{file.path}")
        self.copy_out(file, copy)
        return copy

    def bring(self, files: Iterable[StoredFile]) -> None:
        """Copy published files to their own places on the local side, one after another; in a folder they are there.

        Raises:
            IntegrityError: one is gone, or different.
        """
        for file in files if self._remote is not None else ():
            self.copy_out(file, self.local_path(file.path))

    def copy_out(self, file: StoredFile, target: Path) -> None:
        """Copy a published file to a place on this machine, verified, whole or not at all; nothing if it is there.

        Raises:
            IntegrityError: gone, or different.
        """
        if target.is_file() and sha256_file(target) == file.sha256:
            return
        partial = target.parent / staging_name(target.name)
        with naming_the_place(str(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            with claimed(partial):
                try:
                    with partial.open("wb") as stream:
                        self.read_into(file, stream)
                    partial.replace(target)
                finally:
                    partial.unlink(missing_ok=True)

    def read_into(self, file: StoredFile, target: BinaryIO, on_part: Callable[[], None] = lambda: None) -> None:
        """Write a published file's bytes, which count only when this returns: the digest is known last.

        Args:
            on_part: called whenever something has moved.

        Raises:
            IntegrityError: gone, or different.
        """
        digest = hashlib.sha256()
        try:
            for part in self._parts(file):
                digest.update(part)
                target.write(part)
                on_part()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise IntegrityError("the file is gone.", where=file.path) from error
        _require(file, digest.hexdigest())

    def _parts(self, file: StoredFile) -> Iterator[bytes]:
        if self._remote is not None:
            yield from self._remote.parts(confined(file.path), file.size_bytes)
            return
        with self.local_path(file.path).open("rb") as stream:
            while part := stream.read(1 << 20):
                yield part

    def publish_tree(self, relative: str, pattern: str = "**/*") -> tuple[StoredFile, ...]:
        """Publish what lies below a place on the local side and matches; in a folder it is published already."""
        if self._remote is None:
            return ()
        folder = self.local_path(relative)
        paths = sorted(
            path for path in folder.glob(pattern) if path.is_file() and not path.name.endswith(STAGING_SUFFIX)
        )
        return tuple(self.publish_file(path, f"{relative}/{path.relative_to(folder).as_posix()}") for path in paths)

    def exists(self, relative: str) -> bool:
        """Whether there is a file of this name."""
        if self._remote is not None:
            return self._remote.exists(confined(relative))
        return Path(self.path(relative)).is_file()

    def names(self, relative: str) -> list[str]:
        """Bare names in a folder, sorted; empty where there is none."""
        if self._remote is not None:
            return self._remote.names(confined(relative))
        try:
            return sorted(os.listdir(self.path(relative)))  # noqa: PTH208 - names are all that is asked for
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_empty(self) -> bool:
        """Whether nothing was ever published here."""
        if self._remote is not None:
            return not self._remote.names("")
        return not (Path(self.root).is_dir() and any(Path(self.root).iterdir()))

    def read(self, relative: str) -> bytes:
        """Raises `IntegrityError` naming the file when it is gone."""
        data = self.read_if_there(relative)
        if data is None:
            raise IntegrityError("the file is gone.", where=relative)
        return data

    def read_if_there(self, relative: str) -> bytes | None:
        try:
            if self._remote is not None:
                return self._remote.read(confined(relative))
            return Path(self.path(relative)).read_bytes()
        except FileNotFoundError:
            return None

    def digest(self, relative: str, known: FileDigests) -> str:
        """SHA-256 of a file, which is read only if it may have changed since it was last.

        Raises:
            IntegrityError: the file is gone.
        """
        try:
            if self._remote is None:
                return known.digest(self.local_path(relative))[0]
            size_bytes, etag = self._remote.identity(confined(relative))
            name = self.uri_of(relative)
            actual = known.lookup_remote(name, size_bytes, etag)
            if actual is None:
                actual = self._remote.sha256(relative)
                known.remember_remote(name, size_bytes, etag, actual)
            return actual
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise IntegrityError("the file is gone.", where=relative) from error

    def publish(self, relative: str, data: bytes | memoryview, *, exclusive: bool = False) -> StoredFile:
        """Publish bytes under a name.

        Raises:
            FileExistsError: `exclusive`, and the name is taken; nothing was changed. An object store cannot tell a
                lost answer from a lost race but by the bytes: writers that race put something of their own in.
            EnvironmentProblem: no space left, permission lost, or the store does not answer; nothing was published.
        """
        if self._remote is not None:
            self._remote.put(confined(relative), bytes(data), exclusive=exclusive)
        else:
            with self.staged(relative, exclusive=exclusive) as staging:
                staging.write_bytes(data)
        return StoredFile(path=relative, size_bytes=len(data), sha256=sha256_bytes(data))

    @contextlib.contextmanager
    def staged(self, relative: str, *, exclusive: bool = False) -> Iterator[Path]:
        """A temporary local path whose file becomes `relative` when the body ends well, and nothing otherwise."""
        final = self.local_path(relative)
        staging = final.parent / staging_name(final.name)
        with naming_the_place(relative):
            final.parent.mkdir(parents=True, exist_ok=True)
            with claimed(staging):
                try:
                    yield staging
                    fsync_path(staging)
                    self._place(staging, relative, final, exclusive=exclusive)
                finally:
                    staging.unlink(missing_ok=True)

    def _place(self, staging: Path, relative: str, final: Path, *, exclusive: bool) -> None:
        if self._remote is not None:
            self._remote.put_file(confined(relative), staging, exclusive=exclusive)
            return
        if exclusive:
            os.link(staging, final)
        else:
            staging.replace(final)
        fsync_path(final.parent)

    def publish_file(self, local: Path, relative: str) -> StoredFile:
        """Copy a local file into the workspace, digesting on the way.

        Raises:
            DataError: it changed meanwhile; no document may name what was written.
        """
        if self._remote is not None:
            before = stat_identity(local.stat())
            sha256 = sha256_file(local)
            with naming_the_place(relative):
                self._remote.put_file(confined(relative), local, exclusive=False)
            if stat_identity(local.stat()) != before:
                raise DataError("the file changed while it was published.", where=str(local))
            return StoredFile(path=relative, size_bytes=before[0], sha256=sha256)
        with local.open("rb") as source, self.staged(relative) as staging, staging.open("wb") as target:
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
        _require(file, self.publish_file(self.local_path(file.path), file.path).sha256)

    def remove(self, relative: str) -> None:
        """Gone already is gone."""
        if self._remote is not None:
            self._remote.remove(confined(relative))
        else:
            self.local_path(relative).unlink(missing_ok=True)

    def publish_document(self, document: Document) -> Link:
        """Content-addressed, so publishing twice is publishing once; a damaged copy is replaced."""
        link = document.link
        self.publish_addressed(document_path(link), document.to_bytes())
        return link

    def publish_addressed(self, relative: str, data: bytes) -> StoredFile:
        """Publish bytes under a name that says what they are: written only when missing, or when gone bad."""
        file = StoredFile(path=relative, size_bytes=len(data), sha256=sha256_bytes(data))
        if self.read_if_there(relative) != data:
            self.publish(relative, data)
        return file

    def publish_json(self, relative: str, value: Any) -> StoredFile:
        return self.publish(relative, canonical_json(value))

    def load(self, link: Link, document_type: type[D]) -> D:
        """The document that `link` names, its bytes checked against the name.

        Raises:
            IntegrityError: gone, altered, or of another kind.
        """
        where = document_path(link)
        if link.kind != document_type.kind:
            raise IntegrityError(f"is a {link.kind}, not a {document_type.kind}.", where=where)
        data = self.read(where)
        if sha256_bytes(data) != link.sha256:
            raise IntegrityError("its bytes differ from the digest in its name.", where=where)
        return document_type.from_bytes(data, where=where)

    def verify(self, file: StoredFile) -> None:
        """Re-hash a stored file.

        Raises:
            IntegrityError: gone, or different.
        """
        try:
            if self._remote is None:
                actual = sha256_file(self.local_path(file.path))
            else:
                actual = self._remote.sha256(confined(file.path))
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise IntegrityError("the file is gone.", where=file.path) from error
        _require(file, actual)


def _require(file: StoredFile, actual_sha256: str) -> None:
    if actual_sha256 != file.sha256:
        raise IntegrityError(f"sha256 is {actual_sha256[:12]}, its document says {file.sha256[:12]}.", where=file.path)


def fsync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming_the_place(relative: str) -> Iterator[None]:
    """Turn the operating system's refusals into errors a person can act on."""
    try:
        yield
    except OSError as error:
        if is_out_of_space(error):
            raise EnvironmentProblem(
                "no space left while writing; nothing was published.",
                where=relative,
                advice="Free some space and run again: finished stages are kept.",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise EnvironmentProblem(
                f"writing is refused ({error.strerror}); nothing was published.",
                where=relative,
                advice="Check the workspace's owner and mode.",
            ) from error
        raise
