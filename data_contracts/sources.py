"""Sources: where raw files lie, and the snapshot that fixes which bytes they were.

Local files are read directly, everything else through fsspec. A file that changes while it is read is an error,
never a mixture of two versions, and a file read later must still be the one in the snapshot.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Literal

import fsspec
from pydantic import Field

from data_contracts.digest_cache import DigestCache
from data_contracts.digests import read_stable, sha256_bytes
from data_contracts.documents import Frozen, Snapshot, SourceFile
from data_contracts.errors import ConfigError, DataError
from data_contracts.publication import confined
from data_contracts.source_files import list_local, list_remote, unreadable
from data_contracts.text_rows import TEXT_COLUMNS, write_rows

STDLIB_URI = "python:stdlib"


class SourceSpec(Frozen):
    """Which files are the data."""

    format: Literal["text-files"] = Field(
        default="text-files", description="How rows come out of files: `text-files` makes one row of each file."
    )
    uri: str = Field(
        min_length=1,
        description="A folder (relative to the pipeline file), any fsspec URI such as `s3://bucket/prefix`, "
        "or `python:stdlib`, the running interpreter's standard library.",
    )
    include: tuple[str, ...] = Field(
        default=("**/*",), min_length=1, description="Globs over relative paths; a file must match one of them."
    )
    exclude: tuple[str, ...] = Field(default=(), description="Globs over relative paths; a match leaves the file out.")
    max_file_bytes: int = Field(
        default=256 << 20, gt=0, description="A larger file is refused: each file is held in memory as one row."
    )


def resolve_base_uri(spec: SourceSpec, *, base: Path) -> str:
    """Where the files lie now: an absolute local path, or an fsspec URI.

    Args:
        base: the folder relative paths start from, the pipeline file's own.
    """
    if spec.uri == STDLIB_URI:
        return sysconfig.get_path("stdlib")
    if spec.uri.startswith("python:"):
        raise ConfigError("unknown source.", where=f"source.uri {spec.uri!r}", advice=f"Did you mean {STDLIB_URI!r}?")
    if spec.uri.startswith("file://"):
        return str(Path(spec.uri.removeprefix("file://")).resolve())
    return spec.uri if "://" in spec.uri else str((base / Path(spec.uri).expanduser()).resolve())


def take_snapshot(spec: SourceSpec, *, base: Path, cache: DigestCache) -> Snapshot:
    """Digest every file of the source; a local file whose stat identity is remembered is not read.

    Args:
        base: the folder relative paths start from.
        cache: remembered digests; the caller saves it.

    Raises:
        DataError: no file matches, one cannot be read, is too large, or changes while it is read.
        ConfigError: the URI names no known file system.
    """
    root = resolve_base_uri(spec, base=base)
    files = _digest_remote(spec, root) if "://" in root else _digest_local(spec, Path(root), cache)
    if not files:
        raise DataError(
            f"the source is empty: no file matches include {list(spec.include)} and exclude {list(spec.exclude)}.",
            where=root,
            advice="Check `source.uri`, `source.include` and `source.exclude`.",
        )
    return Snapshot(format=spec.format, columns=TEXT_COLUMNS, num_rows=len(files), files=tuple(files))


def read_file(spec: SourceSpec, file: SourceFile, *, base: Path) -> bytes:
    """The bytes of a file of a snapshot, proved to be the same ones.

    Raises:
        DataError: gone, unreadable, or changed since the snapshot was taken.
    """
    root = resolve_base_uri(spec, base=base)
    where = f"{root}/{confined(file.path)}"
    try:
        data = _read_remote(where) if "://" in root else read_stable(Path(where))
    except OSError as error:
        raise unreadable(where, error) from error
    if len(data) != file.size_bytes or sha256_bytes(data) != file.sha256:
        raise DataError(
            "the file changed since the snapshot was taken.",
            where=where,
            advice="Run again: a new snapshot takes the file as it is now.",
        )
    return data


def write_table(spec: SourceSpec, snapshot: Snapshot, target: Path, *, base: Path) -> None:
    """Write the rows of a snapshot as a Parquet file, in the snapshot's order, within bounded memory.

    Raises:
        DataError: a file is gone, unreadable, or changed since the snapshot was taken.
    """
    write_rows(((file, read_file(spec, file, base=base)) for file in snapshot.files), target)


def _digest_local(spec: SourceSpec, root: Path, cache: DigestCache) -> list[SourceFile]:
    files = []
    for relative, status in list_local(root, spec.include, spec.exclude):
        path = root / relative
        _check_size(spec, str(path), status.st_size)
        sha256 = cache.lookup(path, status)
        size_bytes = status.st_size
        if sha256 is None:
            try:
                sha256, size_bytes = cache.digest(path)
            except OSError as error:
                raise unreadable(str(path), error) from error
        files.append(SourceFile(path=relative, size_bytes=size_bytes, sha256=sha256))
    return files


def _digest_remote(spec: SourceSpec, root: str) -> list[SourceFile]:
    files = []
    for relative, size_bytes in list_remote(root, spec.include, spec.exclude):
        where = f"{root.rstrip('/')}/{relative}"
        _check_size(spec, where, size_bytes)
        try:
            data = _read_remote(where)
        except OSError as error:
            raise unreadable(where, error) from error
        if len(data) != size_bytes:
            raise DataError(
                "the file changed while it was read.", where=where, advice="Let its writer finish, then run again."
            )
        files.append(SourceFile(path=relative, size_bytes=size_bytes, sha256=sha256_bytes(data)))
    return files


def _read_remote(uri: str) -> bytes:
    fs, path = fsspec.core.url_to_fs(uri)
    data: bytes = fs.cat_file(path)
    return data


def _check_size(spec: SourceSpec, where: str, size_bytes: int) -> None:
    if size_bytes > spec.max_file_bytes:
        raise DataError(
            f"the file has {size_bytes:,} bytes, more than source.max_file_bytes ({spec.max_file_bytes:,}).",
            where=where,
            advice="Exclude it, split it, or raise the bound.",
        )
