"""Where the files of a source lie: a local folder or a remote store, asked in one manner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from headway.data_contracts.sources.listing import RemoteFile, list_local, list_remote
from headway.data_contracts.sources.locations import file_place, follows_links, is_remote
from headway.data_contracts.sources.verified_bytes import copy_remote, hash_remote, open_remote
from headway.data_contracts.store.digests import stat_identity
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.tables.file_cache import FileCache
from headway.data_contracts.tables.parquet_files import Footer, read_footer
from headway.data_contracts.tables.source_errors import changed_while_read, unreadable
from headway.data_contracts.tables.source_spec import SourceSpec


class ListedFile(NamedTuple):
    path: str
    """Relative to the source's root."""
    size_bytes: int
    version: object
    """Equal for as long as nobody touches the file."""


class Store(Protocol):
    def list_files(self) -> list[ListedFile]: ...

    def place(self, file: ListedFile) -> str:
        """Where it lies: an absolute path, or an fsspec URI."""
        ...

    def footer(self, file: ListedFile) -> Footer:
        """What a Parquet file's footer says."""
        ...

    def digest(self, file: ListedFile) -> str:
        """SHA-256 of the file that was listed. Raises `DataError`: unreadable, or changed since."""
        ...

    def check_unchanged(self, files: Sequence[ListedFile]) -> None:
        """Raises `DataError`: one of them is not as it was listed."""
        ...


def open_store(spec: SourceSpec, root: str, cache: DigestCache, copies: FileCache) -> Store:
    return RemoteStore(spec, root, cache, copies) if is_remote(root) else LocalStore(spec, root, cache)


class LocalStore:
    def __init__(self, spec: SourceSpec, root: str, cache: DigestCache) -> None:
        self._spec, self._root, self._cache = spec, root, cache

    def list_files(self) -> list[ListedFile]:
        follow_links = follows_links(self._spec)
        found = list_local(Path(self._root), self._spec.include, self._spec.exclude, follow_links=follow_links)
        return [ListedFile(path, status.st_size, stat_identity(status)) for path, status in found]

    def place(self, file: ListedFile) -> str:
        return file_place(self._root, file.path)

    def footer(self, file: ListedFile) -> Footer:
        return read_footer(self.place(file), self.place(file))

    def digest(self, file: ListedFile) -> str:
        path = Path(self.place(file))
        try:
            return self._cache.digest(path)[0]
        except OSError as error:
            raise unreadable(str(path), error) from error

    def check_unchanged(self, files: Sequence[ListedFile]) -> None:
        for file in files:
            path = Path(self.place(file))
            try:
                is_same = stat_identity(path.stat()) == file.version
            except OSError as error:
                raise unreadable(str(path), error) from error
            if not is_same:
                raise changed_while_read(str(path))


class RemoteStore:
    def __init__(self, spec: SourceSpec, root: str, cache: DigestCache, copies: FileCache) -> None:
        self._spec, self._root, self._cache, self._copies = spec, root, cache, copies
        self._etags: dict[str, str] = {}
        self._fresh: list[tuple[str, int, str, str]] = []

    def list_files(self) -> list[ListedFile]:
        found = self._listed()
        self._etags = {file.path: file.etag for file in found}
        return [ListedFile(file.path, file.size_bytes, file.version) for file in found]

    def place(self, file: ListedFile) -> str:
        return file_place(self._root, file.path)

    def _listed(self) -> list[RemoteFile]:
        spec = self._spec
        return list_remote(self._root, spec.include, spec.exclude, follow_links=follows_links(spec))

    def footer(self, file: ListedFile) -> Footer:
        uri = self.place(file)
        with open_remote(uri) as stream:
            return read_footer(stream, uri)

    def digest(self, file: ListedFile) -> str:
        uri, etag = self.place(file), self._etags[file.path]
        remembered = self._cache.lookup_remote(uri, file.size_bytes, etag)
        if remembered is not None:
            return remembered
        # A table will be wanted on this machine, to be looked at as a whole.
        sha256, size_bytes = copy_remote(uri, self._copies) if self._spec.is_table else hash_remote(uri)
        # Listing and reading are two requests: another size means that the object changed between them.
        if size_bytes != file.size_bytes:
            raise changed_while_read(uri)
        self._fresh.append((uri, size_bytes, etag, sha256))
        return sha256

    def check_unchanged(self, files: Sequence[ListedFile]) -> None:
        now = {file.path: file.version for file in self._listed()}
        for file in files:
            if now.get(file.path) != file.version:
                raise changed_while_read(self.place(file))
        # Only now is it sure that what was read belongs to the ETag that was listed.
        for entry in self._fresh:
            self._cache.remember_remote(*entry)
