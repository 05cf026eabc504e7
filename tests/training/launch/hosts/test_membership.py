"""A run does without the host of a slow rank where it may, once a host, and never with fewer hosts than it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.host_probe import Host, HostProbe, Member
from headway.training.launch.base.ports import LOOPBACK
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.launch.diagnosis.stragglers import Straggler
from headway.training.launch.hosts.links import PATIENCE_S as LINK_PATIENCE_S
from headway.training.launch.hosts.membership import Membership
from headway.training.launch.hosts.owned import OwnedLauncher
from headway.training.launch.supervise import supervisor

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("toy_agents")]

SLOW = ("--slow-on", "b", "--steps", "1", "--step-s", "0.02", "--slow-by-s")
HALF_S, MAX_DURATION_S = 0.5, 5.0
"""Of a step without which the others would be done in half a second."""


class Pretended:
    """Hosts that are all this machine, and notes where guards were started."""

    name = "pretended"
    is_local = False
    has_environment = False
    python = sys.executable

    def __init__(self, names: str) -> None:
        self._names = names
        self.unreachable = ""
        self.guards: list[str] = []

    def hosts(self, nodes: int) -> tuple[Host, ...]:
        return tuple(Host(name=name, address=LOOPBACK) for name in self._names)

    def is_gathered(self, nodes: int, min_nodes: int) -> bool:
        return True

    def command(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        if host.name in self.unreachable:
            return ("false",)
        if "headway.training.launch.node.node_guard" in argv:
            self.guards.append(host.name)
        return ("env", f"TOY_HOST={host.name}", *argv)


@pytest.fixture
def run(toy_run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    def run(
        transport: Pretended,
        *,
        nodes: int = 2,
        slow_by_s: float = HALF_S,
        attempts: int = 1,
        reports: int = 1,
        **fields: Any,
    ) -> list[str]:
        """Returns the hosts on which guards were started, in their order.

        Args:
            attempts, reports: of slow ranks, after which it may come to its end.
        """
        enough = toy_run.folder / f"enough-{attempts}"

        def poll() -> int | None:
            if toy_run.num_attempts() == attempts and len(toy_run.events("rank.slow")) == reports:
                enough.touch()
            return toy_run.newest_step()

        quick = {"backoff_s": 0.0, "max_attempts": 1, "lost_grace_s": 1.0}
        spec = LaunchSpec(nodes=nodes, **{"stragglers": "exclude"} | quick | fields)
        monkeypatch.setattr(supervisor, "launcher_for", lambda spec: OwnedLauncher(spec, transport))
        gang = toy_run.gang(*SLOW, str(slow_by_s), "--until", str(enough), nodes=nodes)
        outcome = supervisor.supervise(spec, gang, ledger=toy_run.ledger, budget_scope="one", poll=poll)
        assert outcome.state == "done"
        assert toy_run.survivors() == []
        return transport.guards

    return run


class Unlucky(Pretended):
    """One host's first look at its neighbour goes wrong."""

    def __init__(self, names: str, which: str, instead: str) -> None:
        super().__init__(names)
        self._which, self._instead, self.num_looks = which, instead, 0

    def command(self, host: Host, argv: Sequence[str]) -> tuple[str, ...]:
        command = super().command(host, argv)
        if "headway.training.launch.hosts.links" not in argv:
            return command
        self.num_looks += 1
        is_now = host.name == self._which and self.num_looks <= len(self._names)
        return ("sh", "-c", self._instead, "sh", *command) if is_now else command


@pytest.mark.parametrize(
    "instead",
    [
        pytest.param(f'sleep {3 * LINK_PATIENCE_S}; exec "$@"', id="begun when the others had given up"),
        pytest.param("""echo '{"problem": "timed out"}'""", id="lost on its way"),
    ],
)
def test_links_that_failed_are_looked_at_once_more_before_a_run_is_refused(toy_run, instead: str) -> None:
    transport = Unlucky("ab", "b", instead)
    spec = LaunchSpec(nodes=2)
    launcher = OwnedLauncher(spec, transport)
    gang = toy_run.gang()
    launcher.preflight(gang, launcher.probe_hosts(gang))
    assert transport.num_looks == 4


def records(folder: Path) -> list[AttemptRecord]:
    return AttemptRecords(folder).all()


@pytest.mark.long
def test_a_slow_host_makes_room_for_one_that_stands_by_and_no_attempt_is_spent(toy_run, run) -> None:
    assert run(Pretended("abc"), attempts=2) == ["a", "b", "a", "c"]
    first, second = records(toy_run.folder)
    assert (first.state, first.excluded, second.state, second.excluded) == ("stopped", "b", "done", "")
    assert first.failure.what.startswith(
        "rank 1 on b is slow: forward takes it 0.7 s, the others 0.2 s; they wait 0.5 s of"
    )
    assert first.failure.what.endswith("The run continues without b.")
    kept = int((toy_run.folder / "checkpoint-0.txt").read_text())
    assert kept >= 40, "what was done is kept"
    (told,) = toy_run.events("host.excluded")
    assert told["host"] == "b"


def test_whoever_asked_only_for_a_report_has_one(toy_run, run) -> None:
    assert run(Pretended("abc"), stragglers="report") == ["a", "b"]
    (told,) = toy_run.events("rank.slow")
    assert (told["rank"], told["host"], told["part"]) == (1, "b", "forward")


def test_a_gang_never_shrinks_below_what_it_needs(toy_run, run) -> None:
    assert run(Pretended("ab"), slow_by_s=MAX_DURATION_S) == ["a", "b"]
    assert len(toy_run.events("rank.slow")) == 1


def test_a_gang_shrinks_where_fewer_hosts_are_faster(toy_run, run) -> None:
    assert run(Pretended("ab"), min_nodes=1, slow_by_s=MAX_DURATION_S, attempts=2) == ["a", "b", "a"]


@pytest.mark.long
def test_a_gang_shrinks_to_as_many_hosts_as_it_needs(toy_run, run) -> None:
    assert run(Pretended("abc"), nodes=3, min_nodes=2, attempts=2) == ["a", "b", "c", "a", "c"]


def test_a_gang_does_not_shrink_where_fewer_hosts_are_no_faster(toy_run, run) -> None:
    assert run(Pretended("ab"), min_nodes=1) == ["a", "b"]
    assert len(toy_run.events("rank.slow")) == 1


@pytest.mark.long
def test_a_host_that_was_left_out_is_better_than_none_and_is_not_left_out_again(toy_run, run) -> None:
    transport = Pretended("abc")
    run(transport, attempts=2)
    transport.guards.clear()
    transport.unreachable = "c"
    assert run(transport, attempts=3, reports=2) == ["a", "b"], "by a later owner"
    assert [record.excluded for record in records(toy_run.folder)] == ["b", "", ""]


def test_where_a_scheduler_has_room_the_run_goes_on_in_another_job_of_full_size(toy_run) -> None:
    spec, gang, asked = LaunchSpec(stragglers="exclude", min_nodes=1), toy_run.gang(), []

    def has_room(_gang: Gang, hosts: Collection[str]) -> bool:
        asked.append(set(hosts))
        return True

    own = AttemptRecords(toy_run.folder)
    own.end(AttemptRecord(attempt=1, scope="one", state="stopped", excluded="d"))
    membership = Membership(spec, gang, OwnedLauncher(spec, Pretended("ab"), has_room), toy_run.ledger, own)
    members = tuple(Member(name=name, address=LOOPBACK, interface="lo", port=1) for name in "ab")
    slow = Straggler(rank=1, part="data", excess_s=0.5, step_s=1.0, own_s=0.6, others_s=0.1, score=9.0, balanced_s=0.5)
    assert membership.exclude_slow(HostProbe(members=members, unreachable={Host(name="c"): "gone"}), slow, "b")
    assert membership.is_rescheduled
    assert asked == [set("abcd")], "and none of those is offered again"


def test_all_pods_of_a_slow_machine_go_together_and_only_where_enough_stand_on_others(toy_run) -> None:
    spec, gang = LaunchSpec(stragglers="exclude", min_nodes=2), toy_run.gang(nodes=3)
    own = AttemptRecords(toy_run.folder)
    membership = Membership(spec, gang, OwnedLauncher(spec, Pretended("")), toy_run.ledger, own)
    stands = {"a": "m-1", "b": "m-1", "c": "m-2"}
    members = tuple(
        Member(name=name, address=LOOPBACK, machine=machine, interface="lo", port=1) for name, machine in stands.items()
    )
    found = HostProbe(members=members, unreachable={}, spare_hosts=(Host(name="d", machine="m-1"),))
    slow = Straggler(
        rank=1, part="data", excess_s=0.9, step_s=1.0, own_s=0.95, others_s=0.05, score=9.0, balanced_s=0.5
    )
    assert not membership.exclude_slow(found, slow, "m-1"), "one of at least two would be left"
    assert membership.exclude_slow(found, slow, "m-2")
    own.end(AttemptRecord(attempt=1, scope="one", state="stopped", excluded="m-2"))
    assert not membership.exclude_slow(found, slow, "m-2"), "whichever pod stands there by now"


def test_no_host_is_left_out_twice_though_there_were_others(toy_run) -> None:
    """As where preflight refuses them: the host comes back, and would be left out again and again, for nothing."""
    spec, gang = LaunchSpec(stragglers="exclude"), toy_run.gang()
    own = AttemptRecords(toy_run.folder)
    membership = Membership(spec, gang, OwnedLauncher(spec, Pretended("abc")), toy_run.ledger, own)
    members = tuple(Member(name=name, address=LOOPBACK, interface="lo", port=1) for name in "ab")
    found = HostProbe(members=members, unreachable={}, spare_hosts=(Host(name="c"),))
    slow = Straggler(rank=1, part="data", excess_s=0.5, step_s=1.0, own_s=0.6, others_s=0.1, score=9.0, balanced_s=0.5)
    assert membership.exclude_slow(found, slow, "b")
    own.end(AttemptRecord(attempt=1, scope="one", state="stopped", excluded="b"))
    assert not membership.exclude_slow(found, slow, "b")
    assert membership.exclude_slow(found, slow, "a")
