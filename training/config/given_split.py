"""A split that a person gives: by the values of a column, or by globs of the files' paths."""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool, StrictInt, StrictStr, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.store.globs import compile_glob

Value = StrictBool | StrictInt | StrictStr
NEITHER: Final = 0
TRAINS: Final = 1
HELD_OUT: Final = 2
VALIDATES: Final = 3
MAX_VALUES: Final = 1000
"""Different values that no split lists among which a misspelt one is looked for."""
MAX_COMPARED: Final = 100
"""Values without rows that are held against those: of more, nobody mistyped all."""
LONGEST: Final = 100
"""Characters of a value that somebody may have mistyped; to compare takes time that grows with their square."""
WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
ADVICE: Final = "List it under shards.split.train, validation or heldout, or set shards.split.others: leave_out."


class GivenSplit(Frozen):
    """Which rows train, which validate and which are held out, named one by one."""

    column: str | None = Field(
        default=None, min_length=1, description="Column whose value says it; empty: the path of the row's file."
    )
    train: tuple[Value, ...] = Field(
        default=(),
        description="What trains: values of the column (texts, whole numbers, true and false, days as `2026-01-31`), "
        "or globs of paths such as `2025/**`. Empty: all that the others do not list.",
    )
    validation: tuple[Value, ...] = Field(
        default=(),
        exclude_if=lambda values: not values,
        description="What `training.validation` looks at while the run trains, in the same words. Empty: nothing.",
    )
    heldout: tuple[Value, ...] = Field(min_length=1, description="What is held out, in the same words.")
    others: Literal["refuse", "leave_out"] = Field(
        default="refuse", description="What becomes of rows that none of them lists, where `train` lists something."
    )

    @model_validator(mode="after")
    def _states_one_rule(self) -> GivenSplit:
        named = [{_named(value) for value in values} for values in self._listed.values()]
        both = {value for one, other in itertools.combinations(named, 2) for value in one & other}
        if both:
            raise ValueError(f"both splits list {', '.join(repr(value) for _, value in sorted(both, key=str))}")
        if self.column is None and not all(isinstance(value, str) for value in self._values):
            raise ValueError("without a column, what each split lists are globs of paths, and globs are texts")
        return self

    @property
    def _listed(self) -> dict[int, tuple[Value, ...]]:
        return {TRAINS: self.train, VALIDATES: self.validation, HELD_OUT: self.heldout}

    @property
    def _values(self) -> tuple[Value, ...]:
        return tuple(itertools.chain.from_iterable(self._listed.values()))

    def of_path(self, path: str) -> int:
        """`TRAINS`, `VALIDATES`, `HELD_OUT` or `NEITHER`, where files decide.

        Raises:
            DataError: two list the file, or none does and it is not to be left out.
        """
        found = [code for code, globs in self._listed.items() if any(matches(glob, path) for glob in globs)]
        if len(found) > 1:
            names = {TRAINS: "train", VALIDATES: "validation", HELD_OUT: "heldout"}
            both = " and ".join(names[code] for code in found)
            raise DataError(f"{both} list the file.", where=path, advice="Make the globs of shards.split disjoint.")
        if found or not self.train:
            return found[0] if found else TRAINS
        if self.others == "refuse":
            raise DataError("no split lists the file.", where=path, advice=ADVICE)
        return NEITHER

    def require_files(self, paths: list[str]) -> None:
        """Raises `DataError`: a glob that matches no file."""
        for glob in self._values if self.column is None else ():
            if not any(matches(glob, path) for path in paths):
                raise DataError(
                    f"the glob {str(glob)!r} matches no file.",
                    where="shards.split",
                    advice=f"There are {', '.join(sorted(paths)[:3])}{' and more' if len(paths) > 3 else ''}.",
                )

    def of_values(self, values: Any, where: str) -> NDArray[np.int8]:
        """`TRAINS`, `VALIDATES`, `HELD_OUT` or `NEITHER` for each value of the column, where it decides.

        Args:
            values: an Arrow array.
            where: the file's path, for the message.

        Raises:
            DataError: a type that has no such values, or a value that none lists and is not to be left out.
        """
        listed = {_named(value): code for code, named in self._listed.items() for value in named}
        rest = NEITHER if self.train else TRAINS
        encoded = values.dictionary_encode(null_encoding="encode")
        distinct = self._distinct(encoded.dictionary, where)
        codes = np.array([listed.get(_named(value), rest) for value in distinct], dtype=np.int8)
        found: NDArray[np.int8] = codes[encoded.indices.to_numpy()]
        if self.others == "refuse" and (found == NEITHER).any():
            counts = Counter(encoded.indices.to_numpy()[found == NEITHER].tolist())
            place, number = counts.most_common(1)[0]
            message = "null" if distinct[place] is None else repr(distinct[place])
            raise DataError(
                f"column {self.column!r} is {message} in {_rows(number)}, which no split lists.",
                where=where,
                advice=ADVICE,
            )
        return found

    def without_rows(self, columns: Iterable[tuple[str, Any]]) -> tuple[Value, ...]:
        """Listed values that no row has; reads no further than to the last of them.

        Such a value may be one that has no rows today. It is refused where it looks misspelt, because rows would be on
        the wrong side without a word, and where nothing is left of what is held out or trains.

        Args:
            columns: the column that decides, piece by piece: the file's path, and an Arrow array.

        Raises:
            DataError: a value without rows is refused, or the column has a type that has no such values.
        """
        listed = {_named(value): value for value in self._values}
        missing, unlisted = dict(listed), Counter[Any]()
        for where, values in columns:
            counts = values.value_counts()
            for value, number in zip(self._distinct(counts.field(0), where), counts.field(1).to_pylist(), strict=True):
                missing.pop(_named(value), None)
                if (
                    value is not None
                    and _named(value) not in listed
                    and (value in unlisted or len(unlisted) < MAX_VALUES)
                ):
                    unlisted[value] += number
            if not missing:
                return ()
        for value in itertools.islice(missing.values(), MAX_COMPARED):
            if near := _likely_meant(value, unlisted):
                there = " or ".join(f"{each!r} ({_rows(unlisted[each])})" for each in near)
                raise DataError(
                    f"no row has {value!r} in column {self.column!r}, and shards.split does not list {there}.",
                    where="shards.split",
                    advice="Correct the value; list both if both are meant, or take out what has no rows.",
                )
        lists = (("train", self.train), ("validation", self.validation), ("heldout", self.heldout))
        for name, values_of_split in lists:
            if values_of_split and all(_named(value) in missing for value in values_of_split):
                there = ", ".join(repr(value) for value, _ in unlisted.most_common(5))
                raise DataError(
                    f"no row has a value that shards.split.{name} lists: {', '.join(map(repr, values_of_split[:5]))}.",
                    where=f"column {self.column!r}",
                    advice=f"The data have {there}." if there else "Add data, or list other values.",
                )
        return tuple(missing.values())

    def _distinct(self, values: Any, where: str) -> list[Any]:
        """An array's values as they are listed. Raises `DataError`: their type has no such values."""
        import pyarrow as pa

        kind = values.type
        known = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32)
        if not any(is_kind(kind) for is_kind in known):
            raise DataError(
                f"column {self.column!r} is {kind}; a split is given by texts, whole numbers, truths or days.",
                where=where,
                advice="Name another column in shards.split.column.",
            )
        if pa.types.is_date32(kind):
            # NumPy knows days that Python's calendar does not, such as one of the year 20205.
            days = values.to_numpy(zero_copy_only=False)
            return [None if np.isnat(day) else str(day) for day in days]
        return values.to_pylist()  # type: ignore[no-any-return]

    def of_text(self, text: str) -> int:
        """Of a value of the column, as a text; refuses nothing."""
        named = [("str", text), *([("int", int(text))] if WHOLE_NUMBER.fullmatch(text) else [])]
        for code, values in self._listed.items():
            if any(_named(value) in named for value in values):
                return code
        return NEITHER if self.train else TRAINS


def matches(glob: Value, path: str) -> bool:
    return compile_glob(str(glob)).fullmatch(path) is not None


def _named(value: Any) -> tuple[str, Any]:
    """So that 1 is not true."""
    return type(value).__name__, value


def _likely_meant(value: Value, there: Iterable[Any]) -> list[Any]:
    """Values of which it is probably a misspelling. Numbers, days and ids that differ in a digit are others."""
    if len(str(value)) > LONGEST:
        return []
    by_text: dict[str, Any] = {}
    for each in there:
        if len(str(each)) <= LONGEST and _digits(each) == _digits(value):
            by_text.setdefault(str(each).casefold(), each)
    return [by_text[text] for text in difflib.get_close_matches(str(value).casefold(), by_text, n=3)]


def _digits(value: Any) -> str:
    return "".join(filter(str.isdigit, str(value)))


def _rows(number: int) -> str:
    return f"{number:,} row{'s' if number > 1 else ''}"
