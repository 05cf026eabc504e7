"""Processes that run a user's encoder, as many as there are threads that ask; they end with who started them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, cast

import pyarrow as pa

from headway.data_contracts.store import errors
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, HeadwayError
from headway.data_contracts.store.installation import HOME
from headway.training.config.encoder_specs import CustomEncoderSpec
from headway.training.data.encode.messages import Message, Part, batch_bytes, receive, send
from headway.training.launch.base.guest_process import TOKEN, kill_group
from headway.training.launch.base.process_tree import sweep

CODE_FILE: Final = "encoder.zip"
HOST = "headway.training.data.encode.host"
STDERR_TAIL_BYTES = 4096


class PossiblyBadRows(ConfigError):
    """An encoder raised what its code alone need not explain: a value of the rows may be at fault as well."""


class NoAnswerInTime(EnvironmentProblem):
    """An encoder that was tried on made-up rows did not answer in time."""


class EncoderProcess:
    """One process; for one thread at a time.

    Args:
        archive: a file of the encoder's code.
        hash_seed: of Python's own hashes, which decide the order of sets.
        within_s: the process is ended after so long.

    Raises:
        ConfigError: not an encoder, or not its options.
        NoAnswerInTime: it had `within_s`.
    """

    def __init__(
        self, archive: Path, spec: CustomEncoderSpec, *, hash_seed: int = 0, within_s: float | None = None
    ) -> None:
        self._spec, self._within_s = spec, within_s
        inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        # The user's code first, as for ranks, but never in place of Headway's own modules.
        path = os.pathsep.join((str(archive), str(HOME), *inherited))
        self._token, self._is_late, self._ending = uuid.uuid4().hex, False, threading.Lock()
        environment = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": str(hash_seed), TOKEN: self._token}
        # A file, not a pipe: an encoder that prints much must not block when nobody reads.
        self._message = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", HOST),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._message,
            env={**os.environ, **environment},
            process_group=0,  # with all that the encoder starts
        )
        self._deadline = None if within_s is None else threading.Timer(within_s, self._end_late)
        if self._deadline is not None:
            self._deadline.daemon = True
            self._deadline.start()
        try:
            self.ask(spec.model_dump(mode="json", include={"name", "options"}))
        except BaseException:
            self.close()
            raise

    def ask(
        self, header: dict[str, Any], parts: Sequence[Part] = (), batches: Iterable[pa.RecordBatch] = ()
    ) -> Message:
        """The answer to a question.

        Args:
            batches: rows that follow the question, each read when the one before was taken.

        Raises:
            HeadwayError: whatever the encoder's process said; it has ended then.
        """
        questions, answers = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        with contextlib.suppress(BrokenPipeError):  # it has answered already, or ended
            send(questions, header, parts)
            if header.get("ask") == "fit":
                for batch in batches:
                    send(questions, {}, [batch_bytes(batch)])
                send(questions, {})
        answer = receive(answers)
        if answer is None:
            raise self._ended()
        if "refused" in answer.header:
            kind: type[HeadwayError] = getattr(errors, answer.header["refused"])
            # What its code alone need not explain may lie in a row; the caller then blames neither for sure.
            if kind is ConfigError and not answer.header["is_of_code"]:
                kind = PossiblyBadRows
            raise kind(answer.header["what"], where=answer.header["where"], advice=answer.header["advice"])
        return answer

    def _ended(self) -> HeadwayError:
        # Waited for without reaping: the number must stay this process's while its group is killed.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        code = self._end_group()
        self._message.seek(max(0, self._message.seek(0, os.SEEK_END) - STDERR_TAIL_BYTES))
        lines = self._message.read().decode(errors="replace").strip().splitlines()
        where = f"shards.encoder {self._spec.name!r}"
        if self._is_late:
            return NoAnswerInTime(
                f"the encoder did not answer within {self._within_s:g} s.",
                where=where,
                advice="Look in its import, fit and encode for what waits or does not end.",
            )
        if code == -signal.SIGKILL:
            return EnvironmentProblem(
                "the encoder's process was killed, most likely for want of memory.",
                where=where,
                advice="Hold less at once in the encoder, or shard with fewer threads at work.",
            )
        message = f"; its last line was: {lines[-1]}" if lines else ""
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return ConfigError(
            f"the encoder's process ended {how} without an answer{message}.",
            where=where,
            advice="Run its fit and encode by hand on some rows.",
        )

    def _end_late(self) -> None:
        """By the timer: whoever waits for an answer is told by the end of the pipe."""
        with self._ending:
            if self._process.returncode is None:
                self._is_late = True
                kill_group(self._process)

    def _end_group(self) -> int:
        """Kill what is left of the process and of all that it started. Returns how it ended."""
        with self._ending:
            if self._process.returncode is None:  # else its number may be somebody else's by now
                # The group, for an encoder may have started processes of its own; and what has left the group.
                kill_group(self._process)
                self._process.wait()
                sweep(TOKEN, self._token)
        return self._process.wait()

    def close(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._end_group()
        for stream in (self._process.stdin, self._process.stdout, self._message):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()


class EncoderProcesses:
    """Processes on one archive, started when they are needed and kept for the next call.

    Args:
        code: the archive's bytes.
        first: the question that each is asked before any other.
        within_s: how long each may live.
    """

    def __init__(
        self,
        code: bytes,
        spec: CustomEncoderSpec,
        first: tuple[dict[str, Any], Sequence[Part]] | None = None,
        *,
        within_s: float | None = None,
    ) -> None:
        self._code, self._spec, self._first, self._within_s = code, spec, first, within_s
        self._lock = threading.Lock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._idle: list[EncoderProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def one(self) -> Iterator[EncoderProcess]:
        """A process that nobody else uses meanwhile; one that said no is not used again."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or self.start()
        try:
            yield process
        except BaseException:
            # A process that said no may be in any state.
            process.close()
            raise
        with self._lock:
            # Back only after success; the lock is not held while it works.
            self._idle.append(process)

    def start(self, *, hash_seed: int = 0) -> EncoderProcess:
        """A new one, which the caller closes or uses in `one`'s stead."""
        with self._lock:
            if self._folder is None:
                # Written once, and shared by all processes of this encoder.
                self._folder = tempfile.TemporaryDirectory(prefix="headway-encoder-")
                (Path(self._folder.name) / CODE_FILE).write_bytes(self._code)
            archive = Path(self._folder.name) / CODE_FILE
        process = EncoderProcess(archive, self._spec, hash_seed=hash_seed, within_s=self._within_s)
        if self._first is not None:
            try:
                process.ask(*self._first)
            except BaseException:
                process.close()
                raise
        return process

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None
