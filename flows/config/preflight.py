"""What can be refused before anything is spent: pipeline file, contract, recipe, encoder and workspace."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from headway.data_contracts.rules.contract import Contract
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.suites.contract_file import read_contract_file
from headway.flows.config.cost_bound import bound_prices
from headway.flows.config.first_step import check_encodes, check_first_step
from headway.flows.config.named_columns import require_named_columns
from headway.flows.config.pipeline_file import pipeline_file
from headway.flows.config.pipeline_spec import PipelineSpec, in_file
from headway.flows.config.request import RetrainRequest, TrainingRequest, TrialsRequest
from headway.flows.console.environment import project_folder
from headway.tasks.registry import model_refs
from headway.tasks.rows.validation_split import refuse_mixed
from headway.tasks.search.budget import WHERE as BUDGET
from headway.tasks.search.trials_spec import Trial
from headway.training.config.encoder_specs import CustomEncoderSpec
from headway.training.data.encode.hosted_encoder import check_custom_encoder
from headway.training.frozen.code_archive import encoder_code
from headway.training.frozen.recipe_check import check_recipe

TRACKING_SCHEMES = frozenset(
    {"http", "https", "file", "sqlite", "postgresql", "mysql", "mssql", "databricks", "databricks-uc"}
)
"""What MLflow itself takes; a database may name its driver, as in `postgresql+psycopg2`."""


def check_request(
    request: TrainingRequest, *, only_looks: bool = False, trains_here: bool = True
) -> tuple[PipelineSpec, Path, Workspace]:
    """The pipeline, its file and its workspace, all found good.

    Args:
        only_looks: whether a workspace that is not there yet stays so, where it could be made.
        trains_here: as `check_first_step` has it.

    Raises:
        ConfigError: pipeline file, contract, recipe, encoder, model to start from, tracking URI, a bound on
            the cost without prices, or a split that would mix rows that validated with rows that evaluate.
        EnvironmentProblem: the workspace cannot be written, or the recipe wants a device that is not here.
        RunStopped: the time to stop is over already.
    """
    _ = request.stop
    _, path, pipeline = pipeline_file(request.pipeline)
    # A run that resumes keeps its own data and code, whatever the contract lists by now.
    is_resume = isinstance(request, RetrainRequest) and bool(request.run)
    contract = check_contract(pipeline, path, is_resume=is_resume)
    check_pipeline_recipe(pipeline, path)
    check_encoder(pipeline, path)
    check_tracking_uri(pipeline.registry.tracking_uri)
    if pipeline.cost_bound is not None:
        bound_prices(project_folder())
    if _searches(request, pipeline) and pipeline.trials is not None and pipeline.trials.is_bound_in_usd:
        bound_prices(project_folder(), BUDGET)
    if not is_resume:
        check_first_step(pipeline, path, contract, Workspace(request.workspace), trains_here=trains_here)
    workspace = Workspace(request.workspace)
    # A workspace that could not be made is refused by a plan too.
    if not (only_looks and workspace.can_be_created()):
        workspace = Workspace.create(request.workspace)
    if not is_resume:
        refuse_mixed(workspace, pipeline.pipeline, pipeline.shards)
    if pipeline.training.start_from is not None:
        model_refs.resolve(workspace, pipeline.training.start_from.model, to_start_from=True)
    return pipeline, path, workspace


def _searches(request: TrainingRequest, pipeline: PipelineSpec) -> bool:
    if isinstance(request, TrialsRequest):
        return True
    return request.in_window and pipeline.trials is not None and pipeline.trials.every is not None


def check_contract(pipeline: PipelineSpec, path: Path, *, is_resume: bool = False) -> Contract:
    """The contract that the pipeline file at `path` names.

    Args:
        is_resume: whether it is for a run whose data have passed one.

    Raises:
        ConfigError: the contract, its SQL or the suite that it names cannot be understood, or the pipeline names
            columns that it does not list.
    """
    contract = read_contract_file(path.parent / pipeline.contract).contract
    if not is_resume:
        require_named_columns(pipeline, contract, path, is_data_only=False)
    return contract


def check_pipeline_recipe(pipeline: PipelineSpec, path: Path) -> None:
    """Raises `ConfigError`: no such recipe, module or class, or fields that it refuses; by the pipeline file's line."""
    recipe = pipeline.training.recipe
    try:
        check_recipe(recipe.name, recipe.model, (str(path.parent),))
    except ConfigError as error:
        raise in_file(error, path) from error


def check_encoder(pipeline: PipelineSpec, path: Path) -> None:
    """Raises `ConfigError`: an encoder of the user's own cannot be imported, is none, or refuses its options."""
    if isinstance(encoder := pipeline.shards.encoder, CustomEncoderSpec):
        check_custom_encoder(encoder, encoder_code(encoder, (str(path.parent),)) or b"")


def check_trial_encoders(pipeline: PipelineSpec, path: Path, contract: Contract, trials: Iterable[Trial]) -> None:
    """Encoders of the user's own, with the options of each trial, tried on made-up rows.

    Raises:
        ConfigError: one of them refuses its options, or these rows.
    """
    shards = {trial.shards.model_dump_json(): trial for trial in trials if trial.shards != pipeline.shards}
    for trial in shards.values():
        wanted = pipeline.model_copy(update={"shards": trial.shards, "training": trial.training})
        try:
            check_encoder(wanted, path)
            check_encodes(wanted, path, contract)
        except ConfigError as error:
            where = f"{path}: {trial.name} ({trial}): {error.where}"
            raise ConfigError(error.what, where=where, advice=error.advice) from error


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
