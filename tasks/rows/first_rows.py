"""What a source's first rows tell before anything is spent: whether a label has classes, whether there are rows to
train on and rows held out, and which inputs alone tell the label. The words are those in which a stage would refuse it
later."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headway.data_contracts.scans.label_leaks import evaluate_label
from headway.data_contracts.scans.leakage import PipelineSplit
from headway.data_contracts.scans.rows_database import rows_in_memory
from headway.data_contracts.sources.reading import SourceSpec, read_rows
from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.data_contracts.store.quarantine_limit import limit_advice
from headway.data_contracts.tables.csv_files import row_number
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.types.report_text import count
from headway.tasks.core.context import RunContext
from headway.tasks.rows.pipeline_split import pipeline_label, pipeline_split
from headway.training.config.encoder_specs import TabularEncoderSpec
from headway.training.config.shards import TRAIN, ShardSpec
from headway.training.data.encode.source_columns import plain
from headway.training.data.encode.tabular import too_few_classes
from headway.training.data.shards.skew import without_rows

MAX_ROWS: Final = 100_000
MIN_ROWS: Final = 40
"""Of fewer, rows whose class is their own alone say nothing."""
MAX_LONE_RATIO: Final = 0.2
"""Share of rows whose class is theirs alone. About as many of the rows held out have a class that no training row has,
and one of them is enough to be refused; so many are no rare classes, but numbers or names."""
MIN_NUMBER_RATIO: Final = 0.5
"""Share of texts that read as numbers, from which on numbers are meant."""
PLACE: Final = "shards.encoder.label"


_Found = tuple[str, int, pa.Array]
"""A batch's file, its first row's number there, and its labels."""


def _first_batches(
    source: SourceSpec, taken: Snapshot, base: Path, digests: DigestCache | None
) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Batches of about `MAX_ROWS` rows, each with its file and its first row's number there."""
    num_rows = 0
    for file in taken.files:
        row = 0
        for batch in read_rows(source, file, base=base, columns=taken.columns, digests=digests):
            yield file.path, row, batch
            row += batch.num_rows
            num_rows += batch.num_rows
            if num_rows >= MAX_ROWS:
                return


def require_classes(
    shards: ShardSpec, source: SourceSpec, taken: Snapshot, *, base: Path, digests: DigestCache | None = None
) -> None:
    """Raises `ConfigError`: a class is to be predicted, and the label's column holds numbers, or names of rows."""
    encoder = shards.encoder
    if not isinstance(encoder, TabularEncoderSpec) or encoder.label is None or not encoder.predicts_class:
        return
    if encoder.label not in taken.columns:
        return
    found = [
        (path, row, plain(batch.column(encoder.label)))
        for path, row, batch in _first_batches(source, taken, base, digests)
    ]
    counts: Counter[int | str] = Counter()
    for _, _, values in found:
        if not (types.is_integer(values.type) or types.is_string(values.type)):
            return
        counted = pc.value_counts(values.drop_null())
        counts.update(dict(zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True)))
    num_rows = counts.total()
    num_lone = sum(1 for number in counts.values() if number == 1)
    if num_rows < MIN_ROWS or num_lone <= MAX_LONE_RATIO * num_rows:
        return
    raise ConfigError(
        f"`{encoder.label}` holds no classes: of {num_rows:,} rows that were looked at, {num_lone:,} have a value that "
        "no other row has.",
        where=PLACE,
        advice=_advice(encoder.label, source, found, counts),
    )


def _advice(label: str, source: SourceSpec, found: list[_Found], counts: Counter[int | str]) -> str:
    as_number = "say `label_kind: number` beside the label, and `recipe: {name: tabular-regressor}`"
    if not any(isinstance(value, str) for value in counts):
        return f"To predict a number, {as_number}. To predict a class, name a column whose values recur."
    odd = [value for value in counts if not _is_number(str(value))]
    num_rows, num_odd = counts.total(), sum(counts[value] for value in odd)
    if num_rows - num_odd < MIN_NUMBER_RATIO * num_rows:
        return "Name a column whose values recur: names and keys of rows are no classes."
    if not source.is_text_table:
        return f"Most of them are numbers written as texts. Let the source hold them as numbers; then {as_number}."
    typed = f"`{label}: double` in `source.column_types`, `type: double` in the contract, without bounds of a length"
    if not odd:
        return f"All of them read as numbers. To predict a number, write {typed}; and {as_number}."
    return (
        f"All but {num_odd:,} of them read as numbers; the first that does not is in {_first(found, odd, source)}. To "
        f"predict a number, mend those rows, or leave them out by `unparsable_rows: quarantine` and "
        f"{limit_advice(num_odd, num_rows)} in the contract. Write {typed}; and {as_number}."
    )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False


def _first(found: list[_Found], odd: list[int | str], source: SourceSpec) -> str:
    wanted = pa.array(odd, pa.string())
    for path, start, values in found:
        row = pc.index(pc.is_in(values, value_set=wanted, skip_nulls=True), True).as_py()
        if row >= 0:
            number = row_number(source.csv, start + row) if source.format == "csv" else start + row + 1
            return f"{path}, row {number:,}"
    raise AssertionError(odd)


def require_enough_rows(
    shards: ShardSpec, source: SourceSpec, taken: Snapshot, *, base: Path, digests: DigestCache | None = None
) -> None:
    """Refuse what sharding surely refuses: rows that the contract would leave out are counted as well.

    Nothing is said of more than `MAX_ROWS` rows, which are hardly ever too few.

    Raises:
        DataError: fewer than two classes in the training split, or a split without rows.
    """
    encoder = shards.encoder
    if not isinstance(encoder, TabularEncoderSpec) or taken.num_rows > MAX_ROWS:
        return
    split = pipeline_split(shards, taken.columns)
    label = encoder.label if encoder.predicts_class and encoder.label in taken.columns else None
    num_rows: Counter[str] = Counter()
    classes: set[Any] = set()
    for path, first_row, batch in _first_batches(source, taken, base, digests):
        try:
            names = _splits_of(split, path, first_row, batch)
        except DataError:
            return  # of a row that the contract may leave out
        num_rows.update(name for name in names.to_pylist() if name is not None)
        if label is not None:
            trained = plain(batch.column(label)).filter(pc.equal(names, TRAIN))
            classes |= set(trained.drop_null().unique().to_pylist())
    empty = [name for name in shards.splits if not num_rows[name]]
    if empty and split.of_rows is None:
        return  # sharding has other words for files
    if label is not None and len(classes) < 2:
        raise too_few_classes(label, len(classes))
    if empty:
        raise without_rows(empty[0])


def _splits_of(split: PipelineSplit, path: str, first_row: int, batch: pa.RecordBatch) -> pa.Array:
    """The name of each row's split; null where it is in none."""
    if split.of_rows is None:
        return pa.array([split.of_text(path)] * batch.num_rows, pa.string())
    rows = pa.array(np.arange(first_row, first_row + batch.num_rows))
    paths = pa.array([path] * batch.num_rows, pa.string())
    if split.key is None:
        return split.of_rows(paths, rows)
    keys = batch.column(split.key)
    known = pc.is_valid(keys)  # without its key a row is left out, or refused
    names = split.of_rows(paths.filter(known), rows.filter(known), keys.filter(known))
    is_known = known.to_numpy(zero_copy_only=False)
    return names.take(pa.array(np.cumsum(is_known) - 1, mask=~is_known))


def leaks_in_first_rows(context: RunContext, shards: ShardSpec, source: SourceSpec, taken: Snapshot) -> str:
    """What a person is told of them; empty where nothing is predicted from columns.

    Rows that the contract would leave out are counted as well: validation, which sees all others, has the last word.
    """
    label = pipeline_label(shards)
    if label is None or label.column not in taken.columns:
        return ""
    wanted = [name for name in dict.fromkeys((label.column, *label.inputs)) if name in taken.columns]
    found = _first_batches(source, taken, context.base, context.digests)
    rows = pa.Table.from_batches([batch.select(wanted) for _, _, batch in found])
    with rows_in_memory(rows) as connection:
        verdicts = evaluate_label(connection, label, {name: taken.columns[name] for name in wanted})
    leaks = [verdict.observed for verdict in verdicts if not verdict.passed]
    seen = "all rows" if rows.num_rows == taken.num_rows else f"the first {count(rows.num_rows, 'row')}"
    return f"in {seen} {'; '.join(leaks) or f'no input alone tells `{label.column}`'}"
