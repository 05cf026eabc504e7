"""Text tables parsed by another process, with a bound on its memory and on how long it may say nothing.

A process is started when the first is asked for, taken again by whoever asks soon after, and never after a file that it
had trouble with. It ends with the thread that started it, and by itself when nobody asks.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from data_contracts import errors, text_table_process
from data_contracts.errors import DataError, EnvironmentProblem, HeadwayError
from data_contracts.source_spec import SourceSpec

HOST = text_table_process.__name__
HOME = Path(__file__).resolve().parents[1]
SILENCE_S = 120.0
"""How long a process may work on one block of a file. A block is read in about a second."""
LAST_WORDS_BYTES = 2000
_DONE = ("columns", "num_rows", "refused")

_lock = threading.Lock()
_idle: list[_Process]


def inferred_columns(
    spec: SourceSpec, path: Path, where: str, declared: Mapping[str, str], *, keeps_bad: bool
) -> dict[str, str]:
    """Columns of a text table: types as declared, or as the values have.

    Args:
        keeps_bad: whether rows that cannot be read are passed over; else the file is refused for them.

    Raises:
        DataError: the file cannot be read.
    """
    asked = {"ask": "columns", "types": dict(declared), "keeps_bad": keeps_bad}
    found: dict[str, str] = _ask(spec, path, where, asked)["columns"]
    return found


def convert(
    spec: SourceSpec, path: Path, where: str, columns: Mapping[str, str], target: Path, *, keeps_bad: bool
) -> tuple[int, list[tuple[int, int, str]]]:
    """Write the rows of a text table as Parquet, within memory bounded by a block of text.

    Returns:
        The number of rows; and of those that cannot be read, which are null where they cannot: row from 0, number that
        messages give it, column. None of them unless `keeps_bad`.

    Raises:
        DataError: the file cannot be read.
        OSError: the target cannot be written.
    """
    asked = {"ask": "convert", "types": dict(columns), "keeps_bad": keeps_bad, "target": str(target)}
    said = _ask(spec, path, where, asked)
    return int(said["num_rows"]), [(int(row), int(number), str(column)) for row, number, column in said["unparsable"]]


def _ask(spec: SourceSpec, path: Path, where: str, asked: dict[str, Any]) -> dict[str, Any]:
    question = {**asked, "spec": spec.model_dump(mode="json"), "path": str(path.resolve()), "where": where}
    said: dict[str, Any] | None = None
    while said is None:
        process = _take()
        try:
            said = process.ask(question, where, f"as {spec.format}")
        finally:
            if said is not None and any(name in said for name in _DONE):
                with _lock:
                    _idle.append(process)
            else:
                process.close()
    if "refused" in said:
        kind: type[HeadwayError] = getattr(errors, said["refused"])
        raise kind(said["what"], where=said["where"], advice=said["advice"])
    if "errno" in said:
        raise OSError(said["errno"], said["strerror"])
    if "out_of_memory" in said:
        raise _too_large(where, said["out_of_memory"])
    if "raised" in said:
        raise DataError(
            f"cannot be read as {spec.format} ({said['raised']}).",
            where=where,
            advice="Write it again, or exclude it in `source.exclude`.",
        )
    return said


def _too_large(where: str, limit_bytes: int) -> DataError:
    return DataError(
        f"reading it takes more than {limit_bytes >> 30:,} GiB of memory at once.",
        where=where,
        advice="Write it as Parquet, or with shorter rows.",
    )


def _take() -> _Process:
    with _lock:
        while _idle:
            process = _idle.pop()
            if process.is_fit:
                return process
            process.close()
    return _Process()


class _Process:
    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH", ""))))
        self._owner = os.getpid()
        self._is_asked = False
        self._process = subprocess.Popen(
            (sys.executable, "-m", HOST, str(self._owner)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"},
        )

    @property
    def is_fit(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, question: dict[str, Any], where: str, how: str) -> dict[str, Any] | None:
        """The answer; None where the process had ended for want of questions before this one came.

        Raises:
            DataError: it crashed, or said nothing for too long.
            EnvironmentProblem: it was killed, or cannot be started.
        """
        was_idle, self._is_asked = self._is_asked, True
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            if was_idle:
                return None
        said = self._heard(self._process.stdout)
        if said == "silence":
            raise DataError(
                f"reading it made no progress for {SILENCE_S:.0f} s and was given up.",
                where=where,
                advice="Write it again with shorter rows or fewer columns, as Parquet, or exclude it in "
                "`source.exclude`.",
            )
        if said:
            found: dict[str, Any] = json.loads(said)
            return found
        code = self._process.wait()
        if was_idle and code in (0, -signal.SIGKILL):
            return None
        raise _ended(code, where, how)

    def _heard(self, stream: IO[bytes]) -> str:
        """The last line of an answer; empty when the process ends, `silence` when it says nothing."""
        held, deadline_s = b"", time.monotonic() + SILENCE_S
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    return "silence"
                read = os.read(stream.fileno(), 1 << 16)
                if not read:
                    return ""
                *lines, held = (held + read).split(b"\n")
                deadline_s = time.monotonic() + SILENCE_S
                for line in lines:
                    if line != b'{"alive": true}':
                        return line.decode()

    def close(self) -> None:
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()


def _ended(code: int, where: str, how: str) -> HeadwayError:
    if code == -signal.SIGKILL:
        return EnvironmentProblem(
            "the process that read it was killed, most likely for want of memory.",
            where=where,
            advice="Read it where there is more memory, or write it as Parquet.",
        )
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return DataError(
            f"it cannot be read {how}: it crashes the parser ({name}).",
            where=where,
            advice="It is damaged, or made to do so: write it again, or exclude it in `source.exclude`.",
        )
    return EnvironmentProblem(
        f"the process that should read it ended with exit code {code}.",
        where=where,
        advice=f"Try it by hand: {sys.executable} -m {HOST}.",
    )


_idle = []
