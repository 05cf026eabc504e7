"""A split that a person gives: by the values of a column, or by globs of the files' paths."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool, StrictInt, StrictStr, model_validator

from data_contracts.documents import Frozen
from data_contracts.errors import DataError
from data_contracts.globs import compile_glob

Value = StrictBool | StrictInt | StrictStr
NEITHER: Final = 0
TRAINS: Final = 1
HELD_OUT: Final = 2
ADVICE: Final = "List it under shards.split.train or heldout, or set shards.split.others: leave_out."


class GivenSplit(Frozen):
    """Which rows train and which are held out, named one by one."""

    column: str | None = Field(
        default=None, min_length=1, description="Column whose value says it; empty: the path of the row's file."
    )
    train: tuple[Value, ...] = Field(
        default=(),
        description="What trains: values of the column (texts, whole numbers, true and false, days as `2026-01-31`), "
        "or globs of paths such as `2025/**`. Empty: all that is not held out.",
    )
    heldout: tuple[Value, ...] = Field(min_length=1, description="What is held out, in the same words.")
    others: Literal["refuse", "leave_out"] = Field(
        default="refuse", description="What becomes of rows that neither lists, if both list something."
    )

    @model_validator(mode="after")
    def _says_one_thing(self) -> GivenSplit:
        both = {_named(value) for value in self.train} & {_named(value) for value in self.heldout}
        if both:
            raise ValueError(f"both splits list {', '.join(repr(value) for _, value in sorted(both, key=str))}")
        if self.column is None and not all(isinstance(value, str) for value in (*self.train, *self.heldout)):
            raise ValueError("without a column, train and heldout are globs of paths, and globs are texts")
        return self

    def of_path(self, path: str) -> int:
        """`TRAINS`, `HELD_OUT` or `NEITHER`, where files decide.

        Raises:
            DataError: both list the file, or neither does and it is not to be left out.
        """
        trains, held_out = (any(matches(glob, path) for glob in globs) for globs in (self.train, self.heldout))
        if trains and held_out:
            raise DataError("both splits list the file.", where=path, advice="Make the globs of shards.split disjoint.")
        if held_out or trains or not self.train:
            return HELD_OUT if held_out else TRAINS
        if self.others == "refuse":
            raise DataError("neither split lists the file.", where=path, advice=ADVICE)
        return NEITHER

    def require_files(self, paths: list[str]) -> None:
        """Raises `DataError`: a glob that matches no file."""
        for glob in (*self.train, *self.heldout) if self.column is None else ():
            if not any(matches(glob, path) for path in paths):
                raise DataError(
                    f"the glob {str(glob)!r} matches no file.",
                    where="shards.split",
                    advice=f"There are {', '.join(sorted(paths)[:3])}{' and more' if len(paths) > 3 else ''}.",
                )

    def of_values(self, values: Any, where: str) -> NDArray[np.int8]:
        """`TRAINS`, `HELD_OUT` or `NEITHER` for each value of the column, where it decides.

        Args:
            values: an Arrow array.
            where: the file's path, for the message.

        Raises:
            DataError: a type that has no such values, or a value that neither lists and is not to be left out.
        """
        import pyarrow as pa

        listed = {_named(value): TRAINS for value in self.train} | {_named(value): HELD_OUT for value in self.heldout}
        rest = NEITHER if self.train else TRAINS
        kind = values.type
        known = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32)
        if not any(is_kind(kind) for is_kind in known):
            raise DataError(
                f"column {self.column!r} is {kind}; a split is given by texts, whole numbers, truths or days.",
                where=where,
                advice="Name another column in shards.split.column.",
            )
        encoded = values.dictionary_encode(null_encoding="encode")
        distinct = [
            value.isoformat() if pa.types.is_date32(kind) and value is not None else value
            for value in encoded.dictionary.to_pylist()
        ]
        codes = np.array([listed.get(_named(value), rest) for value in distinct], dtype=np.int8)
        found: NDArray[np.int8] = codes[encoded.indices.to_numpy()]
        if self.others == "refuse" and (found == NEITHER).any():
            counts = Counter(encoded.indices.to_numpy()[found == NEITHER].tolist())
            place, number = counts.most_common(1)[0]
            said = "null" if distinct[place] is None else repr(distinct[place])
            raise DataError(
                f"column {self.column!r} is {said} in {number:,} row{'s' if number > 1 else ''}, which neither split "
                "lists.",
                where=where,
                advice=ADVICE,
            )
        return found

    def of_text(self, text: str) -> int:
        """Of a value of the column, as a text; refuses nothing."""
        named = [("str", text), *([("int", int(text))] if text.lstrip("-").isdecimal() else [])]
        if any(_named(value) in named for value in self.heldout):
            return HELD_OUT
        return TRAINS if not self.train or any(_named(value) in named for value in self.train) else NEITHER


def matches(glob: Value, path: str) -> bool:
    return compile_glob(str(glob)).fullmatch(path) is not None


def _named(value: Any) -> tuple[str, Any]:
    """So that 1 is not true."""
    return type(value).__name__, value
