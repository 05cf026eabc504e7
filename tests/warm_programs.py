"""Python programs that tests start, without their imports: forks of a process that has imported all tests.

torch, MLflow and Prefect cost each program some seconds of a core, and hardly a test asks how they are imported. Beside
every test process stands a fork of the one that has imported them (`tests/forked_workers.py`), which forks a program
whenever it is asked. A program is a process of its own as before: a child of the test process, which waits for it and
is told how it ended. It has the folder, environment, session and streams that it was given.

A command, such as `headway retrain` or a Prefect worker, starts programs in its turn: servers, the process that forks
guards, helpers. It gets a process of its own that forks them, and so do the commands among them. This one is a child of
the command and ends with it.

What differs from a fresh one are the modules, which are there already. Where a test asks about these, it starts its
program by `subprocess`. Where there is nobody to fork it, as in a single test process, `Program` starts a fresh one.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import itertools
import json
import logging
import os
import random
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any
from unittest import mock

from headway.flows.console.environment import prepare
from headway.training.launch.base.process_tree import die_with_parent
from tests.program_ends import end_with, run_module

REPOSITORY = Path(__file__).resolve().parents[1]
STREAMS = 3
MAX_PASSED = 4
"""Open files that a program is handed besides."""
ASIDE = 200
"""Beyond all numbers of open files."""
FLAGS = frozenset({"-P", "-u"})
PASSED_BY = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""Signals to a command's whole process group, in which its process that forks stays: it ends with the command."""
LENGTH = struct.Struct("!I")
WITHOUT_PREFECT = frozenset(
    {
        "headway.data_contracts.tables.text_table_process",
        "headway.training.data.encode.host",
        "headway.training.programs.first_step",
        "headway.training.programs.rehearsal",
        "headway/training/launch/node/fork_server.py",
        "tests.training.nursery",
    }
)
"""Programs that never import Prefect, whose settings and logging would cost each a sixth of a second of a core."""
HELPERS = frozenset(
    {
        "headway",
        "headway.data_contracts.tables.text_table_process",
        "headway.tasks.prove.registered_copy",
        "headway.training.data.encode.host",
        "headway.training.programs.first_step",
        "headway.training.programs.rehearsal",
        "headway/training/launch/node/fork_server.py",
    }
)
"""Modules that Headway starts as processes with nothing but their streams between, and the ends of scripts' paths.

Forks of them do what they do."""
SUPERVISOR = "prefect.runner._workspace_supervisor"
"""What a Prefect worker starts for a flow run. It looks for the flow, and then becomes the program that runs it."""
STARTED_BY_COMMANDS = HELPERS | {
    "headway.flows.prefect_api.server_process",
    SUPERVISOR,
    "prefect.engine",
    "prefect.flow_engine",
}
OURS = ("tests", "benchmarks", "docs")
"""Packages of the checkout that no program of Headway's has imported."""
PREFECTS = ("prefect", "prefect.engine", "prefect.flow_engine", SUPERVISOR)
"""Modules, and names of scripts, that import Prefect before anything of Headway's."""
COMMANDS = ("headway", "tests.shared_prefect", "tests/e2e/shipped_call.py", *PREFECTS)
"""What starts programs in its turn."""
GIVEN = (
    *("args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo"),
    *("creationflags", "shell", "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"),
    *("restore_signals", "gid", "gids", "uid", "umask", "start_new_session", "process_group"),
)
"""What `subprocess.Popen` tells its method that starts a process."""
PR_SET_CHILD_SUBREAPER = 36

PR_SET_MM, PR_SET_MM_MAP = 35, 14
PLACES_IN_STAT = {
    **{"start_code": 26, "end_code": 27, "start_stack": 28, "start_data": 45, "end_data": 46, "start_brk": 47},
    **{"arg_start": 48, "arg_end": 49, "env_start": 50, "env_end": 51},
}


class _Map(ctypes.Structure):
    """`struct prctl_mm_map`: where a process's parts lie."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk")),
        *((name, ctypes.c_uint64) for name in ("start_stack", "arg_start", "arg_end", "env_start", "env_end", "auxv")),
        *((name, ctypes.c_uint32) for name in ("auxv_size", "exe_fd")),
    )


_shown: list[object] = []
"""Memory that `/proc` reads; to be kept."""
_kept: list[object] = []
"""Modules that are hidden."""
_environment_at = 0
"""Where in it the environment begins."""
_starter: socket.socket | None = None
"""The way to the process that forks this one's programs."""
_asking = threading.Lock()
_forked: frozenset[str] = frozenset()
"""What of Headway's this process starts as forks."""
_start_fresh = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def take_terminal() -> None:
    """For `preexec_fn` beside `start_new_session`: what it reads from is the terminal that it is started in."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class _Replaced(BaseException):
    """A program becomes another, as `os.execvpe` has it; what runs it goes on with that one."""

    def __init__(self, _: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__()
        self.command, self.environment = [*command], dict(environment)


class Program(subprocess.Popen[str]):
    """`[sys.executable, "-c" or "-m" or SCRIPT, ...]` as `subprocess.Popen` takes it; in text, and as a fork."""

    def __init__(self, arguments: Sequence[object], **options: Any) -> None:
        super().__init__([str(each) for each in arguments], text=True, **options)

    def _execute_child(self, *given: Any) -> None:
        if _starter is None or given[0][0] != sys.executable:
            _start_fresh(self, *given)
        else:
            _fork(self, dict(zip(GIVEN, given, strict=True)))


def _fork(process: Any, asked: dict[str, Any]) -> None:
    """In place of `subprocess.Popen._execute_child`."""
    assert _can_be_fork(asked), "a fork does not know of it, or it would run in another process"
    sys.audit("subprocess.Popen", sys.executable, asked["args"], asked["cwd"], asked["env"])
    environment = os.environ if asked["env"] is None else asked["env"]
    told = {
        "arguments": [os.fsdecode(each) for each in asked["args"][1:]],
        "folder": str(asked["cwd"] or Path.cwd()),
        "environment": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
        "has_session": asked["start_new_session"],
        "process_group": asked["process_group"],
        "dies_with_parent": asked["preexec_fn"] is die_with_parent,
        "has_terminal": asked["preexec_fn"] is take_terminal,
        "umask": asked["umask"],
        "passed": [*asked["pass_fds"]],
    }
    streams = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
    streams = [number if each == -1 else each for number, each in enumerate(streams)]
    process.pid = _ask(told, [*streams, *asked["pass_fds"]])
    process._child_created = True
    process._close_pipe_fds(*(asked[name] for name in GIVEN[10:16]))


def _can_be_fork(asked: dict[str, Any]) -> bool:
    return (
        not asked["shell"]
        and len(asked["pass_fds"]) <= MAX_PASSED
        and asked["preexec_fn"] in (None, die_with_parent, take_terminal)
        and (asked["gid"], asked["gids"], asked["uid"]) == (None, None, None)
    )


def _fork_some(process: Any, *given: Any) -> None:
    """In place of `subprocess.Popen._execute_child`, everywhere: what is no program to be forked starts as ever."""
    asked = dict(zip(GIVEN, given, strict=True))
    words = [os.fsdecode(each) for each in given[0]] if isinstance(given[0], list | tuple) else []
    if _forked and _starter is not None and _is_one_of(_forked, words) and _can_be_fork(asked):
        _fork(process, asked)
    else:
        _start_fresh(process, *given)


def _is_one_of(names: Collection[str], words: Sequence[str]) -> bool:
    """Whether it is Python that runs one of these modules, or a script whose path ends with one of these names."""
    if words[:1] != [sys.executable]:
        return False
    what, *rest = (*itertools.dropwhile(FLAGS.__contains__, words[1:]), "", "")
    return rest[0] in names if what == "-m" else any(f"/{what}".endswith(f"/{name}") for name in names)


@contextlib.contextmanager
def forked_helpers() -> Iterator[None]:
    """Meanwhile Headway's own helpers are forks, too: for tests of those who ask them, and not of how they start."""
    global _forked
    before, _forked = _forked, _forked | HELPERS
    try:
        yield
    finally:
        _forked = before


def run_program(
    arguments: Sequence[object], *, check: bool = False, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` does, with both outputs captured."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Program(arguments, **{**streams, **options}) as program:
        try:
            out, err = program.communicate(timeout=timeout)
        except BaseException:
            program.kill()
            raise
    done = subprocess.CompletedProcess(program.args, program.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _ask(told: dict[str, Any], streams: list[int]) -> int:
    """Its number: it is an orphan of the starter's, and the kernel gives orphans to whoever says that it wants them."""
    libc = ctypes.CDLL(None)
    message = json.dumps(told).encode()
    with _asking:
        assert _starter is not None
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
            _starter.sendmsg([LENGTH.pack(len(message))], rights)
            _starter.sendall(message)
            answer = _starter.recv(LENGTH.size)
        finally:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert answer, "the process that forks programs has ended"
    (number,) = LENGTH.unpack(answer)
    assert number, f"it could not begin: {told}"
    return int(number)


def start_starter(streams: list[int]) -> None:
    """In a process that has done nothing yet, so that its forks have neither threads nor anything of a test's.

    Args:
        streams: the test process's own, which nobody else may hold.
    """
    global _starter
    subprocess.Popen._execute_child = _fork_some  # type: ignore[attr-defined]
    _starter, its_end = socket.socketpair()
    # Until it bears them: a command that is told to begin may be sent one before its process that forks has run.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_BY)
    if os.fork() == 0:
        _starter.close()
        for stream in streams:
            os.close(stream)
        # Neither arguments nor environment of this process: nobody shall take it for one that was started.
        _show([sys.executable, "-m", __name__], [])
        end_with(partial(_serve, its_end))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_BY)
    its_end.close()


def _serve(channel: socket.socket) -> None:
    die_with_parent()  # whose forks may hold its end of the channel
    for number in PASSED_BY:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_BY)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    # Pipes whose ends others wait for. Each number stays taken: what owns it may close it at any time.
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number not in (nowhere, channel.fileno()):
            with contextlib.suppress(OSError):
                os.fstat(number)  # the listing's own is gone
                os.dup2(nowhere, number, inheritable=number < STREAMS)
    os.close(nowhere)
    while True:
        length, given, _, _ = socket.recv_fds(channel, LENGTH.size, STREAMS + MAX_PASSED)
        if not length:
            sys.exit()
        message = channel.recv(LENGTH.unpack(length)[0], socket.MSG_WAITALL)
        told_number, tells_number = os.pipe()
        adopted, adoption = os.pipe()  # which its parent's end closes for it to begin
        parent = os.fork()
        if parent == 0:
            os.close(adoption)
            if os.fork() == 0:
                channel.close()
                os.close(told_number)
                end_with(partial(_begin, json.loads(message), given, tells_number, adopted))
            os._exit(0)
        os.waitpid(parent, 0)
        os.close(tells_number)
        channel.sendall(os.read(told_number, LENGTH.size) or LENGTH.pack(0))
        for each in (*given, told_number, adopted, adoption):
            os.close(each)


def _begin(told: dict[str, Any], given: list[int], tells_number: int, adopted: int) -> None:
    global _forked, _starter
    _starter = None  # its parent's
    if told["has_session"]:
        os.setsid()
    elif told["process_group"] not in (-1, None):
        os.setpgid(0, told["process_group"])
    os.chdir(told["folder"])
    command, environment = [sys.executable, *told["arguments"]], told["environment"]
    is_shown = _show(command, [f"{name}={value}" for name, value in environment.items()])
    os.write(tells_number, LENGTH.pack(os.getpid()))
    os.close(tells_number)
    os.read(adopted, 1)
    os.close(adopted)
    if told["dies_with_parent"]:
        die_with_parent()
    if told["umask"] != -1:
        os.umask(told["umask"])
    # Out of the way first: what one is given as may be the number that another is wanted as.
    aside = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, ASIDE) for each in given]
    for each in given:
        os.close(each)
    for wanted, each in zip([*range(STREAMS), *told["passed"]], aside, strict=True):
        os.dup2(each, wanted)
        os.close(each)
    if told["has_terminal"]:
        take_terminal()
    _hear_signals()
    if not is_shown:
        os.execve(sys.executable, command, environment)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = _writer(1)
    sys.stderr = sys.__stderr__ = _writer(2)
    _live_in(environment)
    tempfile.tempdir = None  # of another environment
    random.seed()
    gc.callbacks.clear()  # of those who test
    gc.enable()
    if _is_one_of(STARTED_BY_COMMANDS | {*COMMANDS}, command):
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            _kept.append(sys.modules.pop(name))  # to free them takes longer than what most programs do
    if _is_one_of(COMMANDS, command):
        start_starter([])
        _forked = STARTED_BY_COMMANDS
    if _is_one_of(WITHOUT_PREFECT, command):
        logging.getLogger().handlers.clear()
    elif "prefect.main" in sys.modules and _is_one_of(PREFECTS, command):
        _import_prefect_anew()
    elif "prefect.main" in sys.modules:
        _import_prefect_when_it_is_asked()
    try:
        if _is_one_of({SUPERVISOR}, command):
            _run_until_replaced(told["arguments"])
        else:
            _run_as_python_would(told["arguments"])
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        if command := sys.modules.get("headway.__main__"):
            # Of a fresh one it comes last. Here it would come before what modules do that were imported earlier.
            atexit.unregister(command.leave)
        atexit._run_exitfuncs()


def _hear_signals() -> None:
    """As a program does that has just begun."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in PASSED_BY - {signal.SIGINT}:
        signal.signal(number, signal.SIG_DFL)


def _run_until_replaced(arguments: list[str]) -> None:
    """It imports for itself nothing that this process has, whatever it becomes; its threads stay, and have no work."""
    become = os.execvpe

    def replace(*given: Any) -> None:
        os.execvpe = become
        raise _Replaced(*given)

    os.execvpe = replace  # type: ignore[assignment]
    try:
        _run_as_python_would(arguments)
    except _Replaced as other:
        command, environment = other.command, other.environment
    else:
        return
    _hear_signals()
    _show(command, [f"{name}={value}" for name, value in environment.items()])
    _live_in(environment)
    _import_prefect_anew()
    _live_in(environment)
    _run_as_python_would(command[1:])


def _show(arguments: list[str], environment: list[str]) -> bool:
    """Have `/proc` show them, for whoever looks for processes there; false where the kernel does not let us."""
    global _environment_at
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    of_stat = {name: int(stat[number - 3]) for name, number in PLACES_IN_STAT.items()}
    map_ = _Map(**of_stat, brk=libc.sbrk(0), exe_fd=0xFFFFFFFF)
    for name, words in (("arg", arguments), ("env", environment)):
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        _shown.append(buffer := ctypes.create_string_buffer(text, len(text)))
        setattr(map_, f"{name}_start", ctypes.addressof(buffer))
        setattr(map_, f"{name}_end", ctypes.addressof(buffer) + len(text))
    _environment_at = map_.env_start
    size = ctypes.c_ulong(ctypes.sizeof(map_))
    return bool(libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(map_), size, 0) == 0)


def _live_in(environment: dict[str, str]) -> None:
    """Where `/proc` shows it, as in a fresh process: whoever writes there writes what others read."""
    os.environ.clear()
    places, place = [], _environment_at
    for name, value in environment.items():
        places.append(place)
        place += len(os.fsencode(f"{name}={value}")) + 1
    _shown.append(pointers := (ctypes.c_void_p * (len(places) + 1))(*places, None))
    ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value = ctypes.addressof(pointers)
    os.environ._data.update(  # type: ignore[attr-defined]
        {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    )


def _import_prefect_anew() -> None:
    """What its import takes from the environment: settings, and with them who logs what."""
    from prefect.context import refresh_global_settings_context
    from prefect.logging import configuration
    from prefect.settings import get_current_settings
    from prefect.settings.models.root import Settings

    refresh_global_settings_context()
    configuration.PROCESS_LOGGING_CONFIG.clear()
    logging.getLogger().handlers.clear()
    write_down = Settings.to_environment_variables
    with mock.patch.object(Settings, "to_environment_variables", lambda *_, **__: _Written(settings, write_down)):
        settings = get_current_settings()
        configuration.setup_logging()


class _Written(dict[str, str]):
    """Settings by their names. To write down all hundreds takes a seventh of a second; of these, logging needs few."""

    def __init__(self, settings: Any, write_down: Callable[..., dict[str, str]]) -> None:
        super().__init__(settings.logging.to_environment_variables(include_aliases=True))
        self["PREFECT_INTERNAL_LOGGING_LEVEL"] = settings.internal.logging_level
        self["PREFECT_SERVER_LOGGING_LEVEL"] = settings.server.logging_level
        self._all = partial(write_down, settings, include_aliases=True)

    def __missing__(self, name: str) -> str:
        return self._all()[name]


class _Awaited(logging.Handler):
    """In place of Prefect's until somebody logs."""

    def __init__(self, arrive: Callable[[], None]) -> None:
        super().__init__()
        self._arrive = arrive

    def emit(self, record: logging.LogRecord) -> None:
        self._arrive()
        logging.getLogger(record.name).callHandlers(record)


def _import_prefect_when_it_is_asked() -> None:
    """Most programs never ask it for a setting and log nothing: for them it would be a quarter of a second of a core.

    Its settings are those of a program of Headway's; one that is none has no part in what that prepares.
    """
    from prefect.context import SettingsContext
    from prefect.logging import configuration

    get, arriving, has_arrived = SettingsContext.__dict__["get"], threading.RLock(), False

    def arrive() -> None:
        nonlocal has_arrived
        with arriving:
            if has_arrived:
                return
            has_arrived = True  # for this thread, which asks for settings in the midst of it; others wait
            for logger in loggers:
                logger.removeHandler(awaited)
            before = dict(os.environ)
            prepare()
            _import_prefect_anew()
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)
            SettingsContext.get = get  # type: ignore[method-assign]

    def get_when_it_is_there(cls: type[SettingsContext]) -> Any:
        arrive()
        return get.__func__(cls)

    SettingsContext.get = classmethod(get_when_it_is_there)  # type: ignore[method-assign, assignment]
    awaited = _Awaited(arrive)
    names = configuration.PROCESS_LOGGING_CONFIG.get("loggers", {})
    loggers = [logging.getLogger(), *map(logging.getLogger, names)]
    for logger in loggers:
        if logger.handlers or logger is logging.getLogger():
            logger.handlers[:] = [awaited]


def _writer(number: int) -> IO[str]:
    return os.fdopen(number, "w", 1 if number == 2 or os.isatty(number) else -1, closefd=False)


def _run_as_python_would(arguments: list[str]) -> None:
    flags = arguments[: arguments.index(_what(arguments))]
    what, *rest = arguments[len(flags) :]
    assert FLAGS.issuperset(flags), flags
    own = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    here = "" if what == "-c" else str(Path.cwd()) if what == "-m" else str(Path(what).resolve().parent)
    is_safe = "-P" in flags or os.environ.get("PYTHONSAFEPATH")
    base = [each for each in sys.path if each and Path(each) != REPOSITORY]  # where the tests were started
    sys.path[:] = [*([] if is_safe else [here]), *own, *base]
    if what == "-m":
        sys.argv[:] = [rest[0], *rest[1:]]
        run_module(rest[0])
    elif what == "-c":
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        sys.argv[:] = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = [what, *rest]
        runpy.run_path(what, run_name="__main__")


def _what(arguments: list[str]) -> str:
    """The first that is no flag: `-c`, `-m` or a file."""
    return next(each for each in arguments if each in ("-c", "-m") or not each.startswith("-"))
