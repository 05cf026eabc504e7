"""Whatever file it is given, `contract init` answers: with a contract, or with one sentence that names the file."""

from __future__ import annotations

import gzip
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.data_contracts.sources.reading import read_rows, take_snapshot
from headway.data_contracts.store.errors import HeadwayError
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.flows.act.contract_check import check, resolve_request
from headway.flows.act.contract_init import draft
from tests.data_contracts import foreign_files
from tests.data_contracts.foreign_files import READ, REFUSED
from tests.flows.act.conftest import Headway
from tests.warm_programs import run_program

pytestmark = pytest.mark.process

ANSWER_S = 300.0
"""Far more than any answer takes, and far less than what hung took."""
NUM_FUZZED = 3


@pytest.fixture(autouse=True)
def an_answer_comes() -> Iterator[None]:
    started_s = time.monotonic()
    yield
    assert time.monotonic() - started_s < ANSWER_S


@pytest.mark.parametrize("name", REFUSED)
def test_a_foreign_file_is_refused_in_one_sentence_that_names_it(headway: Headway, tmp_path: Path, name: str) -> None:
    make, message = REFUSED[name]
    (tmp_path / name).write_bytes(make())
    answer = headway("contract", "init", name)
    assert answer.code == 3, answer.err
    assert name in answer.err or name == "columns.csv"
    assert len(answer.err.strip().splitlines()) == 1
    assert re.search(message, answer.err), answer.err
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.long
@pytest.mark.parametrize("name", READ)
def test_a_strange_file_that_can_be_read_is(headway: Headway, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(READ[name]())
    answer = headway("contract", "init", name)
    assert answer.code == 0, answer.err


BASES: dict[str, Callable[[], bytes]] = {
    "a.parquet": foreign_files.parquet,
    "b.parquet": lambda: foreign_files.parquet(use_dictionary=False, compression="none"),
    "a.csv": foreign_files.csv,
    "a.jsonl": foreign_files.json_lines,
    "a.csv.gz": lambda: gzip.compress(foreign_files.csv(), mtime=0),
}


def damaged(whole: bytes, chance: random.Random) -> bytes:
    data = bytearray(whole)
    if chance.random() < 0.3:
        del data[chance.randrange(len(data)) :]
    for _ in range(chance.choice([1, 1, 2, 8])):
        if data:
            place = chance.randrange(len(data))
            data[place] = chance.choice([chance.randrange(256), data[place] ^ 1 << chance.randrange(8), 0, 255])
    return bytes(data)


def answers(name: str, data: bytes, folder: Path) -> list[str]:
    """What each way of reading says of a file: empty where it reads it."""
    folder.mkdir()
    (folder / name).write_bytes(data)
    message = []

    def ask(way: Callable[[], object]) -> bool:
        try:
            way()
        except HeadwayError as error:
            message.append(str(error))
            return False
        message.append("")
        return True

    if ask(lambda: draft(str(folder / name), out="", name="fuzzed", base=folder)):
        os.environ["HEADWAY_PROJECT"] = str(folder)
        requested = resolve_request("fuzzed.contract.yaml", str(folder / name))
        ask(lambda: check(requested, now_unix_s=0.0))
        cache = DigestCache(folder / "digests")

        def read() -> None:
            snapshot = take_snapshot(requested.source, base=requested.base, cache=cache)
            for file in snapshot.files:
                rows = read_rows(requested.source, file, base=requested.base, columns=snapshot.columns, digests=cache)
                assert sum(batch.num_rows for batch in rows) >= 0

        ask(read)
    return message


def fuzz(folder: Path, number: int) -> None:
    for name, make in BASES.items():
        whole = make()
        for place in range(number):
            print(name, place, flush=True)
            answers(name, damaged(whole, random.Random(f"1 {name} {place}")), folder / f"{name}-{place}")


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [NUM_FUZZED, pytest.param(10 * NUM_FUZZED, marks=pytest.mark.soak)], ids=["some", "many"]
)
def test_no_flipped_byte_or_cut_ends_in_a_traceback_a_signal_or_silence(number: int, tmp_path: Path) -> None:
    """In a process of its own, since what is looked for would end this one."""
    program = f"from pathlib import Path; from {__name__} import fuzz; fuzz(Path({str(tmp_path)!r}), {number})"
    done = run_program([sys.executable, "-c", program], timeout=5 * ANSWER_S)
    assert done.returncode == 0, f"file {done.stdout.splitlines()[-1:]}: {done.stderr[-2000:]}"
