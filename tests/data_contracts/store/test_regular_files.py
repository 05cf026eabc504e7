"""What lies in the place of a file or of a lock is a file, or is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.data_contracts.store.regular_files import open_lock, open_regular, open_to_write


def test_a_link_in_a_locks_place_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("whoever holds a lock writes its name into it")
    (tmp_path / "lock").symlink_to("precious")
    with pytest.raises(OSError, match="symbolic links"):
        open_lock(tmp_path / "lock")
    assert (tmp_path / "precious").read_text().startswith("whoever")


@pytest.mark.parametrize("mode", ["wb", "ab"])
@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_what_lies_in_a_logs_place_and_is_no_file_is_refused_and_keeps_what_it_leads_to(
    tmp_path: Path, mode: str, what: str
) -> None:
    log, precious = tmp_path / "log", tmp_path / "precious"
    precious.write_text("of the user whose server writes the log")
    {"link": lambda: log.symlink_to(precious), "pipe": lambda: os.mkfifo(log), "folder": log.mkdir}[what]()
    with pytest.raises(OSError):
        open_to_write(log, mode)
    assert precious.read_text().startswith("of the user")


def test_a_log_is_begun_anew_or_continued(tmp_path: Path) -> None:
    for mode in ("wb", "ab", "wb", "ab"):
        with open_to_write(tmp_path / "log", mode) as stream:
            stream.write(mode.encode())
    assert (tmp_path / "log").read_bytes() == b"wbab"


def test_what_would_lie_in_a_stray_file_is_missing_as_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "stray").touch()
    with pytest.raises(FileNotFoundError, match="no folder"):
        open_regular(tmp_path / "stray" / "flow.jsonl")
