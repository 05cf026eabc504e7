"""The folder of an MLflow model of kind `pyfunc`, from code and artifacts, as the pinned MLflow writes it.

MLflow's own writer would also read the caller's folder for files of `uv`, and needs pandas for an example of rows.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from headway.data_contracts.store.installation import version

if TYPE_CHECKING:
    from numpy.typing import NDArray

MLMODEL = "MLmodel"
ARTIFACTS, CODE = "artifacts", "code"
"""Where MLflow's `pyfunc` puts a model's files, and packages that it imports."""
EXAMPLE, SERVING_EXAMPLE = "input_example.json", "serving_input_example.json"
REQUIREMENTS = "requirements.txt"
BUILD_PACKAGES = ("pip", "setuptools", "wheel")


class Example:
    """What the model is asked, and the signature of that and of its answers."""

    def __init__(self, *, kind: str, given: Any, served: str, inputs: Any, outputs: Any, orient: str = "") -> None:
        self.given, self.served = given, {served: given}
        self.signature = {"inputs": json.dumps(inputs), "outputs": json.dumps(outputs), "params": None}
        self.info = {
            "artifact_path": EXAMPLE,
            "serving_input_path": SERVING_EXAMPLE,
            "type": kind,
            **({"pandas_orient": orient} if orient else {}),
        }

    @classmethod
    def of_arrays(cls, given: NDArray[Any], made: NDArray[Any]) -> Example:
        inputs, outputs = ([_tensor(array)] for array in (given, made))
        return cls(kind="ndarray", given=_plain(given), served="inputs", inputs=inputs, outputs=outputs)

    @classmethod
    def of_row(cls, row: Mapping[str, Any], answers: Sequence[str]) -> Example:
        """Of any type: the encoder knows better than MLflow which integers are numbers and which gaps it may fill."""
        given = {"columns": [*row], "data": [[*row.values()]]}
        inputs, outputs = ([_column(name) for name in names] for names in (row, answers))
        return cls(
            kind="dataframe", given=given, served="dataframe_split", inputs=inputs, outputs=outputs, orient="split"
        )

    def write(self, folder: Path) -> None:
        (folder / EXAMPLE).write_text(json.dumps(self.given))
        (folder / SERVING_EXAMPLE).write_text(json.dumps(self.served, indent=2))


def write_model(
    target: Path,
    *,
    served_by: Path,
    artifacts: Mapping[str, Path],
    package: Path,
    config: Mapping[str, Any],
    example: Example,
    requires: Sequence[str],
) -> dict[str, Any]:
    """Write all of a model's folder but its description, `MLMODEL`, which is returned.

    Args:
        target: a folder that is not there.
        served_by: the source of the model's class.
        package: one that it imports.
        requires: names of libraries; their versions are those that are installed.
    """
    target.mkdir(parents=True)
    (target / ARTIFACTS).mkdir()
    example.write(target)
    shutil.copyfile(served_by, target / served_by.name)
    for path in artifacts.values():
        shutil.copyfile(path, target / ARTIFACTS / path.name)
    # MLflow counts what lies there before the code does.
    size_bytes = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    shutil.copytree(package, target / CODE / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    _write_environment(target, requires)
    return {
        "flavors": {
            "python_function": {
                "artifacts": {
                    # The place, and not where it came from: that is on this machine.
                    name: {"path": f"{ARTIFACTS}/{path.name}", "uri": f"{ARTIFACTS}/{path.name}"}
                    for name, path in artifacts.items()
                },
                "cloudpickle_version": version("cloudpickle"),
                "code": CODE,
                "config": dict(config),
                "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
                "loader_module": "mlflow.pyfunc.loaders.code_model",
                "model_code_path": served_by.name,
                "python_version": platform.python_version(),
                "streamable": False,
            }
        },
        "is_signature_from_type_hint": False,
        "mlflow_version": version("mlflow"),
        "model_id": None,
        "model_size_bytes": size_bytes,
        "prompts": None,
        "saved_input_example_info": example.info,
        "signature": example.signature,
        "type_hint_from_example": False,
    }


def _write_environment(target: Path, requires: Sequence[str]) -> None:
    # What follows the plus sign names a build, which no package index has.
    pinned = [f"{name}=={version(name).partition('+')[0]}" for name in requires]
    (target / REQUIREMENTS).write_text("\n".join(pinned))
    build = {name: _version_if_there(name) for name in BUILD_PACKAGES}
    # Conda has a new pip days later.
    pip = f"pip<={build['pip']}" if build["pip"] else "pip"
    conda = {
        "name": "mlflow-env",
        "channels": ["conda-forge"],
        "dependencies": [f"python={platform.python_version()}", pip, {"pip": pinned}],
    }
    (target / "conda.yaml").write_text(yaml.safe_dump(conda, default_flow_style=False))
    python = {
        "python": platform.python_version(),
        "build_dependencies": [f"{name}=={found}" if found else name for name, found in build.items()],
        "dependencies": [f"-r {REQUIREMENTS}"],
    }
    (target / "python_env.yaml").write_text(yaml.safe_dump(python, sort_keys=False, default_flow_style=False))


def _version_if_there(name: str) -> str:
    from importlib.metadata import PackageNotFoundError

    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _tensor(array: NDArray[Any]) -> dict[str, Any]:
    return {"type": "tensor", "tensor-spec": {"dtype": array.dtype.name, "shape": [-1] * array.ndim}}


def _column(name: str) -> dict[str, Any]:
    return {"type": "any", "name": name, "required": True}


def _plain(array: NDArray[Any]) -> Any:
    """As JSON has it, where no number is none."""
    return _number_or_none(array.tolist())


def _number_or_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_number_or_none(each) for each in value]
    return None if value != value else value
