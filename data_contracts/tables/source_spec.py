"""What a pipeline file says about its source."""

from __future__ import annotations

import operator
import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.types.column_types import UnknownType, arrow_type
from headway.data_contracts.types.text_types import format_problem
from headway.data_contracts.types.written_numbers import NumberFormat

Format = Literal["text-files", "parquet", "csv", "json-lines"]


MAX_SKIP_ROWS = (1 << 31) - 1
"""As the reader counts."""


class CsvOptions(Frozen):
    """How a CSV file is to be read; a name that ends in .gz, .bz2 or .zst is decompressed."""

    encoding: Literal["utf-8", "utf-16", "latin-1", "cp1252", "cp1250", "cp1251", "shift_jis", "gb18030"] = Field(
        default="utf-8",
        exclude_if=lambda encoding: encoding == "utf-8",
        description="How characters are written. What comes of it is UTF-8.",
    )
    decimal: Literal[".", ","] = Field(
        default=".",
        exclude_if=lambda decimal: decimal == ".",
        description="What stands before the fraction of a number. With a comma the delimiter is another.",
    )
    thousands: Literal["", ",", ".", "'", "’", " ", "\u00a0", "\u202f"] = Field(
        default="",
        exclude_if=operator.not_,
        description="What stands between groups of three digits, as in 1,234.50. Empty: nothing.",
    )
    units: dict[str, str] = Field(
        default_factory=dict,
        exclude_if=operator.not_,
        description="By column, the sign before or after each of its numbers, such as `$` or `%`, which is left out: "
        "45 % is read as 45. A number with another sign, or with none, cannot be read.",
    )
    delimiter: str = Field(default=",", min_length=1, max_length=1, description="Character between two values.")
    quote: str = Field(default='"', min_length=1, max_length=1, description="Character around a value, doubled inside.")
    has_header: bool = Field(default=True, description="Whether the first line holds the columns' names.")
    column_names: tuple[str, ...] = Field(
        default=(),
        description="The columns' names where the file has none; without a header and without names: f0, f1 and so on.",
    )
    skip_rows: int = Field(
        default=0, ge=0, le=MAX_SKIP_ROWS, description="Lines before the header, or before the first row."
    )
    timestamp_formats: tuple[str, ...] = Field(
        default=(),
        exclude_if=operator.not_,
        description="How dates and times are written, such as `%d.%m.%Y` or `%m/%d/%Y %H:%M`, in the order in which "
        "they are tried. ISO 8601 is always read.",
    )
    nulls: tuple[str, ...] = Field(default=("",), description="Unquoted spellings of a null. A quoted one is a text.")
    max_row_bytes: int = Field(
        default=16 << 20,
        gt=0,
        le=1 << 30,
        description="The longest row that is certain to be read. So much text is parsed at a time, and held in memory.",
    )

    def numbers(self, column: str) -> NumberFormat:
        """How those of a column are written."""
        return NumberFormat(self.decimal, self.thousands, self.units.get(column, ""))

    @field_validator("units")
    @classmethod
    def _are_units(cls, units: dict[str, str]) -> dict[str, str]:
        for name, each in units.items():
            if not each.strip() or re.search(r"[0-9+.,-]", each):
                raise ValueError(f"column `{name}`: {each!r} is no unit: a sign or letters, without digits and points")
        return units

    @field_validator("timestamp_formats")
    @classmethod
    def _are_timestamp_formats(cls, formats: tuple[str, ...]) -> tuple[str, ...]:
        for each in formats:
            if problem := format_problem(each):
                raise ValueError(f"{each!r} {problem}")
        return formats

    @model_validator(mode="after")
    def _names_come_from_one_place(self) -> Self:
        if self.has_header and self.column_names:
            raise ValueError("column_names go with `has_header: false`; to skip a header, add `skip_rows: 1`")
        return self

    @model_validator(mode="after")
    def _a_character_parts_values(self) -> Self:
        # Arrow takes one byte, and an end of a line parts rows.
        if not self.delimiter.isascii() or self.delimiter in ("\n", "\r", "\0", self.quote):
            raise ValueError("the delimiter is one ASCII character, no quote and no end of a line")
        return self

    @model_validator(mode="after")
    def _a_comma_is_one_thing(self) -> Self:
        if self.decimal == self.thousands:
            raise ValueError("decimal and thousands are the same character")
        if self.decimal == self.delimiter:
            raise ValueError("delimiter and decimal are both a comma: name the character between two values")
        return self


class SourceSpec(Frozen):
    """Which files are the data, and how rows come out of them."""

    format: Format = Field(
        default="text-files",
        description="How rows come out of files: `text-files` makes one row of each file; the others hold tables.",
    )
    uri: str = Field(
        min_length=1,
        description="A folder (relative to the pipeline file), any fsspec URI such as `s3://bucket/prefix`, "
        "`python:stdlib` (the running interpreter's standard library) or `python:PACKAGE/FOLDER` (files that an "
        "installed package brings along).",
    )
    include: tuple[str, ...] = Field(
        default=("**/*",), min_length=1, description="Globs over relative paths; a file must match one of them."
    )
    exclude: tuple[str, ...] = Field(default=(), description="Globs over relative paths; a match leaves the file out.")
    follow_links: bool = Field(
        default=False,
        description="Whether symbolic links that lead out of the source's folder are followed; else such a link is "
        "refused by name. Links to what lies in the folder are always followed.",
    )
    max_file_bytes: int = Field(
        default=256 << 20,
        gt=0,
        description="A larger text file is refused: each is held in memory as one row. Tables are streamed, and free.",
    )
    csv: CsvOptions = Field(default_factory=CsvOptions, description="How CSV files are to be read.")
    column_types: dict[str, str] = Field(
        default_factory=dict,
        description="Types, by name, of columns whose files carry none: of csv and json-lines (others are inferred "
        "from the whole first file; of csv those are strings that the contract says are) and of partition folders "
        "(others are strings).",
    )
    optional_columns: tuple[str, ...] = Field(
        default=(), description="Columns that a file may lack, such as files older than the column: null in its rows."
    )
    partitions: bool = Field(
        default=True, description="Whether folders such as `date=2026-01-01` are columns of the tables below them."
    )

    @field_validator("column_types")
    @classmethod
    def _are_column_types(cls, types: dict[str, str]) -> dict[str, str]:
        for name, kind in types.items():
            try:
                arrow_type(kind)
            except UnknownType as error:
                raise ValueError(f"column `{name}`: {error}") from error
        return types

    @property
    def is_table(self) -> bool:
        return self.format != "text-files"

    @property
    def is_text_table(self) -> bool:
        """Whether values are texts that have to be parsed."""
        return self.format in ("csv", "json-lines")
