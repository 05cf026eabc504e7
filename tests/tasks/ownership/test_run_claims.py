"""Of machines that share a bucket one has a run: until it says so, or was silent for its lease, no other trains it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.documents import Link, RunSpec, ShardGroup, ShardManifest
from headway.data_contracts.store.errors import EnvironmentProblem, IntegrityError, RunStopped, Superseded
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core import gangs, lease_records
from headway.tasks.core.context import RunContext
from headway.tasks.core.lease_records import OWNERS, LeaseRecords, remote_owner
from headway.tasks.ownership.lease_acquisition import observe_lease
from headway.tasks.ownership.run_lease import leased_run
from headway.tasks.stages import launch
from headway.tasks.stages.starting_point import ResolvedStart
from headway.training.checkpoint.layout import RESULT_NAME, run_folder
from headway.training.config.training_spec import TrainingSpec
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.protocol import read_json
from headway.training.launch.base.stop_request import clear_stop, requested_stop
from headway.training.launch.jobs.job_request import DetachedFiles
from headway.training.observe.ledger import read_events
from tests.tasks.conftest import make_context
from tests.tasks.core.test_gangs import Quiet
from tests.tasks.ownership.run_claimer import RUN
from tests.waiting import DEADLINE_S, wait_until
from tests.warm_programs import Program

pytestmark = pytest.mark.process

CLAIMER = Path(__file__).with_name("run_claimer.py")
REPOSITORY = Path(__file__).resolve().parents[3]
LEASE_S = 4.0
SPEC = LaunchSpec(owner_lease_s=LEASE_S)
CLAIMS = f"{OWNERS}/{RUN.sha256[:16]}"


class Machine:
    """What one machine knows: a local side of the bucket, and a ledger."""

    def __init__(self, uri: str, folder: Path) -> None:
        folder.mkdir()
        self.uri, self.folder, self.started = uri, folder, list[subprocess.Popen[str]]()

    def start(self, *until: Path) -> subprocess.Popen[str]:
        self.started.append(
            Program(
                [sys.executable, CLAIMER, self.uri, self.folder, LEASE_S, *until],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "HEADWAY_LOCAL": str(self.folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        return self.started[-1]

    def context(self, monkeypatch: pytest.MonkeyPatch) -> RunContext:
        """Of a flow in this process."""
        with monkeypatch.context() as patch:
            patch.setenv("HEADWAY_LOCAL", str(self.folder))
            return make_context(Workspace(self.uri), self.folder)

    @property
    def run_dir(self) -> Path:
        (found,) = self.folder.glob(f"*/{run_folder(RUN)}")
        return found

    def num_events(self, name: str) -> int:
        return len(self.events(name))

    def events(self, name: str) -> list[dict[str, object]]:
        spool = self.folder / "ledger.jsonl"
        return [event for event in read_events(spool) if event["event"] == name] if spool.exists() else []

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
def uri(new_bucket: Callable[[], str]) -> str:
    return f"s3://{new_bucket()}/team"


@pytest.fixture
def machines(uri: str, tmp_path: Path) -> Iterator[list[Machine]]:
    made = [Machine(uri, tmp_path / name) for name in ("first", "second")]
    yield made
    for machine in made:
        machine.end()


def message(process: subprocess.Popen[str]) -> str:
    stream = process.stdout
    assert stream is not None
    wait_until(lambda: select.select([stream], [], [], 0)[0], what="a word of it")
    return stream.readline().strip()


def is_owner(process: subprocess.Popen[str]) -> bool:
    """Whether it takes itself for it, and looked just now."""
    assert process.stdin is not None
    process.stdin.write("?\n")
    process.stdin.flush()
    return message(process) == "owner"


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def test_a_second_machine_is_refused_while_the_first_gives_signs_of_life(machines: list[Machine]) -> None:
    first, second = machines
    owner = first.start()
    assert message(owner) == "owner"
    refused = second.start()
    told = message(refused)
    assert told.startswith("RunBusy") and f"another machine trains this run already (pid {owner.pid}" in told
    assert refused.wait() == 8
    assert is_owner(owner)


def test_a_killed_machine_is_followed_after_its_lease_and_by_itself_at_once(machines: list[Machine]) -> None:
    first, second = machines
    for _ in range(2):  # the second time, it is the same machine that goes on
        owner = first.start()
        assert message(owner) == "owner"
        killed(owner)
    assert first.num_events("run.leased_remotely") == 0
    assert message(second.start()) == "owner"
    (claimed,) = second.events("launch.lease")
    assert claimed["duration_s"] >= LEASE_S


def test_a_halted_machine_that_was_followed_ends_its_ranks_in_order_and_leaves_the_run_to_the_other(
    machines: list[Machine], tmp_path: Path
) -> None:
    first, second = machines
    halted = first.start(tmp_path / "never")
    assert message(halted) == "owner"
    wait_until(lambda: list(first.folder.glob(f"*/{run_folder(RUN)}/attempts/*/rank-0.json")))
    halted.send_signal(signal.SIGSTOP)
    owner = second.start()
    assert message(owner) == "owner"
    there = Workspace(second.uri).names(CLAIMS)
    halted.send_signal(signal.SIGCONT)
    told = message(halted)
    assert told.startswith("Superseded") and f"(pid {owner.pid} on " in told
    assert halted.wait() == 8
    assert (read_json(first.run_dir / "attempts" / "001" / "rank-0.json") or {})["state"] == "stopped"
    assert first.num_events("run.lost") == 1
    assert is_owner(owner)
    assert set(Workspace(second.uri).names(CLAIMS)) - set(there) <= {"00000002.beat"}


def test_who_ends_in_order_hands_over_at_once(machines: list[Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (machine.context(monkeypatch) for machine in machines)
    with leased_run(first, RUN, SPEC):
        pass
    with pytest.raises(RunStopped), leased_run(second, RUN, SPEC):
        raise RunStopped("the window closes.")
    with leased_run(first, RUN, SPEC) as lease:
        lease.require()
    assert [machine.num_events("run.leased_remotely") for machine in machines] == [0, 0]
    wait_until(lambda: "run-lease" not in {thread.name for thread in threading.enumerate()})


def test_of_those_who_come_at_once_one_gets_it(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = [Machine(uri, tmp_path / f"{number}").context(monkeypatch) for number in range(3)]
    seen, told = (threading.Barrier(3, timeout=DEADLINE_S) for _ in range(2))
    newest_entry = lease_records.newest_entry

    def newest_for_all(workspace: Workspace, folder: str) -> int:
        number = newest_entry(workspace, folder)
        if number == 0:
            seen.wait()  # nobody claims before all have seen that nobody has
        return number

    monkeypatch.setattr(lease_records, "newest_entry", newest_for_all)

    def come(context: RunContext) -> str:
        try:
            with leased_run(context, RUN, SPEC) as lease:
                told.wait()
                lease.require()
                return "owner"
        except EnvironmentProblem:
            told.wait()
            return "refused"

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(come, contexts)) == ["owner", "refused", "refused"]


@pytest.fixture
def away(s3_server: subprocess.Popen[str]) -> Iterator[Callable[[float], None]]:
    """Has the store answer nobody for so many seconds."""

    def for_a_while(seconds: float) -> None:
        s3_server.send_signal(signal.SIGSTOP)
        back_s = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() > back_s)
        s3_server.send_signal(signal.SIGCONT)

    yield for_a_while
    s3_server.send_signal(signal.SIGCONT)


def test_a_store_that_is_away_for_longer_than_the_lease_costs_nobody_the_run(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch, away: Callable[[float], None]
) -> None:
    first, second = (machine.context(monkeypatch) for machine in machines)

    def beat() -> bytes | None:
        return first.workspace.read_if_there(f"{CLAIMS}/00000001.beat")

    with leased_run(first, RUN, SPEC) as lease:
        wait_until(beat)
        away(LEASE_S + 1)
        before = beat()
        wait_until(lambda: beat() != before)
        lease.require()
        with pytest.raises(EnvironmentProblem, match="another machine"), leased_run(second, RUN, SPEC):
            pass


@pytest.mark.long
def test_while_the_store_is_away_nobodys_silence_counts(machines: list[Machine], away: Callable[[float], None]) -> None:
    first, second = machines
    owner = first.start()
    assert message(owner) == "owner"
    killed(owner)
    waiting = second.start()
    wait_until(lambda: second.num_events("run.leased_remotely"))
    away(LEASE_S)
    assert message(waiting) == "owner"
    (claimed,) = second.events("launch.lease")
    assert claimed["duration_s"] >= 2 * LEASE_S


def test_a_job_that_goes_on_without_its_flow_is_waited_for(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, spec = machines[0].context(monkeypatch), LaunchSpec(launcher="slurm")
    files = DetachedFiles(context.workspace.local_path(run_folder(RUN)))
    files.folder.mkdir(parents=True)
    files.order.write_text("{}")
    for number, end in enumerate((ValueError("a defect"), RunStopped("the window closes.")), 1):
        with pytest.raises(type(end)), leased_run(context, RUN, spec):
            raise end
        lease = LeaseRecords(context.workspace, RUN.sha256[:16]).read(number)
        assert lease.lease_s > spec.detached.lease_s + spec.stop_grace_s
    # An outcome is its job's last word.
    files.outcome.write_text("{}")
    with pytest.raises(KeyboardInterrupt), leased_run(context, RUN, spec):
        raise KeyboardInterrupt
    over = [name for name in context.workspace.names(CLAIMS) if name.endswith(".over")]
    assert over == ["00000002.over", "00000003.over"]


def test_silences_at_one_time_are_not_waited_for_in_turn(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = machines
    killed_one = first.start()
    assert message(killed_one) == "owner"
    killed(killed_one)
    context = second.context(monkeypatch)
    seen = observe_lease(context.workspace, RUN)
    assert seen is not None and seen.number == 1

    def wait(_wait_s: float) -> None:
        raise AssertionError("waited")

    monkeypatch.setattr(time, "sleep", wait)
    with leased_run(context, RUN, SPEC, seen._replace(at_s=seen.at_s - LEASE_S)) as lease:
        lease.require()
    other_beat = seen._replace(number=2, beat=b"of another", at_s=seen.at_s - LEASE_S)
    context.workspace.remove(f"{CLAIMS}/00000002.over")
    with pytest.raises(AssertionError, match="waited"), leased_run(first.context(monkeypatch), RUN, SPEC, other_beat):
        pass


def test_a_request_to_stop_that_somebody_took_away_is_made_again_while_the_run_is_another_machines(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As whoever queues the run's next job does."""
    context = machines[0].context(monkeypatch)
    with leased_run(context, RUN, SPEC) as lease:
        context.workspace.remove(f"{CLAIMS}/00000001.json")
        wait_until(lease.is_lost)
        for _ in range(2):
            lease.stop_if_lost()
            assert "was removed" in requested_stop(machines[0].run_dir).detail
            clear_stop(machines[0].run_dir)
    assert machines[0].num_events("run.lost") == 1


def test_this_machines_own_dead_run_goes_on_nowhere(machines: list[Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    process = machines[0].start()
    assert message(process) == "owner"
    killed(process)
    here, there = (machine.context(monkeypatch).workspace for machine in machines)
    run = RUN.sha256[:16]
    assert remote_owner(here, run) is None
    assert f"pid {process.pid} on " in str(remote_owner(there, run))


def test_who_lost_its_claim_to_a_person_stops_as_well(machines: list[Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    context = machines[0].context(monkeypatch)
    with leased_run(context, RUN, SPEC) as lease:
        context.workspace.remove(f"{CLAIMS}/00000001.json")
        with pytest.raises(Superseded, match="the claim on run 7777777777777777 was removed"):
            lease.require()


def test_a_flow_that_lost_its_run_stops_training_and_publishes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace.create(f"memory://{tmp_path.name}-lost")
    context, none = make_context(workspace, tmp_path / "flow"), Link(kind="none", sha256="0" * 64)
    code = workspace.publish("code/none.zip", b"")
    group = ShardGroup(group=0, split="train", num_rows=1, num_samples=1, documents=("a",), shards=())
    shards = ShardManifest(
        snapshot=none,
        receipt=none,
        fitted=none,
        spec={},
        columns=(),
        groups=(group,),
        content_sha256="0" * 64,
        libraries={},
    )
    manifest = workspace.publish_document(shards)
    run = RunSpec(pipeline="tiny", config={}, manifest=manifest, receipt=none, fitted=none, code=code, environment=code)
    result = f"{run_folder(run.link)}/{RESULT_NAME}"

    def train(_spec: LaunchSpec, gang: Gang, *, poll: Callable[[], object], **_: Any) -> None:
        workspace.remove(f"{OWNERS}/{run.sha256[:16]}/00000001.json")
        wait_until(lambda: poll() or requested_stop(gang.run_dir))
        workspace.local_path(result).write_bytes(b"{}")
        raise RunStopped("asked: a checkpoint was kept.")

    monkeypatch.setattr(gangs, "supervise", train)
    monkeypatch.setattr(launch, "_context_tokens", lambda *_: 1)
    monkeypatch.setattr(launch, "SeriesShipper", lambda *_, **__: Quiet())
    with pytest.raises(Superseded, match=r"the claim on run .* was removed"):
        launch._train(context, TrainingSpec(max_steps=10), SPEC, ResolvedStart(run, ""), "")
    assert not workspace.exists(result)


def test_a_folder_needs_no_claims(context: RunContext) -> None:
    with leased_run(context, RUN, SPEC) as lease:
        lease.require()
        lease.stop_if_lost()
    assert not context.workspace.local_path(OWNERS).exists()
    assert not context.workspace.local_path(run_folder(RUN)).exists()


@pytest.mark.parametrize("unix_s", [1e300, -1e18])
def test_a_claim_of_a_time_that_no_calendar_knows_is_unreadable_and_hides_no_other_run(uri: str, unix_s: float) -> None:
    workspace = Workspace(uri)
    records = LeaseRecords(workspace, RUN.sha256[:16])
    altered = {"format_version": 1, "host": "theirs", "pid": 1, "unix_s": unix_s, "lease_s": 1e300, "writer": "x"}
    workspace.publish_json(records.path(1), altered)
    assert remote_owner(workspace, records.run) is None
    with pytest.raises(IntegrityError, match="not a claim"):
        records.read(1)
