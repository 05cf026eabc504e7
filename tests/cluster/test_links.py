"""Links between hosts that are slow, or lose what they carry: the same bits where they will do, a word where not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import pytest

from headway.training.launch.base.gang import LaunchSpec
from tests.cluster.conftest import OwnedRun, ssh_spec
from tests.cluster.namespaces import NamespaceHosts
from tests.cluster.prerequisites import LOSSY_LINKS, SLOW_LINKS, why_no_hosts
from tests.training.conftest import TINY, make_project

Train = Callable[..., OwnedRun]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """What the real worker is told of a small run."""
    project = make_project(tmp_path_factory.mktemp("project"))
    return ("--workspace", project.workspace.uri, "--run-spec", project.publish_run(TINY).sha256)


@pytest.fixture
def slow_links() -> None:
    if reason := why_no_hosts(SLOW_LINKS):
        pytest.skip(reason)


@pytest.fixture
def lossy_links() -> None:
    if reason := why_no_hosts(LOSSY_LINKS):
        pytest.skip(reason)


def bits_of(run: OwnedRun, words: tuple[str, ...]) -> str:
    run.begin(*words, module="headway.training.programs.worker")
    assert run.ends() == 0, run.message
    assert [record["state"] for record in run.records()] == ["done"], "by its first attempt"
    return str(json.loads((run.folder / "result.json").read_text())["tensors_sha256"])


@pytest.fixture(scope="module")
def undisturbed(words: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> str:
    run = OwnedRun(tmp_path_factory.mktemp("undisturbed"), LaunchSpec(), None)
    try:
        return bits_of(run, words)
    finally:
        run.end()


@pytest.mark.usefixtures("slow_links")
def test_over_slow_links_the_same_bits_are_learnt(
    hosts: NamespaceHosts, new_run: Callable[..., OwnedRun], words: tuple[str, ...], undisturbed: str
) -> None:
    with contextlib.ExitStack() as slow:
        for host in hosts.hosts[1:]:
            slow.enter_context(host.slow("20mbit"))
        assert bits_of(new_run(ssh_spec(hosts), hosts.hosts[0]), words) == undisturbed


@pytest.mark.usefixtures("lossy_links")
def test_over_links_that_lose_some_packets_the_same_bits_are_learnt(
    hosts: NamespaceHosts, new_run: Callable[..., OwnedRun], words: tuple[str, ...], undisturbed: str
) -> None:
    with contextlib.ExitStack() as lossy:
        for host in hosts.hosts[1:]:
            lossy.enter_context(host.lossy(2))
        assert bits_of(new_run(ssh_spec(hosts), hosts.hosts[0]), words) == undisturbed
        assert sum(host.num_lost() for host in hosts.hosts[1:]) > 0


@pytest.mark.usefixtures("slow_links")
def test_a_link_below_the_floor_is_refused_before_any_rank_is_started(
    hosts: NamespaceHosts, new_run: Callable[..., OwnedRun], words: tuple[str, ...]
) -> None:
    slow, other = hosts.hosts[1:3]
    run = new_run(ssh_spec(hosts, preflight={}), hosts.hosts[0])
    with slow.slow("4mbit"):
        run.begin(*words, module="headway.training.programs.worker")
        assert run.ends() == 8, run.message
    assert f"{slow.address} to {other.address}: 0." in run.message and "MB/s, under 1" in run.message
    assert not run.files.read_markers(), "no rank was started"
