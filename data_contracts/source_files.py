"""Which files a source has: a sorted listing that survives links, loops and names that are no text."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import fsspec

from data_contracts.errors import ConfigError, DataError
from data_contracts.globs import folder_filter, path_filter

LocalFile = tuple[str, os.stat_result]


def unreadable(where: str, error: OSError) -> DataError:
    return DataError(
        f"cannot be read ({error.strerror or type(error).__name__}).",
        where=where,
        advice="Make it readable, or exclude it in `source.exclude`.",
    )


def list_local(root: Path, include: Sequence[str], exclude: Sequence[str]) -> list[LocalFile]:
    """Wanted regular files below a folder, by relative POSIX path in code-point order, with their stat.

    A link to a file counts as that file. A linked folder is followed unless it is read already, so that no file is
    listed twice and a loop ends. No name is normalised: `é` in two Unicode forms is two files, as on the disk.

    Raises:
        DataError: the root or a folder cannot be listed; a wanted name is not a readable regular file, or not UTF-8.
    """
    try:
        is_folder = root.is_dir()
    except OSError as error:
        raise unreadable(str(root), error) from error
    if not is_folder:
        raise DataError("there is no such folder.", where=str(root), advice="Check `source.uri`.")
    is_wanted, is_open = path_filter(include, exclude), folder_filter(exclude)
    files = [(relative, _status(entry)) for relative, entry in _walk(root, is_open) if is_wanted(relative)]
    return sorted(files, key=lambda file: file[0])


def _walk(root: Path, is_open: Callable[[str], bool]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every entry; real folders first and linked ones last, so that a file keeps its real path."""
    real, linked, seen = deque([("", str(root))]), deque[tuple[str, str]](), set[tuple[int, int]]()
    while real or linked:
        prefix, folder = (real or linked).popleft()
        try:
            status = Path(folder).stat()
        except OSError as error:
            raise unreadable(folder, error) from error
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in _scan(folder):
            relative = prefix + entry.name
            if _is_folder(entry):
                if is_open(relative):
                    (linked if entry.is_symlink() else real).append((f"{relative}/", entry.path))
            else:
                yield relative, entry


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise unreadable(folder, error) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        entry.path.encode()
        status = Path(entry.path).stat()
    except OSError as error:
        raise unreadable(entry.path, error) from error
    except UnicodeEncodeError as error:
        raise DataError(
            "the file's name is not UTF-8.", where=ascii(entry.path), advice="Rename it, or exclude it."
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise DataError("is not a regular file.", where=entry.path, advice="Exclude it in `source.exclude`.")
    return status


def list_remote(root: str, include: Sequence[str], exclude: Sequence[str]) -> list[tuple[str, int]]:
    """Wanted files below an fsspec URI, by relative path in code-point order, with their size in bytes.

    Raises:
        ConfigError: the URI's protocol is not known or its package is not installed.
        DataError: the listing was refused.
    """
    try:
        fs, path = fsspec.core.url_to_fs(root)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"no file system for this URI ({error}).", where=f"source.uri {root!r}") from error
    fs.invalidate_cache()
    try:
        found = fs.find(path, detail=True)
    except OSError as error:
        raise unreadable(root, error) from error
    is_wanted = path_filter(include, exclude)
    prefix = path.rstrip("/") + "/"
    files = ((name.removeprefix(prefix), int(info["size"])) for name, info in found.items())
    return sorted(file for file in files if is_wanted(file[0]))
