"""A run's code is frozen: the archive is a function of the code alone."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.training.frozen.code_archive import freeze_code, pack, rank_sources, recipe_sources


def test_packing_twice_gives_the_same_bytes_whatever_the_files_times(tmp_path: Path) -> None:
    first = tmp_path / "a.py"
    first.write_text("x = 1\n")
    before = pack({"a.py": first})
    os.utime(first, (1, 1))
    assert pack({"a.py": first}) == before


def test_an_edit_gives_another_archive(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    before = pack({"a.py": file})
    file.write_text("x = 2\n")
    assert pack({"a.py": file}) != before


def test_the_archive_holds_what_a_rank_imports_and_no_orchestrator() -> None:
    names = set(rank_sources())
    assert "headway/training/programs/worker.py" in names
    assert "headway/data_contracts/store/documents.py" in names
    assert not any(name.startswith(("headway/flows/", "headway/tasks/", "tests/")) for name in names)


def test_an_edit_to_what_no_rank_imports_trains_nothing_again() -> None:
    names = set(rank_sources())
    assert "headway/training/recipes/language_model.py" in names
    assert (
        "headway/training/programs/rehearsal.py" not in names
        and "headway/training/launch/supervise/supervisor.py" not in names
    )


def test_a_recipe_may_import_any_module_of_headways_lower_floors(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def late():\n    from headway.training.launch.base.retry_budget import RetryBudget\n")
    assert "headway/training/launch/base/retry_budget.py" in rank_sources([file])
    file.write_text("from headway import CustomShape as Shape\nfrom headway import Encoder\n")
    assert "headway/training/data/encode/custom_encoder.py" in rank_sources([file])
    file.write_text("def (\n")
    with pytest.raises(ConfigError, match=r"mine\.py.*cannot be read"):
        rank_sources([file])


@pytest.mark.process
def test_a_users_own_recipe_travels_in_the_archive(tmp_path: Path) -> None:
    package = tmp_path / "my_recipes"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tiny.py").write_text("class Tiny: pass\n")
    (package / "words.json").write_text("[]")
    workspace = Workspace.create(str(tmp_path / "workspace"))
    stored = freeze_code(workspace, "my_recipes.tiny:Tiny", (str(tmp_path),))
    with zipfile.ZipFile(BytesIO(workspace.read(stored.path))) as archive:
        assert {"my_recipes/tiny.py", "my_recipes/words.json"} <= set(archive.namelist())
    probe = "import my_recipes.tiny as t; print(t.__file__)"
    environment = {**os.environ, "PYTHONPATH": workspace.path(stored.path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", probe], env=environment, capture_output=True, text=True, check=True)
    assert stored.path in done.stdout


def test_a_recipe_in_a_package_of_headways_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the recipe's package has Headway's own name"):
        recipe_sources("headway.mine:Recipe", (str(tmp_path),))


def test_a_recipe_that_cannot_be_found_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no package 'nowhere_to_be_found' in {tmp_path}"):
        recipe_sources("nowhere_to_be_found.x:Y", (str(tmp_path),))


def test_a_package_without_an_init_file_is_told_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "my_models").mkdir()
    (tmp_path / "my_models" / "net.py").write_text("class Net: pass\n")
    with pytest.raises(ConfigError, match=r"'my_models' in .* has no __init__\.py") as refused:
        recipe_sources("my_models.net:Net", (str(tmp_path),))
    assert str(tmp_path / "my_models" / "__init__.py") in refused.value.advice
