"""The ranks of one node, as their guard sees them: by their markers, and by the processes behind these.

Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator

from headway.training.launch.base.process_tree import cpu_s, is_child, process_state
from headway.training.launch.base.protocol import AttemptFiles, RankMarker, RankVitals, write_json

POLL_EVERY_S = 0.5
"""How often the ranks' processes are looked at for who watches from afar."""
SETTLED_S = 0.02
"""Several ticks of the clock by which a file system says when a file was written."""


class NodeRanks:
    """Those below one agent, which is a child of this process.

    Args:
        num_ranks: how many there are once all have begun.
    """

    def __init__(self, files: AttemptFiles, node: int, num_ranks: int, agent_pid: int) -> None:
        self._files, self._node, self._num_ranks, self._agent_pid = files, node, num_ranks, agent_pid
        self._known: set[int] = set()
        self._read: dict[int, tuple[object, RankMarker]] = {}
        """By rank, its marker as it was read, and the file of that."""
        self._looked_s = 0.0

    def _markers(self) -> list[RankMarker]:
        # Which they are is the rendezvous' choice. Once it is known, a large gang's other markers, which may lie on a
        # file system far away, are left unread.
        if len(self._known) == self._num_ranks:
            return [marker for rank in sorted(self._known) if (marker := self._marker(rank)) is not None]
        # Two hosts may give one number to two processes.
        mine = (self._node, self._agent_pid)
        own = [marker for marker in self._files.read_markers().values() if (marker.node, marker.parent_pid) == mine]
        # A rank keeps its number for its whole attempt, so what was seen once need not be looked for again.
        self._known.update(marker.rank for marker in own)
        return own

    def _marker(self, rank: int) -> RankMarker | None:
        """Read again only once it is another file: several looks are made at it each round, ten rounds a second."""
        # Whoever writes it is on this host, so that what the system says of the file is of now.
        with contextlib.suppress(OSError):
            status = self._files.marker(rank).stat()
            file = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._read.get(rank)
            if known is not None and known[0] == file:
                return known[1]
            marker = self._files.read_markers({rank}).get(rank)
            if marker is None or (marker.node, marker.parent_pid) != (self._node, self._agent_pid):
                return None
            # A file that is written twice within the clock's tick may look like the first one.
            if time.time() - status.st_mtime > SETTLED_S:
                self._read[rank] = (file, marker)
            return marker
        return None

    def pids(self) -> Iterator[int]:
        """Of those that live, each looked at when it is asked for."""
        return (marker.pid for marker in self._markers() if self._is_here(marker))

    def failed(self) -> list[int]:
        """Ranks that say so themselves."""
        return [marker.rank for marker in self._markers() if marker.state == "failed"]

    def lost(self) -> tuple[int, ...]:
        """Ranks that are gone without a last word."""
        lost = self._missing()
        if lost:
            self._read.clear()
        # One that ended between the look at its marker and the one at its process has left its last word by now.
        return tuple(rank for rank in self._missing() if rank in lost) if lost else ()

    def _missing(self) -> tuple[int, ...]:
        return tuple(marker.rank for marker in self._markers() if not marker.has_ended and not self._is_here(marker))

    def _is_here(self, marker: RankMarker) -> bool:
        """Whether it lives below its agent, or below us since that ended: its number may be another's by now."""
        return is_child(marker.pid, of=(self._agent_pid, os.getpid()))

    def note_vitals(self) -> None:
        """Write down how their processes are, now and then."""
        if time.monotonic() - self._looked_s < POLL_EVERY_S:
            return
        ranks = [
            # For readers on other hosts, who see no /proc here; CPU time tells a hang from work.
            RankVitals(rank=marker.rank, state=process_state(marker.pid), cpu_s=cpu_s(marker.pid))
            for marker in self._markers()
        ]
        with contextlib.suppress(OSError):
            write_json(
                self._files.vitals(self._node),
                {"unix_s": time.time(), "ranks": [dataclasses.asdict(rank) for rank in ranks]},
            )
        self._looked_s = time.monotonic()
