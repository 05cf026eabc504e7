"""Who has a run, as a workspace in object storage records it: numbered claims, each with its signs of life.

    owners/<run>/<n>.json    claim n: which process on which host, and how long its silence has to be borne
    owners/<run>/<n>.beat    rewritten for as long as the process that made claim n lives
    owners/<run>/<n>.over    the claim was given up in order

As with refs, creating claim n exclusively is the compare-and-set, and whoever made the newest has the run. Which claims
were made on this machine, it knows from a file in the run's own folder.

A workspace in a folder needs none of this: machines that share it share the lock in the run's folder.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, ValidationError

from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.folder_store import FileEntry
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.refs import LATEST_UNIX_S, entry_path, newest_entry, number_of
from headway.data_contracts.store.strict_json import MAX_RECORD_BYTES
from headway.training.launch.base.protocol import read_json, write_json

OWNERS = "owners"
HERE = "claim"
WRITERS = "writers.json"
FORGOTTEN_S = 86400.0
"""After which a claim that is not over, and gives no sign of life, keeps nothing from being cleaned away."""


class LeaseRecord(Frozen):
    format_version: int = 1
    host: str
    pid: int
    unix_s: float = Field(ge=0, lt=LATEST_UNIX_S)
    lease_s: float
    writer: str
    """Made up anew for every claim: no two writers write the same bytes, and each knows its own again."""

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.unix_s, UTC).isoformat(timespec="seconds")
        return f"pid {self.pid} on {self.host} since {since}"


@dataclass(frozen=True, slots=True)
class LeaseRecords:
    """Those of one run.

    Args:
        run: named as its folder is.
    """

    workspace: Workspace
    run: str

    def newest(self) -> int:
        """The newest claim's number; 0 where there is none."""
        return newest_entry(self.workspace, self._folder)

    def path(self, number: int) -> str:
        return entry_path(self._folder, number)

    def is_there(self, number: int) -> bool:
        return self.workspace.exists(self.path(number))

    def read(self, number: int) -> LeaseRecord:
        """Raises:
        FileNotFoundError: it is not there, or not any more.
        IntegrityError: it cannot be read.
        """
        where = self.path(number)
        try:
            return LeaseRecord.model_validate_json(self.workspace.read(where, MAX_RECORD_BYTES))
        except ValidationError as error:
            raise IntegrityError(
                "not a claim that this version of Headway reads.",
                where=where,
                advice=f"If no machine trains run {self.run}, remove the file, and every later one beside it.",
            ) from error

    def make(self, number: int, lease: LeaseRecord) -> None:
        """Raises `FileExistsError`: another process made this one."""
        self.workspace.publish(self.path(number), canonical_json(lease.model_dump()), exclusive=True)

    def beat_path(self, number: int) -> str:
        return f"{self._folder}/{number:08d}.beat"

    def beat(self, number: int) -> bytes | None:
        """What changes for as long as the claim's process lives; None before its first."""
        return self.workspace.read_if_there(self.beat_path(number))

    def renew(self, number: int, count: int) -> None:
        # A count, not a time: watchers only look whether it changes, since clocks of machines differ.
        self.workspace.publish(self.beat_path(number), b"%d" % count)

    def is_over(self, number: int) -> bool:
        return self.workspace.exists(self._over_path(number))

    def release(self, number: int) -> None:
        # A file of its own: a beat that is still on its way takes nothing back.
        self.workspace.publish(self._over_path(number), b"")

    @property
    def here(self) -> Path:
        """The folder, in the run's own on this machine, of the lock and of which claims were made under it."""
        return self.workspace.local_path(f"runs/{self.run}") / HERE

    def writers_here(self) -> list[str]:
        """Of claims that were made on this machine."""
        return list((read_json(self.here / WRITERS) or {}).get("writers", ()))

    def write_down_writers(self, writers: list[str]) -> None:
        write_json(self.here / WRITERS, {"writers": writers})

    @property
    def _folder(self) -> str:
        return f"{OWNERS}/{self.run}"

    def _over_path(self, number: int) -> str:
        return f"{self._folder}/{number:08d}.over"


def remote_owner(workspace: Workspace, run: str) -> str | None:
    """Who has a run by its newest claim, if it was heard of within its lease by this machine's clock: for people, since
    the store's clock may be another. None where nobody was, or where it cannot be told."""
    records = LeaseRecords(workspace, run)
    number = records.newest()
    if not number or records.is_over(number):
        return None
    heard_unix_s = workspace.written_unix_s(records.beat_path(number))
    with contextlib.suppress(IntegrityError, FileNotFoundError):
        lease = records.read(number)
        # Locks of this machine say who works on the run here, and the kernel keeps them true.
        if lease.writer in records.writers_here():
            return None
        return str(lease) if time.time() - (heard_unix_s or lease.unix_s) < lease.lease_s else None
    return None


def is_leased(files: Iterable[FileEntry]) -> bool:
    """Whether the newest of a run's claims, which are among these files, is not over and was heard of within a day."""
    leases = {file.path: file.unix_s for file in files if file.path.startswith(f"{OWNERS}/")}
    newest = max((path for path in leases if number_of(path.rpartition("/")[2])), default="")
    stem = newest.removesuffix(".json")
    if not newest or f"{stem}.over" in leases:
        return False
    heard_unix_s = max(leases[newest], leases.get(f"{stem}.beat", 0.0))
    return time.time() - heard_unix_s < FORGOTTEN_S
