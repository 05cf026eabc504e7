"""A quote that nothing closes: all that follows it in a file would be one value, and its rows would be gone."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.decompressed import CHUNK_BYTES, opened
from headway.data_contracts.tables.source_spec import CsvOptions

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class QuoteCount(io.RawIOBase):
    """A file's bytes as they are read, and whether its quotes may be unpaired."""

    def __init__(self, stream: Any, options: CsvOptions) -> None:
        self._stream, self._quote = stream, ord(options.quote)
        # In two bytes a character, a byte may be half of another one.
        self._is_unknown = options.encoding == "utf-16"
        self._is_odd = False

    @property
    def may_be_open(self) -> bool:
        return self._is_odd or self._is_unknown

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        import numpy as np

        data: bytes = self._stream.read(size)
        # Not `bytes.count`, which takes ten times as long where every value has quotes.
        self._is_odd ^= bool(np.count_nonzero(np.frombuffer(data, np.uint8) == self._quote) % 2)
        return data


def refuse_open_quote(path: Path, where: str, options: CsvOptions) -> None:
    """Of a file whose quotes are unpaired: a mark of inches in a value without quotes is none that opens.

    Raises:
        DataError: the last quote that opens a value is not closed.
    """
    line = _open_at_line(_texts(path, where, options), options)
    if line is not None:
        raise DataError(
            f"the quote that opens in line {line:,} is never closed: all that follows it would be one value.",
            where=where,
            advice="Close it, or write the file again: it may be cut short.",
        )


def _texts(path: Path, where: str, options: CsvOptions) -> Iterator[str]:
    name = "utf-8-sig" if options.encoding == "utf-8" else options.encoding
    decoder = codecs.getincrementaldecoder(name)(errors="replace")
    with opened(path, where) as stream:
        while data := stream.read(CHUNK_BYTES):
            yield decoder.decode(data)


def _open_at_line(texts: Iterator[str], options: CsvOptions) -> int | None:
    """Where the quote opens that is still open at the end, as Arrow reads: one opens at the start of a value alone."""
    quote, starts = options.quote, (options.delimiter, "\n", "\r", "")
    is_open, opened_at, before = False, 0, ""
    feeds = returns = 0
    to_skip = options.skip_rows
    for text in texts:
        # Whether a quote is doubled shows in what follows it.
        while text.endswith(quote) and (more := next(texts, "")):
            text += more
        done = 0
        if to_skip:
            # A reader that passes over lines knows no quotes.
            above = re.match(rf"(?:[^\r\n]*(?:\r\n|\r|\n)){{{to_skip}}}", text)
            if above is None:
                return None
            done, to_skip = above.end(), 0
            feeds, returns = text.count("\n", 0, done), text.count("\r", 0, done)
        place = done
        while (place := text.find(quote, place)) >= 0:
            if is_open and text.startswith(quote, place + 1):
                place += 2
                continue
            if is_open:
                is_open = False
            elif (text[place - 1] if place else before) in starts:
                feeds, returns = feeds + text.count("\n", done, place), returns + text.count("\r", done, place)
                is_open, opened_at, done = True, 1 + (feeds or returns), place
            place += 1
        feeds, returns = feeds + text.count("\n", done), returns + text.count("\r", done)
        before = text[-1:] or before
    return opened_at if is_open else None
