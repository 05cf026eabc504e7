"""A client of the workspace's own MLflow store that writes its tables itself.

It has the calls of MLflow's client that a retrain makes, and leaves the rows that MLflow would leave. MLflow is asked
instead where the store is another, its tables are of another revision, or a setting of MLflow's might change what it
writes.
"""

from __future__ import annotations

import contextlib
import math
import os
import posixpath
import re
import shutil
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from headway.data_contracts.store.errors import RegistryError
from headway.data_contracts.tables.sqlite_files import plain_database
from headway.tasks.tracking.mlflow_tables import DELETED, REVISION, TRIGGERS, WORKSPACE, MlflowTables
from headway.tasks.tracking.records import (
    DatasetInput,
    Experiment,
    MadeVersion,
    Metric,
    Param,
    Run,
    RunData,
    RunInfo,
    RunTag,
)

RUN_NAME = "mlflow.runName"
USER = "mlflow.user"
FILE_SCHEME = "file://"
WAITS_MS = 20_000
"""For another writer; MLflow's own."""
MAX_KEY_CHARS, MAX_PARAM_CHARS, MAX_TAG_CHARS = 250, 6000, 8000
"""MLflow's own limits; a longer value is cut, a longer key refused."""
LARGEST = 1.7976931348623157e308
"""What stands for an infinite value."""
NAME = re.compile(r"[/\w.\- :]*")
"""Of a metric, parameter or tag."""
WITHOUT_EFFECT = {"MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}
"""Settings that say which store, and who asks: this one is named, and asks nobody."""


@contextlib.contextmanager
def local_client(
    database: Path, known_settings: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> Iterator[LocalClient | None]:
    """None: MLflow itself has to be asked.

    Args:
        known_settings: those of MLflow's that Headway makes; any other may change what MLflow writes.
    """
    with contextlib.ExitStack() as stack:
        yield _open(database, stack) if _is_usual(known_settings, environ) else None


def _is_usual(known: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    ours = {name: value for name, value in environ.items() if name.startswith("MLFLOW_") and name not in WITHOUT_EFFECT}
    return ours.items() <= known.items()


def _open(database: Path, stack: contextlib.ExitStack) -> LocalClient | None:
    try:
        connection = stack.enter_context(plain_database(database, "rw", triggers=TRIGGERS))
        connection.isolation_level = None  # transactions begin and end where they are said to
        connection.execute("pragma foreign_keys = on")
        connection.execute(f"pragma busy_timeout = {WAITS_MS}")
        revisions = connection.execute("select version_num from alembic_version").fetchall()
    except (OSError, ValueError, sqlite3.Error):
        return None  # MLflow makes it, or says what is wrong with it
    return LocalClient(database, connection) if revisions == [(REVISION,)] else None


class LocalClient:
    """Raises `sqlite3.Error` where the database refuses, and `RegistryError` where MLflow would."""

    def __init__(self, database: Path, connection: sqlite3.Connection) -> None:
        self._path, self._database = database, connection
        self.tables = MlflowTables(connection)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("begin immediate")
        try:
            yield self._database
        except BaseException:
            self._database.execute("rollback")
            raise
        self._database.execute("commit")

    # Experiments and runs.

    def get_experiment_by_name(self, name: str) -> Experiment | None:
        row = self._database.execute(
            "select experiment_id from experiments where workspace = ? and name = ?", (WORKSPACE, name)
        ).fetchone()
        return None if row is None else Experiment(str(row[0]))

    def create_experiment(self, name: str, *, artifact_location: str) -> str:
        """The one of that name, should another flow of this pipeline have been first."""
        now = _now_ms()
        with self._transaction() as database:
            database.execute(
                "insert into experiments (name, artifact_location, lifecycle_stage, creation_time, last_update_time,"
                " workspace) values (?, ?, 'active', ?, ?, ?) on conflict do nothing",
                (name, artifact_location, now, now, WORKSPACE),
            )
        found = self.get_experiment_by_name(name)
        if found is None:
            raise self._refusal(f"it takes no experiment {name}")
        return found.experiment_id

    def create_run(self, experiment_id: str, *, run_name: str, tags: Mapping[str, str]) -> Run:
        row = self._database.execute(
            "select artifact_location, lifecycle_stage from experiments where experiment_id = ?", (int(experiment_id),)
        ).fetchone()
        if row is None or row[1] != "active":
            raise self._refusal(f"experiment {experiment_id} was deleted")
        run_id, started = uuid.uuid4().hex, _now_ms()
        place = f"{row[0]}/{run_id}/artifacts"
        with self._transaction() as database:
            database.execute(
                "insert into runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status,"
                " start_time, source_version, lifecycle_stage, artifact_uri, experiment_id)"
                " values (?, ?, 'UNKNOWN', '', '', ?, 'RUNNING', ?, '', 'active', ?, ?)",
                (run_id, run_name, tags.get(USER, "unknown"), started, place, int(experiment_id)),
            )
            self._set_tags(run_id, [*(RunTag(*pair) for pair in tags.items()), RunTag(RUN_NAME, run_name)])
        return self.get_run(run_id)

    def get_run(self, run_id: str) -> Run:
        row = self._database.execute(
            "select run_uuid, name, experiment_id, status, start_time, artifact_uri from runs where run_uuid = ?",
            (run_id,),
        ).fetchone()
        if row is None:
            raise self._refusal(f"it has no run {run_id}")
        tags = self._database.execute("select key, value from tags where run_uuid = ?", (run_id,)).fetchall()
        return Run(RunInfo(row[0], row[1], str(row[2]), *row[3:]), RunData(dict(tags)))

    def run_with_tag(self, experiment_id: str, key: str, value: str) -> Run | None:
        """The one that began last, of those that were not deleted."""
        row = self._database.execute(
            "select run_uuid from runs join tags using (run_uuid) where experiment_id = ? and key = ? and value = ?"
            " and lifecycle_stage = 'active' order by start_time desc, run_uuid limit 1",
            (int(experiment_id), key, value),
        ).fetchone()
        return None if row is None else self.get_run(row[0])

    def running(self) -> list[Run]:
        """Of every experiment; none that was deleted."""
        rows = self._database.execute(
            "select run_uuid from runs join experiments using (experiment_id) where status = 'RUNNING'"
            " and runs.lifecycle_stage = 'active' and experiments.lifecycle_stage = 'active'"
        ).fetchall()
        return [self.get_run(run_id) for (run_id,) in rows]

    def update_run(self, run_id: str, *, status: str | None = None, name: str | None = None) -> None:
        with self._transaction() as database:
            self._require_active(run_id)
            if status is not None:
                database.execute("update runs set status = ? where run_uuid = ?", (status, run_id))
            if name is not None:
                database.execute("update runs set name = ? where run_uuid = ?", (name, run_id))
                self._set_tags(run_id, [RunTag(RUN_NAME, name)])

    def set_terminated(self, run_id: str, status: str) -> None:
        with self._transaction() as database:
            self._require_active(run_id)
            database.execute("update runs set status = ?, end_time = ? where run_uuid = ?", (status, _now_ms(), run_id))

    def set_tag(self, run_id: str, key: str, value: str) -> None:
        self.log_batch(run_id, tags=[RunTag(key, value)])

    def log_batch(
        self,
        run_id: str,
        *,
        metrics: Sequence[Metric] = (),
        params: Sequence[Param] = (),
        tags: Sequence[RunTag] = (),
    ) -> None:
        for key in (*(each.key for each in metrics), *(each.key for each in params), *(each.key for each in tags)):
            self._require_name(key)
        with self._transaction():
            self._require_active(run_id)
            self._log_params(run_id, params)
            self._log_metrics(run_id, metrics)
            self._set_tags(run_id, tags)

    def get_metric_history(self, run_id: str, key: str) -> list[Metric]:
        rows = self._database.execute(
            "select key, value, timestamp, step from metrics where run_uuid = ? and key = ?"
            " order by timestamp, step, value",
            (run_id, key),
        )
        return [Metric(*row) for row in rows.fetchall()]

    def log_inputs(self, run_id: str, datasets: Sequence[DatasetInput]) -> None:
        with self._transaction() as database:
            experiment_id = self._require_active(run_id)
            for dataset, tags in datasets:
                found = database.execute(
                    "select dataset_uuid from datasets where experiment_id = ? and name = ? and digest = ?",
                    (experiment_id, dataset.name, dataset.digest),
                ).fetchone()
                dataset_id = uuid.uuid4().hex if found is None else found[0]
                if found is None:
                    database.execute(
                        "insert into datasets (dataset_uuid, experiment_id, name, digest, dataset_source_type,"
                        " dataset_source) values (?, ?, ?, ?, ?, ?)",
                        (dataset_id, experiment_id, *dataset),
                    )
                edge = ("DATASET", dataset_id, "RUN", run_id)
                if database.execute(
                    "select 1 from inputs where source_type = ? and source_id = ? and destination_type = ?"
                    " and destination_id = ?",
                    edge,
                ).fetchone():
                    continue
                input_id = uuid.uuid4().hex
                database.execute(
                    "insert into inputs (input_uuid, source_type, source_id, destination_type, destination_id)"
                    " values (?, ?, ?, ?, ?)",
                    (input_id, *edge),
                )
                database.executemany(
                    "insert into input_tags (input_uuid, name, value) values (?, ?, ?)",
                    [(input_id, *tag) for tag in tags],
                )

    def log_artifacts(self, run_id: str, local_dir: str, artifact_path: str) -> None:
        source, target = Path(local_dir), self._files_of(run_id) / artifact_path
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(source.rglob("*")):  # folders come before what is in them
            place = target / path.relative_to(source)
            # Folders have modes of their own: those copied may be closed to others.
            if path.is_dir():
                place.mkdir(exist_ok=True)
            else:
                shutil.copy2(path, place)

    def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
        """A file in the run's own folder, which is never seen half."""
        folder = self._files_of(run_id)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".mlflow_tmp_") as beside:
            made = Path(beside) / posixpath.basename(artifact_file)
            made.write_text(text, encoding="utf-8")
            made.replace(folder / made.name)

    # Registered models.

    def ensure_registered_model(self, name: str, description: str) -> None:
        now = _now_ms()
        with self._transaction() as database:
            database.execute(
                "insert into registered_models (name, creation_time, last_updated_time, description, workspace)"
                " values (?, ?, ?, ?, ?) on conflict do nothing",
                (name, now, now, description, WORKSPACE),
            )

    def create_model_version(
        self, name: str, *, source: str, run_id: str, tags: Mapping[str, str] | None = None
    ) -> MadeVersion:
        now, key = _now_ms(), (WORKSPACE, name)
        with self._transaction() as database:
            database.execute(
                "update registered_models set last_updated_time = ? where workspace = ? and name = ?", (now, *key)
            )
            # Deleted ones are counted.
            (version,) = database.execute(
                "select coalesce(max(version), 0) + 1 from model_versions where workspace = ? and name = ?", key
            ).fetchone()
            database.execute(
                "insert into model_versions (workspace, name, version, creation_time, last_updated_time, current_stage,"
                " source, storage_location, run_id, status) values (?, ?, ?, ?, ?, 'None', ?, ?, ?, 'READY')",
                (*key, version, now, now, source, source, run_id),
            )
            for tag, value in (tags or {}).items():
                self._require_name(tag)
                database.execute(
                    "insert into model_version_tags (workspace, name, version, key, value) values (?, ?, ?, ?, ?)",
                    (*key, version, tag, value),
                )
        return MadeVersion(str(version))

    def versions_with_tag(self, name: str, key: str, value: str) -> list[MadeVersion]:
        """None that was deleted."""
        rows = self._database.execute(
            "select version from model_versions join model_version_tags as tags using (workspace, name, version)"
            " where workspace = ? and name = ? and key = ? and value = ? and current_stage <> ?",
            (WORKSPACE, name, key, value, DELETED),
        )
        return [MadeVersion(str(version)) for (version,) in rows.fetchall()]

    def update_model_version(self, name: str, version: str, *, description: str) -> None:
        with self._transaction() as database:
            self._require_version(name, version)
            database.execute(
                "update model_versions set description = ?, last_updated_time = ?"
                " where workspace = ? and name = ? and version = ?",
                (description, _now_ms(), WORKSPACE, name, int(version)),
            )

    def set_model_version_tag(self, name: str, version: str, key: str, value: str) -> None:
        self._require_name(key)
        with self._transaction() as database:
            self._require_version(name, version)
            database.execute(
                "insert into model_version_tags (workspace, name, version, key, value) values (?, ?, ?, ?, ?)"
                " on conflict do update set value = excluded.value",
                (WORKSPACE, name, int(version), key, value),
            )

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        with self._transaction() as database:
            self._require_version(name, version)
            database.execute(
                "insert into registered_model_aliases (workspace, name, alias, version) values (?, ?, ?, ?)"
                " on conflict do update set version = excluded.version",
                (WORKSPACE, name, alias, int(version)),
            )

    def delete_registered_model_alias(self, name: str, alias: str) -> None:
        with self._transaction() as database:
            database.execute(
                "delete from registered_model_aliases where workspace = ? and name = ? and alias = ?",
                (WORKSPACE, name, alias),
            )

    def delete_model_version(self, name: str, version: str) -> None:
        """Seldom: MLflow itself does it."""
        from mlflow import MlflowClient

        uri = f"sqlite:///{self._path}"
        MlflowClient(tracking_uri=uri, registry_uri=uri).delete_model_version(name, version)

    # What all of these stand on.

    def _log_params(self, run_id: str, params: Sequence[Param]) -> None:
        rows = self._database.execute("select key, value from params where run_uuid = ?", (run_id,))
        known: dict[str, str] = dict(rows.fetchall()) if params else {}
        for key, text in params:
            value = text[:MAX_PARAM_CHARS]
            if known.setdefault(key, value) != value:
                raise self._refusal(f"parameter {key} of run {run_id} is {known[key]!r} there, and is {value!r} now")
        self._database.executemany(
            "insert into params (key, value, run_uuid) values (?, ?, ?) on conflict do nothing",
            [(key, value[:MAX_PARAM_CHARS], run_id) for key, value in params],
        )

    def _log_metrics(self, run_id: str, metrics: Sequence[Metric]) -> None:
        rows = [(each.key, *_stored(each.value), each.timestamp, each.step) for each in metrics]
        self._database.executemany(
            "insert into metrics (key, value, is_nan, timestamp, step, run_uuid) values (?, ?, ?, ?, ?, ?)"
            " on conflict do nothing",
            [(*row, run_id) for row in rows],
        )
        # The last by step, then by time, then by value.
        latest: dict[str, tuple[Any, ...]] = {}
        for row in rows:
            latest[row[0]] = max(latest.get(row[0], row), row, key=lambda one: (one[4], one[3], one[1]))
        self._database.executemany(
            "insert into latest_metrics (key, value, is_nan, timestamp, step, run_uuid) values (?, ?, ?, ?, ?, ?)"
            " on conflict do update set value = excluded.value, is_nan = excluded.is_nan,"
            " timestamp = excluded.timestamp, step = excluded.step"
            " where (excluded.step, excluded.timestamp, excluded.value) > (step, timestamp, value)",
            [(*row, run_id) for row in latest.values()],
        )

    def _set_tags(self, run_id: str, tags: Sequence[RunTag]) -> None:
        self._database.executemany(
            "insert into tags (key, value, run_uuid) values (?, ?, ?) on conflict do update set value = excluded.value",
            [(key, str(value)[:MAX_TAG_CHARS], run_id) for key, value in tags],
        )

    def _require_active(self, run_id: str) -> int:
        """Its experiment."""
        row = self._database.execute(
            "select experiment_id, lifecycle_stage from runs where run_uuid = ?", (run_id,)
        ).fetchone()
        if row is None or row[1] != "active":
            raise self._refusal(f"run {run_id} was deleted")
        return int(row[0])

    def _require_version(self, name: str, version: str) -> None:
        if self.tables.version(name, version) is None:
            raise self._refusal(f"it has no version {version} of {name}")

    def _require_name(self, name: str) -> None:
        if (
            len(name) > MAX_KEY_CHARS
            or not NAME.fullmatch(name)
            or posixpath.normpath(name) != name
            or name.startswith(("..", "/"))
            or name == "."
        ):
            raise self._refusal(
                f"{name[:MAX_KEY_CHARS]!r} is no name there: at most {MAX_KEY_CHARS} letters, digits and `/ _ . - :`"
            )

    def _files_of(self, run_id: str) -> Path:
        place = self.get_run(run_id).info.artifact_uri
        if not place.startswith(f"{FILE_SCHEME}/"):
            raise self._refusal(f"files of run {run_id} lie at {place}, and not on this machine")
        return Path(unquote(place.removeprefix(FILE_SCHEME)))

    def _refusal(self, what: str) -> RegistryError:
        return RegistryError(f"MLflow's database refuses: {what}.", where=str(self._path))


def _stored(value: float) -> tuple[float, bool]:
    """As SQL can hold it, and whether it is no number."""
    if math.isnan(value):
        return 0.0, True
    return max(-LARGEST, min(LARGEST, value)), False


def _now_ms() -> int:
    return int(time.time() * 1000)
