from __future__ import annotations

from typing import Any

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem, PeerFailed
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.host_probe import Host
from headway.training.launch.base.launcher import NodeReport
from headway.training.launch.base.protocol import OWNER_LOST, Command, NodeStatus, RankMarker
from headway.training.launch.base.stop_request import StopRequest
from headway.training.launch.diagnosis.outcome import AttemptEvidence, diagnose
from headway.training.launch.supervise.watch import command_for, describe_break

STOP = StopRequest(reason="window closed", detail="it is six")
B = Host(name="b")


def marker(rank: int, state: str, **fields: Any) -> RankMarker:
    unix_s = fields.pop("unix_s", float(rank))
    failure = fields.pop("failure", None) or Failure(**fields)
    return RankMarker(rank=rank, node=rank, pid=1, parent_pid=1, state=state, unix_s=unix_s, failure=failure)


def node(number: int, guard_exit: int | None = 1, **fields: Any) -> NodeReport:
    values = {"node": number, "guard_pid": 1, "agent_pid": 2, "state": "ended", "agent_exit": 1} | fields
    return NodeReport(node=number, status=NodeStatus(**values), guard_exit=guard_exit, place=Host(name="ab"[number]))


def evidence(*ranks: RankMarker, nodes: tuple[NodeReport, ...] = (), **fields: Any) -> AttemptEvidence:
    return AttemptEvidence(
        world_size=2, markers={rank.rank: rank for rank in ranks}, nodes=nodes or (node(0), node(1)), **fields
    )


def test_done_counts_even_when_a_process_aborts_while_it_is_torn_down() -> None:
    torn = node(0, agent_exit=-6)
    assert diagnose(evidence(marker(0, "done"), marker(1, "done"), nodes=(torn, node(1)))).state == "done"


def test_one_rank_done_is_not_done() -> None:
    assert diagnose(evidence(marker(0, "done"), marker(1, "running"))).state == "failed"


def test_the_first_failure_is_named_and_not_its_echo() -> None:
    # Clocks of two hosts differ: the echo carries the earlier time.
    echo = marker(0, "failed", cause="infrastructure", what="Connection closed by peer", unix_s=1.0)
    own = marker(1, "failed", cause="training", what="ValueError: boom", retryable=True, unix_s=2.0)
    outcome = diagnose(evidence(echo, own))
    assert (outcome.failure.cause, outcome.failure.rank, outcome.failure.what) == ("training", 1, "ValueError: boom")


def test_the_rank_whose_disk_is_full_is_named_and_not_the_one_that_heard_of_it_first() -> None:
    heard = Failure.of(PeerFailed("rank 0 could not keep its part.", where="checkpoint"))
    full = Failure.of(EnvironmentProblem("no space left while writing.", where="a", advice="Free some space."))
    outcome = diagnose(evidence(marker(1, "failed", failure=heard), marker(0, "failed", failure=full, unix_s=9.0)))
    assert (outcome.failure.rank, outcome.failure.cause, outcome.failure.retryable) == (0, "environment", False)
    assert (outcome.failure.what, outcome.failure.advice) == ("no space left while writing.", "Free some space.")


def test_of_two_failures_the_earlier_is_named() -> None:
    later = marker(0, "failed", cause="training", what="later", unix_s=9.0)
    earlier = marker(1, "failed", cause="data", what="earlier", unix_s=8.0)
    outcome = diagnose(evidence(later, earlier))
    assert (outcome.failure.rank, outcome.failure.cause, outcome.failure.retryable) == (1, "data", False)


def test_a_vanished_rank_is_named_and_not_the_peers_it_left() -> None:
    left = marker(0, "failed", cause="infrastructure", what="Connection closed by peer")
    outcome = diagnose(evidence(left, marker(1, "running"), nodes=(node(0), node(1, lost_ranks=(1,)))))
    assert (outcome.failure.rank, outcome.failure.cause, outcome.failure.retryable) == (1, "infrastructure", True)
    assert "rank 1 was killed" in outcome.failure.what


def test_a_rank_that_crashed_is_named_with_the_place_and_not_the_peer_that_aborted_after_it() -> None:
    both = node(0, lost_ranks=(0, 1))
    crashes = {1: "Segmentation fault in forward (model.py:12)"}
    outcome = diagnose(evidence(marker(0, "running"), marker(1, "running"), nodes=(both,), crashes=crashes))
    assert outcome.failure.what == "rank 1 crashed: Segmentation fault in forward (model.py:12)."
    assert outcome.failure.rank == 1


def test_a_lost_guard_or_agent_explains_the_ranks_below_it() -> None:
    ranks = (marker(0, "stopped"), marker(1, "running"))
    without_guard = NodeReport(node=1, status=None, guard_exit=-9, place=B)
    outcome = diagnose(evidence(*ranks, nodes=(node(0), without_guard)))
    assert outcome.failure.what == "the guard of node 1 ended (signal 9), and with it rank 1 on b."
    assert (outcome.failure.rank, outcome.failure.node, outcome.failure.retryable) == (1, 1, True)
    without_agent = node(1, agent_exit=-9, lost_ranks=(1,))
    outcome = diagnose(evidence(*ranks, nodes=(node(0), without_agent)))
    assert (
        outcome.failure.what == "the agent of node 1 ended (signal 9), and with it rank 1 on b."
        and outcome.failure.host == "b"
    )


def test_a_lost_pod_is_named_with_the_machine_that_it_stood_on() -> None:
    gone = NodeReport(node=1, status=None, guard_exit=255, place=Host(name="x-1-abcde", machine="gpu-node-7"))
    outcome = diagnose(evidence(marker(0, "stopped"), marker(1, "running"), nodes=(node(0), gone)))
    assert outcome.failure.what.endswith("and with it rank 1 on pod x-1-abcde on gpu-node-7.")
    assert outcome.failure.host == "pod x-1-abcde on gpu-node-7"


def test_ranks_that_ended_beyond_a_cut_link_are_named_all_the_same() -> None:
    without_guard = NodeReport(node=1, status=None, guard_exit=255, place=B)
    told = evidence(marker(0, "stopped"), marker(1, "stopped"), nodes=(node(0), without_guard), lost_with={1: [1]})
    assert diagnose(told).failure.what == "the guard of node 1 ended (exit status 255), and with it rank 1 on b."
    assert diagnose(told).failure.rank == 1


def test_a_node_that_is_lost_before_its_ranks_came_up_is_named_alone() -> None:
    without_guard = NodeReport(node=1, status=None, guard_exit=255, place=B)
    outcome = diagnose(evidence(marker(0, "stopped"), nodes=(node(0), without_guard)))
    assert (outcome.failure.what, outcome.failure.rank) == ("the guard of node 1 ended (exit status 255) on b.", None)


def test_a_stop_that_was_asked_for_is_no_failure_whatever_it_tears() -> None:
    torn = marker(1, "failed", cause="infrastructure", what="Connection closed by peer")
    outcome = diagnose(evidence(marker(0, "stopped"), torn, stopped_by=STOP))
    assert (outcome.state, outcome.failure.rank, outcome.failure.reason) == ("stopped", 1, "window closed")
    assert diagnose(evidence(marker(0, "stopped"), marker(1, "done"), stopped_by=STOP)).failure.rank is None
    kept = diagnose(evidence(marker(0, "stopped", what="stopped at step 7."), marker(1, "done"), stopped_by=STOP))
    assert kept.failure.what == "window closed (it is six): stopped at step 7."


def test_damage_found_while_stopping_is_still_a_failure() -> None:
    damaged = marker(1, "failed", cause="integrity", what="bytes differ", error="IntegrityError")
    assert diagnose(evidence(marker(0, "stopped"), damaged, stopped_by=STOP)).failure.cause == "integrity"


def test_ranks_that_stop_by_themselves_stop_the_run() -> None:
    outcome = diagnose(evidence(marker(0, "stopped", what="at step 7."), marker(1, "stopped")))
    assert (outcome.state, outcome.failure.reason, outcome.failure.what) == (
        "stopped",
        "requested",
        "requested: at step 7.",
    )


def test_a_wish_at_the_very_step_where_a_run_was_to_stop_is_the_reason() -> None:
    reached = [marker(rank, "stopped", what="at step 7.", reason="step reached") for rank in range(2)]
    assert diagnose(evidence(*reached)).failure.reason == "step reached"
    asked = marker(1, "stopped", what="at step 7.", reason="requested")
    assert diagnose(evidence(reached[0], asked)).failure.reason == "requested"


def test_the_rank_that_knows_why_all_stop_is_the_one_that_is_quoted() -> None:
    knows = marker(1, "stopped", what="at step 7.", reason="budget spent")
    outcome = diagnose(evidence(marker(0, "stopped", what="at step 7."), knows))
    assert (outcome.failure.reason, outcome.failure.rank, outcome.failure.what) == (
        "budget spent",
        1,
        "budget spent: at step 7.",
    )


def test_a_passed_deadline_explains_the_rest() -> None:
    ranks = (marker(0, "failed", cause="infrastructure", what="timed out"), marker(1, "running"))
    outcome = diagnose(evidence(*ranks, overdue="no step after step 3 within 2 s; late: rank 1.", overdue_ranks=(1,)))
    assert (outcome.failure.rank, outcome.failure.cause, outcome.failure.retryable) == (1, "infrastructure", True)


def test_a_rank_that_never_came_up_is_quoted_from_its_log() -> None:
    outcome = diagnose(evidence(marker(0, "stopped"), first_error={1: "No module named nothing"}))
    assert (outcome.failure.rank, outcome.failure.cause, outcome.failure.what) == (
        1,
        "training",
        "No module named nothing",
    )
    assert diagnose(evidence()).failure.cause == "infrastructure"


def test_peers_of_a_lost_rank_are_ended_soon_and_peers_of_a_stopping_one_get_the_whole_grace() -> None:
    living = node(0, guard_exit=None, state="running", agent_exit=None)
    running, stopped, failed = marker(1, "running"), marker(1, "stopped"), marker(1, "failed")
    assert command_for((living, living), {1: running}) is None
    assert command_for((living, node(1, lost_ranks=(1,))), {1: running}) is Command.PEER_LOST
    assert command_for((living, living), {1: failed}) is Command.PEER_LOST
    assert command_for((living, node(1)), {1: stopped}) is Command.STOP
    assert (
        command_for((living, NodeReport(node=1, status=None, guard_exit=-9, place=B)), {1: stopped})
        is Command.PEER_LOST
    )
    assert command_for((living, node(1, guard_exit=0, agent_exit=0)), {1: marker(1, "done")}) is None


def test_ranks_that_stopped_in_order_are_said_to_have_stopped_as_asked_and_nobody_to_be_lost() -> None:
    stopped, gone = marker(1, "stopped"), NodeReport(node=1, status=None, guard_exit=-9, place=B)
    both = {0: marker(0, "stopped"), 1: stopped}
    assert describe_break((node(0), node(1)), both) == (
        "ranks.stopped",
        "the ranks of nodes 0, 1 stopped as asked; the attempt ends.",
    )
    assert describe_break((node(0),), both)[1] == "the ranks of node 0 stopped as asked; the attempt ends."
    assert describe_break((node(0),), {0: marker(0, "done")})[1].startswith("the ranks of node 0 are done")
    for nodes, markers, message in (
        ((node(0), gone), {0: marker(0, "stopped")}, "node 1 was lost"),
        ((node(0), gone), {}, "nodes 0, 1 were lost"),
        ((node(1, lost_ranks=(3,)),), {1: stopped}, "rank 3 was lost"),
        ((node(1, why=min(OWNER_LOST)),), {1: stopped}, "node 1 was lost"),
    ):
        name, what = describe_break(nodes, markers)
        assert name == "rank.lost" and what.startswith(message), what


@pytest.mark.parametrize("why", sorted(OWNER_LOST))
def test_ranks_that_kept_a_checkpoint_because_a_link_was_cut_are_no_stop_that_was_asked_for(why: str) -> None:
    ranks = (marker(0, "stopped", what="stopped at step 7."), marker(1, "stopped", what="stopped at step 7."))
    outcome = diagnose(evidence(*ranks, nodes=(node(0), node(1, why=why))))
    assert (outcome.state, outcome.failure.cause, outcome.failure.node, outcome.failure.retryable) == (
        "failed",
        "infrastructure",
        1,
        True,
    )
