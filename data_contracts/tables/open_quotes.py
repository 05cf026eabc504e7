"""Quotes that take rows along: one that nothing closes, or that another row's stray quote closes.

All that lies between is one value then, and its rows are gone without a word. A file whose quotes are as RFC 4180 has
them is known by its bytes as they are read. Any other is looked through once more, as Arrow reads it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.decompressed import CHUNK_BYTES, ReadByBytes, opened
from headway.data_contracts.tables.source_spec import CsvOptions

BLANKS = " \t"
"""Between the quote that closes a value and what parts it from the next, they are a habit and no sign of lost rows."""


class QuoteCount(ReadByBytes):
    """A file's bytes as they are read, and whether each of its quotes stands where RFC 4180 has one.

    Quotes open and close in turn. One that opens follows a delimiter or the end of a line, and one that closes stands
    before these. A doubled one is a pair that closes and opens.
    """

    def __init__(self, stream: Any, options: CsvOptions) -> None:
        import numpy as np

        self._stream, self._quote = stream, ord(options.quote)
        # In two bytes a character, a byte may be half of another one.
        self._is_doubtful = options.encoding == "utf-16"
        self._is_open = False
        self._is_edge = np.zeros(256, dtype=bool)
        self._is_edge[[*map(ord, (options.delimiter, "\n", "\r", options.quote))]] = True
        self._last = b"\n"
        """The byte before the next block; a quote that begins the file opens a value."""

    @property
    def may_take_rows(self) -> bool:
        return self._is_doubtful or self._is_open

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        if data and not self._is_doubtful:
            self._look_at(data)
        return data

    def _look_at(self, data: bytes) -> None:
        import numpy as np

        last, self._last = self._last[0], data[-1:]
        block, is_edge = np.frombuffer(data, np.uint8), self._is_edge
        if not self._is_open and last == self._quote:
            # It closed a value at the end of the block before, where nothing showed what follows.
            self._is_doubtful = not is_edge[block[0]]
        places = np.flatnonzero(block == self._quote)
        if not len(places):
            return
        first = int(self._is_open)
        opening, closing = places[first::2], places[1 - first :: 2]
        if len(opening):
            before = block[opening - 1]
            before[0] = last if opening[0] == 0 else before[0]
            self._is_doubtful |= not is_edge[before].all()
        if len(closing):
            # Of the last byte, the next block says.
            inner = closing[:-1] if closing[-1] == len(block) - 1 else closing
            self._is_doubtful |= not is_edge[block[inner + 1]].all()
        self._is_open ^= len(places) % 2 == 1


class OpenQuote(NamedTuple):
    """A value that rows are lost in."""

    line: int
    """Where its quote opens."""
    closed_in: int | None
    """The line in which another row's quote closes it; None: nothing does."""


def refuse_lost_rows(path: Path, where: str, options: CsvOptions) -> None:
    """Of a file whose quotes are doubtful: a mark of inches in a value without quotes is none that opens.

    Raises:
        DataError: a quote that opens a value is not closed, or closed in the midst of a value of another line.
    """
    lost = _lost_rows(_texts(path, where, options), options)
    if lost is None:
        return
    if lost.closed_in is None:
        raise DataError(
            f"the quote that opens in line {lost.line:,} is never closed: all that follows it would be one value.",
            where=where,
            advice="Close it, or write the file again: it may be cut short.",
        )
    raise DataError(
        f"the quote that opens in line {lost.line:,} is closed in the midst of a value, in line {lost.closed_in:,}: "
        "all between them would be one value.",
        where=where,
        advice="Put quotes around the whole of each value that has one, and double it within. Where a quote is a "
        "character as any other, set `source.csv.quote` to one that does not occur.",
    )


def _texts(path: Path, where: str, options: CsvOptions) -> Iterator[str]:
    name = "utf-8-sig" if options.encoding == "utf-8" else options.encoding
    decoder = codecs.getincrementaldecoder(name)(errors="replace")
    with opened(path, where) as stream:
        while data := stream.read(CHUNK_BYTES):
            yield decoder.decode(data)


def _lost_rows(texts: Iterator[str], options: CsvOptions) -> OpenQuote | None:
    """The first value that rows are lost in, as Arrow reads: a quote opens at the start of a value alone."""
    quote, starts = options.quote, (options.delimiter, "\n", "\r", "")
    ends = re.compile(rf"[{BLANKS}]*(?:[{re.escape(options.delimiter)}\r\n]|\Z)")
    is_open, opened_at, before = False, 0, ""
    feeds = returns = 0
    to_skip = options.skip_rows
    for text in texts:
        # Whether a quote is doubled, or closes its value, shows in what follows it.
        while text.rstrip(BLANKS).endswith(quote) and (more := next(texts, "")):
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
            if is_open or (text[place - 1] if place else before) in starts:
                feeds, returns = feeds + text.count("\n", done, place), returns + text.count("\r", done, place)
                done, line = place, 1 + (feeds or returns)
                if is_open and line > opened_at and not ends.match(text, place + 1):
                    return OpenQuote(opened_at, line)
                is_open, opened_at = not is_open, line
            place += 1
        feeds, returns = feeds + text.count("\n", done), returns + text.count("\r", done)
        before = text[-1:] or before
    return OpenQuote(opened_at, None) if is_open else None
