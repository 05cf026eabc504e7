"""Stage *register*: one version in MLflow for one checkpoint, lineage on it, and the champion by compare-and-set.

Refs decide; MLflow's versions and aliases are made to agree with them. Every step can be repeated: a flow
that died half-way, or is simply run again, makes no second version.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from headway.data_contracts.store import stages
from headway.data_contracts.store.credentials import credential_in_uri
from headway.data_contracts.store.documents import Frozen, Link, Registration, StoredFile
from headway.data_contracts.store.errors import IntegrityError
from headway.tasks.core.artifacts import artifact_key, show_link, show_markdown
from headway.tasks.core.candidate import Candidate, read_candidate, require_files
from headway.tasks.core.context import RunContext
from headway.tasks.core.outlook import Outlook, look_up, would_run
from headway.tasks.core.pages import contract_page
from headway.tasks.core.stage import StageOutput, found_or_made, stage_task
from headway.tasks.registry import mlflow_store, model_card, model_refs
from headway.tasks.registry.champion import RegistrationOutcome, settle, unregistered
from headway.tasks.registry.model_export import export_graph, save_model
from headway.tasks.registry.model_versions import model_versions
from headway.tasks.registry.promotion_spec import PromotionSpec
from headway.training.launch.base.gang import LaunchSpec

LINK_NOTE = "Opens while MLflow or `headway ui` runs"


class RegistrySpec(Frozen):
    model: str = Field(pattern=r"^[A-Za-z0-9._-]+$", description="Name of the registered model.")
    tracking_uri: str = Field(
        default="",
        description="MLflow tracking and registry URI; empty means SQLite inside the workspace, or, for one in object "
        "storage, on this machine alone.",
    )

    @field_validator("tracking_uri")
    @classmethod
    def _holds_no_secret(cls, uri: str) -> str:
        # It is written down beside every version and named in every error.
        if credential_in_uri(uri):
            raise ValueError(
                "a password or token does not belong in a pipeline file; MLflow reads MLFLOW_TRACKING_USERNAME and "
                "_PASSWORD, or MLFLOW_TRACKING_TOKEN, and a database's client its own, such as PGPASSWORD"
            )
        return uri


def tracking_uri(context: RunContext, registry: RegistrySpec) -> str:
    return registry.tracking_uri or mlflow_store.default_tracking_uri(context.workspace)


def registration_inputs(registry: RegistrySpec, checkpoint: Link) -> dict[str, str]:
    """A checkpoint is registered once under a name; becoming champion later does not make it new.

    Nor does a new version of Headway, MLflow or torch: unlike the other stages' results, a version has an identity that
    people and other systems refer to, and the same weights must not become version 8 because a library moved. The graph
    is made by the run's own frozen code, and `requirements.txt` beside it says which libraries saved it. Only damage
    makes it anew; with other libraries by then, its bytes are others, and so is its version.
    """
    return {"model": registry.model, "checkpoint": checkpoint.sha256}


@stage_task(name="register", task_run_name="register {registry.model}")
def register(
    context: RunContext,
    registry: RegistrySpec,
    promotion: PromotionSpec,
    launch: LaunchSpec,
    checkpoint: Link,
    evaluation: Link,
) -> RegistrationOutcome:
    """Register the checkpoint and, if the policy says so, make it champion; or say what would come of it.

    Raises:
        RegistryError: MLflow does not answer; retried, then told.
        RefConflict: another writer promoted first; run again to be evaluated against the new champion.
    """
    # One span for all of it: until there is a version, nobody is to read that the stage is done.
    with found_or_made(
        context,
        "register",
        registration_inputs(registry, checkpoint),
        lambda: _export(context, registry, launch, checkpoint, evaluation),
        shown=registry.model,
        exclusive=True,
    ) as link:
        if not context.may_register:
            return unregistered(context.workspace, registry.model, link, evaluation, promotion)
        versions = model_versions(context, registry.model, registry.tracking_uri)
        with context.ledger.span("register.mlflow"), versions as made:
            outcome = settle(made, link, evaluation, promotion)
    card = model_card.card_path(registry.model, link)
    about = f"{registry.model} version {outcome.version}"
    show_markdown(artifact_key(context.pipeline, "model"), lambda: context.workspace.read(card).decode(), about)
    page = mlflow_store.model_page(tracking_uri(context, registry), registry.model, outcome.version)
    title = f"{registry.model} v{outcome.version} in MLflow"
    show_link(artifact_key(context.pipeline, "mlflow"), page, title, LINK_NOTE)
    return outcome


def outlook(context: RunContext, registry: RegistrySpec, checkpoint: Link | None) -> Outlook:
    """Args:
    checkpoint: None: there is none to register yet.
    """
    if checkpoint is None:
        return would_run(context, "register")
    seen = look_up(context, "register", registration_inputs(registry, checkpoint))
    if seen.document is None:
        return seen
    version = model_refs.version_of(context.workspace, registry.model, seen.document)
    return seen.model_copy(update={"detail": f"version {version}"})


def _export(
    context: RunContext, registry: RegistrySpec, launch: LaunchSpec, checkpoint: Link, evaluation: Link
) -> StageOutput:
    candidate = read_candidate(context.workspace, checkpoint)
    # It may have been verified long ago, as a stage that was found.
    require_files(context, candidate)
    # A flow run may register several: of a run that a window cut and of the newest data, and the best of a search.
    staging, run = context.scratch / f"model-{checkpoint.sha256[:16]}", candidate.run.link
    with context.ledger.span("register.export"):
        exported = export_graph(context, launch, candidate)
        save_model(exported, {"run": run.sha256, "checkpoint": checkpoint.sha256}, staging)
        _add_contract_page(context, candidate, staging / "reports")
        files = publish_folder(context, staging, f"models/{registry.model}/{checkpoint.sha256[:16]}")
    before = registered_before(context, registry, checkpoint)
    document = Registration(
        model=registry.model,
        run=run,
        checkpoint=checkpoint,
        # Registering again, after damage, is the same registration, whoever is champion by now.
        evaluation=evaluation if before is None else before.evaluation,
        artifacts=files,
    )
    return StageOutput(document=document, files=files)


def _add_contract_page(context: RunContext, candidate: Candidate, folder: Path) -> None:
    """What people were shown of the data belongs to the version: proved with it, and in MLflow beside the model.

    The evaluation's page says when it was evaluated, and equal weights are to be an equal registration.
    """
    page = context.workspace.read_if_there(contract_page(candidate.run.receipt))
    if page is not None:
        from headway.data_contracts.report.validation_report import without_links

        folder.mkdir()
        # What its links lead to lies in the workspace, and is not beside it here.
        (folder / "contract.html").write_bytes(without_links(page))


def registered_before(context: RunContext, registry: RegistrySpec, checkpoint: Link) -> Registration | None:
    """The registration of this checkpoint, even when its files have gone bad since."""
    workspace = context.workspace
    key = stages.stage_key("register", registration_inputs(registry, checkpoint))
    try:
        record = stages.recorded(workspace, "register", key)
        return None if record is None else workspace.load(record.document, Registration)
    except IntegrityError as error:
        context.report_damage("register", str(error))
        return None


def publish_folder(context: RunContext, folder: Path, relative: str) -> tuple[StoredFile, ...]:
    return tuple(
        context.workspace.publish_file(path, f"{relative}/{path.relative_to(folder).as_posix()}")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )
