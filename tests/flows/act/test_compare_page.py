"""The page of `headway compare`: a new file, which is refused before minutes of scoring where it cannot be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.act.compare import require_new, write_new


def test_a_page_that_cannot_be_a_new_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "there.html").write_text("mine")
    (tmp_path / "link.html").symlink_to(tmp_path / "elsewhere.html")
    for name in ("there.html", "link.html"):
        for refuse in (require_new, lambda page: write_new(page, "ours")):
            with pytest.raises(ConfigError, match=f"{name}: it is there already"):
                refuse(tmp_path / name)
    with pytest.raises(ConfigError, match="none: there is no such folder"):
        require_new(tmp_path / "none" / "page.html")
    assert (tmp_path / "there.html").read_text() == "mine" and not (tmp_path / "elsewhere.html").exists()


def test_a_page_is_written_or_said_not_to_be(tmp_path: Path) -> None:
    require_new(tmp_path / "page.html")
    write_new(tmp_path / "page.html", "größe")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "größe"
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        write_new(tmp_path / "gone" / "page.html", "")
