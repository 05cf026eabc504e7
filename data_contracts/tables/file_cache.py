"""A bounded folder of files that can be made again: converted tables and copies of remote files.

Every file stands beside a note of its digest, and is handed out only while it carries it. What was not used for longest
goes first once the folder is over its bound; what was used within a day stays, for another run may be reading it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.store.leftovers import claimed, staging_name
from headway.data_contracts.store.places import naming_the_place
from headway.data_contracts.store.regular_files import read_regular
from headway.data_contracts.tables.digest_cache import DigestCache

MAX_BYTES = 20 << 30
KEPT_S = 24 * 3600.0


class FileCache:
    """
    Args:
        folder: made when the first file is kept.
        digests: remembers the digests of files that did not change since they were last looked at.
        max_bytes: bound of the folder's size, beyond what was used within a day.
    """

    def __init__(self, folder: Path, digests: DigestCache, *, max_bytes: int = MAX_BYTES) -> None:
        self._folder, self._digests, self._max_bytes = folder, digests, max_bytes

    @classmethod
    def beside(cls, digests: DigestCache) -> FileCache:
        """The cache that goes with remembered digests."""
        return cls(digests.path.parent / "tables", digests)

    def note(self, key: str) -> dict[str, Any] | None:
        """What is known of a file, whether or not it is still here."""
        try:
            value = json.loads(read_regular(self._path(key, "json")))
        except (OSError, ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def find(self, key: str) -> Path | None:
        """The file, proved to be the one that was kept; a damaged one is removed."""
        path, note = self._path(key, "data"), self.note(key)
        try:
            if note is None or self._digests.digest(path)[0] != note.get("sha256"):
                path.unlink(missing_ok=True)
                return None
            # The time of use: `trim` removes first what was not used for longest.
            os.utime(path)
        except (OSError, DataError):
            return None
        return path

    @contextlib.contextmanager
    def making(self, key: str) -> Iterator[Path]:
        """A path for a new file, which `keep` keeps; nothing stays if it was not kept.

        Raises:
            EnvironmentProblem: no space left, or writing is refused.
        """
        staging = self._folder / staging_name(key)
        with naming_the_place(str(self._folder)):
            self._folder.mkdir(parents=True, exist_ok=True)
            with claimed(staging):
                try:
                    yield staging
                finally:
                    staging.unlink(missing_ok=True)

    def keep(self, key: str, staging: Path, sha256: str, facts: Mapping[str, Any]) -> Path:
        """Give a new file its name, and note its digest and what else is known of it."""
        path = self._path(key, "data")
        staging.replace(path)
        self.write_note(key, {"sha256": sha256, **facts})
        return path

    def write_note(self, key: str, facts: Mapping[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        staging = self._folder / staging_name(key)
        with claimed(staging):
            staging.write_bytes(canonical_json(dict(facts)))
            staging.replace(self._path(key, "json"))

    def trim(self, *, now_s: float | None = None) -> None:
        """Remove what was not used for longest until the folder is within its bound. Notes are small, and stay."""
        limit_s = (time.time() if now_s is None else now_s) - KEPT_S
        files = []
        for path in self._folder.glob("*.data"):
            with contextlib.suppress(FileNotFoundError):  # another process trims, too
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    files.append((status.st_mtime, status.st_size, path))
        files.sort()
        total_bytes = sum(size_bytes for _, size_bytes, _ in files)
        for used_s, size_bytes, path in files:
            if total_bytes <= self._max_bytes or used_s > limit_s:
                return
            path.unlink(missing_ok=True)
            total_bytes -= size_bytes

    def _path(self, key: str, suffix: str) -> Path:
        return self._folder / f"{key}.{suffix}"
