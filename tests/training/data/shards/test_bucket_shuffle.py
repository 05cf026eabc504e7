from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.documents import PayloadColumn
from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.data.shards import bucket_shuffle
from headway.training.data.shards.bucket_shuffle import BucketShuffle, ShuffledRows, sorting_order
from headway.training.data.splitmix import U64, splitmix64
from tests.training.data.plain_ways import shuffled

COLUMNS = (PayloadColumn(name="x", dtype="uint8", shape=(3,)), PayloadColumn(name="y", dtype="int32", shape=()))
ROW_BYTES = 7 + bucket_shuffle.BOOKKEEPING_BYTES


def rows(num_rows: int) -> dict[str, np.ndarray]:
    """Row i spells i in both columns."""
    numbers = np.arange(num_rows, dtype=np.int32)
    return {"x": numbers.view(np.uint8).reshape(-1, 4)[:, :3], "y": numbers.view(np.uint8).reshape(-1, 4)}


def shuffle(ids: U64, budget_rows: int, scratch: Path, batch: int = 37) -> ShuffledRows:
    made = BucketShuffle(COLUMNS, budget_rows * ROW_BYTES, scratch)
    payloads = rows(len(ids))
    for first in range(0, len(ids), batch):
        part = slice(first, first + batch)
        made.add(ids[part], {name: values[part] for name, values in payloads.items()})
    return made.finish()


def order_of(found: ShuffledRows, first: int, last: int) -> list[int]:
    part = found.part(first, last)
    gathered = part.gather(0, last - first)
    numbers = np.ascontiguousarray(gathered["y"]).view(np.int32)[:, 0]
    assert np.array_equal(gathered["x"], rows(int(found.num_rows))["x"][numbers])
    return numbers.tolist()


@given(st.integers(1, 400), st.integers(1, 500), st.integers(0, 2**64 - 1), st.data())
def test_any_part_is_that_of_the_sorted_keys_whatever_the_buffer_holds(
    num_rows: int, budget_rows: int, seed: int, data: st.DataObject
) -> None:
    found = shuffle(np.arange(num_rows, dtype=np.uint64) ^ np.uint64(seed), budget_rows, Path(tempfile.gettempdir()))
    expected = shuffled(num_rows, seed).tolist()
    first = data.draw(st.integers(0, num_rows))
    last = data.draw(st.integers(first, num_rows))
    assert order_of(found, 0, num_rows) == expected
    assert order_of(found, first, last) == expected[first:last]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=100), st.integers(1, 120))
def test_rows_of_one_id_keep_the_order_they_came_in(ids: list[int], budget_rows: int) -> None:
    states = np.array(ids, dtype=np.uint64)
    found = shuffle(states, budget_rows, Path(tempfile.gettempdir()), batch=7)
    assert order_of(found, 0, len(ids)) == splitmix64(states).argsort(kind="stable").tolist()


@given(st.lists(st.integers(0, 40) | st.integers(2**64 - 40, 2**64 - 1), max_size=200))
def test_keys_that_differ_in_their_last_bits_alone_are_told_apart(keys: list[int]) -> None:
    given_keys = np.array(keys, dtype=np.uint64)
    assert sorting_order(given_keys).tolist() == given_keys.argsort(kind="stable").tolist()


def test_nothing_added_makes_no_rows(tmp_path: Path) -> None:
    assert shuffle(np.zeros(0, dtype=np.uint64), 10, tmp_path).num_rows == 0


def test_spilled_rows_have_no_name_that_could_be_left_behind(tmp_path: Path) -> None:
    found = shuffle(np.arange(1000, dtype=np.uint64), 50, tmp_path)
    assert not list(tmp_path.iterdir())
    assert any(target.startswith(str(tmp_path)) for target in open_files())
    assert order_of(found, 0, 1000) == shuffled(1000, 0).tolist()


def open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.append(str(entry.readlink()))
    return found


def test_a_full_disk_is_named_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: open("/dev/full", "r+b", buffering=0))  # noqa: PTH123, SIM115
    with pytest.raises(EnvironmentProblem, match=f"{tmp_path}: no space left for spilled rows.*memory_mb"):
        shuffle(np.arange(1000, dtype=np.uint64), 50, tmp_path)


def test_a_scratch_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="gone: rows cannot be spilled"):
        shuffle(np.arange(1000, dtype=np.uint64), 50, tmp_path / "gone")


@pytest.mark.process
def test_a_file_that_may_grow_no_more_is_named_as_full(tmp_path: Path) -> None:
    """The kernel's own refusal, in a process whose files may have 4 KB."""
    program = (
        "import resource, sys; from pathlib import Path; import numpy as np; from tests_program import shuffle; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
        "shuffle(np.arange(5000, dtype=np.uint64), 1000, Path(sys.argv[1]))"
    )
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "tests_program.py").write_bytes(Path(__file__).read_bytes())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert resource.RLIMIT_FSIZE is not None and "no space left for spilled rows" in done.stderr
