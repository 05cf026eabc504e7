"""In which unit people know what a model is trained to predict."""

from __future__ import annotations

from headway.data_contracts.store.documents import FittedState, RunSpec, ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.training.config.shapes import TabularNumberShape
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.run_documents import data_shape


def number_shape(workspace: Workspace, run: RunSpec) -> TabularNumberShape | None:
    """Of data with a number to predict, where a built-in recipe says what its loss is; else None."""
    if ":" in TrainingSpec.model_validate(run.config).recipe.name:
        return None
    manifest = workspace.load(run.manifest, ShardManifest)
    # Asked before the fitted state is read, which no other kind of data needs here.
    if manifest.spec.get("encoder", {}).get("label_kind") != "number":
        return None
    shape = data_shape(manifest, workspace.load(run.fitted, FittedState))
    return shape if isinstance(shape, TabularNumberShape) else None
