"""The one way to an object store: whole objects by name, conditional puts, bounded patience.

An object is put in one request, or in parts that become visible together when the last answer is asked for: an
upload that is cut, killed or refused leaves nothing under the name. Transient troubles are tried again until a
deadline; what no retry can help is told at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsspec.asyn import sync

from headway.data_contracts.store.digests import HASHERS, Algorithm, sha256_bytes, sha256_file
from headway.data_contracts.store.errors import EnvironmentProblem, IntegrityError
from headway.data_contracts.store.file_systems import CREDENTIALS, NUM_PARALLEL, endpoint_note, endpoint_of, takes_parts
from headway.data_contracts.store.folder_store import FileEntry, too_long
from headway.data_contracts.store.places import confined
from headway.data_contracts.store.store_errors import Meaning, StoreFailure, trouble_of

log = logging.getLogger(__name__)

PART_BYTES = 16 << 20
FIRST_ANSWER_WITHIN_S = 30.0
"""How long a command tries a store that has never answered it: most likely its address is wrong, or it is down."""
REPORTED_AFTER = 4
"""Tries after which the log says why nothing moves."""
MAX_DAMAGED = 3
"""How often the same object may arrive damaged before it is taken for damaged in the store."""
LISTING_BYTES = 10**9
"""What a listing of a whole folder is given the time of."""
WRITTEN = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
"""How stores name the time when an object was written."""
MAX_NAME_BYTES = 255
"""Of one part of a path: the local side has the same names, and file systems take no longer ones."""
OF_A_VERSION = "?versionid="
"""What fsspec cuts off a name, with all that follows: it would read, and remove, another object than was listed."""
REFUSALS: dict[Meaning, tuple[str, str]] = {
    "bucket": ("there is no such bucket here", "Make the bucket, or check its name, region and endpoint."),
    "permission": ("these credentials may not do it", "They must get, put, list and delete below the prefix."),
    "credentials": ("credentials are missing, wrong or expired", CREDENTIALS),
    "clock": ("this machine's clock is wrong", "Set the clock."),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long one object is tried before a person is told."""

    deadline_s: float = 120.0
    attempt_s: float = 30.0
    slowest_bytes_per_s: float = 1e6
    """Large objects get more time, at this rate."""
    first_wait_s: float = 0.2
    longest_wait_s: float = 10.0

    def attempt_of(self, size_bytes: int) -> float:
        return self.attempt_s + size_bytes / self.slowest_bytes_per_s

    def deadline_of(self, size_bytes: int, at_most_s: float) -> float:
        return min(self.deadline_s, at_most_s) + size_bytes / self.slowest_bytes_per_s

    def waits_s(self) -> Iterator[float]:
        """Growing waits, each drawn from the upper half of its span, so that many clients do not come back at once."""
        for number in itertools.count():
            # A random part, or all ranks that failed together would come back together.
            yield min(self.longest_wait_s, self.first_wait_s * 2 ** min(number, 16)) * random.uniform(0.5, 1)


class _Answers:
    """Which stores have answered this process, and whether a person waits for the first answer."""

    def __init__(self) -> None:
        self.person_waits = False
        self.answered: set[str] = set()

    def bound_s(self, store: str) -> float:
        # A person at a terminal learns of a wrong address early; a nightly flow has patience.
        return FIRST_ANSWER_WITHIN_S if self.person_waits and store not in self.answered else math.inf


answers = _Answers()


class ObjectStore:
    """Objects below a prefix, by relative path.

    Every method raises `EnvironmentProblem` when the store refuses, or does not answer within the deadline.
    """

    def __init__(self, fs: Any, root: str, uri: str, patience: Patience | None = None) -> None:
        self.fs, self.root, self.uri = fs, root, uri
        self.patience = patience or Patience()
        self._server = f"{endpoint_of(fs)} {uri.partition('://')[0]}"

    def read(self, relative: str, max_bytes: int | None = None) -> bytes:
        """Raises `FileNotFoundError`, or `IntegrityError`: there are more bytes, which is known once they are here."""
        whole = {"max_concurrency": 1} if takes_parts(self.fs) else {}  # more would ask for the size first
        data: bytes = self._retried("reading", relative, "cat_file", self._path(relative), **whole)
        if max_bytes is not None and len(data) > max_bytes:
            raise too_long(relative, max_bytes)
        return data

    def names(self, relative: str) -> list[str]:
        """Bare names directly below a prefix, sorted; without those that no file of a workspace has."""
        prefix = self._path(relative)
        try:
            listing = self._retried("listing", relative, "ls", prefix, detail=False)
        except FileNotFoundError:
            return []
        names = (name.rstrip("/").rpartition("/")[2] for name in listing if name.rstrip("/") != prefix)
        return sorted(name for name in names if _may_be_ours(name))

    def files(self, relative: str) -> Iterator[FileEntry]:
        """Every object below a prefix.

        Raises:
            IntegrityError: one has a name that no file of a workspace has.
        """
        prefix = f"{self.root}/"
        try:
            found = self._retried(
                "listing", relative, "find", self._path(relative), size_bytes=LISTING_BYTES, detail=True
            )
        except FileNotFoundError:
            return
        for name, info in found.items():
            if info["type"] != "file" or not name.startswith(prefix):
                continue
            path, size_bytes = name.removeprefix(prefix), int(info["size"])
            if path.endswith("/") and size_bytes == 0:
                continue  # a folder, as consoles make it
            if not _may_be_ours(path):
                raise IntegrityError(
                    "no file of a workspace has such a name: another program put it there.",
                    where=self.uri_of(path),
                    advice="Take it away with the store's own tools.",
                )
            yield FileEntry(path, size_bytes, _written_unix_s(info))

    def written_unix_s(self, relative: str) -> float:
        """When an object was written last; now, where the store does not say. Raises `FileNotFoundError`."""
        return _written_unix_s(self._info(relative))

    def renew(self, relative: str) -> None:
        """Write a small object once more, so that it counts as written now. Raises `FileNotFoundError`."""
        # Stores have no `touch`; writing the same bytes is the only way to a new time.
        self.put(relative, self.read(relative), exclusive=False)

    def identity(self, relative: str) -> tuple[int, str]:
        """Size in bytes and strong ETag, which changes whenever the object does; empty where the store has none.

        Raises:
            FileNotFoundError: there is no such object.
        """
        info = self._info(relative)
        etag = str(info.get("ETag") or "")
        # A weak ETag may stay the same when bytes change.
        return int(info["size"]), "" if etag.startswith("W/") else etag

    def exists(self, relative: str) -> bool:
        try:
            self._info(relative)
        except FileNotFoundError:
            return False
        return True

    def put(self, relative: str, data: bytes, *, exclusive: bool) -> None:
        """Publish bytes in one request.

        Raises:
            FileExistsError: `exclusive`, and the name holds other bytes. Equal bytes are an earlier try of ours whose
                answer was lost: writers that race must each have something of their own in what they write.
        """
        self._put(relative, "pipe_file", (self._path(relative), data), len(data), exclusive, lambda: sha256_bytes(data))

    def put_file(self, relative: str, local: Path, *, exclusive: bool) -> None:
        """The same for a local file; a large one goes up in parts, completed under the same condition."""
        size_bytes = local.stat().st_size
        parts = {"chunksize": PART_BYTES, "max_concurrency": NUM_PARALLEL} if takes_parts(self.fs) else {}
        arguments = (str(local), self._path(relative))
        self._put(relative, "put_file", arguments, size_bytes, exclusive, lambda: sha256_file(local), **parts)

    def remove(self, relative: str) -> None:
        """Gone already is gone."""
        with contextlib.suppress(FileNotFoundError):
            self._retried("removing", relative, "rm_file", self._path(relative))

    def digest(self, relative: str, algorithm: Algorithm) -> str:
        """Digest of the object, part by part. Raises `FileNotFoundError`."""
        digest = HASHERS[algorithm]()
        for part in self.parts(relative, int(self._info(relative)["size"])):
            digest.update(part)
        return digest.hexdigest()

    def parts(self, relative: str, size_bytes: int) -> Iterator[bytes]:
        """An object of known size from its beginning, in parts that are fetched side by side; digests are not compared.

        Raises:
            FileNotFoundError: there is no such object.
            IntegrityError: it is shorter, or longer.
        """
        # One request instead of two or more.
        if size_bytes <= PART_BYTES:
            data = self.read(relative)
            if len(data) != size_bytes:
                raise _other_size(relative, len(data), size_bytes)
            yield data
            return
        starts = range(0, size_bytes, PART_BYTES)
        with ThreadPoolExecutor(NUM_PARALLEL) as pool:
            # A window at a time: what waits to be written is bounded.
            for first in range(0, len(starts), NUM_PARALLEL):
                window = starts[first : first + NUM_PARALLEL]
                yield from pool.map(lambda start: self._part(relative, start, size_bytes), window)

    def _part(self, relative: str, start: int, size_bytes: int) -> bytes:
        end = min(start + PART_BYTES, size_bytes)
        data: bytes = self._retried(
            "reading", relative, "cat_file", self._path(relative), start=start, end=end, size_bytes=end - start
        )
        if len(data) != end - start:
            raise _other_size(relative, start + len(data), size_bytes)
        return data

    def _info(self, relative: str) -> dict[str, Any]:
        """What a HEAD request says: no listing has a word in whether an object exists."""
        info: dict[str, Any] = self._retried("asking for", relative, "info", self._path(relative))
        # fsspec answers for a prefix too, which is no object.
        if info["type"] != "file":
            raise FileNotFoundError(relative)
        return info

    def _put(
        self,
        relative: str,
        method: str,
        arguments: tuple[Any, ...],
        size_bytes: int,
        exclusive: bool,
        sha256: Callable[[], str],
        **options: Any,
    ) -> None:
        # Only what must not be overwritten is said to be so: not every store knows conditions.
        options |= {"mode": "create"} if exclusive else {}
        try:
            self._retried("writing", relative, method, *arguments, size_bytes=size_bytes, **options)
        except FileExistsError:
            # We, or a library on the way, repeated a put whose answer was lost, and the second found the first.
            with contextlib.suppress(FileNotFoundError):
                if self.digest(relative, "sha256") == sha256():
                    return
            raise

    def _retried(
        self, doing: str, relative: str, method: str, *arguments: Any, size_bytes: int = 0, **options: Any
    ) -> Any:
        """Call the file system until it answers, or the deadline is near."""
        patience, started = self.patience, time.monotonic()
        first_s = answers.bound_s(self._server)
        deadline = started + patience.deadline_of(size_bytes, first_s)
        for number, wait_s in enumerate(patience.waits_s(), 1):
            try:
                left_s = deadline - time.monotonic()
                # Each try has a bound of its own, and none outlives the deadline.
                found = self._once(method, arguments, options, min(patience.attempt_of(size_bytes), max(left_s, 0.001)))
                # Only an answer counts: a refusal is one too, and shows that the address is right.
                answers.answered.add(self._server)
                return found
            except Exception as error:
                trouble = trouble_of(error)
                if trouble.meaning != "transient":
                    answers.answered.add(self._server)
                # Damaged bytes may be the network's; the same damage three times is the store's.
                is_worth_it = trouble.meaning == "transient" or (trouble.meaning == "damaged" and number < MAX_DAMAGED)
                if not is_worth_it:
                    raise self._as_store_error(doing, relative, trouble, error) from error
                # Given up before the last wait, not after it: nobody waits for nothing.
                if time.monotonic() + wait_s > deadline:
                    raise EnvironmentProblem(
                        f"{doing} failed {number} times in {time.monotonic() - started:.0f} s "
                        f"(last: {trouble.message}).",
                        where=self.uri_of(relative),
                        advice="The store does not answer, or is overloaded. Run again when it is well: what is "
                        "finished is kept." + endpoint_note(self.fs),
                    ) from error
                # Few tries are ordinary; a log line for each would hide the others.
                if number >= REPORTED_AFTER and first_s == math.inf:
                    left_s = max(0.0, deadline - time.monotonic())
                    log.warning(
                        "%s %s failed %d times (%s); trying on for %.0f s",
                        *(doing, self.uri_of(relative), number, trouble.message, left_s),
                    )
                time.sleep(wait_s)
        raise AssertionError("waits never end")

    def _once(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any], timeout_s: float) -> Any:
        # File systems without a loop are called directly; their own timeouts hold.
        if not self.fs.async_impl:
            return getattr(self.fs, method)(*arguments, **options)
        # Through the loop by ourselves: fsspec's own timeout leaves the request running behind our back.
        action = getattr(self.fs, f"_{method}")
        return sync(self.fs.loop, _within, timeout_s, action, arguments, options)

    def _as_store_error(self, doing: str, relative: str, trouble: StoreFailure, error: Exception) -> Exception:
        where = self.uri_of(relative)
        if trouble.meaning == "taken":
            return FileExistsError(where)
        if trouble.meaning == "gone":
            return FileNotFoundError(where)
        if trouble.meaning == "range":
            return IntegrityError("is shorter than its document says.", where=relative)
        if trouble.meaning == "damaged":
            return IntegrityError(f"other bytes arrive than were stored ({trouble.message}).", where=relative)
        if trouble.meaning == "unknown":
            # An error of this machine's disk has a number and no cause, and is no refusal of the store.
            if isinstance(error, OSError) and error.__cause__ is None:
                return error  # this machine's own disk
            return EnvironmentProblem(
                f"{doing} failed ({trouble.message}).", where=where, advice="Ask the store's owner."
            )
        what, advice = REFUSALS[trouble.meaning]
        return EnvironmentProblem(f"{doing} is refused: {what} ({trouble.message}).", where=where, advice=advice)

    def _path(self, relative: str) -> str:
        return f"{self.root}/{relative}" if relative else self.root

    def uri_of(self, relative: str) -> str:
        return f"{self.uri}/{relative}"


def _may_be_ours(path: str) -> bool:
    """Keys of an object store are any text: not each of them is a path, and not each path another's."""
    try:
        parts = confined(path).split("/")
    except IntegrityError:
        return False
    return OF_A_VERSION not in path.lower() and all(len(part.encode()) <= MAX_NAME_BYTES for part in parts)


def _written_unix_s(info: dict[str, Any]) -> float:
    # Each store names the time in its own way, and some give texts.
    for name in WRITTEN:
        written = info.get(name)
        if isinstance(written, str):
            written = datetime.datetime.fromisoformat(written)
        if isinstance(written, datetime.datetime):
            aware = written if written.tzinfo is not None else written.replace(tzinfo=datetime.UTC)
            return aware.timestamp()
        if isinstance(written, (int, float)):
            return float(written)
    # Unknown counts as now: what might be new is never cleaned away.
    return time.time()


def _other_size(relative: str, actual_bytes: int, size_bytes: int) -> IntegrityError:
    return IntegrityError(f"has {actual_bytes:,} bytes, its document says {size_bytes:,}.", where=relative)


async def _within(timeout_s: float, action: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
    return await asyncio.wait_for(action(*arguments, **options), timeout_s)
