"""What a host says of itself before any rank is started there: versions, clock, storage, name service, GPUs.

Looked at on the host, in well under a second where all is well, and never for much longer. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import platform
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

LIBRARIES = ("torch", "numpy", "pyarrow", "safetensors", "blake3", "xxhash", "pydantic", "fsspec")
"""What ranks import, and weights and digests depend on."""
PATIENCE_S = 2.0
"""How long an answer of the name service, or of a GPU's driver, is waited for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostFacts:
    """One host, as it found itself."""

    versions: Mapping[str, str]
    """Of Python, the processor's architecture and libraries; `none` where one is not installed."""
    unix_s: float
    free_bytes: int
    """On the file system of the run's folder."""
    storage_problem: str = ""
    """Why a checkpoint could not be published there; empty: it can."""
    resolve_s: float = 0.0
    """What the name service took for this host's own name and address; at most `PATIENCE_S`."""
    num_gpus: int = 0
    """That NVIDIA's driver knows; 0 where there is none."""
    gpu_problem: str = ""


def collect_host_facts(folder: Path, address: str) -> HostFacts:
    """Args:
    folder: the run's, where checkpoints will lie.
    address: this host's, by which its peers reach it; empty: there are none elsewhere, and names are not asked for.
    """
    num_gpus, gpu_problem = count_gpus()
    return HostFacts(
        versions=_versions(),
        unix_s=time.time(),
        free_bytes=shutil.disk_usage(folder).free,
        storage_problem=_storage_problem(folder),
        # A name service that does not answer makes each process group wait 10 s; a gang of one forms none across hosts.
        resolve_s=_took_s(lambda: _resolve(address)) if address else 0.0,
        num_gpus=num_gpus,
        gpu_problem=gpu_problem,
    )


@functools.cache  # of each a long file of metadata is read, and a run asks several times
def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version(), "processor": platform.machine()}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            found[library] = "none"
    return found


def _storage_problem(folder: Path) -> str:
    """Publish as checkpoints are: create exclusively among attempts, write, fsync, rename over what is there."""
    name = f".preflight-{uuid.uuid4().hex}"
    staging = _within(folder, "attempts") / f"{name}.partial"
    published = _within(folder, "checkpoints") / name
    try:
        # Twice: the second rename replaces a file that exists, as a later record does.
        for _ in range(2):
            descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                os.write(descriptor, b"preflight")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            staging.replace(published)
        # Some network file systems ignore O_EXCL, and two writers would both believe that they won.
        try:
            os.close(os.open(published, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return ""
        return "it creates a file exclusively that is there already"
    except OSError as error:
        # EXDEV: `rename` works within one file system alone, and publication is a rename.
        if error.errno == errno.EXDEV:
            return f"{staging.parent} and {published.parent} must lie in one file system: checkpoints move by a rename"
        return f"it cannot be written as checkpoints are ({error.strerror})"
    finally:
        for path in (staging, published):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _within(folder: Path, name: str) -> Path:
    """What checkpoints are staged in, or come to, may be another mount than the run's folder."""
    return folder / name if (folder / name).is_dir() else folder


def _resolve(address: str) -> None:
    """What a process group asks when it is formed. Whether there is an answer is all one; how long it takes is not."""
    with contextlib.suppress(OSError):
        socket.getaddrinfo(socket.gethostname(), None)
    with contextlib.suppress(OSError):
        socket.gethostbyaddr(address)


def _took_s(work: Callable[[], None]) -> float:
    started = time.monotonic()
    # What hangs is left alone: this process ends soon.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return min(time.monotonic() - started, PATIENCE_S)


def gpu_names() -> list[str]:
    """Of all that NVIDIA's driver knows, each once; none where it does not answer."""
    if (asked := shutil.which("nvidia-smi")) is None:
        return []
    query = ("--query-gpu=name", "--format=csv,noheader")
    try:
        answer = subprocess.run((asked, *query), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sorted({line.strip() for line in answer.stdout.splitlines()} - {""}) if answer.returncode == 0 else []


def count_gpus() -> tuple[int, str]:
    """How many NVIDIA's driver knows, and what is wrong with them; 0 and nothing where there is no driver."""
    if (asked := shutil.which("nvidia-smi")) is None:
        return 0, ""
    query = ("--query-gpu=index,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader")
    try:
        # A driver in trouble may hang for minutes; the preflight has to answer anyway.
        answer = subprocess.run((asked, *query), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0, f"nvidia-smi does not answer within {PATIENCE_S:g} s"
    if "no devices were found" in (answer.stdout + answer.stderr).lower():
        return 0, ""
    if answer.returncode != 0:
        message = (answer.stdout + answer.stderr).strip().splitlines()
        return 0, f"nvidia-smi fails: {message[-1] if message else f'exit status {answer.returncode}'}"
    lines = [line for line in answer.stdout.splitlines() if line.strip()]
    for line in lines:
        index, _, errors = (word.strip() for word in line.partition(","))
        if errors.isdigit() and int(errors) > 0:
            return len(lines), f"GPU {index} has {errors} uncorrected memory errors since it was last reset"
    return len(lines), ""
