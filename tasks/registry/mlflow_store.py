"""How Headway reaches MLflow: offline defaults, bounded waits, and one tracking run for one Headway run."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import sys
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.documents import EvaluationReport, RunSpec
from headway.data_contracts.store.errors import (
    EnvironmentProblem,
    HeadwayError,
    IntegrityError,
    RegistryError,
    shortened,
)
from headway.data_contracts.store.plain_text import markdown_table
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.regular_files import PUT_BACK, NotRegular
from headway.data_contracts.tables.sqlite_files import plain_database
from headway.data_contracts.types.report_text import moment
from headway.tasks.core import identity
from headway.tasks.registry.file_lock import holding
from headway.tasks.tracking import records
from headway.tasks.tracking.local_client import LocalClient, local_client
from headway.tasks.tracking.mlflow_tables import TRIGGERS, StoredVersion, mlflow_tables

if TYPE_CHECKING:
    from typing import TypeAlias

    from mlflow import MlflowClient
    from mlflow.entities import Run

    Client: TypeAlias = MlflowClient | LocalClient

RUN_TAG = "headway.run"
MODEL_FOLDER = "model"
"""A version's files, below those of its run."""
NOT_THERE = "RESOURCE_DOES_NOT_EXIST"
"""MLflow's code of an error: it has no such version, run or alias."""
DESCRIPTION_TAG = "mlflow.note.content"
"""MLflow's own: Markdown at the top of a run's page, which shows other tags by their first forty characters."""
EVALUATION_TITLE = "\n\n### Evaluation\n\n"
PARSERS = ("mlflow.", "google.protobuf", "google._upb")
"""Modules that read a server's answers."""
MAX_PARAM_CHARS = 6000
"""MLflow's own limit."""
FILES = "mlartifacts"
"""Files of the runs in the workspace's own store."""
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
    return workspace.local_path(FILES).as_uri()


def require_own_folder(workspace: Workspace, run: Run | records.Run) -> None:
    """Of a run in the workspace's own store: its files lie in the workspace.

    Whoever else writes the workspace could name any folder there, or a server, to which MLflow would send the
    credentials of this environment.

    Raises:
        IntegrityError: they lie elsewhere.
    """
    require_within(workspace, str(run.info.artifact_uri))


def require_own_files(workspace: Workspace, tracking_uri: str, pipeline: str) -> None:
    """As `require_own_folder`, before there is a run: a workspace that was moved is refused before it trains.

    Raises:
        IntegrityError: files of the pipeline's runs lie elsewhere.
    """
    if tracking_uri != default_tracking_uri(workspace):
        return
    with mlflow_tables(database_of(tracking_uri)) as tables:
        # Who holds the database for longer than that says nothing of where files lie: registering asks again.
        place = None
        with contextlib.suppress(sqlite3.Error):
            place = None if tables is None else tables.files_of(pipeline)
    if place is not None:
        require_within(workspace, place)


def require_within(workspace: Workspace, place: str) -> None:
    """Raises `IntegrityError`: files that the workspace's own store names lie elsewhere."""
    root = f"{artifact_root(workspace)}/"
    # By the root's own text: another spelling of the place is none that we wrote.
    if place.startswith(root):
        with contextlib.suppress(IntegrityError):
            workspace.local_path(f"{FILES}/{unquote(place.removeprefix(root))}/{MODEL_FOLDER}")
            return
    raise IntegrityError(
        "MLflow's database says that the run's files lie outside of the workspace's own.",
        where=place,
        advice="If the workspace was moved or copied, work where it was, or move "
        f"{workspace.local_path('mlflow.db')} aside: what is found again is registered anew. Else somebody altered it.",
    )


@contextlib.contextmanager
def mlflow_client(tracking_uri: str) -> Iterator[None]:
    """Whatever MLflow or its database throws becomes one error that a person, and the retry policy, can act on.

    Raises:
        RegistryError: retryable.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, _errors_of_mlflow()) and not _is_of_answer(error):
            raise
        message = str(error).strip().splitlines()
        raise RegistryError(
            f"MLflow refuses ({type(error).__name__}: {shortened(message[0], 300) if message else 'no reason given'}).",
            where=tracking_uri,
            advice="Mend or start it, or correct `registry.tracking_uri`; what was trained is kept.",
        ) from error


def is_held_by_another(error: BaseException) -> bool:
    """Whether a database was locked for as long as it was asked: then it has said nothing."""
    cause: BaseException | None = error
    while cause is not None:
        # SQLAlchemy keeps what SQLite raised as `orig`.
        code = getattr(getattr(cause, "orig", cause), "sqlite_errorcode", None)
        # The lowest byte: what else a code says is why.
        if isinstance(code, int) and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _is_of_answer(error: Exception) -> bool:
    """Whether MLflow's client, or what parses for it, stumbled over an answer: it takes any for its server's."""
    last = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        last = str(frame.f_globals.get("__name__"))
    return not isinstance(error, HeadwayError) and last.startswith(PARSERS)


def _errors_of_mlflow() -> tuple[type[Exception], ...]:
    if "mlflow" not in sys.modules:  # nobody has asked it yet
        return (OSError, ImportError, sqlite3.Error)
    from mlflow.exceptions import MlflowException
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    return (MlflowException, RequestException, SQLAlchemyError, OSError, ImportError, sqlite3.Error)


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
        _require_plain(database)
    from mlflow import MlflowClient

    # One that is there has its tables: whoever only reads needs no lock, and no right to write one.
    with mlflow_client(tracking_uri), _one_migration_at_a_time(None if must_exist else database):
        client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
        # A client opens nothing before it is asked: a store that is away should be found here.
        client.search_experiments(max_results=1)
    return client


@contextlib.contextmanager
def opened(workspace: Workspace, tracking_uri: str) -> Iterator[Client]:
    """A client of the store while the body runs: one of our own for the workspace's store, once MLflow has made it.

    Raises:
        RegistryError: the store does not answer; retryable.
    """
    with contextlib.ExitStack() as stack:
        own = None
        if tracking_uri == default_tracking_uri(workspace):
            database = workspace.local_path("mlflow.db")
            with mlflow_client(tracking_uri):
                own = stack.enter_context(local_client(database, QUIET_SETTINGS))
        yield own or connect(tracking_uri)


def entities_of(client: Client) -> Any:
    """Where the kinds of what is logged are, as the client takes them."""
    if isinstance(client, LocalClient):
        return records
    import mlflow.entities

    return mlflow.entities


def _require_plain(database: Path) -> None:
    """Raises `RegistryError`: whoever may write it would keep us waiting for ever, with a pipe or an endless view."""
    try:
        # Of a writer that was killed SQLite puts the database in order, as it will for MLflow.
        with plain_database(database, "rw", triggers=TRIGGERS):
            pass
    except NotRegular as error:
        raise RegistryError(
            f"it is {error.what}, not a file.", where=error.filename, advice="Move aside what lies there."
        ) from error
    except ValueError as error:
        raise RegistryError(f"{error}.", where=str(database), advice=PUT_BACK) from error
    except (OSError, sqlite3.Error):
        return  # one that is not there yet, or that MLflow will say more about


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


def find_run(client: Client, pipeline: str, run: RunSpec) -> Run | records.Run | None:
    experiment = client.get_experiment_by_name(pipeline)
    if experiment is None:
        return None
    if isinstance(client, LocalClient):
        return client.run_with_tag(experiment.experiment_id, RUN_TAG, run.sha256)
    found = client.search_runs([experiment.experiment_id], f"tags.`{RUN_TAG}` = '{run.sha256}'", max_results=1)
    return found[0] if found else None


def find_or_create_run(
    client: Client, workspace: Workspace | None, pipeline: str, run: RunSpec, trial: str = ""
) -> Run | records.Run:
    """The tracking run of a Headway run: made once, however often the flow is retried.

    Args:
        trial: its name, where a flow run trains several.
    """
    if (found := find_run(client, pipeline, run)) is not None:
        return found
    experiment_id = find_or_create_experiment(client, workspace, pipeline)
    words = (pipeline, trial, f"{datetime.now(UTC):%Y-%m-%d}", run.sha256[:8])
    made = client.create_run(experiment_id, run_name=" ".join(filter(None, words)), tags=run_tags(run))
    client.log_batch(made.info.run_id, params=params_of(client, run.config))
    return made


def name_by_version(client: Client, run_id: str, pipeline: str, version: str) -> None:
    """Call a run by the version that came of it, and the day it began."""
    # A server may say any number, also one of no calendar.
    day = moment(client.get_run(run_id).info.start_time / 1000).partition(" ")[0]
    client.update_run(run_id, name=f"{pipeline} {day} v{version}")


def run_tags(run: RunSpec) -> dict[str, str]:
    """What a run stands on, and who had it made: known before it trains."""
    links = {"manifest": run.manifest, "receipt": run.receipt, "fitted": run.fitted, "start": run.start}
    digests = {name: link.sha256 for name, link in links.items() if link is not None}
    digests |= {"code": run.code.sha256, "environment": run.environment.sha256}
    return {
        RUN_TAG: run.sha256,
        "headway.pipeline": run.pipeline,
        "headway.recipe": str((run.config.get("recipe") or {}).get("name", "unknown")),
        **{f"headway.{name}": digest for name, digest in digests.items()},
        # MLflow's own, which its table of runs shows.
        "mlflow.user": identity.current_user(),
        "mlflow.source.name": f"headway retrain {run.pipeline}",
        "mlflow.source.type": "JOB",
    }


def find_or_create_experiment(client: Client, workspace: Workspace | None, pipeline: str) -> str:
    if (experiment := client.get_experiment_by_name(pipeline)) is not None:
        return str(experiment.experiment_id)
    # MLflow's default is a folder `mlruns` below wherever the command was started.
    root = f"{artifact_root(workspace)}/{pipeline}" if workspace is not None else None
    if isinstance(client, LocalClient):
        return client.create_experiment(pipeline, artifact_location=str(root))
    from mlflow.exceptions import MlflowException

    try:
        return str(client.create_experiment(pipeline, artifact_location=root))
    except MlflowException:
        # Names are unique: another flow of this pipeline may have been first.
        if (experiment := client.get_experiment_by_name(pipeline)) is None:
            raise
        return str(experiment.experiment_id)


def ensure_model(client: Client, model: str, description: str) -> None:
    if isinstance(client, LocalClient):
        client.ensure_registered_model(model, description)
        return
    from mlflow.exceptions import MlflowException

    try:
        client.get_registered_model(model)
    except MlflowException:
        client.create_registered_model(model, description=description)


def alias_version(client: Client, model: str, alias: str) -> str | None:
    if isinstance(client, LocalClient):
        return client.tables.alias(model, alias)
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_model_version_by_alias(model, alias).version)
    except MlflowException as error:
        # For an alias that does not exist MLflow's database store answers with the second code.
        if error.error_code not in (NOT_THERE, "INVALID_PARAMETER_VALUE"):
            raise
        return None


def flattened(value: Any, prefix: str = "") -> dict[str, str]:
    """A config tree as MLflow's flat parameters, dotted. Equal trees have equal text: MLflow refuses another later."""
    if isinstance(value, dict):
        pairs: dict[str, str] = {}
        for name, item in value.items():
            pairs |= flattened(item, f"{prefix}{name}.")
        return pairs
    # The keys within a list: a document that was read has them in another order than one that was made.
    text = canonical_json(value).decode().rstrip() if isinstance(value, list | tuple) else str(value)
    return {prefix.rstrip("."): text[:MAX_PARAM_CHARS]}


def params_of(client: Client, config: Mapping[str, Any]) -> list[Any]:
    """As the client takes them."""
    param = entities_of(client).Param
    return [param(name, value) for name, value in flattened(config).items()]


def log_result(client: Client, run_id: str, run: RunSpec, report: EvaluationReport, lineage: dict[str, str]) -> None:
    """Parameters, evaluation metrics and lineage of a finished run; logging them again changes nothing.

    Each metric has a chart, so that intervals are in the run's description.
    """
    entities = entities_of(client)
    stored = client.get_run(run_id)
    # Time and step are part of MLflow's key of a metric: the run's own, so that a repeated call adds no second point.
    # What has step 0 alone is drawn as a bar, and else as a curve of one point.
    millis, step = stored.info.start_time, 0
    values = {name: each.value for name, each in report.metrics.items()}
    values |= {f"{report.metric}_of_{name}": value for name, value in report.baselines.items()}
    intervals = [(name, f"{each.value:.4g} [{each.low:.4g}, {each.high:.4g}]") for name, each in report.metrics.items()]
    table = markdown_table((f"on {report.num_examples:,} {report.split} examples", "value"), intervals)
    before = stored.data.tags.get(DESCRIPTION_TAG, "").partition(EVALUATION_TITLE)[0]
    described = before + EVALUATION_TITLE + "\n".join(table)
    client.log_batch(
        run_id,
        metrics=[entities.Metric(f"eval/{metric_key(name)}", value, millis, step) for name, value in values.items()],
        params=params_of(client, run.config),
        tags=[entities.RunTag(name, value) for name, value in {**lineage, DESCRIPTION_TAG: described}.items()],
    )
    dataset = entities.Dataset(
        name=run.pipeline,
        # MLflow takes 36 characters; the full digest is a tag.
        digest=lineage["headway.snapshot"][:32],
        source_type="headway",
        source=lineage["headway.snapshot"],
    )
    tag = entities.InputTag("contract", lineage["headway.contract"])
    client.log_inputs(run_id, [entities.DatasetInput(dataset, [tag])])


def metric_key(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def stored_version(client: Client, model: str, version: str) -> StoredVersion | None:
    """None: MLflow has no such version."""
    if isinstance(client, LocalClient):
        return client.tables.version(model, version)
    from mlflow.exceptions import MlflowException

    try:
        found = client.get_model_version(model, version)
    except MlflowException as error:
        if error.error_code != NOT_THERE:
            raise
        return None
    return StoredVersion(found.run_id or "", found.description or "", dict(found.tags))
