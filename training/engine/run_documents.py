"""What a run stands on, loaded by digest, and the gate: no training without a passing receipt for these very shards."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from headway.data_contracts.store.documents import ContractReceipt, FittedState, Link, RunSpec, ShardManifest
from headway.data_contracts.store.errors import ConfigError, ContractViolation, HeadwayError
from headway.data_contracts.store.publication import Workspace
from headway.training.config.shapes import DataShape
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.encode.data_shape import data_shape as encoded_shape
from headway.training.data.load.shard_reader import require_same_encoding
from headway.training.engine.fine_tuning import StartingPoint, starting_point
from headway.training.recipes.load import load_recipe
from headway.training.recipes.protocol import Recipe

GATE_ADVICE = "Run the pipeline: its validate stage checks the data and writes the receipt."


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDocuments:
    run: RunSpec
    manifest: ShardManifest
    fitted: FittedState
    training: TrainingSpec
    mixed: tuple[ShardManifest, ...]
    """Shards mixed in, as the configuration lists them."""
    shape: DataShape
    start: StartingPoint | None
    """Another run's checkpoint to begin with; None: fresh weights."""

    def recipe(self) -> Recipe:
        return load_recipe(self.training.recipe.name, self.training.recipe.model, self.shape)


def load_run_documents(workspace: Workspace, run: Link) -> RunDocuments:
    """Load a run and what it names.

    Raises:
        IntegrityError: a document is gone or altered.
        ConfigError: the run's configuration is not one this Headway understands.
    """
    spec = workspace.load(run, RunSpec)
    manifest = workspace.load(spec.manifest, ShardManifest)
    fitted = workspace.load(spec.fitted, FittedState)
    training = training_spec(spec)
    return RunDocuments(
        run=spec,
        manifest=manifest,
        fitted=fitted,
        training=training,
        mixed=mixed_manifests(workspace, training, manifest),
        shape=data_shape(manifest, fitted),
        start=starting_point(workspace, spec, training.start_from),
    )


def data_shape(manifest: ShardManifest, fitted: FittedState) -> DataShape:
    """What the encoded data decide about a model.

    Raises:
        IntegrityError: the fitted state is not that of the shards.
    """
    return encoded_shape(manifest.spec["encoder"], fitted.statistics)


def mixed_manifests(workspace: Workspace, training: TrainingSpec, manifest: ShardManifest) -> tuple[ShardManifest, ...]:
    """The shards that the configuration mixes in, behind the same gate as the run's own.

    Raises:
        IntegrityError: a manifest is gone or altered.
        ConfigError: it was encoded in another way than `manifest`.
        ContractViolation: its data broke their contract, or its receipt is about other data.
    """
    links = [Link(kind="manifest", sha256=dataset.manifest) for dataset in training.order.mix]
    mixed = tuple(workspace.load(link, ShardManifest) for link in links)
    # Mixed-in data train the model too, so they pass the same gate.
    for other in mixed:
        require_same_encoding(manifest, other)
        receipt = load_receipt(workspace, other.receipt)
        if not receipt.passed or receipt.snapshot != other.snapshot:
            raise ContractViolation(
                f"{other.link.short} is to be mixed in without a passing receipt about its data.",
                where=receipt.link.short,
                advice=GATE_ADVICE,
            )
    return mixed


def load_receipt(workspace: Workspace, link: Link) -> ContractReceipt:
    """The receipt, or `ContractViolation` when there is none to be had."""
    try:
        return workspace.load(link, ContractReceipt)
    except HeadwayError as error:
        raise ContractViolation(
            f"there is no readable contract receipt ({error.what})", where=link.short, advice=GATE_ADVICE
        ) from error


def require_passing_receipt(run: RunSpec, manifest: ShardManifest, receipt: ContractReceipt) -> None:
    """The gate.

    Raises:
        ContractViolation: the data broke their contract, or the receipt is about other data.
    """
    if not receipt.passed:
        failed = [verdict.rule_id for verdict in receipt.verdicts if not verdict.passed]
        problem = f"the data broke their contract: {', '.join(failed) or 'see the receipt'}."
    # All three name each other: a passing receipt of other data must not open the gate.
    elif not run.receipt == manifest.receipt == receipt.link:
        problem = "run, shards and receipt do not name one another."
    # The receipt is about a snapshot; shards of another one were never validated.
    elif manifest.snapshot != receipt.snapshot:
        problem = f"the shards are of {manifest.snapshot.short}, the receipt is about {receipt.snapshot.short}."
    elif run.manifest != manifest.link or run.fitted != manifest.fitted:
        problem = "the run names other shards, or another fitted state than its shards."
    else:
        return
    raise ContractViolation(problem, where=receipt.link.short, advice=GATE_ADVICE)


def training_spec(run: RunSpec) -> TrainingSpec:
    """A run's configuration.

    Raises:
        ConfigError: it is not one that this Headway understands.
    """
    try:
        return TrainingSpec.model_validate(run.config)
    # Written by another version, perhaps: the message names the field, and no traceback is shown.
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in ("training", *first["loc"]))
        raise ConfigError(f"{first['msg']}.", where=where) from error
