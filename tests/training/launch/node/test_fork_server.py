"""Guards, agents and ranks that are forks of one process: as good as fresh ones, as well owned, and torch is there."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import py_compile
import runpy
import signal
import sys
import threading
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipimport import zipimporter

import pytest

from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.process_tree import process_state, processes_with
from headway.training.launch.base.protocol import NO_TOKEN, TOKEN
from headway.training.launch.node.forked_guards import SERVER, GuardForks, _forks, forking
from headway.training.launch.supervise.supervisor import supervise
from tests.waiting import wait_until

pytestmark = pytest.mark.process

SPEC = LaunchSpec(nodes=1, backoff_s=0.0)
FACTS = """
import json, os, signal, socket, sys, threading
from pathlib import Path
from headway.training.launch.node import rank_process
rank = rank_process.arm(Path("unused"))
with rank.outcome():
    kinds = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) < 3]
    facts = {
        "environ": dict(os.environ),
        "path": sys.path,
        "argv": sys.argv[1:],
        "code": rank_process.__file__,
        "handlers": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)],
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "kinds": sorted(Path(each).name for each in kinds),
        "threads": sorted(each.name for each in threading.enumerate()),
        "cwd": os.getcwd(),
        "is_unbuffered": sys.stdout.write_through,
        "main": sys.modules["__main__"].__name__,
    }
    facts["sockets"] = [each for each in kinds if each.startswith("socket")]
    facts["ours"] = sorted(each for each in sys.modules if each.startswith("headway"))
    rank.files.folder.joinpath("facts.json").write_text(json.dumps([facts, "torch" in sys.modules]))
"""
OF_THE_ATTEMPT = (
    *("HEADWAY_RUN_TOKEN", "HEADWAY_ATTEMPT", "HEADWAY_GUARD_PID", "HEADWAY_MANDATE", "MASTER_PORT"),
    *("PET_RDZV_ENDPOINT", "TORCHELASTIC_RUN_ID"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[GuardForks]:
    """One for the tests that leave it whole: it takes two seconds of a core."""
    with forking() as forks:
        yield forks


@pytest.fixture
def forks(server: GuardForks) -> Iterator[GuardForks]:
    token = _forks.set(server)
    yield server
    _forks.reset(token)


def run(toy_run, *arguments: str, **options: Any):
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # which changes, and is no reason to start afresh that is meant here
    gang = toy_run.gang(*arguments, nodes=1, **options)
    return supervise(SPEC, gang, ledger=toy_run.ledger, budget_scope="one", poll=toy_run.newest_step)


def facts_of(toy_run, number: int) -> tuple[dict[str, Any], bool]:
    facts, has_torch = json.loads((toy_run.attempt(number).folder / "facts.json").read_text())
    return facts, has_torch


def without_attempt(facts: dict[str, Any]) -> dict[str, Any]:
    environ = {name: value for name, value in facts["environ"].items() if not name.startswith(OF_THE_ATTEMPT)}
    return {**facts, "environ": environ}


def test_a_rank_finds_itself_as_a_fresh_process_would_with_torch_imported(toy_run, forks, monkeypatch) -> None:
    (toy_run.folder / "facts.py").write_text(FACTS)
    monkeypatch.setattr(type(toy_run), "gang", gang_from(toy_run.folder))
    assert run(toy_run, "a word", module="facts").state == "done"
    token = _forks.set(None)
    assert run(toy_run, "a word", module="facts").state == "done"
    _forks.reset(token)
    (forked, has_torch), (fresh, is_slow) = facts_of(toy_run, 1), facts_of(toy_run, 2)
    assert (has_torch, is_slow) == (True, False)
    imported, needed = ({*facts.pop("ours")} for facts in (forked, fresh))
    assert needed | {"headway.training.programs.session"} <= imported, "what programs of its code stand on is there"
    assert not imported & {f"headway.training.programs.{each}" for each in ("worker", "evaluation", "export")}
    assert without_attempt(forked) == without_attempt(fresh)


def gang_from(folder: Path):
    from dataclasses import replace

    from tests.training.launch.conftest import ToyRun

    made = ToyRun.gang
    return lambda self, *arguments, **options: replace(made(self, *arguments, **options), import_path=(str(folder),))


@pytest.mark.parametrize("victim", ["rank", "agent", "guard"])
def test_a_kill_costs_an_attempt_and_leaves_nobody(toy_run, forks, victim: str) -> None:
    kill_and_go_on(toy_run, victim)
    assert forks.pid in processes_with(TOKEN, NO_TOKEN), "the server is left to the next gang"


def test_a_guard_that_is_killed_in_the_first_gang_of_its_code_is_seen_to_end(toy_run) -> None:
    with forking():
        kill_and_go_on(toy_run, "guard")


def kill_and_go_on(toy_run, victim: str) -> None:
    def kill_at_the_first_step() -> None:
        wait_until(lambda: toy_run.newest_step() is not None)
        status, marker = toy_run.attempt(1).read_status(0), toy_run.attempt(1).read_markers()[0]
        pids = {"rank": marker.pid, "agent": status.agent_pid, "guard": status.guard_pid}
        assert marker.parent_pid == status.agent_pid
        assert {*pids.values()} <= {*toy_run.survivors()}, "each carries the attempt's token"
        os.kill(pids[victim], signal.SIGKILL)

    killer = threading.Thread(target=kill_at_the_first_step)
    killer.start()
    outcome = run(toy_run, "--steps", "20", "--children")
    killer.join()
    assert outcome.state == "done" and toy_run.num_attempts() == 2
    assert not toy_run.survivors() and "afresh" not in toy_run.attempt(2).node_log(0).read_text()
    assert toy_run.events("attempt")[0]["cause"] == "infrastructure"


@pytest.mark.long
def test_ranks_go_on_when_the_server_is_killed_and_the_next_are_started_afresh_saying_why(toy_run) -> None:
    def kill_at_the_first_step() -> None:
        wait_until(lambda: toy_run.newest_step() is not None)
        os.kill(forks.pid, signal.SIGKILL)
        (toy_run.folder / "enough").touch()

    with forking() as forks:
        killer = threading.Thread(target=kill_at_the_first_step)
        killer.start()
        outcome = run(toy_run, "--steps", "1", "--until", str(toy_run.folder / "enough"))
        killer.join()
        assert outcome.state == "done" and toy_run.num_attempts() == 1
        assert run(toy_run, "--steps", "1").state == "done"
    assert "the fork server ended (SIGKILL)" in toy_run.attempt(2).node_log(0).read_text()
    assert toy_run.survivors() == []


def test_a_frozen_module_of_a_librarys_name_or_another_variable_makes_ranks_start_afresh(
    toy_run, forks, monkeypatch
) -> None:
    (toy_run.folder / "facts.py").write_text(FACTS)
    monkeypatch.setattr(type(toy_run), "gang", gang_from(toy_run.folder))
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert run(toy_run, module="facts").state == "done"
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    (toy_run.folder / "yaml.py").touch()
    assert run(toy_run, module="facts").state == "done"
    for number, why in ((1, "OPENBLAS_CORETYPE is another"), (2, "has a module of the name yaml")):
        assert why in toy_run.attempt(number).node_log(0).read_text()
        assert facts_of(toy_run, number)[1] is False


@pytest.mark.long
def test_the_server_ends_with_what_asked_for_it(toy_run) -> None:
    with forking() as forks:
        assert forks.pid is None, "none before the first gang"
        assert run(toy_run, "--steps", "1").state == "done"
        assert run(toy_run, "--steps", "2").state == "done"
        pid = forks.pid
        assert process_state(pid) in "SR"
        code_server = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        for each in (pid, code_server):
            assert len(list(Path(f"/proc/{each}/task").iterdir())) == 1, "a fork would lose the others"
    assert process_state(pid) in "ZX"
    wait_until(lambda: process_state(code_server) in "ZX")


@pytest.mark.long
def test_a_server_of_frozen_code_that_is_killed_costs_the_next_gang_an_import(toy_run) -> None:
    with forking() as forks:
        assert run(toy_run, "--steps", "1").state == "done"
        children = Path(f"/proc/{forks.pid}/task/{forks.pid}/children")
        first = int(children.read_text())
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: process_state(first) in "ZX")
        assert run(toy_run, "--steps", "2").state == "done"
        assert run(toy_run, "--steps", "3").state == "done"
        assert toy_run.num_attempts() == 3 and not forks.lost
        assert int(children.read_text()) != first


@pytest.mark.long
def test_each_frozen_code_has_a_server_of_its_own_and_the_oldest_makes_room(toy_run, monkeypatch) -> None:
    with forking() as forks:
        made = []
        for number in range(3):
            folder = toy_run.folder / f"code {number}"
            folder.mkdir()
            (folder / "facts.py").write_text(FACTS)
            with monkeypatch.context() as patch:
                patch.setattr(type(toy_run), "gang", gang_from(folder))
                assert run(toy_run, module="facts").state == "done"
                assert run(toy_run, module="facts").state == "done"
            children = Path(f"/proc/{forks.pid}/task/{forks.pid}/children")
            wait_until(lambda children=children, number=number: len(children.read_text().split()) == min(number + 1, 2))
            made.append({*children.read_text().split()})
        assert [len(each) for each in made] == [1, 2, 2] and made[0] < made[1] and len(made[1] & made[2]) == 1


def archive(place: Path) -> Path:
    with zipfile.ZipFile(place, "w") as file:
        file.writestr("package/__init__.py", "NAME = __name__\n")
        file.writestr("package/part.py", "from package import NAME\nraise ValueError(NAME)\n")
    return place


def test_what_one_fork_compiled_of_an_archive_the_next_one_finds(tmp_path: Path) -> None:
    server = runpy.run_path(str(SERVER))
    place, module = archive(tmp_path / "code.zip"), server["ArchiveImporter"]
    theirs, ours = (server["CompiledCode"](server["compiled"].descriptor) for _ in range(2))
    source, path = b"value = 1 / 3\n", f"{place}/module.py"
    assert (
        ours.code_of(source, path) == theirs.code_of(source, path) == compile(source, path, "exec", dont_inherit=True)
    )
    assert len(ours._found) == 0 and len(theirs._found) == 1, "the first one compiles, the second one reads"
    assert ours.code_of(source, f"{path}x").co_filename == f"{path}x", "a traceback names the file that it lies in"
    importer = module(str(place))
    assert importer.get_filename("package") == zipimporter(str(place)).get_filename("package")
    with pytest.raises(ValueError, match="package") as told:
        exec(importer.get_code("package"), {"__name__": "package"})
        sys.path.insert(0, str(place))
        try:
            exec(module(f"{place}/package").get_code("package.part"), {"__name__": "package.part"})
        finally:
            sys.path.remove(str(place))
            sys.modules.pop("package", None)
    assert str(told.traceback[-1].path) == str(place / "package" / "part.py")


def every_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from every_code(each)


@pytest.fixture
def installed(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """A server's functions, whose `HOME` has a module that Python compiled."""
    server = runpy.run_path(str(SERVER))
    server["installed_code"].__globals__["HOME"] = tmp_path
    module = tmp_path / "headway" / "module.py"
    module.parent.mkdir()
    module.write_text("def outer():\n    return lambda: 1 / 3\n")
    py_compile.compile(str(module), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    return server, module


def test_what_python_compiled_of_the_installed_file_is_taken_for_frozen_code_of_the_same_bytes(
    installed: tuple[dict[str, Any], Path],
) -> None:
    server, module = installed
    source, path = module.read_bytes(), "/run/code.zip/headway/module.py"
    wait_until(lambda: py_compile.compile(str(module)) and ctime(cached(module)) > ctime(module))
    made = server["installed_code"](source, path, "headway/module.py")
    expected = compile(source, path, "exec", dont_inherit=True)
    assert made == expected
    assert [each.co_filename for each in every_code(made)] == [path] * 3


@pytest.mark.parametrize(
    "what", ["other bytes", "not compiled", "compiled before", "torn", "not installed", "of a hash"]
)
def test_frozen_code_is_compiled_where_what_is_installed_may_be_another(
    installed: tuple[dict[str, Any], Path], what: str
) -> None:
    server, module = installed
    wait_until(lambda: py_compile.compile(str(module)) and ctime(cached(module)) > ctime(module))
    source, inside = module.read_bytes(), "headway/module.py"
    if what == "other bytes":
        source += b"# another\n"
    elif what == "not compiled":
        cached(module).unlink()
    elif what == "compiled before":
        # As large, and its time set back: Python itself would take the old one.
        old, text = module.stat(), module.read_text().replace("1 / 3", "2 / 3")
        wait_until(lambda: module.write_text(text) and ctime(module) > ctime(cached(module)))
        os.utime(module, ns=(old.st_atime_ns, old.st_mtime_ns))
        source = module.read_bytes()
        assert importlib.machinery.SourceFileLoader("module", str(module)).get_code("module") != compile(
            source, str(module), "exec", dont_inherit=True
        )
    elif what == "torn":
        cached(module).write_bytes(cached(module).read_bytes()[:-5])
    elif what == "not installed":
        inside = "other/module.py"
    else:
        py_compile.compile(str(module), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert server["installed_code"](source, "/run/module.py", inside) is None
    made = server["CompiledCode"](server["compiled"].descriptor).code_of(source, "/run/module.py", inside)
    assert made == compile(source, "/run/module.py", "exec", dont_inherit=True)


def cached(module: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(module)))


def ctime(path: Path) -> int:
    return path.stat().st_ctime_ns


def test_code_whose_record_is_torn_is_compiled_again() -> None:
    server = runpy.run_path(str(SERVER))
    first, second = (server["CompiledCode"](server["compiled"].descriptor) for _ in range(2))
    first.code_of(b"value = 1\n", "a.py")
    with Path(f"/proc/self/fd/{first.descriptor}").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    assert second.code_of(b"value = 1\n", "a.py") == compile(b"value = 1\n", "a.py", "exec", dont_inherit=True)
