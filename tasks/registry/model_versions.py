"""One version in MLflow for one registration, in whichever store the pipeline names.

The `versions` ref decides which number a registration has in a store. Flows that share the workspace take turns by a
lock that the kernel frees; a flow that was killed between making a version and writing it down left a tag by which the
next one finds it; and should two machines not see each other's lock, the one whose entry comes second withdraws.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import (
    ContractReceipt,
    EvaluationReport,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
)
from headway.data_contracts.store.errors import RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.registry import mlflow_store, model_refs
from headway.tasks.registry.file_lock import holding
from headway.tasks.registry.model_export import name_in_model
from headway.tasks.tracking.local_client import LocalClient
from headway.tasks.tracking.mlflow_tables import MlflowTables, StoredVersion, mlflow_tables

if TYPE_CHECKING:
    from headway.tasks.registry.mlflow_store import Client

REGISTRATION_TAG = "headway.registration"
DESCRIPTION = (
    "Retrained by pipeline {0}. Each version's page says what was decided about it, and why.\n\n"
    "To change the champion, use `headway promote {1} VERSION` or `headway rollback {1}`, or the deployment "
    "move-champion: both verify first. An alias that is moved on this page is reported, and not followed."
)
"""Of a registered model, for whoever opens its page."""


class ModelVersions:
    """The versions of one model in one MLflow store, whose client is made by the first call that needs it.

    Args:
        connect: makes the client.
        store: the pipeline's tracking URI; empty for the workspace's own store.
        tables: what is read before there is a client, so that a store in which nothing has to change needs none.
    """

    def __init__(
        self,
        context: RunContext,
        connect: Callable[[], Client],
        model: str,
        store: str,
        tables: MlflowTables | None = None,
    ) -> None:
        self.context, self.model, self.store = context, model, store
        self._connect, self._tables = connect, tables

    @cached_property
    def client(self) -> Client:
        self._tables = None  # who writes by MLflow reads by it
        return self._connect()

    def stored(self, version: str) -> StoredVersion | None:
        """What the store has under this number."""
        if self._tables is not None:
            with contextlib.suppress(sqlite3.Error):
                return self._tables.version(self.model, version)
        return mlflow_store.stored_version(self.client, self.model, version)

    def alias(self, alias: str) -> str | None:
        """The version that has the alias in the store."""
        if self._tables is not None:
            with contextlib.suppress(sqlite3.Error):
                return self._tables.alias(self.model, alias)
        return mlflow_store.alias_version(self.client, self.model, alias)

    def ensure(self, registration: Link) -> str:
        """The version number of a registration: the one it has in this store, or a new one.

        Raises:
            MlflowException: the store refuses.
        """
        workspace = self.context.workspace
        known = model_refs.version_of(workspace, self.model, registration, store=self.store)
        version = known if known is not None and self._has(known, registration) else None
        version = version or self._find(registration) or self._create(registration)
        return self._write_down(registration, version, known)

    def _has(self, version: str, registration: Link) -> bool:
        stored = self.stored(version)
        return stored is not None and stored.tags.get(REGISTRATION_TAG) == registration.sha256

    def _write_down(self, registration: Link, version: str, known: str | None) -> str:
        """The number that the ref says in the end: ours, unless another flow was first."""
        workspace, name = self.context.workspace, model_refs.versions_ref(self.model)
        ours = {"version": version, model_refs.STORE: self.store}
        reasons = {None: "registered", version: "back in this store"}
        reason = reasons.get(known, f"registered again: MLflow has no version {known} of it")
        while True:
            newest = refs.current(workspace, name)
            last = model_refs.last_entry(workspace, self.model, registration)
            if last is not None and last.detail == ours:
                return version
            first = model_refs.version_of(workspace, self.model, registration, store=self.store)
            # Two numbers for one registration would make the history ambiguous: the later one withdraws its own.
            if first not in (None, known, version):
                self.client.delete_model_version(self.model, version)
                self.context.ledger.event("version.withdrawn", model=self.model, version=version, instead=first)
                return str(first)
            with contextlib.suppress(RefConflict):
                refs.move(workspace, name, registration, expected=newest, reason=reason, detail=ours)

    def _find(self, registration: Link) -> str | None:
        """A version that an earlier try made before it could write it down here."""
        condition = f"name = '{self.model}' and tags.`{REGISTRATION_TAG}` = '{registration.sha256}'"
        client: Client = self.client
        if isinstance(client, LocalClient):
            found = client.versions_with_tag(self.model, REGISTRATION_TAG, registration.sha256)
        else:
            found = client.search_model_versions(condition)
        # Should several flows have left one each, all later ones choose the same.
        return min((str(version.version) for version in found), key=int, default=None)

    def _create(self, registration: Link) -> str:
        context, client, workspace = self.context, self.client, self.context.workspace
        document = workspace.load(registration, Registration)
        report = workspace.load(document.evaluation, EvaluationReport)
        run = workspace.load(document.run, RunSpec)
        tags = lineage(workspace, registration)
        record = mlflow_store.find_or_create_run(client, workspace, context.pipeline, run)
        # A store that the pipeline names says itself where its files lie.
        if not self.store:
            mlflow_store.require_own_folder(workspace, record)
        run_id = record.info.run_id
        mlflow_store.log_result(client, run_id, run, report, tags)
        # Before the version exists: whoever serves it finds all its files.
        self._log_files(document, run_id)
        mlflow_store.ensure_model(client, self.model, DESCRIPTION.format(context.pipeline, self.model))
        source = f"runs:/{run_id}/{mlflow_store.MODEL_FOLDER}"
        self._pass_over_taken_numbers(registration, source, run_id)
        made = client.create_model_version(self.model, source=source, run_id=run_id, tags=tags)
        client.set_terminated(run_id, "FINISHED")
        mlflow_store.name_by_version(client, run_id, context.pipeline, str(made.version))
        return str(made.version)

    def _pass_over_taken_numbers(self, registration: Link, source: str, run_id: str) -> None:
        """A store that was begun anew counts from 1, and would give to this model the name that another one had.

        MLflow counts deleted versions, too: those that were others' are made and deleted.
        """
        entries = model_refs.versions(self.context.workspace, self.model, store=self.store)
        others = (entry for entry in entries if entry.target != registration)
        taken = max((int(model_refs.version_detail(self.model, entry).version) for entry in others), default=0)
        if not taken or self.stored(str(taken)) is not None:
            return
        number = 0
        while number < taken:
            number = int(self.client.create_model_version(self.model, source=source, run_id=run_id).version)
            self.client.delete_model_version(self.model, str(number))

    def _log_files(self, document: Registration, run_id: str) -> None:
        workspace = self.context.workspace
        folder = self.context.scratch / "registered" / document.sha256
        for file in document.artifacts:
            data = workspace.read_stored(file)  # which refuses a path that leads elsewhere
            target = folder / name_in_model(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        self.client.log_artifacts(run_id, str(folder), mlflow_store.MODEL_FOLDER)


@contextlib.contextmanager
def model_versions(context: RunContext, model: str, tracking_uri: str) -> Iterator[ModelVersions]:
    """The model's versions in a store, for one flow at a time.

    Raises:
        RegistryError: MLflow does not answer, or another flow holds the model for too long; retried, then told.
    """
    workspace = context.workspace
    uri = tracking_uri or mlflow_store.default_tracking_uri(workspace)
    with contextlib.ExitStack() as stack:
        with context.ledger.span("register.wait"):
            stack.enter_context(holding(workspace.local_path(f"locks/model-{model}.lock")))
        stack.enter_context(mlflow_store.mlflow_client(uri))
        tables = stack.enter_context(mlflow_tables(mlflow_store.database_of(uri)))
        made = stack.enter_context(contextlib.ExitStack())
        yield ModelVersions(
            context, lambda: made.enter_context(mlflow_store.opened(workspace, uri)), model, tracking_uri, tables
        )


def lineage(workspace: Workspace, registration: Link) -> dict[str, str]:
    """A tag for every digest the version stands on, and one for why its bits are not an undisturbed run's, if so."""
    document = workspace.load(registration, Registration)
    run = workspace.load(document.run, RunSpec)
    shards = workspace.load(run.manifest, ShardManifest)
    receipt = workspace.load(run.receipt, ContractReceipt)
    report = workspace.load(document.evaluation, EvaluationReport)
    inexact, folds = report.inexact, report.cross_validation
    start = {} if run.start is None else {"headway.start": run.start.sha256}
    return (
        ({"headway.inexact": inexact} if inexact else {})
        | start
        | ({} if folds is None else {"headway.folds": str(report.num_folds), "headway.cross_validation": folds.sha256})
        | {
            REGISTRATION_TAG: registration.sha256,
            mlflow_store.RUN_TAG: document.run.sha256,
            "headway.checkpoint": document.checkpoint.sha256,
            "headway.evaluation": document.evaluation.sha256,
            "headway.manifest": run.manifest.sha256,
            "headway.fitted": run.fitted.sha256,
            "headway.receipt": run.receipt.sha256,
            "headway.contract": f"{receipt.contract_name}@{receipt.contract_version} {receipt.contract.sha256}",
            "headway.snapshot": shards.snapshot.sha256,
            "headway.code": run.code.sha256,
            "headway.environment": run.environment.sha256,
        }
    )
