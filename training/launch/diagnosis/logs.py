"""What ranks, agents and guards of a run wrote: the ends of single files, and all of it merged by time.

Every gang of a run's folder counts: the one that trains, and those that verify, evaluate and export.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.places import all_named
from headway.data_contracts.store.regular_files import open_regular
from headway.training.launch.base.log_times import LineTimes, Marks
from headway.training.launch.base.protocol import AttemptFiles, attempt_numbers

TAIL_BYTES = 8192
MAX_LINE_BYTES = 1 << 20
"""What has no end of line after so much is cut."""
TRAINING = "train"


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log that are not blank; none when it cannot be read."""
    try:
        with open_regular(path) as stream:
            # From the end: a log may be gigabytes, and only its last lines are wanted.
            begin = max(0, path.stat().st_size - TAIL_BYTES)
            stream.seek(begin)
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    if begin:  # most likely in the middle of a line
        whole = text.partition("\n")[2]
        text = whole if whole.strip() else f"…{text}"
    return [line for line in text.splitlines() if line.strip()][-count:]


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """A line of one file, or what is told of an event of the run's ledgers."""

    unix_s: float
    gang: str
    """`train`, or the folder of another gang within the run's."""
    attempt: int
    node: int | None
    """None for an event."""
    host: str
    rank: int | None
    """None for what agent and guard wrote, for a process that died before it knew its rank, and for an event of all."""
    stream: str
    """`stdout`, `stderr`, `node`: guard and agent, or `ledger`."""
    event: str = ""
    """The event's name in the ledger; empty for a line that a process wrote."""
    text: str


class _LogFile:
    """One file, read from where it was left; lines come out as far as their time is known."""

    def __init__(self, path: Path, name: str, marks: Marks) -> None:
        self._path, self._name, self._marks = path, name, marks
        self._read_bytes, self._times = 0, LineTimes()

    def lines(self, make: Callable[..., LogLine], *, is_over: bool) -> Iterator[LogLine]:
        """What has come since the last call.

        Args:
            make: called with `unix_s` and `text`.
            is_over: nobody writes or marks it any more: what is left has the time of the last write.
        """
        with contextlib.suppress(OSError), open_regular(self._path) as stream:
            last_unix_s = self._path.stat().st_mtime
            stream.seek(self._read_bytes)
            while line := stream.readline(MAX_LINE_BYTES):
                end = self._read_bytes + len(line)
                # A mark is written after the bytes are there, so the first mark at or beyond the line's end dates it.
                seen_unix_s = self._marks.unix_s(self._name, end)
                is_whole = line.endswith(b"\n") or len(line) == MAX_LINE_BYTES
                # Held back: a line that is not dated yet would come out before older lines of other ranks.
                if not is_over and (seen_unix_s is None or not is_whole):
                    return
                self._read_bytes = end
                text = line.decode(errors="replace").rstrip("\r\n")
                unix_s = self._times.next(line, last_unix_s if seen_unix_s is None else seen_unix_s)
                yield make(unix_s=unix_s, text=text)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFolder:
    """Where an attempt of one of a run's gangs lies."""

    folder: Path
    gang: str
    number: int


def gang_of(run_dir: Path, folder: Path) -> str:
    """The name of the gang whose folder this is, the run's own or one below."""
    return TRAINING if folder == run_dir else folder.relative_to(run_dir).as_posix()


def attempts_of(run_dir: Path, number: int | None = None) -> Iterator[AttemptFolder]:
    """Attempts of all gangs of a run, in their order.

    Args:
        number: only this one of the gang that trains.
    """
    found = [each for attempts in all_named("attempts", run_dir) for each in attempt_numbers(attempts).items()]
    for own, folder in sorted(found, key=lambda each: each[1]):
        gang = gang_of(run_dir, folder.parent.parent)
        if number is None or (gang, own) == (TRAINING, number):
            yield AttemptFolder(folder=folder, gang=gang, number=own)


class _AttemptLogs:
    """The logs of one attempt."""

    def __init__(self, attempt: AttemptFolder) -> None:
        self._files, self._gang, self._number = AttemptFiles(attempt.folder), attempt.gang, attempt.number
        self._marks: dict[int, Marks] = {}
        self._logs: dict[Path, _LogFile] = {}

    def read(self, ranks: Sequence[int], *, is_over: bool) -> list[Iterator[LogLine]]:
        """What has come since the last call, an iterator a file."""
        # torchrun chooses the folder; the rank itself says where its stderr leads.
        written_by = {Path(marker.log).parent: marker.rank for marker in self._files.read_markers().values()}
        found = []
        for node in self._nodes():
            status = self._files.read_status(node)
            host = "" if status is None else status.host
            marks = self._marks.setdefault(node, Marks(self._files.log_times(node)))
            marks.refresh()
            for path in (self._files.node_log(node), *sorted(self._files.rank_logs(node).glob("**/std*.log"))):
                is_ranks = path != self._files.node_log(node)
                rank = written_by.get(path.parent) if is_ranks else None
                if ranks and rank not in ranks:
                    continue
                name = path.relative_to(self._files.folder).as_posix()
                log = self._logs.setdefault(path, _LogFile(path, name, marks))
                make = functools.partial(
                    LogLine,
                    gang=self._gang,
                    attempt=self._number,
                    node=node,
                    host=host,
                    rank=rank,
                    stream=path.stem if is_ranks else "node",
                )
                found.append(log.lines(make, is_over=is_over))
        return found

    def _nodes(self) -> list[int]:
        names = [path.stem.removeprefix("node-") for path in self._files.folder.glob("node-*.log")]
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


class RunLogs:
    """All logs of a run, merged by time; `read` again for what has come since.

    Args:
        run_dir: the run's folder.
        ranks: only these; where empty all, and what agents and guards wrote.
        attempt: only this one of the gang that trains.
    """

    def __init__(self, run_dir: Path, ranks: Sequence[int] = (), attempt: int | None = None) -> None:
        self._run_dir, self._ranks, self._attempt = run_dir, ranks, attempt
        self._attempts: dict[Path, _AttemptLogs] = {}

    def read(self, *, is_over: bool) -> Iterator[LogLine]:
        """Lines by time.

        Args:
            is_over: the run has ended: nothing is held back for its time to become known.
        """
        for attempt in attempts_of(self._run_dir, self._attempt):
            self._attempts.setdefault(attempt.folder, _AttemptLogs(attempt))
        files = [file for logs in self._attempts.values() for file in logs.read(self._ranks, is_over=is_over)]
        # A merge instead of a sort: each file is in order already, and none is held in memory.
        return heapq.merge(*files, key=lambda line: line.unix_s)
