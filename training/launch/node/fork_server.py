"""One process that has imported torch and what ranks stand on beside it; guards, agents and ranks are forks of it.

    owner ──socket──► fork server ──fork──► code server ──fork──► guard ──fork──► agent ──fork──► rank

A short retrain starts five gangs, and each rank would import torch for two seconds of a core, and a run's frozen code
for half a one. The server imports what is none of Headway's, and forks a server for each frozen code, which imports
that beside it. They run nothing but imports: no thread, no recipe, no seed. Each fork is told what `python -P SCRIPT`
would be told, and is a process of its own. Where the frozen code or the environment would have led to other imports,
the agent is started afresh instead. Guards keep their owner's lifeline, so that a server's end ends none of them; it
ends with its owner. Started by its path: what ranks import is frozen code, and what one fork compiles of it later ones
find.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import gc
import hashlib
import importlib
import importlib.util
import json
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import traceback
import types
import zipfile
import zipimport
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PRELOADED = (
    *("torch", "numpy", "numpy.typing", "blake3", "xxhash", "safetensors.numpy", "safetensors.torch", "yaml"),
    *("fsspec", "fsspec.implementations.local", "zoneinfo", "sysconfig", "statistics", "html", "faulthandler"),
    # Pydantic imports each of its own modules only once it is asked for.
    *("pydantic", "pydantic.main", "pydantic.types", "pydantic.type_adapter", "pydantic.json_schema"),
    *("pydantic.functional_validators", "pydantic.plugin._loader", "pydantic._internal._discriminated_union"),
    *("pydantic._internal._docs_extraction", "pydantic._internal._schema_gather"),
)
"""What ranks of every program import, none of it Headway's. Not pyarrow, which starts a thread."""
PROGRAMS = "headway.training.programs"
FROZEN = (f"{PROGRAMS}.session", f"{PROGRAMS}.evaluation", f"{PROGRAMS}.export", f"{PROGRAMS}.verify_worker")
"""Programs of frozen code, and what they stand on. Each is run as `__main__`, and so kept out of what is imported."""
MAX_CODES = 2
"""Servers of frozen code at a time: a run's own, and a champion's beside it."""
HOME = Path(__file__).absolute().parents[4]
"""Where the package `headway` is installed."""
MASK = 0xFFFFFFFF
TOKEN = "HEADWAY_RUN_TOKEN"
PR_SET_PDEATHSIG = 1
MAX_MESSAGE_BYTES = 1 << 16
OF_AN_ATTEMPT = (
    *("HEADWAY_", "PET_", "TORCHELASTIC_", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "PYTHONPATH"),
    "TRACEPARENT",
)
"""Beginnings of variables that no import reads."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class CompiledCode:
    """What forks compiled, for those that come later: a file without a name, which each of them appends to.

    A record is its digest, the key, the length and the code. One that was torn, for want of memory, ends what is read.
    """

    DIGEST_BYTES, LENGTH_BYTES = 32, 8

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._found: dict[bytes, bytes] = {}
        self._read_to = 0

    def code_of(self, source: bytes, path: str, inside: str = "") -> types.CodeType:
        """Args:
        inside: its place in the archive, and below `HOME` where it is installed.
        """
        key = hashlib.sha256(b"\0".join((os.fsencode(path), source))).digest()
        if key not in self._found:
            self._catch_up()
        if (known := self._found.get(key)) is not None:
            code: types.CodeType = marshal.loads(known)
            return code
        made = installed_code(source, path, inside) or compile(source, path, "exec", dont_inherit=True)
        data = marshal.dumps(made)
        body = key + len(data).to_bytes(self.LENGTH_BYTES) + data
        with contextlib.suppress(OSError):
            # One call, so that no other fork's record comes between.
            os.write(self.descriptor, hashlib.sha256(body).digest() + body)
        return made

    def _catch_up(self) -> None:
        new = os.pread(self.descriptor, os.fstat(self.descriptor).st_size - self._read_to, self._read_to)
        head = 2 * self.DIGEST_BYTES + self.LENGTH_BYTES
        place = 0
        while len(new) - place >= head:
            length = int.from_bytes(new[place + head - self.LENGTH_BYTES : place + head])
            record = new[place : place + head + length]
            if hashlib.sha256(record[self.DIGEST_BYTES :]).digest() != record[: self.DIGEST_BYTES]:
                break
            self._found[record[self.DIGEST_BYTES : 2 * self.DIGEST_BYTES]] = record[head:]
            place += len(record)
        self._read_to += place


def installed_code(source: bytes, path: str, inside: str) -> types.CodeType | None:
    """What Python keeps of the installed file with these bytes, as if it had been compiled from `path`.

    None: there is none, or not surely of these bytes. Python goes by the second and the size; the kernel's own moment
    of the last change, which nobody can set back, says whether the file was altered after it had been compiled.
    """
    installed = HOME / inside
    try:
        kept = Path(importlib.util.cache_from_source(str(installed)))
        now = installed.stat()
        if not inside or kept.stat().st_ctime_ns <= now.st_ctime_ns or installed.read_bytes() != source:
            return None
        data = kept.read_bytes()
        stamp = b"".join(each.to_bytes(4, "little") for each in (0, int(now.st_mtime) & MASK, now.st_size & MASK))
        if data[:16] != importlib.util.MAGIC_NUMBER + stamp:
            return None
        code: types.CodeType = marshal.loads(data[16:])
        return _named(code, path)
    except (OSError, ValueError, EOFError, TypeError, NotImplementedError):
        return None


def _named(code: types.CodeType, path: str) -> types.CodeType:
    constants = (_named(each, path) if isinstance(each, types.CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(constants))


compiled = CompiledCode(os.memfd_create("compiled"))
fcntl.fcntl(compiled.descriptor, fcntl.F_SETFL, os.O_APPEND)


class ArchiveImporter(zipimport.zipimporter):
    """Python's own compiles every module of a zip twice, and in every process."""

    def get_filename(self, fullname: str) -> str:
        ending = f"{os.sep}__init__.py" if self.is_package(fullname) else ".py"
        return f"{self.archive}{os.sep}{self.prefix}{fullname.rpartition('.')[2]}{ending}"

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        try:
            source = self.get_data(path)
        except OSError:  # a module without its source
            return super().get_code(fullname)
        return compiled.code_of(source, path, os.path.relpath(path, self.archive))


class ForkServer:
    """
    Args:
        owner: a pidfd.
    """

    def __init__(self, channel: socket.socket, owner: int) -> None:
        self._channel, self._owner = channel, owner
        self._code = ""
        """Import path of the frozen code whose modules are here; empty: none is."""
        self._frozen: dict[str, types.ModuleType] = {}
        self._codes: dict[str, socket.socket] = {}
        """By import path, the channel of its server; the one that was asked last is the last."""
        self._environment = dict(os.environ)
        self._own_path = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self._base_path = [entry for entry in sys.path if entry not in self._own_path]
        # Before anything replaces it: what /proc shows of this process lies where the kernel put it.
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_void_p
        self._token_at: int = libc.getenv(TOKEN.encode())
        self._token_chars = len(os.environ[TOKEN])

    def run(self) -> None:
        """Fork a guard for each request, until the owner is gone."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        children: dict[int, int] = {}
        while True:
            for descriptor, _ in poll.poll():
                if descriptor in children:
                    # Reaped at once: its number may then be another's, and its owner holds a pidfd.
                    os.waitpid(children.pop(descriptor), 0)
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    continue
                data, descriptors, _, _ = socket.recv_fds(self._channel, MAX_MESSAGE_BYTES, 3)
                if not data:
                    return
                request = json.loads(data)
                if (passed_on := self._passed_on(request, data, descriptors, children, poll)) is not None:
                    answer, pidfd = passed_on
                else:
                    pid = self._fork_guard(request, descriptors)
                    answer, pidfd = json.dumps({"pid": pid}).encode(), os.pidfd_open(pid)
                    children[pidfd] = pid
                    poll.register(pidfd, select.POLLIN)
                for each in descriptors:
                    os.close(each)
                rights = array.array("i", [pidfd]).tobytes()
                self._channel.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                if passed_on is not None:
                    os.close(pidfd)  # whoever forked it reaps it

    def _passed_on(
        self,
        request: Mapping[str, str],
        data: bytes,
        descriptors: Sequence[int],
        children: dict[int, int],
        poll: select.poll,
    ) -> tuple[bytes, int] | None:
        """The answer of the frozen code's own server, with a guard's pidfd; None: this one has to fork."""
        if self._code or not (code := request["code"]):
            return None
        try:
            if (channel := self._codes.pop(code, None)) is None:
                while len(self._codes) >= MAX_CODES:
                    self._codes.pop(next(iter(self._codes))).close()
                channel, pid = self._fork_server(code, descriptors)
                pidfd = os.pidfd_open(pid)
                children[pidfd] = pid
                poll.register(pidfd, select.POLLIN)
        except OSError:  # no process is to be had
            return None
        try:
            socket.send_fds(channel, [data], descriptors)
            answer, found, _, _ = socket.recv_fds(channel, MAX_MESSAGE_BYTES, 1)
        except OSError:
            answer, found = b"", []
        if not answer:  # it was killed
            channel.close()
            return None
        self._codes[code] = channel
        return answer, found[0]

    def _fork_server(self, code: str, descriptors: Sequence[int]) -> tuple[socket.socket, int]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid:
            theirs.close()
            return ours, pid
        try:
            # As this one dies with its owner.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == parent:
                for each in (ours, self._channel, *self._codes.values()):
                    each.close()
                self._codes.clear()
                for descriptor in descriptors:  # of the request, which comes by the channel: their ends have to be seen
                    os.close(descriptor)
                self._channel, self._code = theirs, code
                self._import_frozen()
                self.run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)

    def _import_frozen(self) -> None:
        """What programs of the frozen code import, put aside: guards have Headway of today."""
        places = [*filter(None, self._code.split(os.pathsep))]
        besides = set().union(*(_top_level_names(Path(place)) for place in places)) - {"headway"}
        if besides & {*sys.modules, *sys.stdlib_module_names}:
            return  # a module of the run's own would be imported for a library's
        before = [*sys.path]
        sys.path[:] = [*places, *self._base_path]
        importlib.invalidate_caches()
        gc.disable()
        for name in FROZEN:
            # Of an older version it may be another; its ranks import it themselves, and say what is wrong with it.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        gc.freeze()
        gc.enable()
        for name in [name for name in sys.modules if name.partition(".")[0] == "headway"]:
            module = sys.modules.pop(name)
            # As `__main__` it is made anew.
            if name not in FROZEN or not hasattr(module, "main"):
                self._frozen[name] = module
        sys.path[:] = before

    def _fork_guard(self, request: Mapping[str, str], descriptors: Sequence[int]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            lifeline, log, end = descriptors
            os.setsid()
            for given, wanted in ((lifeline, 0), (log, 1), (log, 2)):
                os.dup2(given, wanted)
            # Its end has to be seen by the owner; so nobody else may hold these.
            for each in (self._channel, *self._codes.values()):
                each.close()
            for descriptor in (lifeline, log):
                os.close(descriptor)
            self._carry(request["token"])
            sys.path.insert(0, request["headway"])
            node_guard = importlib.import_module("headway.training.launch.node.node_guard")
            code = node_guard.main(owner=self._owner, start_agent=self._fork_agent)
            os.write(end, bytes([code]))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _carry(self, token: str) -> None:
        """Be found by the attempt's token, as a process that was started with it: a sweep reads /proc/PID/environ."""
        if len(token) != self._token_chars:
            raise ValueError("a token of another length does not fit into the place of this one")
        ctypes.memmove(self._token_at, token.encode(), len(token))
        os.environ[TOKEN] = token

    def _fork_agent(self, argv: Sequence[str], environment: Mapping[str, str], tie_to_guard: Callable[[], None]) -> int:
        """Args:
        argv: python, `-P`, a script, its arguments.
        """

        def live() -> None:
            tie_to_guard()
            os.setsid()
            _keep_streams_alone()
            _as_a_fresh_python()
            if why := self._would_import_otherwise(environment):
                print(f"the agent is started afresh: {why}", file=sys.stderr)
                os.execve(argv[0], [*argv], dict(environment))
            # What a guard imported is not the frozen code's.
            for name in [name for name in sys.modules if name.partition(".")[0] == "headway"]:
                del sys.modules[name]
            os.environ.clear()
            os.environ.update(environment)
            if environment.get("PYTHONPATH") == self._code:
                sys.modules.update(self._frozen)
            sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *self._base_path]
            importlib.invalidate_caches()
            sys.argv[:] = argv[2:]
            runpy.run_path(argv[2], init_globals={"fork_rank": fork_rank}, run_name="__main__")

        return _fork(live)

    def _would_import_otherwise(self, environment: Mapping[str, str]) -> str:
        """Why a fresh process would come to other modules than those that are here; empty where it would not."""
        names = {*environment, *self._environment}
        for name in sorted(name for name in names if not name.startswith(OF_AN_ATTEMPT)):
            if environment.get(name) != self._environment.get(name):
                return f"{name} is another than when torch was imported."
        added = environment.get("PYTHONPATH", "").split(os.pathsep)
        for place in [each for each in added if each and each not in self._own_path]:
            if shadowed := (_top_level_names(Path(place)) & set(sys.modules)) - {"headway", "__main__"}:
                return f"{place} has a module of the name {min(shadowed)}."
        return ""


def fork_rank(module: str, arguments: Sequence[str], environment: Mapping[str, str], out: int, err: int) -> int:
    """What `python -P -m MODULE ARGUMENTS` would be, of an agent that is a fork itself; returns its number."""

    def live() -> None:
        for descriptor, wanted in ((out, 1), (err, 2)):
            os.dup2(descriptor, wanted)
        _keep_streams_alone()
        _as_a_fresh_python()
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(f"rank {environment['RANK']}")
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    # Buffers are copied by a fork; text left in them would be written twice.
    sys.stdout.flush()
    sys.stderr.flush()
    return _fork(live)


def _fork(live: Callable[[], None]) -> int:
    """A process whose whole life this is; returns its number."""
    # Till it hears by itself: what the parent does at a signal, its fork must not do once more.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return pid
    code = 1
    try:
        live()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        # Never back into the parent's stack: its loop would run here once more.
        os._exit(code)


def _as_a_fresh_python() -> None:
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _keep_streams_alone() -> None:
    """Lifeline, logs and pipes are the parent's, and their ends have to be seen.

    Each number stays taken: objects that own them live on in the fork, and may close them at any time.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    for entry in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if entry > 2 and entry not in (nowhere, compiled.descriptor):
            with contextlib.suppress(OSError):
                os.fstat(entry)  # the listing's own is gone
                os.dup2(nowhere, entry, inheritable=False)
    os.close(nowhere)


def _top_level_names(place: Path) -> set[str]:
    if place.is_file():
        with zipfile.ZipFile(place) as archive:
            names = {name.partition("/")[0] for name in archive.namelist()}
    else:
        names = {path.name for path in place.iterdir()} if place.is_dir() else set()
    return {name.partition(".")[0] for name in names}


def main(owner_pid: int) -> int:
    channel = socket.socket(fileno=os.dup(0))
    # Where it is halted it hears of no end. Guards do not inherit this: they give their ranks time.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    owner = os.pidfd_open(owner_pid)
    if os.getppid() != owner_pid:
        return 1
    gc.disable()  # a third of the time it takes to import torch is spent looking for garbage that is not there
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    sys.path_hooks[:] = [ArchiveImporter if hook is zipimport.zipimporter else hook for hook in sys.path_hooks]
    ForkServer(channel, owner).run()
    return 0


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
