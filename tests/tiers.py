"""Tiers of tests, one for each test, and the guard of the quickest: what `unit` names starts nothing and is quick.

A test is of the tier that it, its class or its module is marked with, `soak` and `long` before any other; else of its
folder's; else `process` where a fixture of its starts one; else `unit`. A test of `unit` fails when it starts a
process, or takes more of the processor than `LIMIT_S`. Both are the test's own: what a fixture of a module or a session
costs is left out, so is what threads do that an earlier test left behind, so is collecting garbage, which looks at what
all tests before left, and so is the test during which modules were imported, since whoever comes first pays for them.
How long it took says how busy the machine is, and is not asked.

`HEADWAY_TIERS_REPORT=FILE` lists in a file what would fail, and lets it pass.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests import started_processes
from tests.started_processes import started

TIERS = ("unit", "process", "e2e", "cluster", "long", "soak")
FOLDERS = {"tests/e2e/": "e2e", "tests/prefect/": "long", "tests/cluster/": "cluster"}
STARTERS = frozenset({"in_gang", "new_disk", "prefect_here", "proxy_port", "ranks", "s3_server"})
"""Fixtures that start a process, or several."""
LIMIT_S = 1.0
"""Of the processor, on a quiet machine."""
BUSY = 10.0 if os.environ.get("CI") else 2.0
"""How many times as much it may be where other processes share caches and cores; a machine of CI is anybody's."""
MANY_MODULES = 20
"""Imported by one test: some of its time is theirs."""

started_processes.listen()


def tier_of(item: pytest.Item) -> str:
    marks = [mark.name for mark in item.iter_markers() if mark.name in TIERS]
    if marks:
        return next((rare for rare in ("soak", "long") if rare in marks), marks[0])
    for folder, tier in FOLDERS.items():
        if item.nodeid.startswith(folder):
            return tier
    return "unit" if STARTERS.isdisjoint(getattr(item, "fixturenames", ())) else "process"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before pytest looks at marks for `-m`."""
    for item in items:
        item.add_marker(tier_of(item))


class _Spent:
    """What the test that runs has cost since it began."""

    def __init__(self) -> None:
        self.started_s = 0.0
        self.collecting_s = 0.0
        """When the collection of garbage began that runs."""
        self.num_modules = 0
        self.from_fixtures: dict[tuple[str, str], str] = {}
        """What a fixture of more than one test started, by where it is from and its name."""

    def begin(self) -> None:
        started.clear()
        self.num_modules = len(sys.modules)
        self.started_s = time.thread_time()

    def leave_out_collecting(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self.collecting_s = time.thread_time()
        else:
            self.started_s += time.thread_time() - self.collecting_s


_spent = _Spent()
gc.callbacks.append(_spent.leave_out_collecting)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    if tier_of(item) == "unit":
        _end_idle_processes()
    _spent.begin()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    started_s, num_started, fixture_began_s = _spent.started_s, len(started), time.thread_time()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _spent.started_s = started_s + time.thread_time() - fixture_began_s
            if started[num_started:]:
                _spent.from_fixtures[fixturedef.baseid, fixturedef.argname] = started[num_started]
            del started[num_started:]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if tier_of(item) == "unit" and (problems := _problems(item)):
        message = f"is no unit test: {'; '.join(problems)}. Mark it `process`, or let it do less."
        if report := os.environ.get("HEADWAY_TIERS_REPORT"):
            with Path(report).open("a") as file:
                file.write(f"{item.nodeid}\t{message}\n")
        else:
            pytest.fail(message, pytrace=False)
    return result


def _problems(item: pytest.Item) -> list[str]:
    taken_s = time.thread_time() - _spent.started_s
    is_reported = "HEADWAY_TIERS_REPORT" in os.environ
    begun = [*started, *(message for name, message in _spent.from_fixtures.items() if _uses(item, *name))]
    problems = [f"it starts a process ({message})" for message in begun[:1]]
    if taken_s > LIMIT_S * (1 if is_reported else BUSY) and len(sys.modules) - _spent.num_modules < MANY_MODULES:
        problems.append(f"it takes {taken_s:.1f} s of the processor")
    return problems


def _uses(item: pytest.Item, where: str, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ()) and item.nodeid.startswith(where)


def _end_idle_processes() -> None:
    """Those that an earlier test asked would be asked again without being started."""
    if reader := sys.modules.get("headway.data_contracts.tables.helper_process"):
        while reader._idle:
            reader._idle.pop().close()
