from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from headway.training.data.load.address_range import HUGE_PAGE_BYTES, MAX_ADDRESSES, AddressRange


def files_of(folder: Path, sizes: list[int]) -> list[tuple[Path, int]]:
    made = []
    for number, size in enumerate(sizes):
        path = folder / str(number)
        path.write_bytes(np.random.default_rng(number).bytes(size))
        made.append((path, size))
    return made


def num_mappings(path: Path) -> int:
    return sum(line.endswith(f" {path}") for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("sizes", [[], [0], [1], [4096, 1, 0, 4097, 100_000]])
@pytest.mark.parametrize("widths", [(), (4096,), (60, 40), (7, 11)])
def test_files_lie_side_by_side_on_huge_pages_and_at_multiples_of_the_widths(
    tmp_path: Path, sizes: list[int], widths: tuple[int, ...]
) -> None:
    files = files_of(tmp_path, sizes)
    mapped = AddressRange(files, widths=widths)
    assert mapped.array.ctypes.data % HUGE_PAGE_BYTES == 0
    assert len(set(mapped.starts)) == len(files)
    for number, ((path, size), start) in enumerate(zip(files, mapped.starts, strict=True)):
        assert start % HUGE_PAGE_BYTES == 0
        assert all(start % width == 0 for width in widths)
        assert mapped.array[start : start + size].tobytes() == mapped.file(number).tobytes() == path.read_bytes()
    assert not mapped.array.flags.writeable


def test_widths_give_way_where_addresses_would_run_out(tmp_path: Path) -> None:
    files = files_of(tmp_path, [10, 20, 30])
    mapped = AddressRange(files, widths=[60, 1_000_003, 40])  # the prime alone would take 2 TB a file, with 60 thirty
    assert [start % 120 for start in mapped.starts] == [0, 0, 0]
    assert mapped.array.size < MAX_ADDRESSES
    assert [mapped.file(number).size for number in range(3)] == [10, 20, 30]


def test_records_of_any_width_lie_at_any_step(tmp_path: Path) -> None:
    mapped = AddressRange(files_of(tmp_path, [1000]))
    data = mapped.file(0).tobytes()
    assert mapped.records(60, every_bytes=60)[3].tobytes() == data[180:240]
    assert mapped.records(60, every_bytes=1)[5].tobytes() == data[5:65]
    assert not mapped.records(60, every_bytes=60).flags.writeable


@pytest.mark.process
def test_the_range_is_given_back_with_its_last_array(tmp_path: Path) -> None:
    files = files_of(tmp_path, [5000, 70])
    view = AddressRange(files).array[:10]
    gc.collect()
    assert num_mappings(files[0][0]) == 1
    assert view.tobytes() == files[0][0].read_bytes()[:10]
    del view
    gc.collect()
    assert num_mappings(files[0][0]) == 0


def test_a_file_that_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such device"):
        AddressRange([(tmp_path, 10)])
