"""A model for the world outside: two files that need neither Headway nor torch.

`model.safetensors` holds the parameters and persistent buffers whole, under the names they have in the model, tied ones
once; any reader of safetensors opens it. `config.json` says what they are:

    format, format_version   "headway-model", 1
    model                    what builds the model: the recipe's name and fields, as the run's configuration has them
    step                     optimizer steps it was trained for
    run, checkpoint          SHA-256 of the RunSpec and of the CheckpointManifest it came from
    file                     name, size_bytes and sha256 of the tensors' file
    tensors                  dtype (torch's name) and shape of each
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.publication import Workspace
from headway.training.checkpoint.commit import publish_tensors
from headway.training.checkpoint.pieces import dtype_name
from headway.training.checkpoint.read import VerifiedCheckpoint
from headway.training.checkpoint.verified_files import nothing

TENSORS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
PREFIX = "model."


def export_model(
    verified: VerifiedCheckpoint, out: Path, model: Mapping[str, Json], *, on_part: Callable[[], None] = nothing
) -> None:
    """Write the model of a checkpoint, of whatever mesh, to the folder `out`; `config.json` last.

    The same checkpoint gives the same bytes.

    Args:
        verified: with all of its model's tensors.
        model: JSON; what builds the model.
        on_part: called after each part that is written.

    Raises:
        EnvironmentProblem: no space left, or writing is refused.
    """
    tensors = {name.removeprefix(PREFIX): value for name, value in verified.tensors.items() if name.startswith(PREFIX)}
    store = Workspace(str(out))
    # SHA-256: that is what the world outside has a command for.
    file = publish_tensors(store, TENSORS_NAME, tensors, metadata={"format": "pt"}, algorithm="sha256", on_part=on_part)
    config = {
        "format": "headway-model",
        "format_version": 1,
        "model": dict(model),
        "step": verified.manifest.step,
        "run": verified.manifest.run.sha256,
        "checkpoint": verified.manifest.sha256,
        "file": {"name": file.name, "size_bytes": file.size_bytes, "sha256": file.sha256},
        "tensors": {
            name: {"dtype": dtype_name(value.dtype), "shape": list(value.shape)} for name, value in tensors.items()
        },
    }
    # Last: a folder with a `config.json` is complete.
    store.publish_json(CONFIG_NAME, config)
