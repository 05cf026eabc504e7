"""How a delimited text file is written: as a person says, else as its first lines show."""

from __future__ import annotations

import codecs
import contextlib
import re
from typing import NamedTuple, get_args

import fsspec
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError, DataError
from headway.data_contracts.tables.source_spec import CsvOptions

DELIMITERS = (",", ";", "\t", "|")
SPELLED = {"tab": "\t", r"\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
"""Words for delimiters that a shell takes for something else."""
ENCODINGS: dict[str, str] = {
    codecs.lookup(name).name: name for name in get_args(CsvOptions.model_fields["encoding"].annotation)
}
"""Each codec's own name to the one that a pipeline file has: `latin1` and `iso-8859-1` are one."""
SNIFFED_BYTES, SNIFFED_LINES = 1 << 16, 50


class CsvChoice(NamedTuple):
    """What a person says of delimited text; what is empty is found in the first lines."""

    delimiter: str = ""
    encoding: str = ""
    decimal: str = ""

    @property
    def options(self) -> str:
        """As on a command line; empty where nothing is said."""
        return " ".join(f"--{name}" for name, value in self._asdict().items() if value)


FOUND = CsvChoice()


class WrittenAs(NamedTuple):
    """How a file is to be read, and what its first lines are taken for."""

    csv: CsvOptions
    has_index: bool
    """Whether a first column without a name is passed over."""
    also: tuple[str, ...]
    """Other delimiters that each of the first lines has as often; empty where a person says which it is."""


def csv_choice(delimiter: str, encoding: str, decimal: str) -> CsvChoice:
    """The words of a command line, checked before any file is opened.

    Raises:
        ConfigError: one of them is none, or delimiter and decimal are the same.
    """
    given = CsvChoice(SPELLED.get(delimiter.lower(), delimiter), _encoding(encoding) if encoding else "", decimal)
    if decimal not in ("", ".", ","):
        raise ConfigError("is neither `.` nor `,`.", where=f"--decimal {decimal!r}")
    if given.delimiter and given.delimiter == decimal:
        raise ConfigError("delimiter and decimal are the same character.", where=f"--decimal {decimal!r}")
    if given.delimiter:
        try:
            CsvOptions(delimiter=given.delimiter)
        except ValidationError:
            raise ConfigError(
                "is no delimiter: one ASCII character, no quote and no end of a line.",
                where=f"--delimiter {delimiter!r}",
                advice=f"{', '.join(SPELLED)} may be written as words.",
            ) from None
    return given


def _encoding(name: str) -> str:
    with contextlib.suppress(LookupError):
        # `utf-8-sig` is UTF-8 whose byte order mark is passed over, as it is everywhere here.
        found = codecs.lookup(name).name.removesuffix("-sig")
        if found in ENCODINGS:
            return ENCODINGS[found]
    raise ConfigError(
        "is no encoding that is read.",
        where=f"--encoding {name!r}",
        advice=f"There are {', '.join(ENCODINGS.values())}.",
    )


def written_as(place: str, given: CsvChoice, *, is_tabs: bool) -> WrittenAs:
    """How the file is written.

    Args:
        place: its path or URI.
        is_tabs: whether its name says that tabs part the values.

    Raises:
        ConfigError: a decimal comma is said, and nothing but commas parts the values.
        DataError: the first lines are not written in the encoding that is said.
    """
    encoding, head = _decoded(_head(place), given.encoding, place)
    fitting = [given.delimiter] if given.delimiter else ["\t"] if is_tabs else _delimiters(head)
    if given.decimal == "," and not given.delimiter:
        fitting = [each for each in fitting if each != ","]
        if not fitting:
            raise ConfigError(
                "nothing but commas parts the values of the first lines.",
                where="--decimal ','",
                advice="Say what does, such as `--delimiter ';'`.",
            )
    delimiter, *also = fitting or [","]
    found = {"delimiter": delimiter, "encoding": encoding, "decimal": given.decimal or _decimal(head, delimiter)}
    has_index = head.startswith((delimiter, f'""{delimiter}'))
    return WrittenAs(CsvOptions.model_validate(found), has_index, tuple(also))


def _head(place: str) -> bytes:
    """The beginning of a file; empty where it cannot be read, for whoever reads the rows says why."""
    try:
        with fsspec.open(place, "rb", compression="infer") as stream:
            return bytes(stream.read(SNIFFED_BYTES))
    except Exception:  # each codec has errors of its own for bytes that it cannot read
        return b""


def _decoded(head: bytes, given: str, place: str) -> tuple[str, str]:
    """How the first lines are written, and what they say: UTF-8, unless they are none."""
    if given:
        try:
            return given, _text(head, given)
        except UnicodeDecodeError:
            raise DataError(
                f"its first lines are not written in {given}.",
                where=place,
                advice="Say another --encoding, or none: it is found by the bytes then.",
            ) from None
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16", head.decode("utf-16", errors="replace")
    for encoding in ("utf-8", "cp1252"):
        with contextlib.suppress(UnicodeDecodeError):
            return encoding, _text(head, encoding)
    return "latin-1", head.decode("latin-1")


def _text(head: bytes, encoding: str) -> str:
    # The last character may be cut off, which a decoder that expects more does not mind.
    return codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)().decode(head)


def _decimal(head: str, delimiter: str) -> str:
    """A comma where numbers of the first lines have one, and none has a point."""
    if delimiter == ",":
        return "."
    values = [value.strip('"') for line in head.splitlines()[1:SNIFFED_LINES] for value in line.split(delimiter)]
    has = {mark: any(re.fullmatch(rf"[+-]?\d+[{mark}]\d+", value) for value in values) for mark in ",."}
    return "," if has[","] and not has["."] else "."


def _delimiters(head: str) -> list[str]:
    """What may stand between the values of a file's first lines: of which each line has as many."""
    # Quoted values may hold any of them; the last line may be cut off.
    lines = [line for line in re.sub(r'"[^"]*"', "", head).splitlines()[:SNIFFED_LINES] if line]
    whole = lines[:-1] if len(head) >= SNIFFED_BYTES and len(lines) > 1 else lines
    counted = {delimiter: {line.count(delimiter) for line in whole} for delimiter in DELIMITERS}
    return [delimiter for delimiter, counts in counted.items() if len(counts) == 1 and counts != {0}]
