"""What lies in the place of a file or of a lock is a file, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data_contracts.store.regular_files import open_lock


def test_a_link_in_a_locks_place_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("whoever holds a lock writes its name into it")
    (tmp_path / "lock").symlink_to("precious")
    with pytest.raises(OSError, match="symbolic links"):
        open_lock(tmp_path / "lock")
    assert (tmp_path / "precious").read_text().startswith("whoever")
