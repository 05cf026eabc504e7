"""Test processes of xdist that are forks of one which has imported all tests, and with them torch, Prefect and MLflow.

Each would otherwise import for itself what takes ten seconds of a core. A worker is a process of its own as before:
execnet starts `tests/forked_worker.py` in its place, which hands on its standard streams and ends when the fork ends.
`-p no:tests.forked_workers` has every worker started afresh.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import logging
import os
import random
import select
import shlex
import signal
import socket
import sys
import tempfile
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _pytest.pathlib import import_path, module_name_from_path

from headway.data_contracts.store.installation import HOME
from headway.training.observe.import_closure import imports
from tests import warm_programs
from tests.huge_pages import into_huge_pages
from tests.new_mlflow_tables import copy_tables_of
from tests.program_ends import end_with

STREAMS = 3
LATE = (
    "headway.data_contracts.engine.duckdb_engine",
    "kubernetes.config",
    "mlflow.store.tracking.sqlalchemy_store",
    "moto.moto_server.threaded_moto_server",
    "moto.s3.responses",
    "torch.export._trace",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "prefect.flow_engine",
    "prefect.server.api.server",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
"""What tests and the programs they start import in the midst of their work: a dozen seconds of a core for each."""
MANY_FILES = 50
CLUSTER = Path(__file__).with_name("cluster")
"""Has few files, of which most start programs."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Before xdist has a thread: a fork has none of its parent's, and would wait for locks that they held."""
    address = str(Path(tempfile.mkdtemp(dir=os.environ["HEADWAY_TESTS_SHARED"])) / "workers")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(len(specs))
    controller_ends, controller = os.pipe()  # whose other end the kernel closes when this process is gone
    if os.fork() == 0:
        os.close(controller)
        end_with(partial(_fork_workers, config, listener, controller_ends))
    os.close(controller_ends)
    listener.close()
    stand_in = Path(__file__).with_name("forked_worker.py")
    for spec in specs:
        if spec.popen:
            spec.python = shlex.join((sys.executable, "-I", "-S", str(stand_in), address))


def _fork_workers(config: pytest.Config, listener: socket.socket, controller_ends: int) -> None:
    atexit._clear()
    logging.getLogger().handlers.clear()  # those of pytest's hook that we are in
    # Of pytest's as well: whoever configures logging anew closes their files, by numbers that may be another's by then.
    logging._handlerList.clear()  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Those of a few files, and those of `unit`, hardly come so far that it pays.
    is_cluster = any(Path(name).absolute() == CLUSTER for name in config.args)
    it_pays = _import_tests(config) > MANY_FILES or is_cluster
    it_pays = it_pays and "unit" not in config.option.markexpr.split()
    if it_pays:
        _import_late()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for exit codes
    gc.collect()
    gc.freeze()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # or each fork would take torch's operators apart before it ends
    if it_pays:
        into_huge_pages()
    while controller_ends not in (ready := select.select([listener, controller_ends], [], [])[0]):
        assert ready == [listener]
        asking, _ = listener.accept()
        _, streams, _, _ = socket.recv_fds(asking, 1, STREAMS)
        pid = os.fork()
        if pid == 0:
            listener.close()
            asking.close()
            os.close(controller_ends)
            end_with(partial(_work, streams))
        asking.sendall(str(pid).encode())
        asking.close()
        for stream in streams:
            os.close(stream)


def _import_tests(config: pytest.Config) -> int:
    """As collecting them does; how many files. One that cannot be imported is for the workers to report."""
    num_files = 0
    ignored = [Path(path).absolute() for path in config.getoption("ignore") or ()]
    for name in config.args:
        place = Path(name.partition("::")[0]).absolute()
        for path in [place] if place.is_file() else sorted(place.rglob("test_*.py")):
            if not any(path.is_relative_to(folder) for folder in ignored):
                num_files += 1
                with contextlib.suppress(BaseException):  # `pytest.skip` as well
                    for folder in reversed(path.relative_to(config.rootpath).parents):
                        if (config.rootpath / folder / "conftest.py").is_file():
                            _import(config.rootpath / folder / "conftest.py", config.rootpath)
                    _import(path, config.rootpath)
    return num_files


def _import_late() -> None:
    """What these packages set in the environment is for each process to set."""
    before = dict(os.environ)
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="1")  # or there would be threads
    for name in LATE:
        with contextlib.suppress(ImportError):  # for whoever needs it to report
            importlib.import_module(name)
    for path in sorted(HOME.joinpath("headway").glob("*/**/*.py")):
        imports(path, ".".join(path.relative_to(HOME).parent.parts))  # each retrain asks what its code stands on
    with contextlib.suppress(ImportError):
        copy_tables_of(Path(os.environ["HEADWAY_TESTS_SHARED"]) / "new-mlflow.db")
    os.environ.clear()
    os.environ.update(before)


def _import(path: Path, root: Path) -> None:
    try:
        import_path(path, mode="importlib", root=root, consider_namespace_packages=False)
    except BaseException:
        sys.modules.pop(module_name_from_path(path, root), None)  # or workers would take the half of it for the whole
        raise


def _work(streams: list[int]) -> None:
    """What `python -u -c` would do with xdist's line of bootstrap."""
    warm_programs.start_starter(streams)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", 1, closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, closefd=False)
    sys.argv = ["-c"]
    random.seed()  # or all would draw the same names
    os.environ["HEADWAY_LOCAL"] = tempfile.mkdtemp(prefix="headway-tests-")
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    atexit._run_exitfuncs()
