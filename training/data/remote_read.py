"""Reading a file of a remote workspace: piece by piece, each with bounded patience, and proved to be the one meant."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fsspec.asyn import sync

from data_contracts.documents import StoredFile
from data_contracts.errors import EnvironmentProblem, IntegrityError
from data_contracts.publication import Workspace

PIECE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long a storage may take, and how often it may fail."""

    num_tries: int = 5
    first_wait_s: float = 0.5
    """Doubles after each try."""
    longest_wait_s: float = 8.0
    read_s: float = 60.0
    """For one piece, where the storage's client can be interrupted."""
    sleep: Callable[[float], None] = time.sleep


def read_verified(
    workspace: Workspace, file: StoredFile, target: Path, patience: Patience, on_piece: Callable[[], None]
) -> None:
    """Write the stored file to `target`, an existing local file of its size.

    Raises:
        IntegrityError: it is gone, or differs from its digest, however often it is read.
        EnvironmentProblem: the storage refuses, or fails again and again; or the local disk does.
    """
    for number in range(patience.num_tries):
        if _copy(workspace, file, target, patience, on_piece) == file.sha256:
            return
        patience.sleep(_wait_s(patience, number))
    raise IntegrityError(
        f"the storage gave other bytes than its manifest says, {patience.num_tries} times.",
        where=file.path,
        advice="Run the pipeline again: stage shard writes the damaged group anew, the same bytes.",
    )


def _copy(
    workspace: Workspace, file: StoredFile, target: Path, patience: Patience, on_piece: Callable[[], None]
) -> str:
    """Returns the SHA-256 of what was read."""
    digest = hashlib.sha256()
    with target.open("r+b") as out:
        for start in range(0, file.size_bytes, PIECE_BYTES):
            data = _read_piece(workspace, file, start, min(start + PIECE_BYTES, file.size_bytes), patience)
            digest.update(data)
            out.write(data)
            on_piece()
    return digest.hexdigest()


def _read_piece(workspace: Workspace, file: StoredFile, start: int, end: int, patience: Patience) -> bytes:
    for number in range(patience.num_tries):
        try:
            data = _read(workspace, workspace.path(file.path), start, end, patience.read_s)
            if len(data) == end - start:
                return data
            problem = f"{len(data)} bytes came instead of {end - start}"
        except FileNotFoundError as error:
            raise IntegrityError("the shard is gone.", where=file.path) from error
        except PermissionError as error:
            raise EnvironmentProblem(
                f"reading is refused ({error}).", where=file.path, advice="Check the credentials of this machine."
            ) from error
        except Exception as error:  # every storage has errors of its own
            problem = f"{type(error).__name__}: {error}"
        if number + 1 < patience.num_tries:
            patience.sleep(_wait_s(patience, number))
    raise EnvironmentProblem(
        f"the storage failed {patience.num_tries} times; the last time: {problem}.",
        where=f"{workspace.uri}/{file.path}",
        advice="Look at the storage's own status and the network, then start again: what was fetched is kept.",
    )


def _read(workspace: Workspace, path: str, start: int, end: int, limit_s: float) -> bytes:
    fs = workspace.fs
    if fs.async_impl and not fs.asynchronous:
        data: bytes = sync(fs.loop, fs._cat_file, path, start=start, end=end, timeout=limit_s)
        return data
    return bytes(fs.cat_file(path, start=start, end=end))


def _wait_s(patience: Patience, number: int) -> float:
    return min(patience.first_wait_s * 2.0**number, patience.longest_wait_s)
