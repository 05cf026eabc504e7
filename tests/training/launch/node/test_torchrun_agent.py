"""Ranks that are forks of their agent cannot tell: all they find is what torchrun's own processes find."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.training.launch.base.gang import TORCHRUN_AGENT
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[4]

WITH_GPUS = """
import json, sys, torch
from headway.training.launch.node import torchrun_agent
asked = []
torch.cuda._is_compiled = lambda: True
torch._C._cuda_getDeviceCount = lambda: asked.append(True) or 2
code = torchrun_agent.main(sys.argv[1:])
print(json.dumps({"code": code, "asked": len(asked)}))
"""
"""An agent on what seems to be a machine with two GPUs; whoever asks for their number starts CUDA."""
FACTS = """
import json, os, signal, stat, sys
held = sys.modules.get("torch") is not None
sockets = [fd for fd in os.listdir("/proc/self/fd") if fd > "2" and os.path.exists(f"/proc/self/fd/{fd}")
           and stat.S_ISSOCK(os.stat(f"/proc/self/fd/{fd}").st_mode)]
heard = {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGTERM", "SIGHUP", "SIGQUIT")}
print(json.dumps({
    "held": held,
    "argv": sys.argv[1:], "file": sys.argv[0], "name": __name__, "spec": __spec__.name,
    "main": sys.modules["__main__"].__dict__ is globals(), "path": sys.path, "sockets": sockets, "heard": heard,
    "leads": os.getsid(0) == os.getpid(), "parent": os.getppid(), "environment": dict(os.environ),
    "comm": open("/proc/self/comm").read().strip(),
}))
print("a word of trouble", file=sys.stderr)
"""


MODULE = ("-m", "facts", "--word", "abc")
ALONE = ("--rdzv-backend=fixed", "--rdzv-endpoint=127.0.0.1:4711", "--rdzv-conf=node=0", "--local-addr=127.0.0.1")
"""Of the only node; torchrun calls it `--standalone`."""
NOTHING_SHARED = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCH_ELASTIC_WORKER_IDENTICAL": "1"}
"""So that torchrun's ranks meet by themselves, as ours do."""


def told_by_ranks(folder: Path, *launcher: str) -> tuple[int, list[dict[str, Any]]]:
    """The launcher's process number and what its two ranks say of themselves."""
    (folder / "facts.py").write_text(FACTS)
    logs = folder / "logs"
    process = subprocess.Popen(
        [
            sys.executable,
            *launcher,
            "--nproc-per-node=2",
            "--redirects=3",
            f"--log-dir={logs}",
            *MODULE,
        ],
        env=os.environ | {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"} | NOTHING_SHARED,
        stderr=subprocess.DEVNULL,
    )
    assert process.wait(DEADLINE_S) == 0
    errors = [path.read_text() for path in logs.glob("*/attempt_0/*/stderr.log")]
    assert errors == ["a word of trouble\n"] * 2
    message = [json.loads(path.read_text()) for path in logs.glob("*/attempt_0/*/stdout.log")]
    return process.pid, sorted(message, key=lambda facts: facts["environment"]["RANK"])


def test_a_rank_finds_what_torchrun_would_give_it_with_torch_imported_already(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    agent, ours = told_by_ranks(tmp_path / "ours", str(TORCHRUN_AGENT), *ALONE)
    _, theirs = told_by_ranks(
        tmp_path / "theirs", "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"
    )
    assert [facts.pop("held") for facts in ours + theirs] == [True, True, False, False]
    assert {facts.pop("parent") for facts in ours} == {agent} and {facts.pop("parent") for facts in theirs}
    assert [facts.pop("comm") for facts in ours + theirs][:2] == ["rank 0", "rank 1"], "what `ps -o comm` and top show"
    of_one_gang = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "PYTHONPATH"}
    for facts in ours + theirs:
        assert facts["environment"].keys() >= of_one_gang
        facts["environment"] = {
            name: message for name, message in facts["environment"].items() if name not in of_one_gang
        }
        facts["file"], facts["path"] = Path(facts["file"]).name, facts["path"][1:]
    assert ours == theirs
    assert ours[0]["argv"] == ["--word", "abc"] and ours[0]["sockets"] == [] and ours[0]["leads"]


def test_an_agent_leaves_cuda_to_its_ranks(tmp_path: Path) -> None:
    """In a fork of a process that has started CUDA no device can be used."""
    (tmp_path / "facts.py").write_text("import torch; print(torch.cuda.is_available())")
    command = [sys.executable, "-c", WITH_GPUS, *ALONE, "--nproc-per-node=2", "--redirects=3"]
    path = os.pathsep.join((str(REPOSITORY), str(tmp_path)))
    told = subprocess.check_output(
        [*command, f"--log-dir={tmp_path / 'logs'}", *MODULE], env=os.environ | {"PYTHONPATH": path}, timeout=DEADLINE_S
    )
    assert json.loads(told) == {"code": 0, "asked": 0}
    assert [path.read_text() for path in (tmp_path / "logs").glob("*/*/*/stdout.log")] == ["True\n"] * 2


SIGNALLED = """
import os, signal, sys
from pathlib import Path
from headway.training.launch.node.torchrun_agent import ForkingHandler
Path("rank_module.py").write_text("Path('began').touch()")
signal.signal(signal.SIGTERM, lambda number, frame: Path("heard").touch())
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
rank = ForkingHandler(sys.executable, ("-u", "-m", "rank_module"), {"RANK": "0"}, "out", "err", 0, None)
print(rank.proc.wait(60), Path("heard").exists(), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
"""An agent whose rank is told to end before it can hear by itself."""


def test_a_signal_to_a_rank_that_is_being_made_ends_it_and_is_not_taken_for_the_agents(tmp_path: Path) -> None:
    path = os.pathsep.join((str(REPOSITORY), str(tmp_path)))
    command, environment = [sys.executable, "-c", SIGNALLED], os.environ | {"PYTHONPATH": path}
    told = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True, timeout=DEADLINE_S)
    assert told == f"{-signal.SIGTERM} False set()\n"


TOLD_TOO_SOON = """
import os, signal, sys
from headway.training.launch.node.torchrun_agent import ForkingHandler
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
ForkingHandler(sys.executable, ("-u", "-m", "rank_module"), {"RANK": "0"}, "out", "err", 0, None)
"""
"""An agent that is told to end before torchrun knows of its rank."""


def test_a_rank_that_its_agent_does_not_know_of_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "rank_module.py").write_text(f"import signal; signal.alarm({round(2 * DEADLINE_S)}); signal.pause()")
    reading, writing = os.pipe()  # of which both hold an end
    path = os.pathsep.join((str(REPOSITORY), str(tmp_path)))
    command, environment = [sys.executable, "-c", TOLD_TOO_SOON], os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, pass_fds=(writing,), timeout=DEADLINE_S)
    os.close(writing)
    assert done.returncode == 1
    assert select.select([reading], [], [], DEADLINE_S)[0] == [reading] and os.read(reading, 1) == b"", "a rank is left"
    os.close(reading)


def test_an_agent_that_is_told_to_end_says_so_in_a_line_and_without_a_traceback(tmp_path: Path) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    (tmp_path / "facts.py").write_text(f"import signal; open({str(began)!r}, 'w').close(); signal.pause()")
    agent = subprocess.Popen(
        [
            *(sys.executable, str(TORCHRUN_AGENT), *ALONE, "--nproc-per-node=1", "--redirects=3"),
            *(f"--log-dir={tmp_path / 'logs'}", *MODULE),
        ],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"} | NOTHING_SHARED,
        stderr=subprocess.PIPE,
        text=True,
    )
    began.read_text()  # returns when the rank has opened it
    agent.terminate()
    _, errors = agent.communicate(timeout=DEADLINE_S)
    assert agent.returncode == 1
    assert "headway: SIGTERM came, so the agent has ended its ranks and ends.\n" in errors
    assert "Traceback" not in errors


ENDS = {
    "well": ("print('well')", 0, ""),
    "stopped": ("import sys; sys.exit(75)", 75, ""),
    "with words": ("import sys; sys.exit('no data')", 1, "no data"),
    "an error": ("raise ValueError('lost')", 1, "ValueError: lost"),
    "at once": ("import os; os._exit(7)", 7, ""),
    "by a signal": ("import os; os.kill(os.getpid(), 15)", -15, ""),
}
AGENT = """
import json, socket, subprocess, sys
from pathlib import Path
from headway.training.launch.node.torchrun_agent import ForkingHandler

def start(number, body):
    module, command = f"rank_{number}", ("-u", "-m", f"rank_{number}")
    Path(f"{module}.py").write_text(body)
    return ForkingHandler(sys.executable, command, {"RANK": "0"}, f"{number}.out", f"{number}.err", 0, None)

bodies = json.loads(sys.argv[1])
ranks = [start(number, body) for number, body in enumerate(bodies)]
codes = [(rank.proc.wait(60), rank.proc.poll(), rank.proc.returncode) for rank in ranks]

agents, peers = socket.socketpair()
rank = start(len(bodies), "import signal; signal.pause()")
agents.close()
peers.settimeout(60)
heard = peers.recv(1).decode()
try:
    rank.proc.wait(0.01)
except subprocess.TimeoutExpired as late:
    waited = str(late)
rank.close()
print(json.dumps({"codes": codes, "heard": heard, "waited": waited, "ended": rank.proc.wait(60)}))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Ranks of one agent that have come to their ends, the folder of their logs, and what the agent saw."""
    folder = tmp_path_factory.mktemp("ends")
    bodies = json.dumps([body for body, _, _ in ENDS.values()])
    command = [sys.executable, "-c", AGENT, bodies]
    path = os.pathsep.join((str(REPOSITORY), str(folder)))
    told = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=True,
    )
    return folder, json.loads(told.stdout)


@pytest.mark.parametrize("how", ENDS)
def test_a_rank_ends_with_the_code_and_the_words_that_it_would_have_alone(
    ended: tuple[Path, dict[str, Any]], how: str
) -> None:
    (folder, seen), number = ended, list(ENDS).index(how)
    _, code, message = ENDS[how]
    assert seen["codes"][number] == [code, code, code]
    assert message in (folder / f"{number}.err").read_text()


def test_a_peer_hears_of_an_agents_end_though_its_rank_lives_on(ended: tuple[Path, dict[str, Any]]) -> None:
    _, seen = ended
    assert seen["heard"] == "" and "timed out after 0.01" in seen["waited"]
    assert seen["ended"] == -signal.SIGTERM
