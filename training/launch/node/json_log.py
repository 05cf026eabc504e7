"""What a node's ranks, agent and guard write, as JSON lines beside the plain files: for collectors of logs.

The guard follows the files, so that a line has its object whoever wrote it, Python or not, and however its process
ended; the files stay byte for byte what was written. Whoever takes the lines slowly is waited for by nobody: they are
read when there is room again. Standard library only.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from headway.data_contracts.store.regular_files import open_regular
from headway.training.launch.base.log_times import POLL_EVERY_S, LineTimes
from headway.training.launch.base.protocol import LOG_FORMAT, LOG_PIPE, AttemptFiles
from headway.training.observe.trace_context import given_parent

PIECE_BYTES = 256 << 10
"""Of one file at one look: the guard has other duties."""
MAX_LINE_BYTES = 64 << 10
"""What has no end of line after so much is cut, as collectors cut it."""
LAST_S = 2.0
"""How long what is left may take when all has ended."""
RUN = re.compile("[0-9a-f]{16}")
TRAINING = "train"
_LEVELS: Mapping[str, str] = {
    **{"D": "debug", "I": "info", "W": "warning", "E": "error", "F": "critical"},
    **{"DEBUG": "debug", "INFO": "info", "WARN": "warning", "WARNING": "warning"},
    **{"ERROR": "error", "FATAL": "critical", "CRITICAL": "critical"},
}
_OF_TORCH = re.compile(r"(?:\[rank\d+\]:)?\[?([DIWEF])\d{4} \d\d:\d\d:\d\d\.")
_NAMED = re.compile(r"(?<![\w.])(DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL)(?![\w.])")
NAMED_WITHIN = 64
"""Characters from the beginning of a line, in which a logger writes the level."""
_WARNED = re.compile(r"\S+:\d+: \w*Warning: ")
TRACEBACK = "Traceback (most recent call last)"


class _Levels:
    """Levels of one file's lines: what a line says itself, else what its stream is for."""

    def __init__(self, usual: str) -> None:
        self._usual = usual
        self._is_in_traceback = False

    def next(self, text: str) -> str:
        if self._is_in_traceback:
            # Its last line, the error itself, is the first that is not indented.
            self._is_in_traceback = text[:1].isspace() or not text
            return "error"
        if TRACEBACK in text:
            self._is_in_traceback = True
            return "error"
        if found := _OF_TORCH.match(text) or _NAMED.search(text, 0, NAMED_WITHIN):
            return _LEVELS[found[1]]
        return "warning" if _WARNED.match(text) else self._usual


class _Followed:
    """One file, read from where it was left."""

    def __init__(self, path: Path, source: Mapping[str, object], usual_level: str) -> None:
        self._path, self._source = path, source
        self._read_bytes, self._times, self._levels = 0, LineTimes(), _Levels(usual_level)

    def take(self, *, is_over: bool) -> bytes:
        """Objects of the lines that have come, a line each; of what is not whole only once nothing more comes."""
        try:
            with open_regular(self._path) as stream:
                stream.seek(self._read_bytes)
                data = stream.read(PIECE_BYTES)
        except OSError:
            return b""
        return b"".join(self._objects(data, time.time(), is_over=is_over))

    def _objects(self, data: bytes, seen_unix_s: float, *, is_over: bool) -> Iterator[bytes]:
        at, is_last = 0, is_over and len(data) < PIECE_BYTES
        while at < len(data):
            end = data.find(b"\n", at, at + MAX_LINE_BYTES) + 1
            if not end and len(data) - at < MAX_LINE_BYTES and not is_last:
                break
            end = end or min(at + MAX_LINE_BYTES, len(data))
            line, at = data[at:end], end
            text = line.decode(errors="replace").rstrip("\r\n")
            unix_s = self._times.next(line, seen_unix_s)
            level = self._levels.next(text)
            if text:
                value = {"time": _rfc_3339(unix_s), "level": level, "message": text, **self._source}
                yield json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self._read_bytes += at


class JsonLog:
    """Args:
    environ: of the order; it says whether, and of which trace.
    pipe: takes the lines in place of a file.

    Never raises: what follows the logs must not cost the guard its duty.
    """

    def __init__(
        self, files: AttemptFiles, node: int, num_ranks: int, attempt: int, environ: Mapping[str, str], pipe: int | None
    ) -> None:
        self._files, self._node, self._num_ranks, self._pipe = files, node, num_ranks, pipe
        self._is_wanted = environ.get(LOG_FORMAT) == "json"
        trace = given_parent(environ)
        run, gang = _run_and_gang(files.folder)
        self._common = {
            "run": run,
            "gang": gang,
            "attempt": attempt,
            "host": socket.gethostname(),
            "node": node,
            "trace_id": "" if trace is None else trace.trace_id,
        }
        self._followed: dict[Path, _Followed] = {}
        self._waiting = b""
        self._out: int | None = None
        self._looked_s = 0.0
        if pipe is not None:
            os.set_blocking(pipe, False)
            os.set_inheritable(pipe, False)

    def look(self) -> None:
        """Pass on what has come, a few times a second at the most."""
        now_s = time.monotonic()
        if self._is_wanted and now_s - self._looked_s >= POLL_EVERY_S:
            self._looked_s = now_s
            self._pass_on(is_over=False)

    def finish(self) -> None:
        """Pass on what is left, for as long as it is taken."""
        until_s = time.monotonic() + LAST_S
        while self._is_wanted and self._pass_on(is_over=True) and time.monotonic() < until_s:
            if self._waiting:
                time.sleep(0.01)  # the other end takes its time, and nobody else needs this process any more

    def _pass_on(self, *, is_over: bool) -> bool:
        """Whether something is left, as far as is known."""
        self._write_waiting()
        if self._waiting:
            return True
        for followed in self._all_followed():
            self._waiting += followed.take(is_over=is_over)
        has_found = bool(self._waiting)
        self._write_waiting()
        return has_found

    def _all_followed(self) -> list[_Followed]:
        with contextlib.suppress(OSError):
            for path in (self._files.node_log(self._node), *self._files.rank_logs(self._node).glob("**/std*.log")):
                if path not in self._followed:
                    self._followed[path] = self._follow(path)
        return list(self._followed.values())

    def _follow(self, path: Path) -> _Followed:
        # torchrun names a rank's folder by its number on the node, and all nodes have equally many.
        local = path.parent.name
        is_ranks = path != self._files.node_log(self._node) and local.isascii() and local.isdecimal()
        rank = self._node * self._num_ranks + int(local) if is_ranks else None
        stream = path.stem if is_ranks else "node"
        # On stderr Python's loggers write from `warning` on, unless somebody has set them up.
        usual_level = "warning" if stream == "stderr" else "info"
        return _Followed(path, {"rank": rank, "stream": stream, **self._common}, usual_level)

    def _write_waiting(self) -> None:
        with contextlib.suppress(OSError):  # no room, or nobody who reads: it is tried again
            if self._out is None:
                self._out = self._pipe if self._pipe is not None else self._opened()
            while self._waiting:
                self._waiting = self._waiting[os.write(self._out, self._waiting) :]

    def _opened(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._files.json_lines(self._node), flags, 0o644)


def take_pipe(environ: MutableMapping[str, str]) -> int | None:
    """The pod's, which is for this guard alone; None: it is in no pod."""
    number = environ.pop(LOG_PIPE, "")
    return int(number) if number.isascii() and number.isdecimal() else None


def _run_and_gang(attempt_folder: Path) -> tuple[str, str]:
    """By the folders, `runs/RUN/attempts/NNN` and `runs/RUN/GANG/attempts/NNN`."""
    own = attempt_folder.parent.parent
    is_runs = (each for each in (own, *own.parents) if each.parent.name == "runs" and RUN.fullmatch(each.name))
    run_dir = next(is_runs, own)
    return run_dir.name, TRAINING if run_dir == own else own.relative_to(run_dir).as_posix()


def _rfc_3339(unix_s: float) -> str:
    moment = datetime.datetime.fromtimestamp(unix_s, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
