"""What was published, read and proved: bytes, documents, and copies of remote files on this machine.

A workspace has a *local side*: the folder on this machine where runs in progress, spools and databases lie. A folder
is its own local side; an object store's is a cache folder of its own, which can be lost without losing what was
published. `local_path` names a place there, `fetch` brings a published file.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

from headway.data_contracts.store.digests import HASHERS, Algorithm, file_digest, sha256_bytes
from headway.data_contracts.store.documents import Document, Link, StoredFile
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, IntegrityError
from headway.data_contracts.store.file_systems import endpoint_of, open_file_system
from headway.data_contracts.store.folder_store import FileEntry, FolderStore
from headway.data_contracts.store.leftovers import claimed, staging_name
from headway.data_contracts.store.object_store import ObjectStore, Patience
from headway.data_contracts.store.places import (
    PRIVATE,
    confined,
    confined_in,
    local_side,
    lost_place,
    naming_the_place,
    reading,
    require_usable,
    resolved,
)

D = TypeVar("D", bound=Document)

opened: set[Path] = set()
"""Local sides that this process has opened: what the system refuses of a file there is the workspace's trouble."""
NOT_WRITTEN = frozenset({"http", "https", "ftp", "ftps", "sftp", "ssh", "data", "git", "github", "zip", "tar"})
"""Schemes that fsspec knows and that no object can be put under by one conditional request, if at all. Of some it would
ask a server, until the patience is spent."""
GONE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
COPIES = "copies"
MAX_DOCUMENT_BYTES = 2 << 30
"""What no list of a source's files reaches; longer, a reader would fill the memory before it knew the digest."""
MAX_READS = 3
"""How often a remote file may arrive other than its document says, before the store is taken for damaged."""


def canonical_uri(uri: str) -> str:
    """The one name of a workspace, whether it can be used or not. Raises `ConfigError`: no such kind of place."""
    try:
        return _opened(uri).uri
    except EnvironmentProblem:
        return uri


class _Opened(NamedTuple):
    fs: Any
    root: str
    """In the file system."""
    uri: str
    """The workspace's name; of a folder, its root."""
    is_folder: bool


def _opened(uri: str) -> _Opened:
    scheme = uri.partition("://")[0] if "://" in uri else ""
    if scheme.lower() in NOT_WRITTEN:
        raise ConfigError(
            f"a workspace is a folder or an object store, and {scheme}:// is neither.",
            where=uri,
            advice="Give a folder, or a URI such as s3://bucket/prefix.",
        )
    fs, root = open_file_system(uri)
    if "file" not in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)):
        return _Opened(fs, root.rstrip("/"), uri.rstrip("/"), is_folder=False)
    try:
        # Resolved once: a workspace has one name, however a link leads to it.
        folder = str(resolved(Path(root)))
    except OSError as error:
        require_usable(Path(root))
        raise EnvironmentProblem(f"it cannot be used ({error.strerror}).", where=root) from error
    return _Opened(fs, folder, folder, is_folder=True)


def document_path(link: Link) -> str:
    return f"documents/{link.kind}/{link.sha256}.json"


class FileDigests(Protocol):
    """Remembers digests: of local files by their stat identity, of objects by their ETag, where they have one."""

    def digest(self, path: Path, algorithm: Algorithm = "sha256") -> tuple[str, int]: ...

    def lookup_remote(self, uri: str, size_bytes: int, etag: str, algorithm: Algorithm = "sha256") -> str | None: ...

    def remember_remote(
        self, uri: str, size_bytes: int, etag: str, digest: str, algorithm: Algorithm = "sha256"
    ) -> None: ...


class PublishedFiles:
    """
    Args:
        uri: a folder, or a URI that fsspec knows. Credentials come from the environment, never from here.
        patience: how long an object store is tried.
        stage_in: an existing folder, in the file system of the first, where files lie until they are whole; while it is
            not there, nothing is published. None: beside where they will be.

    Raises:
        ConfigError: no such kind of place.
        EnvironmentProblem: a folder that cannot be used, or the local side of a remote workspace that cannot. One that
            is not there yet can be made.
    """

    def __init__(self, uri: str, patience: Patience | None = None, *, stage_in: Path | None = None) -> None:
        self._stage_in = stage_in
        self.presence: Path | None = None
        """A file in the workspace's folder for as long as this process uses it: where that is gone, so is the folder,
        and nothing may be made in its stead."""
        self.fs, self.root, self.uri, is_folder = _opened(uri)
        self._local = Path(self.root) if is_folder else local_side(self.uri, endpoint_of(self.fs))
        require_usable(self._local)
        if not is_folder:
            # Before anything is copied there: who only reads data and models may come before who writes them.
            with contextlib.suppress(OSError):
                self._local.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        opened.add(self._local)
        self._patience = patience or Patience()
        # The store is chosen here; everything below speaks to either in the same words.
        self._remote = None if is_folder else ObjectStore(self.fs, self.root, self.uri, self._patience)
        self._store = self._remote or FolderStore(self._local)

    def path(self, relative: str) -> str:
        """A path as the workspace's file system takes it."""
        return f"{self.root}/{confined(relative)}"

    def uri_of(self, relative: str) -> str:
        """A name for a person, or for another program, to find the file under."""
        return f"{self.uri}/{confined(relative)}"

    def local_path(self, relative: str) -> Path:
        """A place on the local side: the workspace itself where that is a folder."""
        return confined_in(self._local, relative)

    @property
    def is_local(self) -> bool:
        """Whether the workspace is a folder, its own local side."""
        return self._remote is None

    def lost(self) -> EnvironmentProblem | None:
        """What to say when the workspace's folder went away while this process uses it; None as long as it is there."""
        return None if self.presence is None else lost_place(self._local, self.presence, to_write=True)

    def require_there(self) -> None:
        """Raises `EnvironmentProblem`: the workspace's folder went away while this process uses it."""
        if (problem := self.lost()) is not None:
            raise problem

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

    def fetch_all(self, files: Iterable[StoredFile]) -> None:
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
        confined(file.path)  # before the target, whose name may come of it, is made
        partial = target.parent / staging_name(target.name)
        with naming_the_place(str(target)):
            # A copy that is there already is proved again: a cache folder may have been altered.
            if target.is_file() and file_digest(target, file.algorithm) == file.digest:
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            with claimed(partial):
                try:
                    # To a partial name: a copy appears whole or not at all.
                    with partial.open("wb") as stream:
                        self.read_into(file, stream)
                    partial.replace(target)
                finally:
                    partial.unlink(missing_ok=True)

    def read_into(self, file: StoredFile, target: BinaryIO, on_part: Callable[[], None] = lambda: None) -> None:
        """Write a published file's bytes, which count only when this returns: the digest is known last.

        Args:
            target: where to write from its present position on; of a remote file, perhaps more than once.
            on_part: called whenever something has moved.

        Raises:
            IntegrityError: gone, or different however often it is read.
        """
        begin, waits_s = target.tell(), self._patience.waits_s()
        for number in range(1, MAX_READS + 1):
            try:
                self._read_once(file, target, on_part)
                return
            except GONE as error:
                raise IntegrityError("the file is gone.", where=file.path) from error
            except IntegrityError:
                # A local file does not change by reading it again; what arrives over a network may.
                if self._remote is None or number == MAX_READS:
                    raise
            time.sleep(next(waits_s))
            # From the beginning: what was written of a damaged copy is overwritten.
            target.seek(begin)

    def _read_once(self, file: StoredFile, target: BinaryIO, on_part: Callable[[], None]) -> None:
        digest = HASHERS[file.algorithm]()
        for part in self._store.parts(confined(file.path), file.size_bytes):
            digest.update(part)
            target.write(part)
            on_part()
        require_digest(file, digest.hexdigest())

    def exists(self, relative: str) -> bool:
        """Whether there is a file of this name."""
        return self._store.exists(confined(relative))

    def names(self, relative: str) -> list[str]:
        """Bare names in a folder, sorted; empty where there is none."""
        return self._store.names(confined(relative))

    def files(self, relative: str) -> Iterator[FileEntry]:
        """Every file below a folder, in no order."""
        return self._store.files(confined(relative))

    def written_unix_s(self, relative: str) -> float | None:
        """When a file was written, or renewed, last; None when it is gone."""
        try:
            return self._store.written_unix_s(confined(relative))
        except GONE:
            return None

    def is_empty(self) -> bool:
        """Whether nothing was ever published here."""
        return not self._store.names("")

    def read(self, relative: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
        """Raises `IntegrityError` naming the file when it is gone, no file, or longer than it may be."""
        data = self.read_if_there(relative, max_bytes)
        if data is None:
            raise IntegrityError("the file is gone.", where=relative)
        return data

    def read_if_there(self, relative: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | None:
        """Bounded: others may write there, and a hole makes a file of any length.

        Raises:
            IntegrityError: it is no file, or longer.
        """
        try:
            return self._store.read(confined(relative), max_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_stored(self, file: StoredFile) -> bytes:
        """The whole of a file, which is what its document says.

        Raises:
            IntegrityError: gone, or different.
        """
        target = io.BytesIO()
        self.read_into(file, target)
        return target.getvalue()

    def digest(self, relative: str, known: FileDigests, algorithm: Algorithm = "sha256") -> str:
        """Digest of a file, which is read only if it may have changed since it was last.

        Raises:
            IntegrityError: the file is gone.
        """
        try:
            if self._remote is None:
                with reading(relative):
                    return known.digest(self.local_path(relative), algorithm)[0]
            size_bytes, etag = self._remote.identity(confined(relative))
            name = self.uri_of(relative)
            actual = known.lookup_remote(name, size_bytes, etag, algorithm)
            if actual is None:
                # Remembered by its strong ETag, so that an unchanged object is not read again.
                actual = self._remote.digest(relative, algorithm)
                known.remember_remote(name, size_bytes, etag, actual, algorithm)
            return actual
        except GONE as error:
            raise IntegrityError("the file is gone.", where=relative) from error

    def load(self, link: Link, document_type: type[D]) -> D:
        """The document that `link` names, its bytes checked against the name.

        Raises:
            IntegrityError: gone, altered, or of another kind.
        """
        where = document_path(link)
        # The kind is part of the name: a document of another kind would pass its digest and fail much later.
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
            actual = self._store.digest(confined(file.path), file.algorithm)
        except GONE as error:
            raise IntegrityError("the file is gone.", where=file.path) from error
        require_digest(file, actual)


def require_digest(file: StoredFile, actual: str) -> None:
    if actual != file.digest:
        message = f"its document says {file.digest[:12]}"
        raise IntegrityError(f"{file.algorithm} is {actual[:12]}, {message}.", where=file.path)
