"""A model's folder has, to the byte, what MLflow's own `save_model` writes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest
import yaml

from headway.data_contracts.store.installation import version
from headway.tasks.registry.model_export import GRAPH_CHECK, REQUIRED, SERVED_BY
from headway.tasks.tracking.model_folder import MLMODEL, Example, write_model

CONFIG = {"graph_sha256": "a" * 64, "config_sha256": "b" * 64}
ROW = {"x": 0.1 + 0.2, "whole": 3.0, "gap": math.nan, "day": "2026-01-02T03:04:05+00:00", "ä 'kind'\n": 'a"b'}
ANSWERS = ("prediction", "p(0)", "p(ä)")
DRAWN = ("model_uuid", "utc_time_created")
"""What differs each time; Headway writes an id of its own."""
ARRAYS = [
    np.arange(24).reshape(3, 8),
    np.array([[0.1, np.nan], [1e-9, 3.0]], np.float32),
    np.array([True, False]),
    np.zeros((1, 3, 2, 2), np.uint8),
]


@pytest.fixture
def artifacts(tmp_path: Path) -> dict[str, Path]:
    made = {"graph": tmp_path / "model.pt2", "example": tmp_path / "input.npy"}
    for number, path in enumerate(made.values()):
        path.write_bytes(b"any bytes" * (number + 1))
    return made


def save_by_mlflow(target: Path, artifacts: dict[str, Path], signature: Any, example: Any) -> None:
    import mlflow.pyfunc

    mlflow.pyfunc.save_model(
        target,
        python_model=str(SERVED_BY),
        artifacts={name: str(path) for name, path in artifacts.items()},
        code_paths=[str(GRAPH_CHECK)],
        model_config=CONFIG,
        signature=signature,
        input_example=example,
        pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in REQUIRED],
    )


def require_equal(tmp_path: Path, artifacts: dict[str, Path], example: Example, signature: Any, given: Any) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    described = write_model(
        ours,
        served_by=SERVED_BY,
        artifacts=artifacts,
        package=GRAPH_CHECK,
        config=CONFIG,
        example=example,
        requires=REQUIRED,
    )
    save_by_mlflow(theirs, artifacts, signature, given)
    expected = yaml.safe_load((theirs / MLMODEL).read_text())
    for name in DRAWN:
        assert expected.pop(name)
    served = expected["flavors"]["python_function"]
    # Paths of this machine, in MLflow's.
    served["model_code_path"] = SERVED_BY.name
    for each in served["artifacts"].values():
        each["uri"] = each["path"]
    # Through the text: equal Python values may be written otherwise.
    assert yaml.safe_dump(described) == yaml.safe_dump(expected)
    (theirs / MLMODEL).unlink()
    files = {path.relative_to(theirs): path.read_bytes() for path in theirs.rglob("*") if path.is_file()}
    assert {path.relative_to(ours): path.read_bytes() for path in ours.rglob("*") if path.is_file()} == files
    assert len(files) > 10


def test_a_model_of_rows_is_mlflows(tmp_path: Path, artifacts: dict[str, Path]) -> None:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import AnyType

    inputs, outputs = (Schema([ColSpec(AnyType(), name) for name in names]) for names in (ROW, ANSWERS))
    signature = ModelSignature(inputs=inputs, outputs=outputs)
    require_equal(tmp_path, artifacts, Example.of_row(ROW, ANSWERS), signature, pd.DataFrame([ROW]))


@pytest.mark.parametrize("given", ARRAYS, ids=lambda array: array.dtype.name)
def test_a_model_of_arrays_is_mlflows(tmp_path: Path, artifacts: dict[str, Path], given: Any) -> None:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    made = np.zeros((2, 3), np.float32)
    inputs, outputs = (Schema([TensorSpec(array.dtype, (-1,) * array.ndim)]) for array in (given, made))
    signature = ModelSignature(inputs=inputs, outputs=outputs)
    require_equal(tmp_path, {"graph": artifacts["graph"]}, Example.of_arrays(given, made), signature, given)


def test_files_of_the_callers_folder_are_not_a_models(
    tmp_path: Path, artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    for name in ("uv.lock", "pyproject.toml"):
        Path(name).write_text("# of the project\n")
    write_model(
        tmp_path / "model",
        served_by=SERVED_BY,
        artifacts=artifacts,
        package=GRAPH_CHECK,
        config=CONFIG,
        example=Example.of_row(ROW, ANSWERS),
        requires=REQUIRED,
    )
    assert not {"uv.lock", "pyproject.toml"} & {path.name for path in (tmp_path / "model").iterdir()}
