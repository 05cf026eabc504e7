"""Slices of the held-out examples by columns of the source that a pipeline file names."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, model_validator

from headway.data_contracts.store.documents import Frozen, Link, Snapshot
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.plain_text import distinct_line
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.type_families import ORDERED, Family, family
from headway.training.data.shards.source_values import PATH

if TYPE_CHECKING:
    import pyarrow as pa

OTHERS = "(others)"
NONE = "(none)"
"""Of a null, and of a NaN."""
TOP_LEVEL = "(top level)"
MAX_VALUES = 50
"""Slices of a column by its values; rarer ones are taken together."""
MAX_NUMBERS = 12
"""Different numbers or moments that are slices of their own; of more, quarters are."""
MAX_CHARACTERS = 60
"""Of a value in a slice's name."""
_LIKE_A_PREFIX = re.compile(r" = |/[0-9]+$")
CUT: tuple[Family, ...] = ("bool", "string", *ORDERED)


class SliceBy(Frozen):
    """One way to cut the held-out examples. A pipeline file may give the column's name alone."""

    model_config = ConfigDict(json_schema_extra={"type": ["object", "string"]})

    column: str = Field(min_length=1, description="A column of the source; `path` is that of a row's file.")
    folders: int | None = Field(
        default=None, ge=1, description="Of a path: how many of its leading folders make a slice."
    )

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_name(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value

    @property
    def prefix(self) -> str:
        column = _named(self.column, is_plain=not _LIKE_A_PREFIX.search(self.column))
        return f"{column}{'' if self.folders is None else f'/{self.folders}'} = "


def require_columns(workspace: Workspace, slices: Sequence[SliceBy], snapshot: Link) -> None:
    """Before anything is spent on a model that could not be evaluated as its file says.

    Raises:
        ConfigError: the source has no such column, or values of its type are no slices.
    """
    columns = {PATH: "string", **workspace.load(snapshot, Snapshot).columns} if slices else {}
    for number, by in enumerate(slices):
        where, kind = f"evaluation.slices.{number}", columns.get(by.column)
        if kind is None:
            raise ConfigError(
                f"the source has no column {by.column!r}.", where=where, advice=f"It has: {', '.join(sorted(columns))}."
            )
        if family(kind) not in CUT or (by.folders is not None and family(kind) != "string"):
            wanted = "paths" if by.folders is not None else "texts, numbers, dates or truth values"
            raise ConfigError(f"column {by.column!r} is {kind}; slices are cut by {wanted}.", where=where)


def labels_of(by: SliceBy, values: pa.Array) -> list[str]:
    """The slice of each value: the value itself, its leading folders, or of many numbers the quarter it lies in."""
    import pyarrow.compute as pc
    from pyarrow import types

    is_text = types.is_string(values.type) or types.is_boolean(values.type)
    if not is_text and pc.count_distinct(values).as_py() > MAX_NUMBERS:
        labels = _quarters(values)
    else:
        texts = (_folders(value, by.folders) if by.folders else value for value in _listed(values))
        labels = _frequent([NONE if _is_missing(value) else _named(str(value)) for value in texts])
    return [f"{by.prefix}{label}" for label in labels]


def _listed(values: pa.Array) -> list[Any]:
    """In order as they are; moments that Python's calendar does not know are NumPy's."""
    try:
        return values.to_pylist()  # type: ignore[no-any-return]
    except OverflowError:  # after the year 9999, or before the year 1
        moments = values.to_numpy(zero_copy_only=False)
        return [
            moment if is_there else None
            for moment, is_there in zip(moments, values.is_valid().to_pylist(), strict=True)
        ]


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _folders(path: str | None, depth: int) -> str | None:
    if path is None:
        return None
    folders = path.split("/")[:-1][:depth]
    return "".join(f"{folder}/" for folder in folders) or TOP_LEVEL


def _frequent(labels: list[str]) -> Iterable[str]:
    counts = Counter(labels)
    # Ties go by name: a report's bytes must not depend on the order of the rows.
    kept = {label for label, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_VALUES]}
    return (label if label in kept else OTHERS for label in labels)


def _quarters(values: pa.Array) -> Iterable[str]:
    """From the smallest to the largest value, named by the least and the greatest of each."""
    shown = [None if _is_missing(value) else value for value in _listed(values)]
    known = sorted(value for value in shown if value is not None)
    # Bounds are values that occur, not means of two: names show them, and equal values fall into one quarter.
    places = [math.floor(share * (len(known) - 1)) for share in (0.25, 0.5, 0.75)]
    bounds = [known[place] for place in places]
    ends = [known[0], *bounds, known[-1]]
    for value in shown:
        if value is None:
            yield NONE
            continue
        quarter = sum(value > bound for bound in bounds)
        yield f"quarter {quarter + 1}: {_number(ends[quarter])} to {_number(ends[quarter + 1])}"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _named(text: str, *, is_plain: bool = True) -> str:
    """A value, or what can be shown of it and its digest: different values never share a name, each being evaluated."""
    return distinct_line(text, MAX_CHARACTERS, is_plain=is_plain and text not in (NONE, OTHERS))
