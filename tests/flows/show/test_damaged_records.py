"""Of ledgers and records that were damaged or edited there is an account, or one sentence: no traceback, no hang."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headway.data_contracts.store.digests import canonical_json, sha256_of
from headway.data_contracts.store.errors import HeadwayError
from headway.flows.config.profiles import PricesSpec
from headway.flows.periods.page import written as written_period
from headway.flows.periods.reading import day, read_period
from headway.flows.report.written_report import to_html
from headway.flows.show.board import read_board
from headway.flows.show.board_page import render_html
from headway.flows.show.cost import print_cost, read_cost
from headway.flows.show.goodput import print_goodput, read_goodput
from headway.flows.show.postmortem import read_postmortem, written
from headway.flows.show.status import print_status, read_status
from headway.flows.show.trace import read_traces
from headway.tasks.ownership.pipeline_history import FailedRetrain, record_failure
from headway.training.launch.base.failure import Failure
from tests.flows.accounts.lives import LOST, RUN, Life, numbered

BEGIN_S = 1_790_000_000.0
PRICES = PricesSpec(device_hour_usd={"cpu": 36.0, "any": 9.0})
WRONG: list[Any] = [
    *(None, True, -1, 0, 1e308, -0.5, 1 << 70, 1 << 2000, "", "x" * 5000, "2026-13-45", "\u202e<b>\x1b[31m"),
    *([], {}, [[]], ["a", 1], {"a": None}),
]


def lived(folder: Path) -> Life:
    """A run that was interrupted and went on, a retrain that failed for good, and one that goes on."""
    life = Life(folder)
    life.flow("f", BEGIN_S, BEGIN_S + 60.0, ("stage.register", BEGIN_S + 55.0, BEGIN_S + 58.0), steps_per_epoch=7.5)
    life.attempt("f", BEGIN_S, BEGIN_S + 12.0, numbered(1, 8, BEGIN_S + 2.0), failure=LOST)
    life.attempt("f", BEGIN_S + 20.0, BEGIN_S + 50.0, numbered(5, 20, BEGIN_S + 25.0))
    life.flow("g", BEGIN_S + 100.0, BEGIN_S + 160.0, failed=("TrainingFailed", "training", "launch"))
    life.attempt("g", BEGIN_S + 100.0, BEGIN_S + 150.0, numbered(21, 28, BEGIN_S + 102.0), failure=LOST)
    failure = Failure(what="it broke", cause="training", advice="mend it")
    failed = FailedRetrain(
        pipeline="p", host="h", flow_run="g", stage="launch", failed_unix_s=time.time(), failure=failure, card="c"
    )
    record_failure(life.workspace, failed)
    life.flow("h", BEGIN_S + 200.0, None)
    return life


def looks(uri: str, folder: Path) -> list[Callable[[], object]]:
    """All that a person asks, shown as it would be."""
    console = Console(file=io.StringIO(), width=100)
    return [
        lambda: print_goodput(read_goodput(uri, RUN), console),
        lambda: to_html(written(read_postmortem(uri, RUN, PRICES))),
        lambda: to_html(written_period(read_period(uri, "month", PRICES, day("2026-09-21")), has_prices=True)),
        lambda: [print_cost(read_cost(uri, by, folder, "", 0.0), console) for by in ("pipeline", "state", "cause")],
        lambda: render_html(read_board(uri, 3660, PRICES)),
        lambda: print_status(read_status(uri), console),
        lambda: read_traces(uri, RUN),
    ]


@pytest.mark.parametrize("num", [5, pytest.param(1000, marks=pytest.mark.soak)])
def test_whoever_looks_at_damaged_records_gets_an_account_or_a_sentence(tmp_path: Path, num: int) -> None:
    life, draw = lived(tmp_path), random.Random(num)
    root = life.workspace.local_root
    asked = looks(life.workspace.uri, tmp_path)
    for look in asked:
        look()  # of whole records all of it is told
    files = sorted(path for path in root.rglob("*.json*") if path.is_file())
    accounts = {path: path.read_bytes() for path in files if "accounts" in path.parts}
    for number in range(num):
        for path, data in accounts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        path = files[number % len(files)] if number < len(files) else draw.choice(files)
        good = path.read_bytes()
        if "accounts" not in path.parts:  # else no ledger would be read again
            shutil.rmtree(root / "accounts", ignore_errors=True)
        path.write_bytes(damaged(good, draw))
        for place, look in enumerate(asked):
            try:
                with contextlib.suppress(HeadwayError):
                    look()
            except Exception as error:
                raise AssertionError(f"{number}, look {place}: {path}: {path.read_bytes()[:3000]!r}") from error
        path.write_bytes(good)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """By a flipped bit, a cut, or an editor: a value is another, or gone, and the digest beside it may fit."""
    how = draw.random()
    if how < 0.15:
        place = draw.randrange(8 * len(data))
        return bytes(byte ^ (1 << place % 8 if at == place // 8 else 0) for at, byte in enumerate(data))
    if how < 0.25:
        return data[: draw.randrange(len(data))]
    lines = data.splitlines()
    if how < 0.35:
        draw.shuffle(lines)
        return b"\n".join(lines)
    at = draw.randrange(len(lines))
    value = json.loads(lines[at])
    *above, last = draw.choice([*places(value)])
    inner = value
    for part in above:
        inner = inner[part]
    if isinstance(inner, dict) and draw.random() < 0.2:
        del inner[last]
    else:
        inner[last] = copy.deepcopy(draw.choice(WRONG))
    if isinstance(value, dict) and "sha256" in value and draw.random() < 0.7:
        del value["sha256"]
        value["sha256"] = sha256_of(value)
    lines[at] = canonical_json(value)
    return b"\n".join(lines) + b"\n" * data.endswith(b"\n")


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of all values within it."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, inner in pairs:
        yield (*above, part)
        yield from places(inner, (*above, part))
