"""A full disk is named as one, whatever the library that met it makes of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem, RegistryError, RunStopped
from headway.data_contracts.store.full_disk import as_full_disk, naming_a_full_disk


@pytest.fixture
def small_disk(new_disk) -> Path:
    return new_disk(256 << 10)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "rows.parquet"),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        RuntimeError('IO Error: Could not write file "x": No space left on device'),
        RegistryError("MLflow refuses (OSError: [Errno 28] No space left on device)."),
    ],
)
def test_what_speaks_of_it_is_told_as_it(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(EnvironmentProblem, match="no space left") as told, naming_a_full_disk(str(tmp_path)):
        raise error
    assert told.value.__cause__ is error
    assert told.value.where == str(tmp_path)


@pytest.mark.process
def test_what_fails_on_a_full_disk_and_says_nothing_of_it_is_told_as_it_too(tmp_path: Path, small_disk: Path) -> None:
    places = str(tmp_path), str(small_disk)
    with pytest.raises(EnvironmentProblem) as told, naming_a_full_disk(*places):
        fill(small_disk)
    assert told.value.where == str(small_disk), "the fullest place"
    with pytest.raises(EnvironmentProblem, match="unexpected pos"), naming_a_full_disk(*places):
        raise RuntimeError("unexpected pos 64 vs 0")


@pytest.mark.process
def test_our_own_errors_mean_what_they_say_even_there(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        fill(small_disk)
    with pytest.raises(RunStopped), naming_a_full_disk(str(small_disk)):
        raise RunStopped("stopped on request.")
    problem = EnvironmentProblem("no space left while writing; nothing was published.", where="shards/x")
    assert as_full_disk(problem, str(small_disk)) is None


def test_any_other_failure_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), naming_a_full_disk(str(tmp_path)):
        raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt), naming_a_full_disk(str(tmp_path)):
        raise KeyboardInterrupt
