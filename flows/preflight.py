"""What can be refused before anything is spent: pipeline file, contract, recipe, encoder and workspace."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from data_contracts.contract import Contract
from data_contracts.errors import ConfigError
from data_contracts.given_suite import read_suite
from data_contracts.publication import Workspace
from flows.environment import project_folder
from flows.first_step import check_first_step
from flows.named_columns import require_named_columns
from flows.pipeline_spec import PipelineSpec, find_pipeline_file, load_pipeline
from flows.request import RetrainRequest, TrainingRequest
from tasks import model_refs
from tasks.validate import read_contract
from training.code_archive import encoder_code
from training.data.encoder_specs import OwnSpec
from training.data.hosted_encoder import check_own_encoder
from training.recipes.check import check_recipe

TRACKING_SCHEMES = frozenset(
    {"http", "https", "file", "sqlite", "postgresql", "mysql", "mssql", "databricks", "databricks-uc"}
)
"""What MLflow itself takes; a database may name its driver, as in `postgresql+psycopg2`."""


def check_request(request: TrainingRequest) -> tuple[PipelineSpec, Path, Workspace]:
    """The pipeline, its file and its workspace, all found good.

    Raises:
        ConfigError: pipeline file, contract, recipe, encoder, model to start from, or tracking URI.
        EnvironmentProblem: the workspace cannot be written.
        RunStopped: the time to stop is over already.
    """
    _ = request.stop
    path = find_pipeline_file(request.pipeline, project_folder())
    pipeline = load_pipeline(path)
    # A run that goes on keeps its own data and code, whatever the contract lists by now.
    goes_on = isinstance(request, RetrainRequest) and bool(request.run)
    contract = check_contract(pipeline, path, goes_on=goes_on)
    check_recipe(pipeline.training.recipe.name, pipeline.training.recipe.model, (str(path.parent),))
    check_encoder(pipeline, path)
    check_tracking_uri(pipeline.registry.tracking_uri)
    if not goes_on:
        check_first_step(pipeline, path, contract, Workspace(request.workspace))
    workspace = Workspace.create(request.workspace)
    if pipeline.training.start_from is not None:
        model_refs.resolve(workspace, pipeline.training.start_from.model)
    return pipeline, path, workspace


def check_contract(pipeline: PipelineSpec, path: Path, *, goes_on: bool = False) -> Contract:
    """The contract that the pipeline file at `path` names.

    Args:
        goes_on: whether it is for a run whose data have passed one.

    Raises:
        ConfigError: the contract, its SQL or the suite that it names cannot be understood, or the pipeline names
            columns that it does not list.
    """
    contract_file = path.parent / pipeline.contract
    contract, _ = read_contract(contract_file)
    read_suite(contract_file, contract)
    if not goes_on:
        require_named_columns(pipeline, contract, path, judges_data_alone=False)
    return contract


def check_encoder(pipeline: PipelineSpec, path: Path) -> None:
    """Raises `ConfigError`: an encoder of the user's own cannot be imported, is none, or refuses its options."""
    if isinstance(encoder := pipeline.shards.encoder, OwnSpec):
        check_own_encoder(encoder, encoder_code(encoder, (str(path.parent),)) or b"")


def check_tracking_uri(uri: str) -> None:
    """Raises `ConfigError` for a scheme that neither MLflow nor an installed plugin takes; no scheme is a path."""
    scheme = urlsplit(uri).scheme
    plugins = {plugin.name for plugin in entry_points(group="mlflow.tracking_store")}
    if scheme and scheme.partition("+")[0] not in TRACKING_SCHEMES | plugins:
        raise ConfigError(
            f"MLflow takes no tracking URI with scheme {scheme!r}.",
            where="registry.tracking_uri",
            advice=f"Use one of {', '.join(sorted(TRACKING_SCHEMES))}, or leave it empty for a SQLite database.",
        )
