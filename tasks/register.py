"""Stage *register*: one version in MLflow for one checkpoint, lineage on it, and the champion by compare-and-set.

Refs decide; MLflow's versions and aliases are made to agree with them. Every step can be repeated: a flow
that died half-way, or is simply run again, makes no second version.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from data_contracts import refs, stages
from data_contracts.documents import (
    CheckpointManifest,
    ContractReceipt,
    EvaluationReport,
    Frozen,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
    StoredFile,
)
from data_contracts.errors import IntegrityError
from data_contracts.publication import Workspace
from tasks import mlflow_store, model_refs
from tasks.artifacts import artifact_key, show_link, show_markdown
from tasks.champion import Candidate, Outcome, settle
from tasks.context import RunContext
from tasks.model_export import export_graph, save_model
from tasks.promotion import decide
from tasks.stage import Made, find_or_make, stage_task
from training.launch.spec import LaunchSpec

if TYPE_CHECKING:
    from mlflow import MlflowClient

REGISTRATION_TAG = "headway.registration"
MODEL_FOLDER = "model"
LINK_NOTE = "Opens while MLflow or `headway ui` runs"


class RegistrySpec(Frozen):
    model: str = Field(pattern=r"^[A-Za-z0-9._-]+$", description="Name of the registered model.")
    tracking_uri: str = Field(
        default="", description="MLflow tracking and registry URI; empty means SQLite inside the workspace."
    )


def tracking_uri(context: RunContext, registry: RegistrySpec) -> str:
    return registry.tracking_uri or mlflow_store.default_tracking_uri(context.workspace)


def registration_inputs(registry: RegistrySpec, checkpoint: Link) -> dict[str, str]:
    """A checkpoint is registered once under a name; becoming champion later does not make it new."""
    return {"model": registry.model, "checkpoint": checkpoint.sha256}


@stage_task(name="register", task_run_name="register {registry.model}")
def register(
    context: RunContext, registry: RegistrySpec, launch: LaunchSpec, checkpoint: Link, evaluation: Link
) -> Outcome:
    """Register the checkpoint and, if its report says so, make it champion.

    Raises:
        RegistryError: MLflow does not answer; retried, then told.
        RefConflict: another writer promoted first; run again to be judged against the new champion.
    """
    workspace, uri = context.workspace, tracking_uri(context, registry)
    manifest = workspace.load(checkpoint, CheckpointManifest)
    link = find_or_make(
        context,
        "register",
        registration_inputs(registry, checkpoint),
        lambda: _export(context, registry, launch, manifest, checkpoint, evaluation),
        shown=registry.model,
    )
    with mlflow_store.talking_to(uri):
        with context.ledger.span("register.mlflow"):
            client = mlflow_store.connect(uri)
            version = _ensure_version(context, client, registry, link)
        with context.ledger.span("register.promote"):
            candidate = Candidate(model=registry.model, registration=link, version=version, evaluation=evaluation)
            outcome = settle(context, client, candidate)
    show_markdown(
        artifact_key(context.pipeline, "model"), _card(registry, outcome), f"{registry.model} version {version}"
    )
    page = mlflow_store.model_page(uri, registry.model, version)
    show_link(artifact_key(context.pipeline, "mlflow"), page, f"{registry.model} v{version} in MLflow", LINK_NOTE)
    return outcome


def _export(
    context: RunContext,
    registry: RegistrySpec,
    launch: LaunchSpec,
    manifest: CheckpointManifest,
    checkpoint: Link,
    evaluation: Link,
) -> Made:
    staging = context.scratch / "model"
    with context.ledger.span("register.export"):
        graph = export_graph(context, launch, manifest)
        save_model(graph, {"run": manifest.run.sha256, "checkpoint": checkpoint.sha256}, staging)
        files = publish_folder(context, staging, f"models/{registry.model}/{checkpoint.sha256[:16]}")
    before = registered_before(context, registry, checkpoint)
    document = Registration(
        model=registry.model,
        run=manifest.run,
        checkpoint=checkpoint,
        # Registering again, after damage, is the same registration, whoever is champion by now.
        evaluation=evaluation if before is None else before.evaluation,
        artifacts=files,
    )
    return Made(document=document, files=files)


def registered_before(context: RunContext, registry: RegistrySpec, checkpoint: Link) -> Registration | None:
    """The registration of this checkpoint, even when its files have gone bad since."""
    workspace = context.workspace
    key = stages.stage_key("register", registration_inputs(registry, checkpoint))
    try:
        record = stages.recorded(workspace, "register", key)
        return None if record is None else workspace.load(record.document, Registration)
    except IntegrityError as error:
        context.ledger.event("stage.damaged", stage="register", message=str(error))
        return None


def publish_folder(context: RunContext, folder: Path, relative: str) -> tuple[StoredFile, ...]:
    return tuple(
        context.workspace.publish_file(path, f"{relative}/{path.relative_to(folder).as_posix()}")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )


def lineage(workspace: Workspace, registration: Link) -> dict[str, str]:
    """A tag for every digest the version stands on."""
    document = workspace.load(registration, Registration)
    run = workspace.load(document.run, RunSpec)
    shards = workspace.load(run.manifest, ShardManifest)
    receipt = workspace.load(run.receipt, ContractReceipt)
    return {
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


def _ensure_version(context: RunContext, client: MlflowClient, registry: RegistrySpec, registration: Link) -> str:
    """The version number of this registration: the one it has, or a new one."""
    workspace = context.workspace
    known = model_refs.version_of(workspace, registry.model, registration)
    if known is not None and mlflow_store.has_version(
        client, registry.model, known, REGISTRATION_TAG, registration.sha256
    ):
        return known
    version = _find_version(client, registry.model, registration) or _create_version(
        context, client, registry, registration
    )
    refs.move(
        workspace,
        model_refs.versions_ref(registry.model),
        registration,
        expected=refs.current(workspace, model_refs.versions_ref(registry.model)),
        reason="registered" if known is None else f"registered again: MLflow has no version {known} of it",
        detail={"version": version, "tracking_uri": registry.tracking_uri},
    )
    return version


def _find_version(client: MlflowClient, model: str, registration: Link) -> str | None:
    """A version that an earlier try made before it could write it down here."""
    found = client.search_model_versions(f"name = '{model}' and tags.`{REGISTRATION_TAG}` = '{registration.sha256}'")
    return str(found[0].version) if found else None


def _create_version(context: RunContext, client: MlflowClient, registry: RegistrySpec, registration: Link) -> str:
    from mlflow.exceptions import MlflowException

    workspace = context.workspace
    document = workspace.load(registration, Registration)
    report = workspace.load(document.evaluation, EvaluationReport)
    run = workspace.load(document.run, RunSpec)
    tags = lineage(workspace, registration)
    record = mlflow_store.find_or_create_run(client, workspace, context.pipeline, run)
    run_id = record.info.run_id
    mlflow_store.log_result(client, run_id, run, report, tags)
    folder = context.scratch / "registered"
    for file in document.artifacts:
        target = folder / "/".join(file.path.split("/")[3:])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(workspace.read(file.path))
    client.log_artifacts(run_id, str(folder), MODEL_FOLDER)
    try:
        client.get_registered_model(registry.model)
    except MlflowException:
        client.create_registered_model(registry.model, description=f"Retrained by pipeline {context.pipeline}.")
    made = client.create_model_version(
        registry.model,
        source=f"runs:/{run_id}/{MODEL_FOLDER}",
        run_id=run_id,
        tags=tags,
        description=decide(report).reason,
    )
    client.set_terminated(run_id, "FINISHED")
    return str(made.version)


def _card(registry: RegistrySpec, outcome: Outcome) -> str:
    standing = "champion" if outcome.is_champion else "challenger"
    return (
        f"### {registry.model} version {outcome.version}: {standing}\n\n{outcome.reason}\n\n"
        f"Prove it: `headway verify models:/{registry.model}/{outcome.version}`\n"
    )
