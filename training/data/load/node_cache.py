"""A cache of whole files on a node's own disk, shared by its processes, bounded in bytes.

    files/<name>         an entry: complete and proved when it appeared there, by one rename
    files/<name>.part    being made by whoever holds its lock; as large as it will be: no room is promised twice
    locks/<name>         held while the entry is made; the kernel frees it when its holder dies
    leases/<id>          names the entries a process maps, and is locked for as long as it does: they are never evicted
    cache.lock           held for the moments of looking and changing

The name says what bytes an entry was made from; readers still prove what they map, and `renew` what they find bad.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.data_contracts.store.full_disk import is_out_of_space
from headway.data_contracts.store.places import PRIVATE, entries
from headway.data_contracts.store.regular_files import read_regular

POLL_S = 0.05
PART = ".part"
ENTRY = re.compile(r"[0-9a-f]{64}(\.[a-z]+)?(\.part)?")
"""The name of an entry, or of its part."""
LEASE = re.compile(r"[0-9a-f]{32}")


class Item(NamedTuple):
    """A file that the cache is to hold, under a name with the digest of what it is made from."""

    name: str
    size_bytes: int


class CachePin:
    """Entries that this process uses; they stay until it is closed, or the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    def name(self, entries: list[str]) -> None:
        """Raises `OSError`; the lease is closed then."""
        # The lock is the sign of life: the kernel drops it with the process, and with it the pin.
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            with os.fdopen(os.dup(self._descriptor), "wb") as stream:
                stream.write(json.dumps(entries).encode())
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class NodeCache:
    """Args:
    folder: on a disk of this machine; made if missing.
    capacity_bytes: the most that entries may take together.
    """

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        self.folder, self.capacity_bytes = folder, capacity_bytes
        self._files, self._locks, self._leases = folder / "files", folder / "locks", folder / "leases"

    def pin(self, items: Iterable[Item]) -> CachePin:
        """Keep entries, there or still to be made, from eviction.

        Raises:
            ConfigError: they are more than the cache may hold.
            EnvironmentProblem: the folder cannot be written.
        """
        wanted = {item.name: item.size_bytes for item in items}
        if sum(wanted.values()) > self.capacity_bytes:
            raise ConfigError(
                f"the shards take {sum(wanted.values()):,} bytes, the node's cache may hold {self.capacity_bytes:,}.",
                where=str(self.folder),
                advice="Raise launch.loader.cache_bytes.",
            )
        with self._writing():
            # Its user's alone, as the workspace is that the shards come from; one that is there keeps its mode.
            self.folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            for folder in (self._files, self._locks, self._leases):
                folder.mkdir(parents=True, exist_ok=True)
            path = self._leases / uuid.uuid4().hex
            # Under the cache's lock: a cleaner must not see the pin between its creation and its lock.
            with self._changing():
                pin = CachePin(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
                pin.name(sorted(wanted))
        return pin

    def entry(self, item: Item, make: Callable[[Path], None], on_wait: Callable[[], None] = lambda: None) -> Path:
        """The entry's path, made first if it is not there. One process of the node makes it, the others wait.

        Args:
            make: fills the file it is given, and has proved the content when it returns.
            on_wait: called whenever another process, which makes the entry, has moved on.

        Raises:
            EnvironmentProblem: no room, since all entries are in use or the disk is full.
            whatever `make` raises: nothing is left of the entry then.
        """
        path = self._files / item.name
        # Asked twice, before and after the lock: most entries are there, and need no lock at all.
        if not _is_whole(path, item):
            with self._making(item, on_wait):
                if not _is_whole(path, item):
                    self._make(item, make)
        # The last use decides what is evicted first.
        os.utime(path)
        return path

    def unused_since(self, unix_s: float, *, evict: bool) -> list[Item]:
        """Entries that nobody has in use and nobody used since a moment; evicted, if so asked."""
        if not self._files.is_dir():
            return []
        with self._changing():
            in_use = self._in_use()
            whole = {path: status for path, status in self._entries() if path.suffix != PART}
            found = {path: each for path, each in whole.items() if each.st_mtime < unix_s and path.name not in in_use}
            for path in found if evict else ():
                path.unlink(missing_ok=True)
        return [Item(path.name, status.st_size) for path, status in found.items()]

    def renew(self, item: Item, found_bad: Path, inode: int, make: Callable[[Path], None]) -> Path:
        """The entry made again, unless another process has done so since its `inode` was found bad."""
        with self._making(item, lambda: None):
            # By inode: another process may have replaced the bad file since this one mapped it.
            if _is_whole(found_bad, item) and found_bad.stat().st_ino == inode:
                found_bad.unlink()
            if not _is_whole(found_bad, item):
                self._make(item, make)
        return found_bad

    def _make(self, item: Item, make: Callable[[Path], None]) -> None:
        part = self._files / f"{item.name}{PART}"
        try:
            with self._writing():
                with self._changing():
                    part.unlink(missing_ok=True)  # of a process killed half-way
                    self._make_room(item)
                    with part.open("wb") as reserved:
                        if item.size_bytes:
                            # Reserved at once: two makers must not be promised the same room, and a
                            # full disk shows before the fetch.
                            os.posix_fallocate(reserved.fileno(), 0, item.size_bytes)
                make(part)
                # Nobody writes to it any more; a stray write would change what others have mapped.
                part.chmod(0o444)
                # Under the lock, so that an eviction does not count it twice, as part and as entry.
                with self._changing():
                    part.rename(self._files / item.name)
        finally:
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Raises `EnvironmentProblem` for what the disk refuses."""
        try:
            yield
        except OSError as error:
            is_full = is_out_of_space(error)
            raise EnvironmentProblem(
                "no space left for the node's cache; what was fetched before is kept."
                if is_full
                else f"the node's cache cannot be written ({error.strerror or error}).",
                where=str(self.folder),
                advice=f"{'Free some space there and run again' if is_full else 'Check its owner and mode'}, or set "
                "launch.loader.cache_folder to a folder on this node's own disk.",
            ) from error

    def _make_room(self, item: Item) -> None:
        """Evict what was not used for longest, never what is in use or being made.

        A disk too full to hold as much as was promised asks for the same.
        """
        held = self._held()
        in_use = self._in_use()
        excess = sum(stat.st_size for stat in held.values()) + item.size_bytes - self.capacity_bytes
        lacking = item.size_bytes - shutil.disk_usage(self.folder).free
        # Longest unused first; parts are being made, and pinned entries are mapped.
        for path, status in sorted(held.items(), key=lambda pair: pair[1].st_mtime_ns):
            if max(excess, lacking) > 0 and path.suffix != PART and path.name not in in_use:
                path.unlink()
                excess, lacking = excess - status.st_size, lacking - status.st_size
        if excess > 0:
            raise EnvironmentProblem(
                f"no room for {item.size_bytes:,} bytes: all of the {self.capacity_bytes:,} that the node's cache may "
                "hold are in use.",
                where=str(self.folder),
                advice="Raise launch.loader.cache_bytes, or wait for the other run on this node.",
            )

    def _entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Entries and parts. What else lies there is somebody's: nobody counts it, or takes it away."""
        for path in entries(self._files):
            with contextlib.suppress(FileNotFoundError):  # a failed maker takes its part away unasked
                status = path.lstat()
                if ENTRY.fullmatch(path.name) and stat.S_ISREG(status.st_mode):
                    yield path, status

    def _held(self) -> dict[Path, os.stat_result]:
        """Entries and parts; what a killed maker left half made is taken away."""
        held = {}
        for path, status in self._entries():
            # A part whose lock is free has lost its maker.
            if path.suffix == PART and _try_lock(self._locks / path.stem):
                path.unlink(missing_ok=True)
                continue
            held[path] = status
        return held

    def _in_use(self) -> set[str]:
        """Names in leases whose holders live; leases of the dead are taken away."""
        names: set[str] = set()
        for pin in entries(self._leases):
            if not LEASE.fullmatch(pin.name) or pin.is_symlink() or not pin.is_file():
                continue
            with contextlib.suppress(FileNotFoundError):
                # A pin that can be locked has no living owner.
                if _try_lock(pin):
                    pin.unlink()
                else:
                    names.update(json.loads(read_regular(pin)))
        return names

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        descriptor = os.open(self.folder / "cache.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            # `flock` on a file that stays: locks on deleted files would divide the processes.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _making(self, item: Item, on_wait: Callable[[], None]) -> Iterator[None]:
        descriptor = os.open(self._locks / item.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        part, moved_ns = self._files / f"{item.name}{PART}", 0
        try:
            # In a loop, so that progress of the process that makes the entry can be shown.
            while not _lock_now(descriptor):
                with contextlib.suppress(FileNotFoundError):
                    if (now_ns := part.stat().st_mtime_ns) != moved_ns:
                        moved_ns = now_ns
                        on_wait()
                time.sleep(POLL_S)
            yield
        finally:
            os.close(descriptor)


def _is_whole(path: Path, item: Item) -> bool:
    try:
        # By its size: the entry appeared by one rename, and a torn disk write shows as a short file.
        return path.stat().st_size == item.size_bytes
    except FileNotFoundError:
        return False


def _lock_now(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_lock(path: Path) -> bool:
    """Whether nobody holds the file's lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return _lock_now(descriptor)
    finally:
        os.close(descriptor)
