"""Which files a source has: a sorted listing that survives links, loops and names that are no text."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headway.data_contracts.store.errors import DataError, EnvironmentProblem
from headway.data_contracts.store.file_systems import file_system_of
from headway.data_contracts.store.globs import folder_filter, path_filter
from headway.data_contracts.tables.source_errors import reading_remote, unreadable

VERSION_KEYS = ("ETag", "etag", "VersionId", "generation", "LastModified", "last_modified", "mtime", "created")
"""What fsspec's file systems call the things that change with a file's content."""
LocalFile = tuple[str, os.stat_result]


class RemoteFile(NamedTuple):
    path: str
    size_bytes: int
    version: str
    """What the store says of its state: other bytes under this name have another version, where stores know one."""
    etag: str
    """The strong ETag, which no other content of this name ever has; empty where there is none."""


def list_local(
    root: Path, include: Sequence[str], exclude: Sequence[str], *, follow_links: bool = False
) -> list[LocalFile]:
    """Wanted regular files below a folder, by relative POSIX path in code-point order, with their stat.

    A link to a file counts as that file. A linked folder is followed unless it is read already, so that no file is
    listed twice and a loop ends. No name is normalised: `é` in two Unicode forms is two files, as on the disk.

    Args:
        root: may itself be a link.
        follow_links: whether a link may lead out of `root`; links that stay within are always followed.

    Raises:
        DataError: the root or a folder cannot be listed; a wanted name is not a readable regular file, or not UTF-8; a
            link leads out that may not.
    """
    try:
        is_folder = root.is_dir()
    except OSError as error:
        raise unreadable(str(root), error) from error
    if not is_folder:
        raise DataError("there is no such folder.", where=str(root), advice="Check `source.uri`.")
    is_wanted, is_excluded = path_filter(include, exclude), path_filter(exclude, ())
    may_hold, home = folder_filter(include, exclude), Path(os.path.realpath(root))

    def is_open(relative: str, entry: os.DirEntry[str]) -> bool:
        # No file below can be wanted, so that not even a link out is worth a refusal.
        if not may_hold(relative):
            return False
        if follow_links or not _leads_out(entry, home):
            return True
        # The error below advises to exclude such a link, so an excluded one is skipped without an error.
        if is_excluded(relative):
            return False
        raise _link_out(entry.path)

    found = []
    for relative, entry in _walk(root, is_open):
        if is_wanted(relative):
            found.append((relative, _status(entry)))
            if not follow_links and _leads_out(entry, home):
                raise _link_out(entry.path)
    # The walk leaves linked folders for last, so its order is not the snapshot's.
    return sorted(found, key=lambda file: file[0])


def _leads_out(entry: os.DirEntry[str], home: Path) -> bool:
    return entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(home)


def _link_out(where: str) -> DataError:
    return DataError(
        "the link leads out of the source's folder.",
        where=where.encode(errors="backslashreplace").decode(),
        advice="Put what it names into the folder, exclude it in `source.exclude`, or set `source.follow_links: true`.",
    )


def _walk(root: Path, is_open: Callable[[str, os.DirEntry[str]], bool]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every entry; real folders first and linked ones last, so that a file keeps its real path."""
    real, linked, seen = deque([("", str(root))]), deque[tuple[str, str]](), set[tuple[int, int]]()
    while real or linked:
        prefix, folder = (real or linked).popleft()
        try:
            status = Path(folder).stat()
        except OSError as error:
            raise unreadable(folder, error) from error
        # Device and inode name a folder whatever path led to it; in a loop of links, paths only grow longer.
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in _scan(folder):
            relative = prefix + entry.name
            if _is_folder(entry):
                if is_open(relative, entry):
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


def list_remote(
    root: str, include: Sequence[str], exclude: Sequence[str], *, follow_links: bool = False
) -> list[RemoteFile]:
    """Wanted files below an fsspec URI, by relative path in code-point order, as the store has them now.

    Args:
        follow_links: whether files may be links, in stores that know links and say which they are.

    Raises:
        ConfigError: the URI's protocol is not known or its package is not installed.
        EnvironmentProblem: its server does not answer.
        DataError: the listing was refused, or holds a link.
    """
    fs, path = file_system_of(root, f"source.uri {root!r}")
    # fsspec keeps listings in memory, and a second listing must find what changed since the first.
    fs.invalidate_cache()
    is_wanted = path_filter(include, exclude)
    prefix = path.rstrip("/") + "/"
    with reading_remote(root):
        found = fs.find(path, detail=True) or _none_found(fs, path, root)
        wanted = {name.removeprefix(prefix): info for name, info in found.items()}
        # Some listings leave out sizes, such as a web server's.
        whole = {
            name: info if info.get("size") is not None else fs.info(prefix + name)
            for name, info in wanted.items()
            if is_wanted(name)
        }
    for name, info in sorted(whole.items()):
        # Where a store's link leads is not to be found out, so that none is followed.
        if not follow_links and (info.get("islink") or info.get("type") == "link"):
            raise _link_out(f"{root.rstrip('/')}/{name}")
    return [_remote_file(name, info) for name, info in sorted(whole.items())]


def _none_found(fs: Any, path: str, root: str) -> dict[str, Any]:
    """No files, where a server said so: the listing of a web server that is not there is empty as well."""
    try:
        fs.info(path)
    except FileNotFoundError as error:
        if isinstance(error.__cause__, OSError):
            raise EnvironmentProblem(
                f"its server does not answer ({type(error.__cause__).__name__}).",
                where=root,
                advice="Check the URI, and that it can be reached.",
            ) from error
    return {}


def _remote_file(path: str, info: Mapping[str, Any]) -> RemoteFile:
    message = {key: str(info[key]) for key in VERSION_KEYS if info.get(key) is not None}
    # A weak ETag (`W/`) may stay the same while bytes change, so it proves nothing about content.
    etag = message.get("ETag") or message.get("etag") or ""
    size_bytes = int(info["size"])
    return RemoteFile(path, size_bytes, repr((size_bytes, message)), "" if etag.startswith("W/") else etag)
