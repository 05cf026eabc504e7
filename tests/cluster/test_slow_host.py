"""A host that holds up the others, among hosts of namespaces over ssh: the run goes on without it, by policy."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster.conftest import OwnedRun, outcome_of, ssh_spec
from tests.cluster.namespaces import NamespaceHosts


def test_a_slow_host_is_left_out_and_a_spare_one_takes_its_place_at_the_same_step(
    hosts: NamespaceHosts, new_run: Callable[..., OwnedRun]
) -> None:
    slow, fast, spare = hosts.hosts[2], hosts.hosts[1], hosts.hosts[3]
    run = new_run(ssh_spec(hosts, stragglers="exclude", max_attempts=1), hosts.hosts[0])
    run.agents = "toys"
    enough = run.folder / "enough"
    until = ("--steps", "1", "--until", str(enough))
    run.begin(*until, "--in-step", "--step-s", "0.02", "--slow-on", slow.name, "--slow-by-s", "0.5")
    run.until_it_steps(2)
    enough.touch()
    assert run.ends() == 0, run.message
    assert outcome_of(run)["state"] == "done"

    (told,) = run.events("rank.slow")
    assert (told["rank"], told["host"], told["part"]) == (1, slow.address, "forward")
    (excluded,) = run.events("host.excluded")
    assert excluded["host"] == slow.address and "The run continues without" in excluded["what"]
    assert [record["state"] for record in run.records()] == ["stopped", "done"], "and no attempt is spent"
    assert run.records()[0]["excluded"] == slow.address
    statuses = [run.files.read_status(node) for node in (0, 1)]
    assert [status.host for status in statuses if status is not None] == [fast.name, spare.name]
    assert run.step_of(2) > run.step_of(1) > 0
