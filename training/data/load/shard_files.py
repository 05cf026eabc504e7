"""Shards as files of this machine that can be mapped: hot ones of a local workspace in place, all others in the node's
cache, fetched whole and decoded once."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from headway.data_contracts.store.digests import sha256_file
from headway.data_contracts.store.documents import PayloadColumn, Shard, StoredFile
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.training.config.loader_spec import LoaderSpec, cache_folder
from headway.training.data.load.cold_shards import decode, is_cold, mapped_form
from headway.training.data.load.node_cache import Item, NodeCache

ADVICE = "Run the pipeline again: stage shard writes the damaged group anew, the same bytes."
NUM_FETCHES = 2
"""Shards at once, each in parts of its own that come side by side: the last of one need not wait alone."""


class ShardFiles:
    """Files of the sizes that their forms say, and which stay while this object lives; their bytes are to be proved.

    Args:
        on_part: called from one thread at a time whenever something has moved.

    Attributes:
        forms: the shards as they are mapped, hot or decoded.
        paths: where.
        cached_bytes: of those that lie in the node's cache.
        proved: inodes, by number, of files that this process has itself filled with proved bytes.

    Raises:
        IntegrityError: a shard is gone, of another size or content, or points out of the workspace.
        ConfigError: they do not fit into the node's cache.
        EnvironmentProblem: the storage or the cache's disk fails.
    """

    def __init__(
        self,
        workspace: Workspace,
        shards: Sequence[Shard],
        columns: Sequence[PayloadColumn],
        spec: LoaderSpec,
        on_part: Callable[[], None] = lambda: None,
    ) -> None:
        for shard in shards:
            workspace.path(shard.file.path)  # refuses one that leads out, before anything is fetched
        self._workspace, self._shards, self._columns = workspace, tuple(shards), columns
        self.forms = tuple(mapped_form(shard, columns) for shard in shards)
        self._on_part, self._one_at_a_time = on_part, threading.Lock()
        self.proved: dict[int, int] = {}
        # Hot shards of a local workspace are mapped where they lie; all others go through the cache.
        cached = [number for number in range(len(shards)) if not self._is_in_place(number)]
        self.cached_bytes = sum(self.forms[number].file.size_bytes for number in cached)
        paths = {number: _present(workspace, shard.file) for number, shard in enumerate(shards) if workspace.is_local}
        if cached:
            self._cache = NodeCache(cache_folder(spec), spec.cache_bytes)
            # Pinned before the first is fetched: a later one must not evict an earlier one.
            self._lease = self._cache.pin(self._item(number) for number in cached)
            pool = ThreadPoolExecutor(NUM_FETCHES, thread_name_prefix="fetch")
            try:
                paths |= dict(zip(cached, pool.map(self._entry, cached), strict=True))
            finally:
                pool.shutdown(cancel_futures=True)  # after an error, what has not begun need not begin
        self.paths = tuple(paths[number] for number in range(len(shards)))

    def renewed(self, number: int, inode: int) -> Path | None:
        """A fresh copy of a file whose bytes were found bad, or None where there is no other."""
        if self._is_in_place(number):
            return None
        item = self._item(number)
        return self._cache.renew(item, self.paths[number], inode, lambda part: self._make(number, part))

    def _is_in_place(self, number: int) -> bool:
        return self._workspace.is_local and not is_cold(self._shards[number])

    def _item(self, number: int) -> Item:
        file = self.forms[number].file
        # The name says what it was decoded from; both forms of a shard may lie in one cache.
        return Item(f"{file.sha256}.decoded" if is_cold(self._shards[number]) else file.sha256, file.size_bytes)

    def _entry(self, number: int) -> Path:
        return self._cache.entry(self._item(number), lambda part: self._make(number, part), self._moved)

    def _make(self, number: int, part: Path) -> None:
        shard, form = self._shards[number], self.forms[number]
        if not is_cold(shard):
            with part.open("r+b") as target:
                self._fetch(shard.file, target)
        else:
            self._decode(shard.file, form, part)
            self._moved()
        # Its bytes were checked on the way into this very file, so mapping need not hash them again.
        self.proved[number] = part.stat().st_ino

    def _decode(self, file: StoredFile, form: Shard, part: Path) -> None:
        if self._workspace.is_local:
            source = self._workspace.local_path(file.path)
            _require_content(source, file)
            decode(source, form, self._columns, part)
            return
        # Without a name of its own, so that nothing is left of it whatever happens.
        with tempfile.TemporaryFile(dir=self._cache.folder) as fetched:
            os.posix_fallocate(fetched.fileno(), 0, max(file.size_bytes, 1))
            self._fetch(file, fetched)
            # Through its descriptor: the file has no name, and pyarrow opens paths.
            decode(Path(f"/proc/self/fd/{fetched.fileno()}"), form, self._columns, part)

    def _fetch(self, file: StoredFile, target: BinaryIO) -> None:
        try:
            self._workspace.read_into(file, target, self._moved)
            target.flush()
        except IntegrityError as error:
            raise IntegrityError(error.what, where=error.where, advice=ADVICE) from error

    def _moved(self) -> None:
        # Fetches run in several threads, and whoever listens expects one at a time.
        with self._one_at_a_time:
            self._on_part()


def _require_content(path: Path, file: StoredFile) -> None:
    digest = sha256_file(path)
    if digest != file.sha256:
        raise corrupt(file, digest)


def corrupt(file: StoredFile, digest: str) -> IntegrityError:
    return IntegrityError(
        f"the shard is corrupt: sha256 is {digest[:12]}, its manifest says {file.sha256[:12]}.",
        where=file.path,
        advice=ADVICE,
    )


def _present(workspace: Workspace, file: StoredFile) -> Path:
    """The shard's path, its size checked: a mapping past a file's end would kill the process when read."""
    path = workspace.local_path(file.path)
    try:
        actual_bytes = path.stat().st_size
    except FileNotFoundError as error:
        raise IntegrityError("the shard is gone.", where=file.path, advice=ADVICE) from error
    if actual_bytes != file.size_bytes:
        raise IntegrityError(
            f"the shard has {actual_bytes} bytes, its manifest says {file.size_bytes}.",
            where=file.path,
            advice=ADVICE,
        )
    return path
