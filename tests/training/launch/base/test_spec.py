from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from headway.training.launch.base.gang import (
    LONE_AGENT,
    TORCHRUN_AGENT,
    Attempt,
    Gang,
    LaunchSpec,
    agent_argv,
    for_stepless_work,
    leader_spools,
    rank_environment,
    rank_python_path,
    torchrun_argv,
)
from headway.training.launch.base.host_probe import Member

GANG = Gang(
    module="headway.training.programs.worker",
    arguments=("--run", "abc"),
    nodes=2,
    ranks_per_node=3,
    import_path=("/code.zip", "/project"),
    run_dir=Path("/run"),
    environment={"PALETTE": "warm"},
    num_threads=2,
)
HERE = Member(name="here", address="127.0.0.1", interface="lo", port=4711)
ATTEMPT = Attempt(
    number=4, folder=Path("/run/attempts/004"), token="t", rendezvous_id="t-4", members=(HERE, HERE), owner_pid=1
)


def test_an_attempt_is_one_fresh_gang_with_its_own_rendezvous_on_loopback() -> None:
    argv = torchrun_argv(GANG, ATTEMPT, node=1, python="python")
    assert argv[:3] == ("python", "-P", str(TORCHRUN_AGENT))
    assert {"--nnodes=2", "--nproc-per-node=3", "--max-restarts=0", "--rdzv-backend=fixed"} <= set(argv)
    assert {"--rdzv-id=t-4", "--local-addr=127.0.0.1"} <= set(argv)
    assert "4711" not in " ".join(argv), "which everybody can read, and take the port"
    told = rank_environment(GANG, ATTEMPT, LaunchSpec(), 1, {}, is_local=True)
    assert told["PET_RDZV_ENDPOINT"] == "127.0.0.1:4711"
    assert argv[-4:] == ("-m", "headway.training.programs.worker", "--run", "abc")


def test_the_agent_of_one_rank_has_no_port_on_its_command_line_either() -> None:
    argv = agent_argv(replace(GANG, nodes=1, ranks_per_node=1), replace(ATTEMPT, members=(HERE,)), 0, "python")
    assert argv[2] == str(LONE_AGENT) and "4711" not in " ".join(argv)


def test_each_agent_is_told_which_node_it_is() -> None:
    hosts = [torchrun_argv(GANG, ATTEMPT, node, "python") for node in (0, 1)]
    assert ["--rdzv-conf=node=0" in hosts[0], "--rdzv-conf=node=1" in hosts[1]] == [True, True]


def test_ranks_see_no_key_of_tracker_or_orchestrator_and_no_place_in_an_outer_gang() -> None:
    outer = {
        "PATH": "/bin",
        "PREFECT_API_KEY": "secret",
        "MLFLOW_TRACKING_TOKEN": "secret",
        "OTEL_EXPORTER_OTLP_HEADERS": "secret",
        "RANK": "7",
        "TORCHELASTIC_RUN_ID": "outer",
        "HEADWAY_RUN_TOKEN": "outer",
    }
    environment = rank_environment(GANG, ATTEMPT, LaunchSpec(), 1, outer, is_local=True)
    assert environment["PATH"] == "/bin"
    assert "secret" not in environment.values()
    assert not {"RANK", "TORCHELASTIC_RUN_ID"} & environment.keys()
    assert environment["HEADWAY_RUN_TOKEN"] == "t"


def test_ranks_get_their_threads_their_place_and_listen_on_loopback_alone() -> None:
    environment = rank_environment(GANG, ATTEMPT, LaunchSpec(), 1, {}, is_local=True)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")
    assert environment["PYTHONSAFEPATH"] == "1"
    assert (environment["HEADWAY_NODE"], environment["HEADWAY_ATTEMPT"]) == ("1", "4")
    assert environment["PALETTE"] == "warm"


def test_frozen_code_comes_before_everything_else() -> None:
    assert rank_python_path(GANG, {"PYTHONPATH": "/elsewhere"}) == "/code.zip:/project:/elsewhere"
    assert rank_python_path(GANG, {}) == "/code.zip:/project"


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_attemps"):
        LaunchSpec.model_validate({"max_attemps": 3})


def test_a_gang_without_steps_is_launched_as_any_other() -> None:
    spec = LaunchSpec(progress_deadline_s=7, max_attempts=2)
    assert for_stepless_work(spec).model_dump(exclude={"busy_deadline_s"}) == spec.model_dump()


ELSEWHERE = (
    Member(name="a", address="10.0.0.1", interface="eth0", port=4711),
    Member(name="b", address="10.0.0.2", interface="ib0", port=4712),
)


def test_on_other_hosts_the_first_ones_own_address_has_the_rendezvous() -> None:
    attempt = replace(ATTEMPT, members=ELSEWHERE)
    assert "--local-addr=10.0.0.2" in torchrun_argv(GANG, attempt, node=1, python="python")
    six = replace(ATTEMPT, members=(replace(ELSEWHERE[0], address="fd00::1"),))
    told = [rank_environment(GANG, each, LaunchSpec(), 0, {}, is_local=False) for each in (attempt, six)]
    assert [each["PET_RDZV_ENDPOINT"] for each in told] == ["10.0.0.1:4711", "[fd00::1]:4711"]


def test_on_another_host_what_describes_a_machine_or_a_login_is_its_own() -> None:
    owners = {"HOME": "/root", "SSH_AUTH_SOCK": "/s", "CUDA_VISIBLE_DEVICES": "3", "HF_TOKEN": "secret"}
    attempt = replace(ATTEMPT, members=ELSEWHERE)
    environment = rank_environment(GANG, attempt, LaunchSpec(), 1, owners, is_local=False)
    assert not {"HOME", "SSH_AUTH_SOCK", "CUDA_VISIBLE_DEVICES"} & environment.keys()
    assert environment["HF_TOKEN"] == "secret"
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("ib0", "ib0")


def test_ranks_count_those_that_share_their_machine() -> None:
    spec = LaunchSpec(nodes=2, ranks_per_node=3)
    here = rank_environment(GANG, ATTEMPT, spec, 1, {}, is_local=True)
    elsewhere = rank_environment(GANG, replace(ATTEMPT, members=ELSEWHERE), spec, 1, {}, is_local=False)
    assert (here["HEADWAY_RANKS_HERE"], elsewhere["HEADWAY_RANKS_HERE"]) == ("6", "3")


def test_ranks_are_told_how_long_they_wait_for_peers_and_which_nodes_share_a_switch() -> None:
    spec = LaunchSpec(nodes=2, nodes_per_rack=2, collective_timeout_s=600)
    given = rank_environment(GANG, ATTEMPT, spec, 1, {}, is_local=True)
    assert (given["HEADWAY_COLLECTIVE_TIMEOUT_S"], given["HEADWAY_NODES_PER_RACK"]) == ("600", "2")
    # Hosts that are left move up, and nobody knows which of them stand together.
    fewer = replace(ATTEMPT, members=ATTEMPT.members[:1])
    assert rank_environment(GANG, fewer, spec, 0, {}, is_local=True)["HEADWAY_NODES_PER_RACK"] == "1"


def test_a_rank_is_told_the_speed_of_its_host_by_name_or_that_of_all_kinds_and_nothing_of_equal_ones() -> None:
    spec = LaunchSpec(nodes=2, speeds={ELSEWHERE[1].name: 0.5, "NVIDIA A10": 2}, stragglers="rebalance")
    attempt = replace(ATTEMPT, members=ELSEWHERE)
    tables = [
        json.loads(rank_environment(GANG, attempt, spec, node, {}, is_local=False)["HEADWAY_SPEEDS"]) for node in (0, 1)
    ]
    assert tables[1] == {"": 0.5}
    assert tables[0] == spec.speeds
    assert rank_environment(GANG, attempt, spec, 1, {}, is_local=False)["HEADWAY_STRAGGLERS"] == "rebalance"
    plain = rank_environment(GANG, ATTEMPT, LaunchSpec(), 1, {}, is_local=True)
    assert not {"HEADWAY_SPEEDS", "HEADWAY_STRAGGLERS"} & plain.keys()


@pytest.mark.parametrize("speeds", [{"a": 0}, {"a": -1}, {"a": float("nan")}, {"a": float("inf")}, {"": 1}])
def test_a_speed_is_a_number_above_zero_of_something_with_a_name(speeds: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="speeds"):
        LaunchSpec(speeds=speeds)


def test_a_gang_shrinks_to_a_number_of_nodes_that_can_share_its_work() -> None:
    gang = replace(GANG, nodes=4, possible_nodes=frozenset({1, 2, 4}))
    assert [gang.max_nodes(num_hosts) for num_hosts in range(6)] == [0, 1, 2, 2, 4, 4]
    assert replace(gang, possible_nodes=None).max_nodes(3) == 3


def test_what_rank_0_wrote_comes_in_the_order_of_attempts_and_copies_of_attempts_are_passed_by(tmp_path: Path) -> None:
    for name in ("999", "1000", "002", "002.copy"):
        spool = tmp_path / "attempts" / name / "ledger" / "rank-0.jsonl"
        spool.parent.mkdir(parents=True)
        spool.touch()
    (tmp_path / "attempts" / "003").mkdir()
    assert [spool.parts[-3] for spool in leader_spools(tmp_path)] == ["002", "999", "1000"]


DURATIONS = sorted(name for name in LaunchSpec.model_fields if name.endswith("_s"))


@pytest.mark.parametrize("name", DURATIONS)
def test_nothing_lasts_longer_than_clocks_of_processes_and_their_groups_can_count(name: str) -> None:
    assert getattr(LaunchSpec(**{name: 31_536_000.0}), name) == 31_536_000.0
    for much in (1e300, 1e10):
        with pytest.raises(ValidationError, match="less than or equal to 31536000"):
            LaunchSpec(**{name: much})


def test_ranks_wait_for_their_peers_for_a_second_at_least() -> None:
    """gloo counts whole milliseconds, and takes none for none at all."""
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        LaunchSpec(collective_timeout_s=1e-4)
