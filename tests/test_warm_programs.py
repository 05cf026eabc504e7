"""Programs that are forks: in all that anybody can see of a process they are the programs that were asked for."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from headway.training.launch.base.process_tree import processes_with
from tests import warm_programs
from tests.waiting import DEADLINE_S, wait_until
from tests.warm_programs import Program, run_program

pytestmark = pytest.mark.process

SHOW = """
import json, os, sys, tempfile
from pathlib import Path
me = Path("/proc/self")
print(json.dumps({
    "argv": sys.argv, "name": __name__, "folder": os.getcwd(), "session": os.getsid(0), "group": os.getpgid(0),
    "environment": dict(os.environ), "place": tempfile.gettempdir(), "pid": os.getpid(), "parent": os.getppid(),
    "command": me.joinpath("cmdline").read_bytes().decode().split("\\0")[:-1],
    "shown": sorted(me.joinpath("environ").read_bytes().decode().split("\\0")[:-1]),
    "files": sorted({os.readlink(x) for x in me.joinpath("fd").iterdir() if x.exists() and int(x.name) > 2}),
}))
"""


def test_it_is_a_child_with_the_arguments_folder_session_and_environment_that_it_was_given(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "WORD": "ä=b"}
    command = [sys.executable, "-c", SHOW, "one", "two words"]
    done = run_program(command, env=environment, cwd=tmp_path, start_new_session=True, timeout=DEADLINE_S)
    assert done.returncode == 0 and done.stderr == ""
    found = json.loads(done.stdout)
    assert found["argv"] == ["-c", "one", "two words"] and found["name"] == "__main__"
    assert found["folder"] == found["place"] == str(tmp_path)
    assert found["session"] == found["group"] == found["pid"] and found["parent"] == os.getpid()
    assert environment.items() <= found["environment"].items()
    assert found["command"] == command
    assert found["shown"] == sorted(f"{name}={value}" for name, value in environment.items())
    assert found["files"] in ([], ["/dev/null"]), "nobody else's pipe"


def test_a_file_and_a_module_are_run_as_python_runs_them(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'found'\n")
    (tmp_path / "tool.py").write_text("import sys, beside\nprint(beside.WORD, sys.argv[1:], __name__)\n")
    for how in ([tmp_path / "tool.py"], ["-m", "tool"]):
        done = run_program([sys.executable, *how, 3], cwd=tmp_path, timeout=DEADLINE_S)
        assert done.stdout == "found ['3'] __main__\n", done.stderr
    done = run_program([sys.executable, "-P", "-m", "tool"], cwd=tmp_path, timeout=DEADLINE_S)
    assert done.returncode == 1 and "tool" in done.stderr


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("", 0, ""),
        ("raise SystemExit(75)", 75, ""),
        ("raise SystemExit('no data')", 1, "no data"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("import atexit, os; atexit.register(os.write, 2, b'last words')", 0, "last words"),
        ("import threading, os; threading.Timer(0.01, os.write, (2, b'a thread')).start()", 0, "a thread"),
    ],
)
def test_who_waits_for_it_is_told_how_it_ended(body: str, code: int, words: str) -> None:
    done = run_program([sys.executable, "-c", body], timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (code, "") and words in done.stderr


def test_it_reads_and_answers_while_it_runs_and_hears_signals() -> None:
    echo = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    with Program([sys.executable, "-c", echo], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None and program.stdout is not None
        for word in ("one\n", "two\n"):
            program.stdin.write(word)
            program.stdin.flush()
            assert program.stdout.readline() == word.upper()
        assert program.poll() is None
        program.send_signal(signal.SIGTERM)
        assert program.wait(DEADLINE_S) == -signal.SIGTERM
    wait_until(lambda: not Path(f"/proc/{program.pid}").exists(), what="its end")


def test_it_is_handed_open_files_by_their_numbers_and_a_mask(tmp_path: Path) -> None:
    ends = os.pipe(), os.pipe()
    os.write(ends[0][1], b"one")
    os.write(ends[1][1], b"two")
    numbers = [reading for reading, _ in ends]
    code = "import os, sys\nfor each in sys.argv[1:]: print(os.read(int(each), 9))\nopen('made', 'w').close()"
    command = [sys.executable, "-c", code, *numbers]
    done = run_program(command, cwd=tmp_path, pass_fds=numbers, umask=0o077, timeout=DEADLINE_S)
    assert done.stdout.split() == ["b'one'", "b'two'"], done.stderr
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o600
    for each in (*ends[0], *ends[1]):
        os.close(each)


def test_what_it_writes_in_the_place_of_a_variable_others_read_there() -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_void_p
ctypes.memmove(libc.getenv(b"WORD"), b"new", 3)
os.environ["ANOTHER"] = "more"
print(open("/proc/self/environ").read().split("\\0")[:-1], os.environ["WORD"], flush=True)
os.execlp("sh", "sh", "-c", "echo $WORD $ANOTHER")
"""
    environment = {"WORD": "old", "PATH": os.environ["PATH"]}
    done = run_program([sys.executable, "-c", code], env=environment, timeout=DEADLINE_S)
    assert done.stdout == f"{['WORD=new', 'PATH=' + environment['PATH']]} old\nnew more\n", done.stderr


@pytest.fixture
def command(tmp_path: Path) -> list[object]:
    """One that is called as Headway's is, and starts what is called as the process that forks guards."""
    started = tmp_path / "headway/training/launch/node/fork_server.py"
    started.parent.mkdir(parents=True)
    started.write_text("import os, sys\nprint(os.getppid(), 'pytest' in sys.modules, flush=True)\nsys.stdin.read()\n")
    script = tmp_path / "bin" / "headway"
    script.parent.mkdir()
    script.write_text(
        f"import subprocess, sys\nsys.exit(subprocess.run([sys.executable, {str(started)!r}]).returncode)\n"
    )
    return [sys.executable, script]


def test_what_a_command_starts_is_a_fork_too_and_a_child_of_the_command(command: list[object]) -> None:
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = {**os.environ, "WHOSE": f"a command {os.getpid()}"}
    with Program(command, env=environment, **streams) as program:  # type: ignore[arg-type]
        assert program.stdin is not None and program.stdout is not None
        is_fork = warm_programs._starter is not None
        assert program.stdout.readline() == f"{program.pid} {is_fork}\n"
        assert len(processes_with("WHOSE", environment["WHOSE"])) == 2, "who forks is not taken for what it started"
        forks = [child for child in psutil.Process(program.pid).children() if __package__ in " ".join(child.cmdline())]
        assert len(forks) == int(is_fork)
        program.stdin.close()
        assert program.wait(DEADLINE_S) == 0
    psutil.wait_procs(forks, DEADLINE_S)
    assert not any(each.is_running() for each in forks), "it ends with the command"


def test_who_forks_for_a_command_outlives_a_signal_to_its_group_that_the_command_bears(command: list[object]) -> None:
    script = Path(str(command[1]))
    hears = "import signal, sys\nfor number in (2, 15, 1): signal.signal(number, lambda *_: None)\n"
    script.write_text(f"{hears}print('hears', flush=True)\nsys.stdin.readline()\n{script.read_text()}")
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with Program(command, process_group=0, **streams) as program:  # type: ignore[arg-type]
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == "hears\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.killpg(program.pid, number)
        program.stdin.write("\n")
        program.stdin.close()
        assert program.stdout.read() == f"{program.pid} {warm_programs._starter is not None}\n"
        assert program.wait(DEADLINE_S) == 0


def test_helpers_are_forks_only_where_tests_say_so() -> None:
    is_warm = "import sys; print('pytest' in sys.modules)"
    command = [sys.executable, "-c", is_warm]
    there = run_program(command, timeout=DEADLINE_S).stdout
    assert there == f"{warm_programs._starter is not None}\n"
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def run_beside_prefect(code: str, home: Path) -> str:
    """In an environment of its own, with a profile that names a server."""
    (home / "profiles.toml").write_text('active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "http://a.profile/api"\n')
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "HEADWAY_"))}
    environment = {**ours, "PREFECT_HOME": str(home), "PREFECT_LOGGING_LEVEL": "ERROR"}
    done = run_program([sys.executable, "-c", code], env=environment, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


ASKED = """
from headway.flows.console.environment import prepare
prepare()
import json, logging, os
import prefect.main
from prefect.logging import configuration
{first}
from prefect.settings import PREFECT_API_URL, PREFECT_HOME
loggers = [logging.getLogger(name) for name in (None, "prefect", "prefect.flow_runs", "prefect.server", "uvicorn")]
print(json.dumps({{
    "server": PREFECT_API_URL.value(),
    "home": str(PREFECT_HOME.value()),
    "loggers": [[each.level, [type(handler).__name__ for handler in each.handlers]] for each in loggers],
    "console": [handler.level for handler in loggers[0].handlers],
    "config": {{**configuration.PROCESS_LOGGING_CONFIG, "incremental": None}} == {{
        **configuration.load_logging_config(configuration.DEFAULT_LOGGING_SETTINGS_PATH), "incremental": None
    }},
}}))
"""


@pytest.mark.parametrize(
    "first", ["prefect.settings.get_current_settings()", "logging.getLogger('prefect.mine').critical('a word')"]
)
def test_prefect_has_the_settings_and_logs_of_the_environment_once_it_is_asked(tmp_path: Path, first: str) -> None:
    """Whether the first that is asked of it is a setting or a word to log."""
    found = json.loads(run_beside_prefect(ASKED.format(first=first), tmp_path))
    assert found["server"] == "http://a.profile/api" and found["home"] == str(tmp_path)
    console = ["PrefectConsoleHandler"]
    assert found["loggers"] == [[30, console], [40, []], [0, ["APILogHandler"]], [30, []], [30, console]]
    assert found["console"] == [50], "as Headway prepares it"
    assert found["config"], "all of it is filled in as Prefect does"
