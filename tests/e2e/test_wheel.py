"""Nothing but the wheel, in a folder whose own packages are called like Headway's folders."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import wheels
from tests.prefect_tables import new_prefect_home
from tests.warm_programs import run_program

CALL = Path(__file__).with_name("shipped_call.py")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    new_prefect_home(folder / "prefect")
    return wheels.install(folder / "installed")


def test_site_packages_get_headway_and_its_metadata_and_nothing_else(installed: Path) -> None:
    found = {path.name for path in installed.iterdir()}
    assert {name for name in found if not name.endswith(".dist-info")} == {"bin", "headway"} and len(found) == 3


@pytest.mark.long
@pytest.mark.parametrize("is_wheel", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["checkout", "wheel"])
def test_a_shipped_pipeline_retrains_by_a_call_and_calls_share_a_server(
    request: pytest.FixtureRequest, tmp_path: Path, is_wheel: bool
) -> None:
    """Of the wheel `test_foreign_folder.py` asks all that a checkout may hide; there all of it is imported afresh."""
    call = shutil.copy(CALL, wheels.with_folders_of_its_own(tmp_path))
    if is_wheel:
        called = wheels.run(request.getfixturevalue("installed"), call, cwd=tmp_path)
    else:
        home = new_prefect_home(tmp_path / "prefect")
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "HEADWAY_"))}
        environment = {**ours, "PREFECT_HOME": str(home), "PYTHONPATH": str(tmp_path)}
        called = run_program([sys.executable, CALL], cwd=tmp_path, env=environment)
    assert called.returncode == 0, called.stderr
