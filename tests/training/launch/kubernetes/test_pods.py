"""A pod's main process and the supervisor's way to it, on loopback; `tests/cluster` has whole jobs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.host_probe import Host
from headway.training.launch.base.protocol import (
    JOB,
    LOG_FORMAT,
    MACHINE,
    POD,
    POD_ADDRESS,
    AttemptFiles,
    NodeOrder,
    NodePlan,
)
from headway.training.launch.hosts.probe import HEADWAY_HOME
from headway.training.launch.jobs.job_request import DetachedFiles
from headway.training.launch.kubernetes.manifests import EXIT_LEAVING
from headway.training.launch.kubernetes.pod_start import PodStart
from headway.training.launch.kubernetes.pods import LOST, PodPlace, Pods, places_of, read_place
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.process
Start = Callable[[str, int], subprocess.Popen[bytes]]
MACHINE_NAME = "gpu-node-7"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    DetachedFiles(tmp_path).folder.mkdir()
    return tmp_path


@pytest.fixture
def start(run_dir: Path) -> Iterator[Start]:
    pods: list[subprocess.Popen[bytes]] = []

    def start(name: str, index: int) -> subprocess.Popen[bytes]:
        named = {JOB: "job-1", POD: name, MACHINE: MACHINE_NAME}
        given = {**named, POD_ADDRESS: "127.0.0.1", "JOB_COMPLETION_INDEX": str(index)}
        secrets = {"HF_TOKEN": "of the pod's own", "PREFECT_API_KEY": "no rank's business"}
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": HEADWAY_HOME, **given, **secrets}
        pods.append(
            subprocess.Popen(
                [sys.executable, "-m", "headway.training.launch.kubernetes.pod", str(run_dir)], env=environment, cwd="/"
            )
        )
        wait_until(lambda: read_place(DetachedFiles(run_dir).pods / f"{name}.json") is not None, what=name)
        return pods[-1]

    yield start
    for pod in pods:
        pod.kill()
        pod.wait()


def transport(run_dir: Path, gather_s: float = 0.0) -> Pods:
    return Pods(DetachedFiles(run_dir).pods, "job-1", gather_s)


def ask(run_dir: Path, host: Host, *argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": HEADWAY_HOME}
    command = transport(run_dir).command(host, argv)
    return subprocess.run(command, input=stdin, env=environment, capture_output=True, timeout=DEADLINE_S)


def say(place: PodPlace, words: bytes) -> None:
    """As a stranger, to the connection's end."""
    where = (place.address, place.port)
    # Its end may come before all is sent.
    with socket.create_connection(where, timeout=DEADLINE_S) as connection, contextlib.suppress(OSError):
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 12):
            pass


def test_what_is_started_in_a_pod_has_its_stdin_output_status_and_secrets(run_dir: Path, start: Start) -> None:
    start("pod-b", 1)
    (host,) = transport(run_dir).hosts(2)
    done = ask(run_dir, host, "sh", "-c", 'cat; echo "$HF_TOKEN/$PREFECT_API_KEY"', stdin=b"said\n")
    assert (done.returncode, done.stdout) == (0, b"said\nof the pod's own/\n")
    failed = ask(run_dir, host, "sh", "-c", "echo in its own words >&2; exit 7")
    assert (failed.returncode, failed.stderr) == (7, b"in its own words\n")
    assert ask(run_dir, host, "sh", "-c", "kill -9 $$").returncode == 137


def test_json_lines_of_a_guard_come_out_of_its_pods_stdout(
    run_dir: Path, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    start("pod-b", 1)
    (host,) = transport(run_dir).hosts(2)
    files = AttemptFiles(attempt_folder(run_dir, 1))
    files.rank_spool(0).parent.mkdir(parents=True)
    plan = NodePlan(
        **{"node": 0, "attempt": 1, "attempt_dir": str(files.folder), "owner_pid": None, "num_ranks": 1},
        **{"argv": ("sh", "-c", 'echo "by the agent $HEADWAY_LOG_PIPE"'), "rank_python_path": "", "lease_s": 60.0},
        **dict.fromkeys(("stop_grace_s", "lost_grace_s", "peer_grace_s"), 60.0),
    )
    order = NodeOrder(plan=plan, environment={LOG_FORMAT: "json"}).to_line()
    command = transport(run_dir).command(host, (sys.executable, "-m", "headway.training.launch.node.node_guard"))
    environment = {**os.environ, "PYTHONPATH": HEADWAY_HOME}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as guard:
        assert guard.stdin is not None
        guard.stdin.write(order)
        guard.stdin.flush()
        # Open until it has ended: with its supervisor gone it would end the agent before this one has said a word.
        guard.wait(DEADLINE_S)
    (line,) = (line for line in capfd.readouterr().out.splitlines() if line.startswith("{"))
    assert json.loads(line)["message"] == "by the agent ", "the pipe is the guard's alone"
    assert not files.json_lines(0).exists() and files.node_log(0).read_text() == "by the agent \n"


def test_a_pod_is_told_with_the_machine_that_it_stands_on(run_dir: Path, start: Start) -> None:
    start("pod-b", 1)
    (host,) = transport(run_dir).hosts(2)
    assert (host.name, host.machine) == ("pod-b", MACHINE_NAME)
    assert PodStart(run_dir, {JOB: "job-1", POD: "pod-a"}).where() == f"pod pod-b on {MACHINE_NAME}"
    untold = PodPlace(job="job-1", index=0, pod="pod-a", address="127.0.0.1", port=1, key="k")
    assert str(untold.host) == "pod-a", "as of a job that an earlier version made"


def test_words_to_a_process_that_has_ended_do_not_cut_off_its_own_last_ones(run_dir: Path, start: Start) -> None:
    start("pod-b", 1)
    deaf = ask(run_dir, Host(name="pod-b"), "sh", "-c", "echo as it ends; exit 3", stdin=b"a beat" * 1000)
    assert (deaf.returncode, deaf.stderr) == (3, b"as it ends\n")


def test_a_pod_that_could_open_no_more_files_takes_connections_again_once_it_can(
    run_dir: Path, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    pod = start("pod-b", 1)
    (host,) = transport(run_dir).hosts(2)
    usual = resource.prlimit(pod.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pod.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
    place = read_place(DetachedFiles(run_dir).pods / "pod-b.json")
    assert place is not None
    with socket.create_connection((place.address, place.port)):
        wait_until(lambda: "Too many open files" in capfd.readouterr().out, what="no file left")
    resource.prlimit(pod.pid, resource.RLIMIT_NOFILE, usual)
    assert ask(run_dir, host, "echo", "heard").stdout == b"heard\n"


def test_without_the_pods_key_nothing_is_started_and_the_key_is_its_users_alone(run_dir: Path, start: Start) -> None:
    start("pod-b", 1)
    path = DetachedFiles(run_dir).pods / "pod-b.json"
    assert path.stat().st_mode & 0o077 == 0
    place = read_place(path)
    assert place is not None
    replace(place, pod="stranger", key="guessed").save(path.parent)
    done = ask(run_dir, Host(name="stranger"), "touch", str(run_dir / "made"))
    assert done.returncode == LOST and not (run_dir / "made").exists()
    assert ask(run_dir, Host(name="pod-b"), "true").returncode == 0
    gone = ask(run_dir, Host(name="pod-x"), "true")
    assert (gone.returncode, gone.stderr) == (LOST, b"pod pod-x: it is not there any more\n")


def test_a_strangers_words_end_the_connection_and_harm_nothing(
    run_dir: Path, start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    pod = start("pod-b", 1)
    place = read_place(DetachedFiles(run_dir).pods / "pod-b.json")
    assert place is not None
    made = run_dir / "made"
    argv = json.dumps(["touch", str(made)]).encode()
    words = [b"", b"GET / HTTP/1.1\r\n\r\n", argv, b"\0" * 64, b"\xff" * 64, b"x" * (1 << 21), bytes(64) + argv]
    for each in words:
        say(place, each)
    assert not made.exists()
    assert ask(run_dir, Host(name="pod-b"), "true").returncode == 0
    pod.terminate()
    assert pod.wait(DEADLINE_S) == EXIT_LEAVING
    message = capfd.readouterr()
    assert message.err == "" and len(message.out.splitlines()) == 2, "that it is there, and that it was told to end"


@contextlib.contextmanager
def between(run_dir: Path, change: Callable[[bytes], bytes]) -> Iterator[None]:
    """A man in the middle of the way to pod-b, who changes what clients say."""
    path = DetachedFiles(run_dir).pods / "pod-b.json"
    real = read_place(path)
    assert real is not None

    def pass_on(source: socket.socket, sink: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(change(data))
            sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                pod = socket.create_connection((real.address, real.port), timeout=DEADLINE_S)
                ends.extend((client, pod))
                threading.Thread(target=pass_on, args=(client, pod, change), daemon=True).start()
                threading.Thread(target=pass_on, args=(pod, client, bytes), daemon=True).start()

    ends: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        replace(real, port=listener.getsockname()[1]).save(path.parent)
        yield
        listener.shutdown(socket.SHUT_RDWR)
    for end in ends:
        end.close()
    real.save(path.parent)


def test_who_passes_an_offer_on_cannot_put_an_order_of_his_own_after_it(run_dir: Path, start: Start) -> None:
    start("pod-b", 1)
    made = run_dir / "made"
    meant = f"echo meant; : > {made}".encode()
    forged = f"echo other; : > {made}".encode()
    for asked, instead in ((meant, forged), (b"sh", b"cp")):
        made.unlink(missing_ok=True)
        with between(run_dir, lambda data: data.replace(asked, instead)):  # noqa: B023
            done = ask(run_dir, Host(name="pod-b"), "sh", stdin=meant + b"\n")
        assert not made.exists() and b"other" not in done.stdout
    with between(run_dir, bytes):
        assert ask(run_dir, Host(name="pod-b"), "sh", stdin=meant + b"\n").stdout == b"meant\n"
    assert made.exists()


def test_an_order_is_taken_once(run_dir: Path, start: Start) -> None:
    start("pod-b", 1)
    order = f"echo done >> {run_dir / 'made'}\n".encode()
    heard: list[bytes] = []

    def twice(data: bytes) -> bytes:
        heard.append(data)
        return data * 2 if order in data else data

    with between(run_dir, twice):
        ask(run_dir, Host(name="pod-b"), "sh", stdin=order)
    assert not (run_dir / "made").exists() or (run_dir / "made").read_text() == "done\n"
    (run_dir / "made").unlink(missing_ok=True)
    place = read_place(DetachedFiles(run_dir).pods / "pod-b.json")
    assert place is not None
    say(place, b"".join(heard))
    assert not (run_dir / "made").exists(), "a whole session is of no use to another"


NUM_STRANGERS = 1100


def test_strangers_who_say_a_byte_a_second_lock_nobody_out(run_dir: Path, start: Start) -> None:
    pod = start("pod-b", 1)
    _, most = resource.prlimit(pod.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pod.pid, resource.RLIMIT_NOFILE, (1024, most))
    place = read_place(DetachedFiles(run_dir).pods / "pod-b.json")
    assert place is not None
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(usual[0], NUM_STRANGERS + 256), most))
    is_over = threading.Event()
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, usual)
        strangers = []
        for _ in range(NUM_STRANGERS):
            connection = socket.create_connection((place.address, place.port), timeout=DEADLINE_S)
            strangers.append(held.enter_context(connection))

        def keep_on() -> None:
            while True:
                for stranger in strangers:
                    with contextlib.suppress(OSError):
                        stranger.sendall(b"x")
                if is_over.wait(1.0):
                    return

        talking = threading.Thread(target=keep_on)
        talking.start()
        held.callback(talking.join)
        held.callback(is_over.set)
        assert ask(run_dir, Host(name="pod-b"), "echo", "heard").stdout == b"heard\n"
        wait_until(lambda: len(list(Path(f"/proc/{pod.pid}/task").iterdir())) < 100, what="few threads")
        assert len(list(Path(f"/proc/{pod.pid}/fd").iterdir())) < 100
    assert transport(run_dir).is_gathered(1, 1)


def test_the_end_of_the_client_ends_the_stdin_and_the_end_of_the_pod_the_client(run_dir: Path, start: Start) -> None:
    pod = start("pod-b", 1)
    waiter = ("sh", "-c", f"echo $$ > '{run_dir}/up'; cat; touch '{run_dir}/down'")
    command = transport(run_dir).command(Host(name="pod-b"), waiter)
    environment = {**os.environ, "PYTHONPATH": HEADWAY_HOME}
    first = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    wait_until((run_dir / "up").exists, what="the process in the pod")
    first.kill()
    first.communicate()
    wait_until((run_dir / "down").exists, what="the end of its stdin")
    (run_dir / "up").unlink()
    second = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    started = wait_until(lambda: (run_dir / "up").exists() and (run_dir / "up").read_text().strip(), what="another")
    # As a container ends: with all that it holds.
    pod.kill()
    os.killpg(int(started), signal.SIGKILL)
    assert second.wait(DEADLINE_S) == LOST
    second.communicate()


def test_a_pod_that_is_told_to_end_says_so_waits_for_what_it_has_and_is_made_anew(run_dir: Path, start: Start) -> None:
    pod = start("pod-b", 1)
    here = PodStart(run_dir, {JOB: "job-1", POD: "pod-a"})
    assert not here.is_draining()
    command = transport(run_dir).command(Host(name="pod-b"), ("sh", "-c", f"touch '{run_dir}/up'; cat"))
    client = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": HEADWAY_HOME})
    wait_until((run_dir / "up").exists, what="the process in the pod")
    pod.terminate()
    wait_until(here.is_draining, what="its word")
    assert not here.is_draining(), "told once"
    assert not transport(run_dir).is_gathered(1, 1)
    with pytest.raises(subprocess.TimeoutExpired):
        pod.wait(1)
    client.communicate()
    assert pod.wait(DEADLINE_S) == EXIT_LEAVING
    start("pod-c", 1)
    assert [place.pod for place in places_of(DetachedFiles(run_dir).pods, "job-1")] == ["pod-c"]
    assert transport(run_dir).is_gathered(1, 1)


def test_the_other_pods_end_well_when_the_first_says_that_the_work_is_done(run_dir: Path, start: Start) -> None:
    pod = start("pod-b", 1)
    first = PodPlace(job="job-0", index=0, pod="pod-a", address="127.0.0.1", port=1, key="k", state="over")
    first.save(DetachedFiles(run_dir).pods)
    with pytest.raises(subprocess.TimeoutExpired):
        pod.wait(2)
    replace(first, job="job-1").save(DetachedFiles(run_dir).pods)
    assert pod.wait(DEADLINE_S) == 0


def test_pods_are_waited_for_until_there_are_enough_and_for_the_rest_no_longer_than_is_said(
    run_dir: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("headway.training.launch.kubernetes.pods.time.monotonic", lambda: now_s)
    pods = transport(run_dir, gather_s=60.0)
    assert not pods.is_gathered(2, 1)
    now_s = 2000.0
    assert not pods.is_gathered(2, 1), "for the fewest as in a queue"
    start("pod-b", 1)
    assert pods.is_gathered(2, 1), "who came late has been waited for"
    assert not pods.is_gathered(2, 1), "before the next attempt anew"
    now_s = 2061.0
    assert pods.is_gathered(2, 1)
    assert not pods.is_gathered(2, 2)


def test_a_start_counts_those_of_its_job_that_went_before_it(run_dir: Path) -> None:
    files, environment = DetachedFiles(run_dir), {JOB: "job-1", POD: "pod-a"}
    assert PodStart(run_dir, environment).restarts == 0
    files.start.write_text(json.dumps({"job": "job-1", "restarts": 2}))
    assert PodStart(run_dir, environment).restarts == 3
    assert PodStart(run_dir, environment | {JOB: "job-2"}).restarts == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("address", value) for value in ("x" * 300, "", "a\0b", "\ud800", "localhost", 1)),
        *(("port", value) for value in (-1, 0, 70_000, "22", 10**400)),
        *(("key", value) for value in ("", "\ud800", None)),
        *(("pod", value) for value in ("../pod-b", "pod-c", "pod\0b")),
        *(("index", value) for value in (-1, 0.5, math.nan)),
        *(("state", value) for value in ("gone", ["here"])),
    ],
)
def test_an_offer_that_nobody_can_reach_or_that_is_anothers_is_none(run_dir: Path, field: str, value: object) -> None:
    folder = DetachedFiles(run_dir).pods
    good = PodPlace(job="job-1", index=0, pod="pod-b", address="127.0.0.1", port=1, key="k")
    good.save(folder)
    assert places_of(folder, "job-1") == [good]
    (folder / "pod-b.json").write_text(json.dumps({**asdict(good), field: value}))
    assert places_of(folder, "job-1") == []
    assert not transport(run_dir).is_gathered(1, 1)
