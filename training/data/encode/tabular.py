"""Tables: a float32 block of numbers, an int32 block of categories, and what to predict, a row for a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import Json, PayloadColumn
from headway.data_contracts.store.errors import DataError
from headway.training.config.encoder_specs import TabularEncoderSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.categories import Categories, Lookup
from headway.training.data.encode.exact_sums import LARGEST, ExactSum, exact_squares
from headway.training.data.encode.numeric_block import numeric_names
from headway.training.data.encode.protocol import RowByRow
from headway.training.data.encode.source_columns import FIT_AGAIN, QUARANTINE, numbers, refuse_rows
from headway.training.data.encode.table_statistics import table_statistics
from headway.training.data.encode.times import TimeFit, TimeParts

UNKNOWN = 0
"""Number of every value that training did not see, and of null."""


class Moments:
    """Exact sums behind a column's mean and deviation; missing values are left out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_values = 0
        self.total, self.squares = ExactSum(), ExactSum()

    def add(self, block: SourceBlock, values: NDArray[Any]) -> None:
        wide = values.astype(np.float64, copy=False)
        refuse_rows(block, np.abs(wide) > LARGEST, self.name, "is beyond 1e144")
        present = wide[~np.isnan(wide)]
        # NaN marks what is missing; it must not enter a sum.
        self.num_values += len(present)
        if len(present):
            self.total.add(present)
            # A square has twice the bits of a double, so it is kept as two.
            squares, rests = exact_squares(present)
            self.squares.add(squares)
            if rests.any():
                self.squares.add(rests)

    def merge(self, other: Moments) -> None:
        self.num_values += other.num_values
        self.total.units += other.total.units
        self.squares.units += other.squares.units

    def statistics(self) -> dict[str, Json]:
        """Mean and population deviation, each rounded once."""
        if not self.num_values:
            raise DataError(f"column {self.name!r} has no value in the training split.")
        mean = self.total.value / self.num_values
        # The difference of exact fractions: in floating point it could come out negative.
        variance = self.squares.value / self.num_values - mean * mean
        return {
            "column": self.name,
            "num_values": self.num_values,
            "mean": float(mean),
            "deviation": float(variance) ** 0.5,
        }


class TabularFit:
    """What is learnt from rows of the training split; fits of several threads merge into the fit of all their rows."""

    def __init__(self, spec: TabularEncoderSpec) -> None:
        self._spec = spec
        numeric = (*spec.numeric, *([spec.label] if spec.label and not spec.predicts_class else []))
        categorical = (*spec.categorical, *([spec.label] if spec.label and spec.predicts_class else []))
        self._moments = {name: Moments(name) for name in numeric}
        self._categories = {name: Categories(name) for name in categorical}
        self._times = {name: TimeFit(name) for name in spec.times}
        self._num_rows = 0

    def add(self, block: SourceBlock) -> None:
        self._num_rows += block.batch.num_rows
        for name, moments in self._moments.items():
            may_be_missing = self._spec.missing == "mean" and name != self._spec.label
            moments.add(block, numbers(block, name, may_be_missing=may_be_missing))
        for categories in self._categories.values():
            categories.add(block)
        for times in self._times.values():
            times.add(block, may_be_missing=self._spec.missing == "mean")

    def merge(self, other: TabularFit) -> None:
        self._num_rows += other._num_rows
        for name, moments in self._moments.items():
            moments.merge(other._moments[name])
        for name, categories in self._categories.items():
            categories.merge(other._categories[name])
        for name, times in self._times.items():
            times.merge(other._times[name])

    def statistics(self) -> Json:
        spec = self._spec
        return {
            # Beside a column's `num_values` it tells whether the column had gaps.
            "num_rows": self._num_rows,
            "numeric": [self._moments[name].statistics() for name in spec.numeric],
            "categorical": [
                {"column": name, "values": self._categories[name].values(spec.max_categories)}
                for name in spec.categorical
            ],
            "label": self._label(),
            # Left out where there are none: what was fitted before has no such key.
            **({"times": [self._times[name].statistics() for name in spec.times]} if spec.times else {}),
        }

    def _label(self) -> Json:
        if self._spec.label is None:
            return None
        if not self._spec.predicts_class:
            return self._moments[self._spec.label].statistics()
        return {"column": self._spec.label, "values": class_values(self._categories[self._spec.label])}


def class_values(classes: Categories) -> list[int | str]:
    """The classes in order, or `DataError` where there is nothing to tell apart."""
    values = classes.values()
    # A single class makes every prediction right, and a loss of zero.
    if len(values) < 2:
        raise too_few_classes(classes.name, len(values))
    return values


def too_few_classes(label: str, num_classes: int) -> DataError:
    return DataError(
        f"column {label!r} has {num_classes} class(es) in the training split: none to predict.",
        advice="Add rows of other classes, name another label, or change how `shards` splits the rows.",
    )


class ClassLabel:
    """The class to predict, as a number from 0."""

    def __init__(self, name: str, values: Sequence[int | str]) -> None:
        self._lookup = Lookup(name, values)
        self.num_classes = len(values)

    def __call__(self, block: SourceBlock) -> NDArray[np.int32]:
        """Raises `DataError` at a class that training never saw: no model could ever be right about it."""
        found = self._lookup.numbers(block)
        what = "is null, or a class that the training split has no row of,"
        # No model could be right about such a row, so it is refused and not numbered.
        refuse_rows(block, found < 0, self._lookup.name, what, advice=f"{QUARANTINE} For a new class, {FIT_AGAIN}")
        return found


class TabularEncoder:
    """Rows to blocks.

    Args:
        statistics: what `TabularFit` learnt.
        only_known_gaps: refuse a missing value in a column that had no gap in training, where `missing` is `mean`.

    Raises:
        IntegrityError: they are none of this spec's.
    """

    def __init__(self, spec: TabularEncoderSpec, statistics: Json, *, only_known_gaps: bool = False) -> None:
        self._spec = spec
        learnt = table_statistics(spec, statistics)
        self._means = [column.mean for column in learnt.numeric]
        # A constant column has no deviation; 1 leaves it at zero after the mean is taken off.
        self._scales = [column.deviation or 1.0 for column in learnt.numeric]
        self._lookups = [Lookup(column.column, column.values) for column in learnt.categorical]
        self._label = ClassLabel(spec.label or "", learnt.label_values) if spec.predicts_class else None
        self.num_classes = self._label.num_classes if self._label else 0
        self.numeric = numeric_names(learnt)
        """What stands in the block of numbers, in its order."""
        self.columns = tuple(self._columns())
        num_rows = learnt.num_rows if only_known_gaps else None
        counted = [*((each.column, each.num_values) for each in learnt.numeric)]
        counted += [(each.column, each.num_values) for each in learnt.times]
        whole = [column for column, num_values in counted if num_values == num_rows]
        self.required = tuple(whole) if spec.missing == "mean" else (*spec.numeric, *spec.times)
        """Columns of numbers and times in which none may be missing."""
        self._times = [TimeParts(each, fills_missing=each.column not in self.required) for each in learnt.times]

    def stream(self, seed: int) -> RowByRow:
        return RowByRow(self.encode)

    def encode(self, block: SourceBlock) -> Mapping[str, NDArray[Any]]:
        """By column, a row for each of the block's."""
        values: dict[str, NDArray[Any]] = {}
        if self.numeric:
            numbers_block = self._numeric(block)
            parts = [times(block) for times in self._times]
            values["numeric"] = np.concatenate([numbers_block, *parts], axis=1) if parts else numbers_block
        if self._lookups:
            # Number 0 is for unknown values, which the look-up gives as -1.
            numbered = [lookup.numbers(block) + np.int32(1) for lookup in self._lookups]
            values["categorical"] = np.stack(numbered, axis=1)
        if self._label is not None:
            values["label"] = self._label(block)[:, None]
        elif self._spec.label is not None:
            label = numbers(block, self._spec.label, may_be_missing=False, fitted="numbers")
            values["label"] = label.astype(np.float32)[:, None]
        return values

    def _columns(self) -> list[PayloadColumn]:
        columns = []
        if self.numeric:
            columns.append(PayloadColumn(name="numeric", dtype="float32", shape=(len(self.numeric),)))
        if self._spec.categorical:
            columns.append(PayloadColumn(name="categorical", dtype="int32", shape=(len(self._spec.categorical),)))
        if self._spec.label is not None:
            dtype = "int32" if self._spec.predicts_class else "float32"
            columns.append(PayloadColumn(name="label", dtype=dtype, shape=(1,)))
        return columns

    def _numeric(self, block: SourceBlock) -> NDArray[np.float32]:
        made: NDArray[np.float32] = np.empty((block.batch.num_rows, len(self._spec.numeric)), dtype=np.float32)
        for place, name in enumerate(self._spec.numeric):
            may_be_missing = name not in self.required
            values = numbers(block, name, may_be_missing=may_be_missing, fitted="numbers")
            if may_be_missing and np.isnan(values).any():
                # The mean of training, not of this batch: a row's bytes must not depend on its neighbours.
                values = np.where(np.isnan(values), self._means[place], values)
            if self._spec.standardise:
                # In float64, rounded once to float32: the same bits for any batch.
                values = (values - np.float64(self._means[place])) / np.float64(self._scales[place])
            with np.errstate(over="ignore"):
                made[:, place] = values
                # float32 overflows silently; a sum of finite numbers would be finite.
                fits = bool(np.isfinite(made[:, place].sum(dtype=np.float64)))
            if not fits:
                refuse_rows(block, np.isinf(made[:, place]), name, "is too large a number for a model of 32 bits")
        return made
