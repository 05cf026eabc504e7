"""torch compiles into a folder of this user's own: nobody else decides what code a rank loads, or whether it starts."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.process

IMPORTED_FIRST = "from headway.data_contracts.store.places import keep_compiled_code_private as keep; keep(); "


def run(code: str, temporary: Path, **environment: str) -> str:
    given = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    command = (sys.executable, "-P", "-c", IMPORTED_FIRST + code)
    done = subprocess.run(
        command,
        env={**given, "TMPDIR": str(temporary), **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_folder_that_another_user_made_where_torch_looks_gets_no_compiled_code(tmp_path: Path) -> None:
    theirs = tmp_path / f"torchinductor_{getpass.getuser()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    run("import torch; torch.compile(torch.nn.ReLU())(torch.ones(2))", tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert not list(theirs.iterdir())
    assert list((tmp_path / "cache" / "headway" / "torch").rglob("*.so"))


@pytest.mark.long
def test_a_file_that_another_user_made_where_torch_looks_keeps_no_run_from_starting(tmp_path: Path) -> None:
    (tmp_path / f"torchinductor_{getpass.getuser()}").write_text("")
    run(
        "import torch; torch.export.export(torch.nn.ReLU(), (torch.ones(2),))",
        tmp_path,
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )


def test_a_user_without_a_home_to_write_in_gets_a_folder_of_a_name_that_nobody_can_say(tmp_path: Path) -> None:
    told = "import os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    (tmp_path / "cache").write_text("")
    names = {run(told, tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache" / "in")) for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith(f"{tmp_path}/headway-torch-") for name in names)
