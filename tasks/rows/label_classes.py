"""Whether the label of a pipeline that predicts a class holds classes: looked up in the source's first rows, where
sharding would find out after minutes that held-out rows have classes which no training row has."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from headway.data_contracts.sources.reading import SourceSpec, read_rows
from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.quarantine_limit import limit_advice
from headway.data_contracts.tables.csv_files import row_number
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.training.config.encoder_specs import TabularEncoderSpec
from headway.training.config.shards import ShardSpec
from headway.training.data.encode.source_columns import plain

MAX_ROWS: Final = 100_000
MIN_ROWS: Final = 40
"""Of fewer, rows whose class is their own alone say nothing."""
MAX_LONE_RATIO: Final = 0.2
"""Share of rows whose class is theirs alone. About as many of the rows held out have a class that no training row has,
and one of them is enough to be refused; so many are no rare classes, but numbers or names."""
MIN_NUMBER_RATIO: Final = 0.5
"""Share of texts that read as numbers, from which on numbers are meant."""
PLACE: Final = "shards.encoder.label"


def require_classes(
    shards: ShardSpec, source: SourceSpec, taken: Snapshot, *, base: Path, digests: DigestCache | None = None
) -> None:
    """Raises `ConfigError`: a class is to be predicted, and the label's column holds numbers, or names of rows."""
    encoder = shards.encoder
    if not isinstance(encoder, TabularEncoderSpec) or encoder.label is None or not encoder.predicts_class:
        return
    if encoder.label not in taken.columns:
        return
    found = _first_values(encoder.label, source, taken, base, digests)
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


_Found = tuple[str, int, pa.Array]
"""A batch's file, its first row's number there, and its labels."""


def _first_values(
    label: str, source: SourceSpec, taken: Snapshot, base: Path, digests: DigestCache | None
) -> list[_Found]:
    found: list[_Found] = []
    num_rows = 0
    for file in taken.files:
        row = 0
        for batch in read_rows(source, file, base=base, columns=taken.columns, digests=digests):
            found.append((file.path, row, plain(batch.column(label))))
            row += batch.num_rows
            num_rows += batch.num_rows
            if num_rows >= MAX_ROWS:
                return found
    return found


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
