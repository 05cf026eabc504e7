from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

from training.data.address_range import AddressRange


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
def test_files_lie_side_by_side_on_pages(tmp_path: Path, sizes: list[int]) -> None:
    files = files_of(tmp_path, sizes)
    mapped = AddressRange(files)
    for (path, size), start in zip(files, mapped.starts, strict=True):
        assert start % mmap.PAGESIZE == 0
        assert mapped.array[start : start + size].tobytes() == path.read_bytes()
    assert not mapped.array.flags.writeable


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
