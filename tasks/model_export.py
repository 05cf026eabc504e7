"""A checkpoint as an MLflow model: a `torch.export` graph that plain MLflow loads with unpickling switched off."""

from __future__ import annotations

import json
import shutil
import uuid
import warnings
from importlib.metadata import version
from pathlib import Path

import yaml

from data_contracts.documents import CheckpointManifest, RunSpec
from tasks.context import RunContext
from tasks.launch import final_checkpoint, gang_for, run_folder
from training.launch.spec import LaunchSpec, for_quiet_work
from training.launch.supervisor import supervise


def export_graph(context: RunContext, launch: LaunchSpec, manifest: CheckpointManifest) -> Path:
    """Let one rank, on the run's frozen code, write the graph; returns the file."""
    workspace = context.workspace
    folder, _ = final_checkpoint(context, manifest.run)
    run_dir = workspace.local_path(f"{run_folder(manifest.run)}/export")
    run_dir.mkdir(parents=True, exist_ok=True)
    run = workspace.load(manifest.run, RunSpec)
    arguments = ("--checkpoint", str(workspace.local_path(folder)), "--out", str(run_dir))
    gang = gang_for(context, run, "training.export", run_dir, 1, 1, *arguments)
    patient = for_quiet_work(launch)
    supervise(patient, gang, ledger=context.ledger, budget_scope=context.budget_scope, poll=lambda: None)
    return run_dir / "model.pt2"


def save_model(graph: Path, lineage: dict[str, str], target: Path) -> None:
    """Write an MLflow model folder around the graph, with signature, input example and lineage.

    The folder's bytes are a function of graph and lineage alone, so that registering again after a crash, or after
    damage, is the same registration.
    """
    import mlflow.pytorch
    import numpy as np
    import torch
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    program = torch.export.load(graph)
    (example,), _ = program.example_inputs
    tokens = example.numpy()
    free = ModelSignature(
        inputs=Schema([TensorSpec(tokens.dtype, (-1,) * tokens.ndim)]),
        outputs=Schema([TensorSpec(np.dtype("float32"), (-1,) * (tokens.ndim + 1))]),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.pytorch.save_model(
            program.module(),
            target,
            signature=free,
            input_example=tokens,
            serialization_format="pt2",
            # Said, not inferred: inference starts a process and asks a package index.
            pip_requirements=[f"torch=={version('torch').partition('+')[0]}", f"mlflow=={version('mlflow')}"],
        )
    (target / "lineage.json").write_text(json.dumps(lineage, indent=1, sort_keys=True) + "\n")
    _make_reproducible(graph, lineage, target)


def _make_reproducible(graph: Path, lineage: dict[str, str], target: Path) -> None:
    """MLflow exports the graph once more and adds a clock and a random id; ours is the graph the rank wrote."""
    (stored,) = (target / "data").glob("*.pt2")
    shutil.copyfile(graph, stored)
    description = yaml.safe_load((target / "MLmodel").read_text())
    description.pop("utc_time_created", None)
    description["model_uuid"] = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(lineage, sort_keys=True)).hex
    description["model_size_bytes"] = stored.stat().st_size
    (target / "MLmodel").write_text(yaml.safe_dump(description))
