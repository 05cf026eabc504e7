"""Texts that Python's own code evaluates, in a process of its own, with a bound on its time.

One text is enough to keep a regular expression of Python busy for ever. It lets no other thread run meanwhile, and
reacts to no signal.

As a process: `python -m headway.data_contracts.suites.python_texts`.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.tables import helper_process

REFERENCE_DAY = datetime.datetime(2000, 1, 1)
"""What `dateutil` takes for the parts that a text leaves out: a day of a long month and a leap year, not today."""
BLOCK_BYTES = 4 << 20
SILENCE_S = 20.0
"""How long one block of texts may take. An expression that is none of the slow ones is done in milliseconds."""
MAX_REMEMBERED_TEXTS = 1 << 12


class RegexTimeout(Exception):
    """The time for one block of texts is over."""


class TextPredicate:
    """Whether texts fit, as a function for many of them.

    Args:
        kind: `regex`: it is found in the text. `strptime`: the text is a date in this format. `dateutil`: it is a date.
        argument: the expression or format.
        column: whose texts they are.
    """

    def __init__(self, kind: str, argument: str, column: str) -> None:
        self.expectation = {"kind": kind, "argument": argument}
        self.column = column
        self.took_too_long = False

    @property
    def name(self) -> str:
        """Says what the function does, since figures are remembered by their SQL."""
        return f"headway_{self.expectation['kind']}_{sha256_of([*self.expectation.values(), self.column])[:16]}"

    @property
    def refusal(self) -> str:
        what = {"regex": "the regular expression", "strptime": "the format", "dateutil": "dateutil"}[
            self.expectation["kind"]
        ]
        shown = f"{what} {self.expectation['argument']!r}".removesuffix(" ''")
        return (
            f"{shown} was given up after {SILENCE_S:.0f} s over some texts of the column {self.column}: "
            "write an expression that RE2 knows, or one whose repeats cannot overlap"
        )

    def __call__(self, texts: Sequence[str | None]) -> list[bool | None]:
        """
        Raises:
            RegexTimeout: of these texts, or of any before.
        """
        known: dict[str | None, bool | None] = {None: None}
        # Each distinct text once: columns repeat, and a regular expression may be slow.
        for block in _blocks([text for text in dict.fromkeys(texts) if text is not None]):
            known |= zip(block, self._evaluated(block), strict=True)
        return [known[text] for text in texts]

    def _evaluated(self, block: list[str]) -> list[bool]:
        # Not again: each block would wait its whole time.
        if self.took_too_long:
            raise RegexTimeout
        try:
            message = helper_process.ask(__name__, {**self.expectation, "texts": block}, silence_s=SILENCE_S)
        except helper_process.ProcessTimeout:
            self.took_too_long = True
            raise RegexTimeout from None
        found: list[bool] = message["fits"]
        return found


def _blocks(texts: list[str]) -> Iterator[list[str]]:
    block: list[str] = []
    num_bytes = 0
    for text in texts:
        block.append(text)
        num_bytes += len(text)
        if num_bytes >= BLOCK_BYTES:
            yield block
            block, num_bytes = [], 0
    if block:
        yield block


def answer(expectation: dict[str, Any]) -> dict[str, Any]:
    fits = _fits(expectation["kind"], expectation["argument"])
    return {"fits": [fits(text) for text in expectation["texts"]]}


@functools.cache
def _fits(kind: str, argument: str) -> Callable[[str], bool]:
    judges = {"regex": _is_found, "strptime": _is_date_of, "dateutil": _is_date}
    # Remembered between blocks, in the helper, which lives as long as the validation.
    return functools.lru_cache(MAX_REMEMBERED_TEXTS)(functools.partial(judges[kind], argument))


def _is_found(regex: str, text: str) -> bool:
    return re.search(regex, text) is not None


def _is_date_of(text_format: str, text: str) -> bool:
    try:
        datetime.datetime.strptime(text, text_format)
    except ValueError:
        return False
    return True


def _is_date(_: str, text: str) -> bool:
    from dateutil.parser import parse  # type: ignore[import-untyped,unused-ignore]

    try:
        parse(text, default=REFERENCE_DAY)
    except Exception:  # beyond ValueError and OverflowError, it has raised others of odd texts
        return False
    return True


if __name__ == "__main__":
    helper_process.serve(answer, on_progress=[])
