"""A flow run's last word reaches the Pushgateway that is set, in time; it fails nothing and shows no password."""

from __future__ import annotations

import base64
import contextlib
import logging
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, RunStopped, TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.profiles import PricesSpec
from headway.flows.config.request import RetrainRequest
from headway.flows.console.environment import PUSHGATEWAY
from headway.flows.monitoring import pushing
from headway.flows.monitoring.last_word import instance_of, push
from headway.flows.monitoring.pushgateway import Pushgateway
from headway.flows.monitoring.pushing import push_quietly, pushing_session
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
from headway.flows.probe.probing import _NOT_FOR_IT
from headway.flows.rehearse.project import TEAMS_OWN
from headway.tasks.core.stage import StageNotFound
from tests.flows.accounts.lives import Life
from tests.flows.monitoring.gateway import Gateway, gateway
from tests.flows.tiny_pipeline import CONTRACT, PIPELINE

KEY = "kanarienvogel"
WITHIN_S = 10.0


@pytest.fixture
def here() -> Iterator[Gateway]:
    with gateway() as found:
        yield found


@pytest.fixture
def life(tmp_path: Path) -> Life:
    made = Life(tmp_path)
    made.flow("f", 0.0, 100.0, ("launch", 10.0, 90.0))
    made.attempt("f", 10.0, 90.0, [(step, 20.0 + step) for step in range(5)])
    return made


def with_password(url: str) -> str:
    return url.replace("//", f"//team:{KEY}%40@")


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert KEY not in caplog.text
    return [record.getMessage() for record in caplog.records if record.name == pushing.__name__]


def test_the_last_word_is_what_is_over_and_nothing_that_would_be_a_lie_tomorrow(here: Gateway, life: Life) -> None:
    prices = PricesSpec(device_hour_usd={"any": 36.0})
    assert push(life.workspace, prices, WITHIN_S, {PUSHGATEWAY: here.url}) == here.url
    ((job, instance),) = here.groups
    assert job == ("job", "headway")
    assert instance == ("instance", f"{socket.gethostname()}:{life.workspace.local_root}")
    found = here.samples
    assert found["train_steps_total"] == [({}, 5.0)]
    ended = {labels["outcome"]: value for labels, value in found["train_runs_total"] if value}
    assert ended == {"succeeded": 1.0}
    assert sum(value for _, value in found["train_cost_usd_total"]) > 0
    assert found["headway_pipeline_info"] == [({"pipeline": "p", "owner": "", "job_class": "standard"}, 1.0)]
    exported = {metric.name for metric in WorkspaceMetrics(life.workspace).collect()}
    stale = {"headway_status_timestamp_seconds", "headway_workspace_free_bytes", "train_node_network_bytes"}
    assert stale <= exported and not any(name.startswith(("train_node_", "train_device_info")) for name in found)
    assert not stale & found.keys()


def test_each_push_takes_the_place_of_the_one_before(here: Gateway, life: Life) -> None:
    for number in (1, 2):
        push(life.workspace, None, WITHIN_S, {PUSHGATEWAY: f"{here.url}/behind/a/proxy/"})
        assert sum(value for _, value in here.samples["train_runs_total"]) == number
        life.flow(f"again-{number}", 200.0, 300.0)
    assert len(here.groups) == 1


def test_workspaces_of_one_machine_are_instances_of_their_own_and_a_store_is_one_for_all(tmp_path: Path) -> None:
    first, second = (Workspace.create(str(tmp_path / name)) for name in ("a", "b\udc80"))
    assert instance_of(first) != instance_of(second)
    instance_of(second).encode()  # a path can be no UTF-8
    assert instance_of(Workspace("s3://bucket/place")) == "s3://bucket/place"


def test_a_password_in_the_address_is_sent_and_neither_shown_nor_pushed(here: Gateway, life: Life) -> None:
    environ = {PUSHGATEWAY: with_password(here.url)}
    assert push(life.workspace, None, WITHIN_S, environ) == here.url
    scheme, _, pair = here.headers[0]["authorization"].partition(" ")
    assert (scheme, base64.b64decode(pair).decode()) == ("Basic", f"team:{KEY}@")
    assert KEY not in str(here.groups) and KEY not in repr(Pushgateway.from_environment(environ))
    here.status = 401
    with pytest.raises(EnvironmentProblem, match="HTTP 401 Unauthorized") as refused:
        push(life.workspace, None, WITHIN_S, environ)
    shown = str(refused.value)
    assert KEY not in shown and base64.b64encode(f"team:{KEY}@".encode()).decode() not in shown


def test_a_password_is_not_sent_where_the_gateway_points(here: Gateway, life: Life) -> None:
    with gateway() as elsewhere:
        here.location = elsewhere.url
        for here.status in (301, 302, 303, 307, 308):
            with pytest.raises(EnvironmentProblem, match=f"HTTP {here.status}"):
                push(life.workspace, None, WITHIN_S, {PUSHGATEWAY: with_password(here.url)})
        assert elsewhere.headers == []


@pytest.mark.parametrize(
    "text", ["", "gateway:9091", "ftp://g", "file:///etc/passwd", "http://", "http://[", "http://g:x"]
)
def test_what_is_no_address_is_refused_by_the_variable(text: str, life: Life) -> None:
    with pytest.raises(ConfigError) as refused:
        push(life.workspace, None, WITHIN_S, {PUSHGATEWAY: text})
    assert refused.value.where == PUSHGATEWAY


@pytest.mark.parametrize("trouble", ["away", "silent", "stuck", "500", "nonsense", "no address", "no workspace"])
def test_whatever_is_in_the_way_is_one_sentence_and_takes_no_longer_than_it_may(
    trouble: str, life: Life, here: Gateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "WITHIN_S", 0.5)
    if trouble == "silent":
        here.silent.set()
    if trouble == "500":
        here.status = 500
    address = {"away": "http://127.0.0.1:9", "no address": f"{KEY}://{KEY}"}.get(trouble, here.url)
    if trouble == "stuck":  # as a file system that does not answer
        monkeypatch.setattr("headway.flows.monitoring.last_word.settle", lambda *_: here.ended.wait(30.0))
    if trouble == "nonsense":
        monkeypatch.setattr("headway.flows.monitoring.last_word.settle", lambda *_: 1 / 0)
    if trouble == "no workspace":
        shutil.rmtree(life.workspace.local_root)
    started_s = time.monotonic()
    with caplog.at_level(logging.WARNING):
        push_quietly(life.workspace.uri, {PUSHGATEWAY: address if "://" + KEY in address else with_password(address)})
    assert time.monotonic() - started_s < 3.0
    (sentence,) = logged(caplog)
    assert sentence.startswith("The last word for the Pushgateway was not pushed: ") and "\n" not in sentence
    assert sentence.endswith("`headway metrics --push` sends it.")


@pytest.mark.parametrize("answer", [b"a", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["bytes", "goes on"])
def test_an_answer_that_never_ends_is_waited_for_no_longer_than_it_may(answer: bytes, life: Life) -> None:
    """Each read of it ends soon."""
    is_over = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            while not is_over.wait(0.05):
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=drip, args=(listener,))
        server.start()
        outcome: list[Exception] = []

        def send() -> None:
            try:
                push(life.workspace, None, 0.5, {PUSHGATEWAY: f"http://127.0.0.1:{listener.getsockname()[1]}"})
            except EnvironmentProblem as error:
                outcome.append(error)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        sender.join(WITHIN_S)
        is_over.set()
        server.join()
    (problem,) = outcome
    assert "Connection timed out" in str(problem)


def test_a_password_without_a_user_is_sent_too(here: Gateway, life: Life) -> None:
    push(life.workspace, None, WITHIN_S, {PUSHGATEWAY: here.url.replace("//", f"//:{KEY}@")})
    assert here.headers[-1]["authorization"] == f"Basic {base64.b64encode(f':{KEY}'.encode()).decode()}"


def test_a_proxy_that_is_none_is_named_by_no_text_of_its_own(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"odd://{KEY}")
    with pytest.raises(EnvironmentProblem, match="did not take the metrics: URLError") as refused:
        push(life.workspace, None, WITHIN_S, {PUSHGATEWAY: "http://192.0.2.1:9"})
    assert KEY not in str(refused.value)


@pytest.mark.parametrize("end", ["well", "stopped", "failed"])
def test_a_flow_run_pushes_when_it_has_ended_however_it_ended(
    end: str, here: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(PUSHGATEWAY, with_password(here.url))
    request = tiny_request(tmp_path)
    raised = {"stopped": RunStopped("requested"), "failed": TrainingFailed("a rank died.")}.get(end)
    try:
        with pushing_session(request):
            if raised is not None:
                raise raised
    except (RunStopped, TrainingFailed) as error:
        assert error is raised
    ended = {labels["outcome"]: value for labels, value in here.samples["train_runs_total"] if value}
    assert ended == {{"well": "succeeded"}.get(end, end): 1.0}
    assert logged(caplog) == []


def test_one_that_looks_for_what_is_made_pushes_only_if_all_is_found(
    here: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PUSHGATEWAY, here.url)
    request = tiny_request(tmp_path)
    with pytest.raises(StageNotFound), pushing_session(request, finds_only=True):
        raise StageNotFound
    assert here.headers == []
    with pushing_session(request, finds_only=True):
        pass
    assert len(here.headers) == 1


def tiny_request(folder: Path) -> RetrainRequest:
    (folder / "tiny.yaml").write_text(PIPELINE)
    (folder / "contract.yaml").write_text(CONTRACT)
    return RetrainRequest(pipeline=str(folder / "tiny.yaml"), workspace=str(folder / "workspace"))


def test_neither_a_small_retrain_in_a_workspace_of_its_own_nor_a_rank_gets_the_address() -> None:
    """A gateway keeps each group for ever: one for each of these would be left there every hour."""
    assert PUSHGATEWAY in TEAMS_OWN and PUSHGATEWAY.startswith(_NOT_FOR_IT)
    assert PUSHGATEWAY.startswith("HEADWAY_"), "as variables begin that no rank inherits"


@pytest.mark.process
def test_the_command_pushes_once_and_says_to_whom(here: Gateway, life: Life) -> None:
    command = [sys.executable, "-P", "-m", "headway", "metrics", "--workspace", life.workspace.uri, "--push"]
    usual = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    environ = usual | {PUSHGATEWAY: with_password(here.url)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"pushed to {here.url}\n"), done.stderr
    here.status = 503
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 8 and "HTTP 503" in done.stderr and KEY not in done.stderr, done.stderr
    done = subprocess.run(command, env=usual, capture_output=True, text=True)
    assert done.returncode == 2 and PUSHGATEWAY in done.stderr, done.stderr


UNSET = """
import sys
from headway.flows.monitoring import pushing  # all that a flow run imports
heard = []
sys.addaudithook(lambda event, _: heard.append(event) if event.startswith(("socket.", "_thread.start")) else None)
pushing.push_quietly(sys.argv[1])
print([name for name in sys.modules if name.startswith("prometheus_client") or "last_word" in name], heard)
"""


@pytest.mark.process
def test_without_an_address_nothing_is_imported_and_no_socket_or_thread_made(life: Life) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNSET, life.workspace.uri],
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[] []\n", done.stderr
