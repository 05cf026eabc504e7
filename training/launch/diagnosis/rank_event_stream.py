"""What the ranks of an attempt write down, taken in while they write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from headway.data_contracts.store.regular_files import open_regular
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.observe.ledger import Event, SpoolTail
from headway.training.observe.ledger_lines import parse_event

TAIL_BYTES = 1 << 18
"""Of a spool that has ended: more than a thousand steps."""


class RankEventStream:
    """Follows the ledgers of all ranks of an attempt."""

    def __init__(self, files: AttemptFiles) -> None:
        self._files = files
        self._tails: dict[int, SpoolTail] = {}

    def poll(self) -> Iterator[tuple[int, Event]]:
        """What is new: each rank's number and event, in the rank's own order. What cannot be read now is read later."""
        for rank, spool in rank_spools(self._files):
            with contextlib.suppress(OSError):
                for event in self._tails.setdefault(rank, SpoolTail(spool)).poll():
                    yield rank, event


def rank_spools(files: AttemptFiles) -> list[tuple[int, Path]]:
    """Of the ranks that have come up, by rank."""
    found = files.folder.glob("ledger/rank-*.jsonl")
    return sorted((int(path.stem.removeprefix("rank-")), path) for path in found)


def last_events(spool: Path) -> list[Event]:
    """The newest of a spool that nobody writes any more, however long it is; none if it cannot be read."""
    lines: list[bytes] = []
    with contextlib.suppress(OSError), open_regular(spool) as stream:
        size_bytes = stream.seek(0, 2)
        stream.seek(max(0, size_bytes - TAIL_BYTES))
        # The first line is most likely cut in the middle.
        lines = stream.read().splitlines()[size_bytes > TAIL_BYTES :]
    return list(filter(None, map(parse_event, lines)))
