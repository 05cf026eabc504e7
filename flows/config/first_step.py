"""A user's encoder and recipe tried on made-up rows of the contract's columns, before a byte of the source is read."""

from __future__ import annotations

import contextlib
import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from headway.data_contracts.rules.contract import Column, Contract
from headway.data_contracts.store.digests import sha256_bytes, sha256_of
from headway.data_contracts.store.documents import CheckpointManifest, FittedState, Link, RunSpec
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, HeadwayError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.text_rows import TEXT_COLUMNS
from headway.data_contracts.types.column_types import arrow_type
from headway.data_contracts.types.type_families import element_type, family
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.tasks.core.run_result import read_result
from headway.tasks.core.stage_records import newest_record_of
from headway.tasks.rows.fitted_refs import state_in_use
from headway.training.config.encoder_specs import CustomEncoderSpec
from headway.training.config.shapes import DataShape
from headway.training.config.training_spec import DECIDES_NO_BIT
from headway.training.data.encode.data_shape import data_shape
from headway.training.data.encode.hosted_encoder import try_custom_encoder
from headway.training.data.encode.process import NoAnswerInTime
from headway.training.frozen.code_archive import code_archive, encoder_code
from headway.training.programs.first_step import FirstStepRequest, require_first_step
from headway.training.programs.synthetic_rows import plausible_shapes

if TYPE_CHECKING:
    import pyarrow as pa


OTHER_VALUES = "the encoder may want other values than made-up ones; the source's first rows will tell"
OF_THE_LENGTH = {"max_steps", "max_epochs", "schedule", *DECIDES_NO_BIT} | {
    *("global_batch_sequences", "batch_ramp", "guards", "order", "validation")
}
"""Fields of the training configuration that a first step does not depend on."""
ACCELERATORS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""What drivers of torch's devices make; where none is, code that trained on such a device is tried again."""
_shapes: dict[str, DataShape | HeadwayError | str] = {}
"""Of made-up rows, by what decides them; or the encoder's defect, or why they could not tell."""
_found: dict[str, str | HeadwayError] = {}
"""What came of it in this process: a command asks before it starts a server, and its flow asks again."""


def check_first_step(
    pipeline: PipelineSpec, path: Path, contract: Contract, workspace: Workspace | None, *, trains_here: bool = True
) -> str:
    """Fit and encode made-up rows, and take one step on such, where code or names are the user's own.

    Built-in code without groups and personal weights has nothing of theirs; code that has encoded and trained before
    is not tried again.

    Args:
        path: the pipeline file.
        workspace: where earlier runs are looked up.
        trains_here: whether launcher `local` would start ranks on this machine. A check of changes may run anywhere.

    Returns:
        why it could not be tried here; empty where all went well.

    Raises:
        ConfigError: the recipe, the encoder, the optimizer's groups or personal weights; names the line of a user's
            code.
        EnvironmentProblem: the recipe wants a device that the machine of its ranks does not have.
    """
    trains_here = trains_here and pipeline.launch.launcher == "local"
    training, encoder, search_path = pipeline.training, pipeline.shards.encoder, (str(path.parent),)
    is_own = ":" in training.recipe.name or isinstance(encoder, CustomEncoderSpec)
    federated = training.federated
    names_weights = bool(training.optimizer.groups) or (federated is not None and bool(federated.personal))
    if not is_own and not names_weights:
        return ""
    own = encoder_code(encoder, search_path)
    rank_code = sha256_bytes(code_archive(training.recipe.name, search_path))
    shapes = _fitted_shapes(pipeline, own, workspace)
    if shapes and workspace is not None and _has_trained(pipeline, rank_code, workspace, trains_here=trains_here):
        return ""
    asked = {
        "training": training.model_dump(mode="json", exclude=OF_THE_LENGTH),
        "encoder": encoder.model_dump(mode="json"),
        "code": [rank_code, "" if own is None else sha256_bytes(own)],
        "columns": {name: column.model_dump(mode="json") for name, column in contract.columns.items()},
        "shapes": [shape.model_dump(mode="json") for shape in shapes],
        "trains_here": trains_here,
    }
    key = sha256_of(asked)
    if key not in _found:
        try:
            _found[key] = _try(pipeline, contract, own, shapes, search_path, trains_here)
        except (ConfigError, EnvironmentProblem) as error:
            _found[key] = error
    found = _found[key]
    if isinstance(found, HeadwayError):
        raise _fresh(found) from found
    return found


def synthetic_shape(pipeline: PipelineSpec, contract: Contract, own: bytes) -> DataShape | None:
    """What the user's own encoder makes of made-up rows; None where those cannot tell.

    Args:
        own: the archive of its code.

    Raises:
        ConfigError: its code is wrong whatever the rows; names the line.
    """
    shape = _shape_or_why(pipeline, contract, own)
    return None if isinstance(shape, str) else shape


def _shape_or_why(pipeline: PipelineSpec, contract: Contract, own: bytes) -> DataShape | str:
    encoder = pipeline.shards.encoder
    assert isinstance(encoder, CustomEncoderSpec)
    columns = {name: column.model_dump(mode="json") for name, column in contract.columns.items()}
    key = sha256_of([encoder.model_dump(mode="json"), sha256_bytes(own), columns, pipeline.source.is_table])
    if key not in _shapes:
        try:
            facts = try_custom_encoder(encoder, own, synthetic_rows(contract, is_table=pipeline.source.is_table))
            _shapes[key] = OTHER_VALUES if facts is None else facts.shape
        except NoAnswerInTime as error:
            _shapes[key] = error.what.rstrip(".")
        except ConfigError as error:
            _shapes[key] = error
    found = _shapes[key]
    if isinstance(found, HeadwayError):
        raise _fresh(found) from found
    return found


def check_encodes(pipeline: PipelineSpec, path: Path, contract: Contract) -> str:
    """The encoder's part of `check_first_step`."""
    own = encoder_code(pipeline.shards.encoder, (str(path.parent),))
    shape = "" if own is None else _shape_or_why(pipeline, contract, own)
    return shape if isinstance(shape, str) else ""


def _fresh(error: HeadwayError) -> HeadwayError:
    """An error that is raised twice gathers the tracebacks of both."""
    return type(error)(error.what, where=error.where, advice=error.advice)


def _try(
    pipeline: PipelineSpec,
    contract: Contract,
    own: bytes | None,
    shapes: tuple[DataShape, ...],
    search_path: tuple[str, ...],
    trains_here: bool,
) -> str:
    encoder = pipeline.shards.encoder
    if not shapes and isinstance(encoder, CustomEncoderSpec):
        shape = _shape_or_why(pipeline, contract, own or b"")
        if isinstance(shape, str):
            return shape
        shapes = (shape,)
    shapes = shapes or plausible_shapes(encoder, num_label_values(contract, getattr(encoder, "label", None)))
    request = FirstStepRequest(training=pipeline.training, shapes=shapes, trains_here=trains_here)
    return require_first_step(request, search_path=search_path)


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


def _has_trained(pipeline: PipelineSpec, rank_code: str, workspace: Workspace, *, trains_here: bool) -> bool:
    """Whether the pipeline's newest finished training had this code and configuration, and a device that is here."""
    record = newest_record_of(workspace, pipeline.pipeline, "launch")
    if record is None:
        return False
    with contextlib.suppress(IntegrityError, FileNotFoundError):
        run = workspace.load(record.document, RunSpec)
        if run.code.sha256 != rank_code or run.config != pipeline.training.identity:
            return False
        return not trains_here or _has_its_device(workspace, record.document)
    return False


def _has_its_device(workspace: Workspace, run: Link) -> bool:
    """Whether this machine may have the kind of device that a run was trained on; by a look that needs no torch."""
    link = Link(kind=CheckpointManifest.kind, sha256=read_result(workspace, run).manifest_sha256)
    trained_on = workspace.load(link, CheckpointManifest).fingerprint.device
    return trained_on == "cpu" or any(place.exists() for place in ACCELERATORS)


# At most 24, since a row's number is the hour of its times as well.
NUM_ROWS: Final = 16
TEXTS: Final = ("alpha beta", "gamma", "delta epsilon zeta", "beta")
FIXED_BINARY: Final = re.compile(r"fixed_size_binary\[(\d+)\]")
FIRST_DAY: Final = datetime.date(2026, 1, 1)


def synthetic_rows(contract: Contract, *, is_table: bool) -> pa.RecordBatch:
    """Rows without nulls, whose values keep to the contract's bounds and lists; patterns and rules are not kept."""
    import pyarrow as pa

    columns = contract.columns if is_table else {name: Column(type=kind) for name, kind in TEXT_COLUMNS.items()}
    return pa.record_batch({name: _values(column) for name, column in columns.items()})


def num_label_values(contract: Contract, label: str | None) -> int | None:
    """How many values the label may have; None where the contract lists none."""
    column = None if label is None else contract.columns.get(label)
    if column is None:
        return None
    if column.one_of is not None:
        return len(set(column.one_of))
    if column.type == "bool":
        return 2
    if family(column.type) == "integer" and isinstance(column.min, int) and isinstance(column.max, int):
        return column.max - column.min + 1
    return None


def _values(column: Column) -> pa.Array:
    import pyarrow as pa

    kind = arrow_type(column.type)
    if column.one_of is not None:
        given = [column.one_of[row % len(column.one_of)] for row in range(NUM_ROWS)]
        return pa.array(given).cast(kind)
    if family(column.type) == "list":
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else max(4, column.min_length or 0)
        elements = column.elements
        low = 0 if elements is None or elements.min is None else elements.min
        inner = [_value(element_type(column.type), row, low) for row in range(length)]
        return pa.array([inner] * NUM_ROWS, kind)
    low = _lowest(column)
    values = pa.array([_value(column.type, row, low, column) for row in range(NUM_ROWS)])
    return pa.array(values.to_pylist(), kind) if pa.types.is_fixed_size_binary(kind) else values.cast(kind)


def _lowest(column: Column) -> Any:
    """A number within the bounds; 1 where there are none, which may be divided by."""
    if isinstance(column.min, int | float) and not isinstance(column.min, bool):
        return column.min
    return min(1, column.max) if isinstance(column.max, int | float) else 1


def _value(type_name: str, row: int, low: Any, column: Column | None = None) -> Any:
    most = column.max if column is not None and isinstance(column.max, int | float) else None
    match family(type_name):
        case "bool":
            return row % 2 == 0
        case "integer":
            return int(min(low + row % 4, most)) if most is not None else int(low + row % 4)
        case "float" | "decimal":
            value = float(low + row / NUM_ROWS)
            return min(value, float(most)) if most is not None else value
        case "date":
            return FIRST_DAY + datetime.timedelta(days=row)
        case "time":
            return datetime.time(hour=row)
        case "timestamp":
            return datetime.datetime.combine(FIRST_DAY, datetime.time(hour=row), tzinfo=datetime.UTC)
        case "binary":
            fixed = FIXED_BINARY.fullmatch(type_name)
            least = 4 if column is None or column.min_length is None else column.min_length
            return bytes([row]) * (int(fixed[1]) if fixed else least)
    text = TEXTS[row % len(TEXTS)]
    least, longest = (0, None) if column is None else (column.min_length or 0, column.max_length)
    return (text * (1 + least // len(text)))[:longest]
