"""Inputs that alone tell the label, in the source's first rows: `plan` names them before anything is made."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from headway.data_contracts.scans.label_leaks import evaluate_label
from headway.data_contracts.scans.rows_database import MEMORY_LIMIT, NUM_THREADS, ROWS
from headway.data_contracts.sources.reading import read_rows
from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.data_contracts.types.report_text import count
from headway.tasks.core.context import RunContext
from headway.tasks.rows.label_classes import MAX_ROWS
from headway.tasks.rows.pipeline_label import pipeline_label
from headway.training.config.shards import ShardSpec


def leaks_in_first_rows(context: RunContext, shards: ShardSpec, source: SourceSpec, taken: Snapshot) -> str:
    """What a person is told of them; empty where nothing is predicted from columns.

    Rows that the contract would leave out are counted as well: validation, which sees all others, has the last word.
    """
    label = pipeline_label(shards)
    if label is None or label.column not in taken.columns:
        return ""
    wanted = [name for name in dict.fromkeys((label.column, *label.inputs)) if name in taken.columns]
    batches: list[pa.RecordBatch] = []
    num_rows = 0
    for file in taken.files:
        for batch in read_rows(source, file, base=context.base, columns=taken.columns, digests=context.digests):
            batches.append(batch.select(wanted))
            num_rows += batch.num_rows
            if num_rows >= MAX_ROWS:
                break
        if num_rows >= MAX_ROWS:
            break
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY_LIMIT,
        "threads": NUM_THREADS,
        "enable_external_access": False,
    }
    with duckdb.connect(config=config) as connection:
        connection.register(ROWS, pa.Table.from_batches(batches))
        verdicts = evaluate_label(connection, label, {name: taken.columns[name] for name in wanted})
    leaks = [verdict.observed for verdict in verdicts if not verdict.passed]
    seen = "all rows" if num_rows == taken.num_rows else f"the first {count(num_rows, 'row')}"
    return f"in {seen} {'; '.join(leaks) or f'no input alone tells `{label.column}`'}"
