"""What can be refused before anything is spent: the pipeline file, the contract, the recipe, the workspace."""

from __future__ import annotations

from pathlib import Path

from data_contracts.publication import Workspace
from flows.environment import project_folder
from flows.pipeline_spec import PipelineSpec, find_pipeline_file, load_pipeline
from flows.request import RetrainRequest
from tasks.validate import read_contract
from training.code_archive import recipe_sources


def check_request(request: RetrainRequest) -> tuple[PipelineSpec, Path, Workspace]:
    """The pipeline, its file and its workspace, all found good.

    Raises:
        ConfigError: pipeline file, contract or recipe.
        EnvironmentProblem: the workspace cannot be written.
    """
    path = find_pipeline_file(request.pipeline, project_folder())
    pipeline = load_pipeline(path)
    read_contract(path.parent / pipeline.contract)
    recipe_sources(pipeline.training.recipe.name, (str(path.parent),))
    workspace = Workspace.create(request.workspace)
    workspace.local_path("probe")
    return pipeline, path, workspace
