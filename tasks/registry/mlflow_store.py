"""How Headway reaches MLflow: offline defaults, bounded waits, and one tracking run for one Headway run."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store.documents import EvaluationReport, RunSpec
from headway.data_contracts.store.errors import EnvironmentProblem, RegistryError, shortened
from headway.data_contracts.store.publication import Workspace
from headway.tasks.registry.file_lock import holding

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

RUN_TAG = "headway.run"
MODEL_FOLDER = "model"
"""A version's files, below those of its run."""
NOT_THERE = "RESOURCE_DOES_NOT_EXIST"
"""MLflow's code of an error: it has no such version, run or alias."""
SQLITE = "sqlite:///"
UI_OF_A_LOCAL_STORE = "http://127.0.0.1:5000"
DATABASE_LOG = "mlflow.store.db.utils"
MIGRATION_WITHIN_S = 120.0
QUIET_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


def default_tracking_uri(workspace: Workspace) -> str:
    """MLflow's own SQLite database on the workspace's local side: in the workspace itself where that is a folder."""
    return f"{SQLITE}{workspace.local_path('mlflow.db')}"


def artifact_root(workspace: Workspace) -> str:
    return workspace.local_path("mlartifacts").as_uri()


@contextlib.contextmanager
def mlflow_client(tracking_uri: str) -> Iterator[None]:
    """Whatever MLflow or its database throws becomes one error that a person, and the retry policy, can act on.

    Raises:
        RegistryError: retryable.
    """
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError, OSError, ImportError) as error:
        message = str(error).strip().splitlines()
        raise RegistryError(
            f"MLflow refuses ({type(error).__name__}: {shortened(message[0], 300) if message else 'no reason given'}).",
            where=tracking_uri,
            advice="Mend or start it, or correct `registry.tracking_uri`; what was trained is kept.",
        ) from error


def quiet_mlflow() -> None:
    """Before MLflow is imported: it says nothing home, waits for seconds only, unpickles no model, draws no bars."""
    for name, value in QUIET_SETTINGS.items():
        # What a person has set stays.
        os.environ.setdefault(name, value)
    # Alembic logs each of the database's migrations, some dozens for a new store.
    for noisy in (DATABASE_LOG, "mlflow.pyfunc", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger(DATABASE_LOG).addFilter(_is_no_traceback)


def _is_no_traceback(record: logging.LogRecord) -> bool:
    """Pages of it, of a full disk say, are raised as well, and who asked says them in a line; retries are told."""
    return not record.exc_info


def load() -> None:
    """Import all that the first `connect` would, a second of a core."""
    quiet_mlflow()
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


def connect(tracking_uri: str, *, must_exist: bool = False) -> MlflowClient:
    """A client of the store, quiet and patient for seconds only.

    Args:
        must_exist: refuse a SQLite database that is not there instead of making it.

    Raises:
        RegistryError: the store does not answer; retryable.
    """
    quiet_mlflow()
    database = database_of(tracking_uri)
    if must_exist and database is not None and not database.is_file():
        raise RegistryError("MLflow's database is gone.", where=tracking_uri)
    if database is not None:
        _make_no_folder_of(tracking_uri)
    from mlflow import MlflowClient

    # One that is there has its tables: whoever only reads needs no lock, and no right to write one.
    with mlflow_client(tracking_uri), _one_migration_at_a_time(None if must_exist else database):
        client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
        # A client opens nothing before it is asked: a store that is away should be found here.
        client.search_experiments(max_results=1)
    return client


def database_of(tracking_uri: str) -> Path | None:
    """The file of an SQLite store; None where there is none."""
    name = tracking_uri.removeprefix(SQLITE).partition("?")[0]
    return Path(name) if tracking_uri.startswith(SQLITE) and name not in ("", ":memory:") else None


@contextlib.contextmanager
def _one_migration_at_a_time(database: Path | None) -> Iterator[None]:
    """Whoever opens an SQLite store first makes its tables; two at once spoil it for each other, and so does an end in
    the midst of it: a new one has its name only when it has all of them."""
    if database is None:
        yield
        return
    _require_folder(database)
    with holding(Path(f"{database}.lock"), within_s=MIGRATION_WITHIN_S):
        if not database.exists():
            _make_tables(database)
        yield


def _require_folder(database: Path) -> None:
    """A workspace that went away is made nowhere anew."""
    if not database.parent.is_dir():
        raise EnvironmentProblem(
            "the folder of MLflow's database is not there.",
            where=str(database.parent),
            advice="Bring it back to its place, or make it.",
        )


_of_ours: set[str] = set()
"""URIs of SQLite stores whose folders are workspaces'."""


def _make_no_folder_of(tracking_uri: str) -> None:
    """MLflow makes the folder of a database whenever it opens one: seconds after ours was looked at, while MLflow is
    imported, and for the registry when that is first asked for."""
    from mlflow.store.db import utils

    made_by_mlflow = utils._make_parent_dirs_if_sqlite

    def require_or_make(db_uri: str) -> None:
        database = database_of(db_uri) if db_uri in _of_ours else None
        if database is None:
            made_by_mlflow(db_uri)
        else:
            _require_folder(database)

    if not _of_ours:
        utils._make_parent_dirs_if_sqlite = require_or_make
    _of_ours.add(tracking_uri)


def _make_tables(database: Path) -> None:
    from mlflow.store.db.utils import _initialize_tables
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    unfinished = database.with_name(f".{database.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    # A pooled connection would keep the file open under a name that it is about to lose.
    _initialize_tables(create_engine(f"{SQLITE}{unfinished}", poolclass=NullPool))
    # Not in the place of one that a server has made meanwhile, whose journal would be taken for this one's.
    with contextlib.suppress(FileExistsError):
        os.link(unfinished, database)
    unfinished.unlink()


def model_page(tracking_uri: str, model: str, version: str) -> str:
    """Where a person sees a version: on the tracking server, or where `headway ui` shows a local store by default."""
    base = tracking_uri.rstrip("/") if tracking_uri.startswith(("http://", "https://")) else UI_OF_A_LOCAL_STORE
    return f"{base}/#/models/{model}/versions/{version}"


def find_run(client: MlflowClient, pipeline: str, run: RunSpec) -> Run | None:
    experiment = client.get_experiment_by_name(pipeline)
    if experiment is None:
        return None
    found = client.search_runs([experiment.experiment_id], f"tags.`{RUN_TAG}` = '{run.sha256}'", max_results=1)
    return found[0] if found else None


def find_or_create_run(client: MlflowClient, workspace: Workspace | None, pipeline: str, run: RunSpec) -> Run:
    """The tracking run of a Headway run: made once, however often the flow is retried."""
    if (found := find_run(client, pipeline, run)) is not None:
        return found
    experiment_id = _find_or_create_experiment(client, workspace, pipeline)
    return client.create_run(experiment_id, run_name=f"{pipeline} {run.sha256[:8]}", tags={RUN_TAG: run.sha256})


def _find_or_create_experiment(client: MlflowClient, workspace: Workspace | None, pipeline: str) -> str:
    from mlflow.exceptions import MlflowException

    if (experiment := client.get_experiment_by_name(pipeline)) is not None:
        return str(experiment.experiment_id)
    # MLflow's default is a folder `mlruns` below wherever the command was started.
    root = f"{artifact_root(workspace)}/{pipeline}" if workspace is not None else None
    try:
        return str(client.create_experiment(pipeline, artifact_location=root))
    except MlflowException:
        # Names are unique: another flow of this pipeline may have been first.
        if (experiment := client.get_experiment_by_name(pipeline)) is None:
            raise
        return str(experiment.experiment_id)


def alias_version(client: MlflowClient, model: str, alias: str) -> str | None:
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_model_version_by_alias(model, alias).version)
    except MlflowException as error:
        # For an alias that does not exist MLflow's database store answers with the second code.
        if error.error_code not in (NOT_THERE, "INVALID_PARAMETER_VALUE"):
            raise
        return None


def flattened(value: Any, prefix: str = "") -> dict[str, str]:
    """A config tree as MLflow's flat parameters, dotted."""
    if isinstance(value, dict):
        pairs: dict[str, str] = {}
        for name, item in value.items():
            pairs |= flattened(item, f"{prefix}{name}.")
        return pairs
    return {prefix.rstrip("."): str(value)[:500]}


def log_result(
    client: MlflowClient, run_id: str, run: RunSpec, report: EvaluationReport, lineage: dict[str, str]
) -> None:
    """Parameters, evaluation metrics and lineage of a finished run; logging them again changes nothing."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

    metrics = []
    for name, interval in report.metrics.items():
        values = {"": interval.value, "_low": interval.low, "_high": interval.high}
        # Time and step are part of MLflow's key of a metric: 0, so that a repeated call adds no second point.
        metrics += [Metric(f"heldout_{name}{end}", value, 0, 0) for end, value in values.items()]
    metrics += [Metric(f"baseline_{metric_key(name)}", value, 0, 0) for name, value in report.baselines.items()]
    client.log_batch(
        run_id,
        metrics=metrics,
        params=[Param(name, value) for name, value in flattened(run.config).items()],
        tags=[RunTag(name, value) for name, value in lineage.items()],
    )
    dataset = Dataset(
        name=run.pipeline,
        # MLflow takes 36 characters; the full digest is a tag.
        digest=lineage["headway.snapshot"][:32],
        source_type="headway",
        source=lineage["headway.snapshot"],
    )
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("contract", lineage["headway.contract"])])])


def metric_key(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def has_version(client: MlflowClient, model: str, version: str, tag: str, value: str) -> bool:
    """Whether MLflow has this version, and it carries this tag."""
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_model_version(model, version).tags.get(tag) == value)
    except MlflowException as error:
        if error.error_code != NOT_THERE:
            raise
        return False
