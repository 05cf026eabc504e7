"""What a run stands on, loaded by digest, and the gate: no training without a passing receipt for these very shards."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from data_contracts.documents import ContractReceipt, FittedState, Link, RunSpec, ShardManifest
from data_contracts.errors import ConfigError, ContractViolation, HeadwayError
from data_contracts.publication import Workspace
from training.config import TrainingSpec
from training.recipes.protocol import DataShape, Recipe, load_recipe

GATE_ADVICE = "Run the pipeline: its validate stage checks the data and writes the receipt."


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDocuments:
    run: RunSpec
    manifest: ShardManifest
    fitted: FittedState
    training: TrainingSpec
    shape: DataShape

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
    return RunDocuments(
        run=spec, manifest=manifest, fitted=fitted, training=training_spec(spec), shape=data_shape(manifest, fitted)
    )


def data_shape(manifest: ShardManifest, fitted: FittedState) -> DataShape:
    """Vocabulary and context length of the encoded data.

    Raises:
        ConfigError: the shards hold no token sequences.
    """
    shapes = {column.name: column.shape for column in manifest.columns}
    vocab_size = fitted.spec.get("vocab_size")
    if "tokens" not in shapes or not isinstance(vocab_size, int):
        raise ConfigError("the shards hold no token sequences with a vocabulary.", where=manifest.link.short)
    return DataShape(vocab_size=vocab_size, context_tokens=shapes["tokens"][0] - 1)


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
    elif not run.receipt == manifest.receipt == receipt.link:
        problem = "run, shards and receipt do not name one another."
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
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in ("training", *first["loc"]))
        raise ConfigError(f"{first['msg']}.", where=where) from error
