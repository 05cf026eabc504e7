"""The password of `headway ui` is drawn once, and nobody else can read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.flows.prefect_api.server_password import kept_password, new_password, password_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    return password_file()


def test_it_is_drawn_once_and_its_file_and_folder_are_its_owners_alone(file: Path) -> None:
    drawn = kept_password(file)
    assert kept_password(file) == drawn and file.read_text() == f"{drawn}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir()] == ["password"]
    assert stat.S_IMODE(file.parent.parent.stat().st_mode) == 0o700, "Prefect's database will lie there"


def test_no_two_are_alike() -> None:
    assert new_password() != new_password() and len(new_password()) > 32


def test_one_that_others_might_have_read_or_that_is_no_file_of_ours_is_drawn_anew(file: Path, tmp_path: Path) -> None:
    planted = "headway:planted"
    file.write_text(planted)
    file.chmod(0o640)
    drawn = kept_password(file)
    assert drawn != planted and stat.S_IMODE(file.stat().st_mode) == 0o600

    file.unlink()
    (tmp_path / "elsewhere").write_text(planted)
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentProblem):
        kept_password(file)

    file.unlink()
    file.touch(0o600)
    assert kept_password(file), "an empty one would open the servers to everybody"


def test_a_folder_that_was_open_is_closed_and_one_that_cannot_be_had_is_an_error(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.chmod(0o755)
    assert stat.S_IMODE(password_file().parent.stat().st_mode) == 0o700
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "taken"))
    with pytest.raises(EnvironmentProblem, match="PREFECT_HOME"):
        password_file()
