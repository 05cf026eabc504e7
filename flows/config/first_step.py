"""A user's encoder and recipe tried on made-up rows, before a byte of the source is read."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from headway.data_contracts.rules.contract import Contract
from headway.data_contracts.store.digests import sha256_bytes, sha256_of
from headway.data_contracts.store.documents import FittedState, RunSpec
from headway.data_contracts.store.errors import ConfigError, HeadwayError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.synthetic_source import num_label_values, synthetic_rows
from headway.tasks.core.stage_records import newest_record_of
from headway.tasks.rows.fitted_refs import state_in_use
from headway.training.config.encoder_specs import CustomEncoderSpec
from headway.training.config.shapes import DataShape
from headway.training.data.encode.data_shape import data_shape
from headway.training.data.encode.hosted_encoder import try_custom_encoder
from headway.training.frozen.code_archive import code_archive, encoder_code
from headway.training.programs.first_step import FirstStepRequest, require_first_step
from headway.training.programs.synthetic_rows import plausible_shapes

OTHER_VALUES = "the encoder may want other values than made-up ones; the source's first rows will tell"
OF_THE_LENGTH = {"max_steps", "checkpoints", "schedule", "global_batch_sequences", "guards", "profile", "order"}
"""Fields of the training configuration that a first step does not depend on."""
_shapes: dict[str, DataShape | HeadwayError | None] = {}
"""Of made-up rows, by what decides them; or the encoder's defect, or None where it may want other values."""
_found: dict[str, str | HeadwayError] = {}
"""What came of it in this process: a command asks before it starts a server, and its flow asks again."""


def check_first_step(pipeline: PipelineSpec, path: Path, contract: Contract, workspace: Workspace | None) -> str:
    """Fit and encode made-up rows, and take one step on such, where code or names are the user's own.

    Built-in code without groups has nothing of theirs; code that has encoded and trained before is not tried again.

    Args:
        path: the pipeline file.
        workspace: where earlier runs are looked up.

    Returns:
        why it could not be tried here; empty where all went well.

    Raises:
        ConfigError: the recipe, the encoder or the optimizer's groups; names the line of a user's code.
    """
    training, encoder, search_path = pipeline.training, pipeline.shards.encoder, (str(path.parent),)
    is_own = ":" in training.recipe.name or isinstance(encoder, CustomEncoderSpec)
    if not is_own and not training.optimizer.groups:
        return ""
    own = encoder_code(encoder, search_path)
    rank_code = sha256_bytes(code_archive(training.recipe.name, search_path))
    shapes = _fitted_shapes(pipeline, own, workspace)
    if shapes and workspace is not None and _has_trained(pipeline, rank_code, workspace):
        return ""
    asked = {
        "training": training.model_dump(mode="json", exclude=OF_THE_LENGTH),
        "encoder": encoder.model_dump(mode="json"),
        "code": [rank_code, "" if own is None else sha256_bytes(own)],
        "columns": {name: column.model_dump(mode="json") for name, column in contract.columns.items()},
        "shapes": [shape.model_dump(mode="json") for shape in shapes],
    }
    key = sha256_of(asked)
    if key not in _found:
        try:
            _found[key] = _try(pipeline, contract, own, shapes, search_path)
        except ConfigError as error:
            _found[key] = error
    return _or_raised(_found[key])


def synthetic_shape(pipeline: PipelineSpec, contract: Contract, own: bytes) -> DataShape | None:
    """What the user's own encoder makes of made-up rows; None where it may want other values than such.

    Args:
        own: the archive of its code.

    Raises:
        ConfigError: its code is wrong whatever the rows; names the line.
    """
    encoder = pipeline.shards.encoder
    assert isinstance(encoder, CustomEncoderSpec)
    columns = {name: column.model_dump(mode="json") for name, column in contract.columns.items()}
    key = sha256_of([encoder.model_dump(mode="json"), sha256_bytes(own), columns, pipeline.source.is_table])
    if key not in _shapes:
        try:
            facts = try_custom_encoder(encoder, own, synthetic_rows(contract, is_table=pipeline.source.is_table))
            _shapes[key] = None if facts is None else facts.shape
        except ConfigError as error:
            _shapes[key] = error
    return _or_raised(_shapes[key])


def check_encodes(pipeline: PipelineSpec, path: Path, contract: Contract) -> str:
    """The encoder's part of `check_first_step`."""
    own = encoder_code(pipeline.shards.encoder, (str(path.parent),))
    return OTHER_VALUES if own is not None and synthetic_shape(pipeline, contract, own) is None else ""


T = TypeVar("T")


def _or_raised(found: T | HeadwayError) -> T:
    if isinstance(found, HeadwayError):
        raise type(found)(found.what, where=found.where, advice=found.advice) from found
    return found


def _try(
    pipeline: PipelineSpec,
    contract: Contract,
    own: bytes | None,
    shapes: tuple[DataShape, ...],
    search_path: tuple[str, ...],
) -> str:
    encoder = pipeline.shards.encoder
    if not shapes and isinstance(encoder, CustomEncoderSpec):
        shape = synthetic_shape(pipeline, contract, own or b"")
        if shape is None:
            return OTHER_VALUES
        shapes = (shape,)
    shapes = shapes or plausible_shapes(encoder, num_label_values(contract, getattr(encoder, "label", None)))
    return require_first_step(FirstStepRequest(training=pipeline.training, shapes=shapes), search_path=search_path)


def _fitted_shapes(pipeline: PipelineSpec, own: bytes | None, workspace: Workspace | None) -> tuple[DataShape, ...]:
    """The shape of the data, if the pipeline's encoder was fitted before as it is now."""
    with contextlib.suppress(IntegrityError, ValidationError):
        entry = None if workspace is None else state_in_use(workspace, pipeline.pipeline)
        if entry is None or workspace is None:
            return ()
        fitted = workspace.load(entry.target, FittedState)
        spec = pipeline.shards.encoder
        has_code = own is None or sha256_bytes(own) in [file.sha256 for file in fitted.files]
        if has_code and type(spec).model_validate(fitted.spec).fitting == spec.fitting:
            return (data_shape(spec.model_dump(mode="json"), fitted.statistics),)
    return ()


def _has_trained(pipeline: PipelineSpec, rank_code: str, workspace: Workspace) -> bool:
    """Whether the pipeline's newest finished training had this code and configuration."""
    record = newest_record_of(workspace, pipeline.pipeline, "launch")
    if record is None:
        return False
    with contextlib.suppress(IntegrityError):
        run = workspace.load(record.document, RunSpec)
        return run.code.sha256 == rank_code and run.config == pipeline.training.model_dump(mode="json")
    return False
