"""What a launcher, its guards and its ranks tell each other, and where: small JSON files, renamed into place.

    <run_dir>/attempts/<NNN>/
        store.json           where ranks exchange addresses, and the key to it, for their own user alone
        rank-N.json          marker: how rank N is or how it ended (torchrun hides exit codes)
        rank-N.stacks        stacks of all threads of rank N, once somebody asked
        fence/             what the attempt publishes is staged here; removed when a later one begins
        memory-N.json        what took the memory of rank N when it ran out
        node-N.json          status: how the guard of node N is or how it ended
        node-N.vitals.json   how the processes of its ranks are, by the guard of node N
        node-N.log           what guard and agent of node N wrote
        node-N.times.jsonl   when it and the ranks' logs grew
        node-N.lines.jsonl   their lines as JSON, where that was asked for and no pipe takes them
        logs/node-N/         stdout and stderr of each rank
        ledger/              spools of ranks and guards

Standard library only: guards import nothing else, and ranks import this before torch.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Self, get_args

from headway.data_contracts.store.places import entries
from headway.data_contracts.store.regular_files import open_in_place, read_regular
from headway.training.launch.base.failure import NO_FAILURE, EndState, Failure
from headway.training.launch.base.record import read_record, record_or_none

MAX_JSON_BYTES = 64 << 20
"""No record of an attempt is longer."""
TOKEN = "HEADWAY_RUN_TOKEN"
"""Environment variable that every process of a run inherits, whoever its parent becomes."""
NO_TOKEN = "0" * 32
"""As long as a token: of a server that forks for runs. A fork writes its own in its place."""
ATTEMPT = "HEADWAY_ATTEMPT"
ATTEMPT_DIR = "HEADWAY_ATTEMPT_DIR"
NODE = "HEADWAY_NODE"
RANKS_HERE = "HEADWAY_RANKS_HERE"
"""Ranks of all nodes that are really one machine."""
NODES_PER_RACK = "HEADWAY_NODES_PER_RACK"
"""How many consecutive nodes share a switch."""
SPEEDS = "HEADWAY_SPEEDS"
"""Relative speeds of ranks as JSON: by device kind, or under an empty name this machine's."""
STRAGGLERS = "HEADWAY_STRAGGLERS"
"""What comes of slow ranks, where ranks themselves do it: `rebalance`."""
GUARD_PID = "HEADWAY_GUARD_PID"
FENCE = "HEADWAY_MANDATE"
"""The folder through which the attempt publishes; see `fence`."""
COLLECTIVE_TIMEOUT_S = "HEADWAY_COLLECTIVE_TIMEOUT_S"
STOP_GRACE_S = "HEADWAY_STOP_GRACE_S"
STOP_REQUEST = "HEADWAY_STOP_REQUEST"
"""Until when the attempt may go on, as JSON; see `stop_request`."""
LOG_FORMAT = "HEADWAY_LOG_FORMAT"
"""`json`: guards write what ranks wrote as JSON lines, too."""
LOG_PIPE = "HEADWAY_LOG_PIPE"
"""Number of the descriptor that takes those lines, for the guard of a pod alone; its other end is the pod's stdout."""
JOB = "HEADWAY_JOB"
"""The name of the job that a pod belongs to."""
POD = "HEADWAY_POD"
POD_ADDRESS = "HEADWAY_POD_ADDRESS"
MACHINE = "HEADWAY_MACHINE"
"""The Kubernetes node that a pod stands on; jobs of an earlier version do not say it."""
PODS = "HEADWAY_PODS"
"""The folder that says where the pods of a job can be reached; for the supervisor among them."""

OWNER_GONE = "the owner was gone before the guard stood"
OWNER_ENDED = "the owner ended"
OWNER_RELEASED = "the owner let go of the lifeline"
OWNER_SILENT = "the owner did not renew its lease in time"
OWNER_LOST = frozenset({OWNER_GONE, OWNER_ENDED, OWNER_RELEASED, OWNER_SILENT})
"""Why a guard stops its agent on its own account."""

MAX_ATTEMPT_DIGITS = 9
DETACHED = "detached"
"""Folder in a run's own, where a flow and a job speak of it; see `order`."""

ENDED = frozenset(get_args(EndState))
"""States a rank's marker does not leave."""


class Command(Enum):
    """One byte down a guard's lifeline; the lifeline's end means that the owner is gone."""

    STOP = b"s"
    """End in order: ranks have the whole grace to keep a checkpoint."""
    PEER_LOST = b"p"
    """The gang is broken: whoever waits for a peer waits in vain."""
    STACKS = b"d"
    """Let every rank write its stacks."""
    BEAT = b"b"
    """The owner lives."""


def attempt_numbers(attempts: Path) -> dict[int, Path]:
    """The folders of a run's attempts by number; nothing where there are none.

    Others may write there, and `²` is a digit, though no number.
    """
    named = {path.name: path for path in entries(attempts)}
    return {
        int(name): path
        for name, path in named.items()
        if name.isascii() and name.isdecimal() and len(name) <= MAX_ATTEMPT_DIGITS
    }


def write_json(path: Path, value: Any, *, is_private: bool = False) -> None:
    """A reader sees the old file or the new one, never a part."""
    # Drawn, and made here or not at all: another user who may write to the folder could put a link under a name that
    # can be guessed, to a file that this user alone may write, or a file of their own, to read a secret from.
    staging = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    # Closed to others before the secret is written, not after.
    mode = 0o600 if is_private else 0o666
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(staging, flags, mode), "w") as stream:
            stream.write(json.dumps(value, default=str))
        staging.replace(path)
    # A full disk stays full by staging files that nobody removes.
    except OSError:
        with contextlib.suppress(OSError):
            staging.unlink(missing_ok=True)
        raise


def overwrite_json(path: Path, value: Any) -> None:
    """Write into the space the file has already, for a disk with no more; for a moment a reader may find it torn.

    Raises:
        OSError: it is missing, or a link.
    """
    # Not truncated first: a process that dies here leaves the old record longer, not empty.
    with open_in_place(path) as stream:
        stream.write(json.dumps(value, default=str).encode())
        stream.truncate()


def read_json(path: Path) -> dict[str, Any] | None:
    # A record that is missing, torn or foreign means the same to its reader: nothing is known yet.
    with contextlib.suppress(OSError, ValueError, RecursionError):
        value = json.loads(read_regular(path, MAX_JSON_BYTES))
        return value if isinstance(value, dict) else None
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Record:
    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Unknown fields are left out; raises `ValueError`: it is none."""
        return read_record(cls, value)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMarker(_Record):
    """How a rank is (`running`) or how it ended (`done`, `stopped`, `failed`), in its own words."""

    rank: int
    pid: int
    parent_pid: int
    state: str
    unix_s: float
    node: int = 0
    step: int | None = None
    failure: Failure = NO_FAILURE
    """Why it ended before its end."""
    traceback: str = ""
    log: str = ""
    """The file behind the rank's stderr, if it is one."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeStatus(_Record):
    """How a guard is (`running`, `stopping`) or how it ended (`ended`)."""

    node: int
    guard_pid: int
    agent_pid: int
    state: str
    host: str = ""
    why: str = ""
    """Why the guard stopped the agent; empty when the agent ended by itself."""
    agent_exit: int | None = None
    """Exit status of the agent, negative for a signal."""
    lost_ranks: tuple[int, ...] = ()
    """Ranks that were gone without a word before anybody was told to stop."""
    swept: tuple[int, ...] = ()
    """Processes that had to be killed at the end."""
    stop_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan(_Record):
    """What one guard has to do."""

    node: int
    attempt: int
    attempt_dir: str
    owner_pid: int | None
    """The guard's parent; None where another host has the owner."""
    argv: tuple[str, ...]
    """The torchrun agent's command."""
    num_ranks: int
    """Of this node."""
    rank_python_path: str
    stop_grace_s: float
    lost_grace_s: float
    peer_grace_s: float
    lease_s: float | None = None
    """How long the owner may be silent; None where its end is seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeOrder:
    """The first line down a guard's lifeline."""

    plan: NodePlan
    environment: Mapping[str, str]
    """Of agent and ranks, over the guard's own; may hold secrets."""

    def to_line(self) -> bytes:
        return json.dumps({"plan": asdict(self.plan), "environment": dict(self.environment)}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        value = json.loads(line)
        return cls(plan=NodePlan.from_json(value["plan"]), environment=value["environment"])


@dataclass(frozen=True, kw_only=True, slots=True)
class RankVitals(_Record):
    """How the kernel of its host sees a rank's process."""

    rank: int
    state: str
    """The kernel's letter; `X` when the process is gone."""
    cpu_s: float
    """CPU seconds used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StorePlace(_Record):
    """Where rank 0 serves its peers, and whom: who has the key."""

    address: str
    port: int
    key: str


class AttemptFiles:
    """Names of an attempt's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def marker(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def stacks(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.stacks"

    def memory(self, rank: int) -> Path:
        return self.folder / f"memory-{rank}.json"

    @property
    def missed_step(self) -> Path:
        """There when the attempt was ended for want of a step, sooner than is configured."""
        return self.folder / "missed-step.json"

    def status(self, node: int) -> Path:
        return self.folder / f"node-{node}.json"

    def vitals(self, node: int) -> Path:
        return self.folder / f"node-{node}.vitals.json"

    def node_log(self, node: int) -> Path:
        return self.folder / f"node-{node}.log"

    def log_times(self, node: int) -> Path:
        return self.folder / f"node-{node}.times.jsonl"

    def json_lines(self, node: int) -> Path:
        return self.folder / f"node-{node}.lines.jsonl"

    def rank_logs(self, node: int) -> Path:
        return self.folder / "logs" / f"node-{node}"

    def rank_spool(self, rank: int) -> Path:
        return self.folder / "ledger" / f"rank-{rank}.jsonl"

    def node_spool(self, node: int) -> Path:
        return self.folder / "ledger" / f"node-{node}.jsonl"

    def read_markers(self, ranks: Collection[int] | None = None) -> dict[int, RankMarker]:
        """Markers of the ranks that have come up, by rank: of those given, without a look at any other's, or of all."""
        # A gang of thousands on a far file system: reading the markers of others would take longer than a look may.
        paths = sorted(self.folder.glob("rank-*.json")) if ranks is None else map(self.marker, sorted(ranks))
        markers = [record_or_none(RankMarker, read_json(path)) for path in paths]
        return {marker.rank: marker for marker in markers if marker is not None}

    def read_vitals(self) -> dict[int, RankVitals]:
        """Vital signs of all ranks that a guard has looked at, by rank; a second old at the most."""
        found = [read_json(path) for path in sorted(self.folder.glob("node-*.vitals.json"))]
        listed = [value["ranks"] for value in found if value is not None and isinstance(value.get("ranks"), list)]
        vitals = [record_or_none(RankVitals, one) for ranks in listed for one in ranks]
        return {one.rank: one for one in vitals if one is not None}

    @property
    def store(self) -> Path:
        return self.folder / "store.json"

    def write_store(self, place: StorePlace) -> None:
        write_json(self.store, asdict(place), is_private=True)

    def read_store(self) -> StorePlace | None:
        return record_or_none(StorePlace, read_json(self.store))

    def read_status(self, node: int) -> NodeStatus | None:
        return record_or_none(NodeStatus, read_json(self.status(node)))
