"""Files that commands write where a person says: whole, for whom they are meant, and in the place of files alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.flows.console.output import write_whole


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """`--out /dev/null` of root would make a file of what every program writes to."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stdout").symlink_to(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    for name in ("pipe", "stdout", "folder"):
        with pytest.raises(EnvironmentProblem, match="is no file, and is not replaced"):
            write_whole(tmp_path / name, b"page")
    assert sorted(tmp_path.iterdir()) == before and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_page_is_for_whom_this_users_files_are_unless_it_is_meant_for_others(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        write_whole(tmp_path / "board.html", b"page")
        write_whole(tmp_path / "headway.prom", b"metrics", is_public=True)
    finally:
        os.umask(umask)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert modes == {"board.html": 0o600, "headway.prom": 0o644}
