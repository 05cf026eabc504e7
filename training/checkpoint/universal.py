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
from headway.training.checkpoint.blocks import nothing
from headway.training.checkpoint.commit import publish_tensors
from headway.training.checkpoint.pieces import dtype_name
from headway.training.checkpoint.verify import load_checkpoint

TENSORS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
PREFIX = "model."


def export_model(
    checkpoint: Path, out: Path, model: Mapping[str, Json], *, on_part: Callable[[], None] = nothing
) -> None:
    """Write the model of a checkpoint, of whatever mesh, to the folder `out`; `config.json` last.

    Optimizer state is not read. The same checkpoint gives the same bytes.

    Args:
        model: JSON; what builds the model.
        on_part: called after each part that is read or written.

    Raises:
        IntegrityError: the checkpoint is damaged.
        EnvironmentProblem: no space left, or writing is refused.
    """
    # Everything is checked before anything is written; optimizer state is not read, which is most of the bytes.
    verified = load_checkpoint(checkpoint, prefix=PREFIX, rest="skip", on_part=on_part)
    tensors = {name.removeprefix(PREFIX): value for name, value in verified.tensors.items()}
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
