"""The walls of the house: who may import whom, and what a rank pays for."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from training.code_archive import pack, rank_sources

HOME = Path(__file__).resolve().parent.parent
GROUND_FLOOR = {
    *("__init__", "credentials", "errors", "digests", "documents", "publication", "refs", "stages"),
    *("full_disk", "leftovers", "object_store", "store_errors"),
    *("file_systems", "folder_store", "places", "plain_text", "published_files", "globs", "strict_json"),
}
HEAVY = ("prefect", "mlflow", "great_expectations", "duckdb", "typer", "rich", "pandas", "pyarrow", "sklearn")


def contracts() -> dict[str, dict[str, list[str]]]:
    config = tomllib.loads((HOME / "pyproject.toml").read_text())
    return {contract["name"]: contract for contract in config["tool"]["importlinter"]["contracts"]}


def test_every_module_of_data_contracts_is_ground_floor_or_forbidden_to_ranks() -> None:
    forbidden = contracts()["Training stands on the ground floor of data_contracts alone"]["forbidden_modules"]
    upper = {name.removeprefix("data_contracts.") for name in forbidden}
    modules = {path.stem for path in (HOME / "data_contracts").glob("*.py")}
    assert modules == upper | GROUND_FLOOR


@pytest.mark.parametrize("package", ["flows", "tasks", "training", "data_contracts"])
def test_package_files_are_empty(package: str) -> None:
    assert all(not path.read_text() for path in (HOME / package).rglob("__init__.py"))


def test_a_worker_imports_from_the_frozen_archive_alone_and_nothing_heavy(tmp_path: Path) -> None:
    archive = tmp_path / "code.zip"
    archive.write_bytes(pack(rank_sources()))
    probe = (
        "import sys, training.worker, training.session, training.evaluation, training.export;"
        "import training.checkpoint.verify_worker, training.recipes.language_model;"
        f"heavy = sorted(set({HEAVY!r}) & set(sys.modules));"
        "own = {m.__file__ for n, m in sys.modules.items() if n.split('.')[0] in ('training', 'data_contracts')};"
        "print(heavy, [f for f in own if f and '.zip' not in f])"
    )
    environment = {**os.environ, "PYTHONPATH": str(archive), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", probe], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] []"


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (("flows.retrain", "flows.plan", "flows.champion_flow", "flows.contract_command"), {"torch"}),
        # Who asks at night what goes on, or says stop, waits for no more than is needed.
        (("flows.status", "flows.logs", "flows.holds", "flows.verify", "flows.clean"), {"torch", "prefect"}),
    ],
)
def test_a_command_imports_no_more_than_it_needs(modules: tuple[str, ...], heavy: set[str]) -> None:
    heavy = heavy | {"mlflow", "great_expectations"}
    probe = f"import sys, {', '.join(modules)}; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=HOME, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
