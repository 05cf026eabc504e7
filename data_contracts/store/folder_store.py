"""A folder as a store of files by relative path, with the words of an object store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headway.data_contracts.store.digests import CHUNK_BYTES, Algorithm, file_digest, opened
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.places import confined_in, reading


class FileEntry(NamedTuple):
    """A file as a listing shows it."""

    path: str
    size_bytes: int
    unix_s: float
    """When it was written, or renewed, last."""


class FolderStore:
    """Files below a folder. Whoever asks for one that is gone gets `FileNotFoundError`, and whoever asks for one that
    cannot be read the errors of `reading`; what is no file gives `IntegrityError` at once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, relative: str, max_bytes: int | None = None) -> bytes:
        with reading(relative), opened(self._path(relative), relative) as stream:
            # Asked of the open file: its size cannot change between the question and the read by a rename.
            if max_bytes is not None and os.fstat(stream.fileno()).st_size > max_bytes:
                raise too_long(relative, max_bytes)
            return stream.readall()

    def names(self, relative: str) -> list[str]:
        """Bare names directly below a folder, sorted; the root's own where `relative` is empty."""
        try:
            with reading(relative):
                return sorted(os.listdir(self._path(relative) if relative else self.root))  # noqa: PTH208 - names alone
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, relative: str) -> bool:
        with reading(relative):
            return self._path(relative).is_file()

    def files(self, relative: str) -> Iterator[FileEntry]:
        """Every file below a folder, links not followed; what goes meanwhile is left out.

        Raises:
            OSError: a folder cannot be listed, of which nobody may think that it is empty.
        """
        for folder, _, names in os.walk(self._path(relative), onerror=_raise_unless_gone):
            for name in names:
                # A folder that cannot be listed must not look empty: a cleaner would remove what it still needs.
                path = Path(folder, name)
                # Between the listing and the look a file may go.
                with contextlib.suppress(FileNotFoundError):
                    stat = path.lstat()
                    yield FileEntry(path.relative_to(self.root).as_posix(), stat.st_size, stat.st_mtime)

    def written_unix_s(self, relative: str) -> float:
        """When a file was written, or renewed, last. Raises `FileNotFoundError`."""
        return self._path(relative).stat().st_mtime

    def renew(self, relative: str) -> None:
        """Count a file as written now. Raises `FileNotFoundError`."""
        os.utime(self._path(relative))

    def put_file(self, relative: str, local: Path, *, exclusive: bool) -> None:
        """Give a finished file of the same folder its name. Raises `FileExistsError`: `exclusive`, and it is taken."""
        if exclusive:
            # `link` fails where the name is taken, which `rename` does not: this is the compare-and-set of a folder.
            os.link(local, self._path(relative))
        else:
            local.replace(self._path(relative))

    def remove(self, relative: str) -> None:
        """Gone already is gone."""
        self._path(relative).unlink(missing_ok=True)

    def digest(self, relative: str, algorithm: Algorithm) -> str:
        with reading(relative):
            return file_digest(self._path(relative), algorithm, relative)

    def parts(self, relative: str, size_bytes: int) -> Iterator[bytes]:
        """The file from its beginning to its end, wherever that is."""
        with opened(self._path(relative), relative) as stream:
            while part := stream.read(CHUNK_BYTES):
                yield part

    def _path(self, relative: str) -> Path:
        return confined_in(self.root, relative)


def too_long(relative: str, max_bytes: int) -> IntegrityError:
    return IntegrityError(f"is longer than {max_bytes:,} bytes, and nothing of its kind is.", where=relative)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
