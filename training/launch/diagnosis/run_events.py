"""What the ledgers of a run say of its attempts: events of their owners, guards and ranks, as they come.

What every rank writes alike is read from rank 0's ledger; of the others how they came up and how they failed, which
their markers say: a ledger of a long run is large, and a gang has many.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.regular_files import open_regular
from headway.training.launch.base.protocol import AttemptFiles, RankMarker
from headway.training.launch.base.retry_budget import RECORDS_NAME
from headway.training.launch.diagnosis.logs import TRAINING, AttemptFolder, attempts_of, gang_of
from headway.training.launch.jobs.job_request import DetachedFiles
from headway.training.observe.ledger import WAITING_BYTES, Event, SpoolTail, event_end_unix_s
from headway.training.observe.ledger_lines import parse_event

RANK_CAME_UP = "rank.armed"
RANK_FAILED = "rank.failed"
OF_MARKERS = frozenset({RANK_CAME_UP, RANK_FAILED})
OF_RECORDS = frozenset({"attempt.begin", "attempt"})


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEvent:
    """An event of an attempt."""

    unix_s: float
    """When it was over."""
    gang: str
    attempt: int
    rank: int | None
    """The rank that it is of; None: the whole attempt, or a node."""
    event: Event


class RunEvents:
    """The events of a run; `read` again for what has come since.

    Args:
        run_dir: the run's folder.
        ledgers: the folder of the flow runs' ledgers, each `<flow run>/flow.jsonl`.
        ranks: only these ranks' own; where empty what their owners and guards say, and rank 0.
        attempt: only this one of the gang that trains.
    """

    def __init__(self, run_dir: Path, ledgers: Path, ranks: Sequence[int] = (), attempt: int | None = None) -> None:
        self._run_dir, self._ledgers, self._ranks, self._attempt = run_dir, ledgers, ranks, attempt
        self._attempts: dict[Path, _AttemptEvents] = {}
        self._records: dict[Path, SpoolTail] = {}
        self._owners: dict[Path, _OwnerSpool] = {}

    def read(self) -> Iterator[RunEvent]:
        """Events by time, as far as each ledger is in order; never more in memory than a little of each."""
        found: list[Iterable[RunEvent]] = []
        gangs: dict[Path, str] = {}
        for attempt in attempts_of(self._run_dir, self._attempt):
            events = self._attempts.setdefault(attempt.folder, _AttemptEvents(attempt))
            found += events.read(self._ranks)
            gangs[attempt.folder.parent.parent / RECORDS_NAME] = attempt.gang
        if not self._ranks:
            # To the end: they name the owners whose ledgers are read beside them.
            records = sorted(self._of_records(gangs), key=_when)
            found += [filter(self._is_selected, message) for message in (records, *self._of_owners())]
        return heapq.merge(*found, key=_when)

    def _is_selected(self, event: RunEvent) -> bool:
        return self._attempt is None or (event.gang, event.attempt) == (TRAINING, self._attempt)

    def _of_records(self, gangs: Mapping[Path, str]) -> Iterator[RunEvent]:
        for path, gang in gangs.items():
            # Records of attempts carry their owner's flow run, and with it the place of that owner's ledger.
            for event in _news(self._records.setdefault(path, SpoolTail(path))):
                if _is_name(event.get("scope")) and event["event"] in OF_RECORDS:
                    spool = self._ledgers / str(event["scope"]) / "flow.jsonl"
                    self._owners.setdefault(spool, _OwnerSpool(spool, is_jobs=False))
                    yield RunEvent(unix_s=event["unix_s"], gang=gang, attempt=event["attempt"], rank=None, event=event)

    def _of_owners(self) -> list[Iterator[RunEvent]]:
        for spool in DetachedFiles(self._run_dir).folder.glob("job-*.jsonl"):
            self._owners.setdefault(spool, _OwnerSpool(spool, is_jobs=True))
        return [owner.read(self._run_dir) for owner in self._owners.values()]


def _is_name(scope: object) -> bool:
    """Of a flow run's folder, and of none elsewhere: a record lies where others may write."""
    return isinstance(scope, str) and "\0" not in scope and scope == Path(scope).name


class _OwnerSpool:
    """The ledger of a flow or a job: it supervises one gang after another, those of other runs among them.

    A flow that watches jobs takes over what they wrote, in a mixture: that is read where they wrote it.
    """

    def __init__(self, spool: Path, *, is_jobs: bool) -> None:
        self._tail, self._is_jobs, self._folder = SpoolTail(spool), is_jobs, Path()

    def read(self, run_dir: Path) -> Iterator[RunEvent]:
        for event in _news(self._tail):
            # A flow copies the events of its jobs; read in both places, each would appear twice.
            if "attempt" not in event or ("job" in event) != self._is_jobs:
                continue
            self._folder = Path(event.get("folder") or self._folder)
            # By its name: the workspace may have moved.
            _, is_ours, inner = self._folder.as_posix().partition(f"/{run_dir.name}/")
            if is_ours and event["event"] not in OF_RECORDS:
                gang, ended_unix_s = gang_of(Path(), Path(inner).parent.parent), event_end_unix_s(event)
                yield RunEvent(unix_s=ended_unix_s, gang=gang, attempt=event["attempt"], rank=None, event=event)


class _AttemptEvents:
    def __init__(self, attempt: AttemptFolder) -> None:
        self._attempt, self._files = attempt, AttemptFiles(attempt.folder)
        self._tails: dict[Path, SpoolTail] = {}
        self._reported: set[tuple[int, str]] = set()

    def read(self, ranks: Sequence[int]) -> list[Iterable[RunEvent]]:
        """What has come since the last call, of a ledger each; of the markers beside them."""
        nodes = sorted(self._files.folder.glob("ledger/node-*.jsonl"))
        # Unless ranks are named, the markers of all: they are small, where ledgers are not.
        markers = self._files.read_markers(ranks or None)
        return [
            *(self._of_node(spool, ranks) for spool in nodes),
            *(self._of_rank(rank) for rank in ranks or (0,)),
            sorted((event for rank, marker in markers.items() for event in self._of_marker(rank, marker)), key=_when),
        ]

    def _of_node(self, spool: Path, ranks: Sequence[int]) -> Iterator[RunEvent]:
        for event in self._news(spool):
            for rank in self._news_of(event):
                if not ranks or rank in ranks:
                    yield self._run_event(event, rank)

    def _of_rank(self, rank: int) -> Iterator[RunEvent]:
        for event in self._news(self._files.rank_spool(rank)):
            if event["event"] not in OF_MARKERS:
                yield self._run_event(event, rank)

    def _news_of(self, event: Event) -> Sequence[int | None]:
        """Of whom a guard's event is: it names all ranks that are lost, once more when another is."""
        if "ranks" not in event:
            return (None,)
        news = [rank for rank in event["ranks"] if (rank, event["event"]) not in self._reported]
        self._reported |= {(rank, event["event"]) for rank in news}
        return news

    def _of_marker(self, rank: int, marker: RankMarker) -> Iterator[RunEvent]:
        if (rank, RANK_CAME_UP) not in self._reported and (first := _first_event(self._files.rank_spool(rank))):
            self._reported.add((rank, RANK_CAME_UP))
            status = self._files.read_status(marker.node)
            host = "" if status is None else status.host
            yield self._run_event({**first, "event": RANK_CAME_UP, "pid": marker.pid, "host": host}, rank)
        if marker.state == "failed" and (rank, RANK_FAILED) not in self._reported:
            self._reported.add((rank, RANK_FAILED))
            yield self._run_event({"event": RANK_FAILED, "unix_s": marker.unix_s, "what": marker.failure.what}, rank)

    def _news(self, spool: Path) -> Iterator[Event]:
        return _news(self._tails.setdefault(spool, SpoolTail(spool)))

    def _run_event(self, event: Event, rank: int | None) -> RunEvent:
        gang, number = self._attempt.gang, self._attempt.number
        return RunEvent(unix_s=event_end_unix_s(event), gang=gang, attempt=number, rank=rank, event=event)


def _news(tail: SpoolTail) -> Iterator[Event]:
    """What cannot be read now is read later."""
    with contextlib.suppress(OSError):
        yield from tail.stream()


def _when(event: RunEvent) -> float:
    return event.unix_s


def _first_event(spool: Path) -> Event | None:
    with contextlib.suppress(OSError), open_regular(spool) as stream:
        return parse_event(stream.readline(WAITING_BYTES))
    return None
