"""What every launcher can do, whichever engine places the processes."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from headway.training.launch.base.gang import Attempt, Gang
from headway.training.launch.base.host_probe import Host, HostProbe
from headway.training.launch.base.protocol import NO_TOKEN, Command, NodeStatus, read_json, write_json
from headway.training.launch.base.record import record_or_none

HANDLE_NAME = "launch.json"
MARK_CHARS = 8
"""Of the path of a run's folder, and of its number, in the token of who owns it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """Enough to find an attempt's processes again after their owner is gone; kept in the run's folder."""

    launcher: str
    host: str
    owner_pid: int
    token: str
    attempt: int

    def save(self, run_dir: Path) -> None:
        write_json(run_dir / HANDLE_NAME, asdict(self))

    @classmethod
    def load(cls, run_dir: Path) -> Handle | None:
        # A handle of another version may lack fields; its run is then treated as one without processes here.
        found = record_or_none(cls, read_json(run_dir / HANDLE_NAME), is_strict=True)
        # No attempt ever has that token: what carries it are servers that wait to fork, of any run.
        return None if found is None or found.token == NO_TOKEN else found

    def is_of(self, run_dir: Path) -> bool:
        """Whether its token was drawn for this folder.

        What carries the token is ended when the folder is taken over. A copy of a workspace has copies of handles, and
        whoever can write one folder could put another run's handle there: neither is to end that run.
        """
        by_path, by_number = self.token[:MARK_CHARS], self.token[MARK_CHARS : 2 * MARK_CHARS]
        # Either will do: folders are renamed, and some file systems number theirs anew.
        return by_path == _marks_of(run_dir)[0] or by_number == _marks_of(run_dir)[1]


def draw_token(run_dir: Path) -> str:
    """A new secret of who owns the folder, which its processes carry in their environment."""
    marks = "".join(_marks_of(run_dir))
    # As long as `NO_TOKEN`: a forked guard carries it in that one's place.
    return marks + secrets.token_hex((len(NO_TOKEN) - len(marks)) // 2)


def _marks_of(run_dir: Path) -> tuple[str, str]:
    found = run_dir.stat()
    known = (os.fsencode(run_dir.resolve()), f"{found.st_dev} {found.st_ino}".encode())
    by_path, by_number = (hashlib.sha256(each).hexdigest()[:MARK_CHARS] for each in known)
    return by_path, by_number


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeCommand:
    """What is started on one node."""

    node: int
    agent_argv: tuple[str, ...]
    num_ranks: int
    environment: dict[str, str]
    rank_python_path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeReport:
    """What is known of one node now."""

    node: int
    status: NodeStatus | None
    guard_exit: int | None
    """None while the guard lives, or what holds it on another host; negative for a signal."""
    place: Host

    @property
    def has_ended(self) -> bool:
        return self.guard_exit is not None

    @property
    def has_ended_completely(self) -> bool:
        """Whether the guard has left nobody behind: it ends when it has no child left."""
        return self.has_ended and self.status is not None and self.status.state == "ended"

    @property
    def guard_was_lost(self) -> bool:
        return self.has_ended and not self.has_ended_completely


class Launcher(Protocol):
    def is_gathered(self, gang: Gang, min_nodes: int) -> bool:
        """Whether it need not be waited for hosts that are still to come: asked again and again before an attempt."""

    def probe_hosts(self, gang: Gang, without: Collection[str] = ()) -> HostProbe:
        """Which hosts can take the gang's nodes now, as many as it has at the most, but for those machines."""

    def has_capacity_beside(self, gang: Gang, machines: Collection[str]) -> bool:
        """Whether another job of the gang's could have a machine beside those at once; False where nobody can say."""

    def preflight(self, gang: Gang, found: HostProbe) -> None:
        """The last look before ranks are started on these hosts.

        Raises:
            EnvironmentProblem: something would fail later; names all of it.
        """

    def render(self, gang: Gang, attempt: Attempt) -> tuple[NodeCommand, ...]:
        """What would be started; starts nothing."""

    def submit(self, gang: Gang, attempt: Attempt) -> Handle:
        """Start the attempt, its handle written down before its first process."""

    def poll(self, handle: Handle, *, wait_s: float) -> tuple[NodeReport, ...]:
        """Reports of all nodes, after at most `wait_s`, sooner when a node ends."""

    def signal(self, handle: Handle, command: Command) -> None:
        """Tell all nodes at once; one that is gone is passed over."""

    def cancel(self, handle: Handle, *, grace_s: float) -> None:
        """Stop in order within the grace, then by force; returns when nothing is left."""

    def close(self, handle: Handle) -> tuple[str, ...]:
        """End what is left by force and let go.

        Returns:
            Hosts that cannot be reached; what is left there ends with its lease.
        """

    def reattach(self, run_dir: Path) -> Handle | None:
        """The attempt of a former owner, if it still runs and may go on.

        An owned launcher's attempts may not: what is left of one is ended first, and None returned.
        """

    def sweeps(self, token: str) -> list[list[str]]:
        """Commands that end what carries the token on other hosts, for when this process no longer can."""
