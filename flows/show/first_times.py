"""What stages may take that this pipeline never ran here: an estimate, from a short pass over the first rows.

Of the right order, no more: it decides between a coffee and a night. Once a stage has run, its own time is believed.
"""

from __future__ import annotations

import contextlib
import time
from itertools import islice

import numpy as np

from headway.data_contracts.sources.reading import read_rows
from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.errors import DataError
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.tasks.core.context import RunContext
from headway.tasks.core.outlook import Outlook
from headway.training.config.encoder_specs import CustomEncoderSpec, TabularEncoderSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.tabular import TabularEncoder, TabularFit
from headway.training.programs.rehearsal import RehearsalResult

MAX_ROWS, MAX_BATCHES = 20_000, 20
VALIDATION_START_S = 6.0
"""Great Expectations and DuckDB are imported, and the page is drawn, for one row as for a million."""
BASELINES_START_S = 4.0
"""A linear model and trees are fitted beside the model; scikit-learn is imported for them."""
EXPORT_START_S = 6.0
"""The graph is traced and tried, small models as large ones."""
VALIDATION_PASSES = 3.0
"""Rows are read into a database, summed up by column, and held against each rule: about as costly as reading each."""
ENCODED_BYTES_PER_S = 5e6
"""A core's order of magnitude when it tokenises texts or decodes pictures; a table's rows are encoded to know it."""


def data_times(context: RunContext, pipeline: PipelineSpec, taken: Snapshot, taken_s: float) -> dict[str, float]:
    """Seconds by stage; none of what nobody can know before.

    Args:
        taken_s: what it took to take this snapshot, which the stage does as well.
    """
    encoder = pipeline.shards.encoder
    read_s, num_rows, num_bytes = 0.0, 0, 0
    blocks: list[SourceBlock] = []
    try:
        for file in islice(taken.files, MAX_BATCHES):
            started_s, first_row = time.perf_counter(), 0
            rows = read_rows(pipeline.source, file, base=context.base, columns=taken.columns, digests=context.digests)
            for batch in rows:
                numbers = np.arange(first_row, first_row + batch.num_rows)
                if isinstance(encoder, TabularEncoderSpec):  # no other's rows are wanted again
                    blocks.append(SourceBlock(file.path, numbers, numbers.astype(np.uint64), batch))
                first_row += batch.num_rows
                if num_rows + first_row >= MAX_ROWS:
                    break
            num_rows += first_row
            num_bytes += round(file.size_bytes * first_row / max(file.num_rows, 1))
            read_s += time.perf_counter() - started_s
            if num_rows >= MAX_ROWS:
                break
    except DataError:
        # What a stage says of rows that cannot be read is that stage's to say.
        return {"snapshot": taken_s}
    encoded_s = num_bytes / ENCODED_BYTES_PER_S
    if isinstance(encoder, TabularEncoderSpec):
        # Of rows that the contract may leave out, or of too few classes: their bytes have to do.
        with contextlib.suppress(DataError):
            encoded_s = _encoding_s(encoder, blocks)
    ratio = taken.num_rows / max(num_rows, 1)
    found = {"snapshot": taken_s, "validate": VALIDATION_START_S + VALIDATION_PASSES * read_s * ratio}
    # Rows are read twice: to fit the encoder, and to encode them.
    return found if isinstance(encoder, CustomEncoderSpec) else {**found, "shard": (2 * read_s + encoded_s) * ratio}


def _encoding_s(encoder: TabularEncoderSpec, blocks: list[SourceBlock]) -> float:
    """Raises `DataError`: a value that the encoder refuses."""
    started_s, fit = time.perf_counter(), TabularFit(encoder)
    for block in blocks:
        fit.add(block)
    made = TabularEncoder(encoder, fit.statistics())
    for block in blocks:
        made.encode(block)
    return time.perf_counter() - started_s


def model_times(
    pipeline: PipelineSpec, taken: Snapshot, rehearsal: RehearsalResult, max_steps: int
) -> dict[str, float]:
    """Of stages that work with the model: steps as rehearsed, and a process of its own that each starts."""
    start_s, step_s = rehearsal.start_s, rehearsal.step_s
    heldout = taken.num_rows * pipeline.shards.heldout_fraction
    # Forward alone is about a third of a step.
    batches = heldout / max(pipeline.training.global_batch_sequences, 1)
    return {
        "launch": start_s + step_s * max_steps,
        "verify": start_s,
        "evaluate": start_s + batches * step_s / 3 + BASELINES_START_S,
        "register": start_s + EXPORT_START_S,
    }


def with_times(stage: Outlook, times: dict[str, float], how: str) -> Outlook:
    """The same stage, with an estimate where its own time is not on record."""
    if stage.state == "found" or stage.expected_s is not None or stage.stage not in times:
        return stage
    return stage.saying(how).model_copy(update={"expected_s": times[stage.stage]})
