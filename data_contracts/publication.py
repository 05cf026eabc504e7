"""Publication: the one place that writes to a workspace, and the one way it does.

Temporary name, digest while writing, fsync, then rename (a folder) or conditional put (an object store).
A reader sees a whole file or none. Paths that come from documents never leave the workspace.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from data_contracts.digests import DigestingWriter, canonical_json, sha256_bytes, sha256_file
from data_contracts.documents import Document, Link, StoredFile
from data_contracts.errors import ConfigError, EnvironmentProblem, IntegrityError

D = TypeVar("D", bound=Document)


def confined(relative: str) -> str:
    """`relative` itself, or `IntegrityError` when it could leave the folder it is relative to."""
    parts = relative.split("/")
    if not relative or "\\" in relative or "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise IntegrityError(f"path {relative!r} leaves the workspace.", advice="The document was tampered with.")
    return relative


def document_path(link: Link) -> str:
    return f"documents/{link.kind}/{link.sha256}.json"


class Workspace:
    """A folder or object-store prefix that holds everything of one team's pipelines."""

    def __init__(self, uri: str) -> None:
        try:
            self.fs, root = fsspec.core.url_to_fs(uri)
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"no such kind of place ({error}).", where=uri, advice="Give a folder, or a URI that fsspec knows."
            ) from error
        self.is_local = "file" in (self.fs.protocol if isinstance(self.fs.protocol, tuple) else (self.fs.protocol,))
        self.root = str(Path(root).resolve()) if self.is_local else root.rstrip("/")
        self.uri = self.root if self.is_local else uri.rstrip("/")

    @classmethod
    def create(cls, uri: str) -> Workspace:
        """Open, making the root if it is missing, and prove that it can be written.

        Raises:
            EnvironmentProblem: not writable, or not a folder.
        """
        workspace = cls(uri)
        probe = f"{workspace.root}/.probe-{uuid.uuid4().hex}"
        try:
            workspace.fs.makedirs(workspace.root, exist_ok=True)
            workspace.fs.pipe_file(probe, b"")
            workspace.fs.rm_file(probe)
        except (OSError, PermissionError) as error:
            raise EnvironmentProblem(
                f"the workspace cannot be written ({error.strerror or error}).",
                where=workspace.uri,
                advice="Give a writable folder or URI with --workspace.",
            ) from error
        return workspace

    def path(self, relative: str) -> str:
        return f"{self.root}/{confined(relative)}"

    def local_path(self, relative: str) -> Path:
        """A path on this machine.

        Raises:
            ConfigError: the workspace is an object store.
        """
        if not self.is_local:
            raise ConfigError("this needs a workspace on a file system.", where=self.uri)
        path = Path(self.path(relative))
        if not path.resolve().is_relative_to(self.root):
            raise IntegrityError("a link leads out of the workspace.", where=str(path))
        return path

    def exists(self, relative: str) -> bool:
        return bool(self.fs.exists(self.path(relative)))

    def names(self, relative: str) -> list[str]:
        """Bare names in a folder, sorted; empty where there is none."""
        try:
            self.fs.invalidate_cache()
            listing = self.fs.ls(self.path(relative), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(Path(name).name for name in listing)

    def read(self, relative: str) -> bytes:
        """Raises `IntegrityError` naming the file when it is gone."""
        try:
            data: bytes = self.fs.cat_file(self.path(relative))
        except FileNotFoundError as error:
            raise IntegrityError("the file is gone.", where=relative) from error
        return data

    def publish(self, relative: str, data: bytes, *, exclusive: bool = False) -> StoredFile:
        """Publish bytes under a name.

        Raises:
            FileExistsError: `exclusive`, and the name is taken; nothing was changed.
            EnvironmentProblem: no space left, or permission lost; nothing was published.
        """
        if self.is_local:
            with self.staged(relative, exclusive=exclusive) as staging:
                staging.write_bytes(data)
        else:
            self.fs.pipe_file(self.path(relative), data, mode="create" if exclusive else "overwrite")
        return StoredFile(path=relative, size_bytes=len(data), sha256=sha256_bytes(data))

    @contextlib.contextmanager
    def staged(self, relative: str, *, exclusive: bool = False) -> Iterator[Path]:
        """A temporary local path whose file becomes `relative` when the body ends well, and nothing otherwise."""
        final = self.local_path(relative)
        staging = final.parent / f".{final.name}.{uuid.uuid4().hex}.partial"
        with naming_the_place(relative):
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield staging
                fsync_path(staging)
                if exclusive:
                    os.link(staging, final)
                else:
                    staging.replace(final)
                fsync_path(final.parent)
            finally:
                staging.unlink(missing_ok=True)

    def publish_file(self, local: Path, relative: str) -> StoredFile:
        """Copy a local file into the workspace, digesting on the way."""
        with local.open("rb") as source:
            if not self.is_local:
                return self.publish(relative, source.read())
            with self.staged(relative) as staging, staging.open("wb") as target:
                writer = DigestingWriter(target)
                while chunk := source.read(1 << 20):
                    writer.write(chunk)
        return StoredFile(path=relative, size_bytes=writer.size_bytes, sha256=writer.sha256)

    def publish_document(self, document: Document) -> Link:
        """Content-addressed, so publishing twice is publishing once; a damaged copy is replaced."""
        link = document.link
        self.publish_addressed(document_path(link), document.to_bytes())
        return link

    def publish_addressed(self, relative: str, data: bytes) -> StoredFile:
        """Publish bytes under a name that says what they are: written only when missing, or when gone bad."""
        file = StoredFile(path=relative, size_bytes=len(data), sha256=sha256_bytes(data))
        if not self.exists(relative) or self.read(relative) != data:
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
        if self.is_local:
            path = self.local_path(file.path)
            if not path.is_file():
                raise IntegrityError("the file is gone.", where=file.path)
            actual = sha256_file(path)
        else:
            actual = sha256_bytes(self.read(file.path))
        if actual != file.sha256:
            raise IntegrityError(f"sha256 is {actual[:12]}, its document says {file.sha256[:12]}.", where=file.path)


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
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
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
