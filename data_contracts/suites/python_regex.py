r"""Regular expressions of Python, evaluated by RE2 where it says the same, and by Python itself where it does not.

RE2 has no look-around, no back-reference and no `\Z`; its `$` does not match before a last newline, its `\s` leaves
out the vertical tab, and its `\d`, `\w` and `\b` know ASCII alone. An expression is rewritten from Python's own parse
of it; one that RE2 cannot say at all, or only of texts in ASCII, is left to Python for the texts concerned.
"""

from __future__ import annotations

import re
import re._constants as words  # type: ignore[import-not-found,unused-ignore]
import re._parser as parser  # type: ignore[import-not-found,unused-ignore]
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LAST = 0x10FFFF
MAX_REPEATS = 1000
"""RE2's own bound."""
_DIGIT = ((0x30, 0x39),)
_WORD = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE = ((0x09, 0x0D), (0x1C, 0x20))
_ASCII_SPACE = ((0x09, 0x0D), (0x20, 0x20))


@dataclass(frozen=True, slots=True)
class Translation:
    """What RE2 says of a text.

    Args:
        re2: finds itself in a text exactly where Python's expression does.
        is_for_ascii: whether that holds of texts in ASCII alone.
    """

    re2: str
    is_for_ascii: bool


class _Different(Exception):
    """RE2 cannot say it."""


def translate(pattern: str) -> Translation | None:
    """The expression for RE2; None: it has no such expression.

    Raises:
        re.error: it is no regular expression of Python.
    """
    # Python's own parse, so that flags inside the expression count too.
    flags = re.compile(pattern).flags
    translator = _Translator()
    try:
        found = translator.sequence(parser.parse(pattern), flags, is_last=True)
    # Nested deeply enough, an expression exhausts the parser; Python then evaluates it by itself.
    except (_Different, RecursionError):
        return None
    return Translation(found, translator.is_for_ascii)


class _Translator:
    def __init__(self) -> None:
        self.is_for_ascii = False

    def sequence(self, parts: Any, flags: int, *, is_last: bool) -> str:
        """The expression of a sequence.

        Args:
            is_last: whether the text ends, or may go on anyhow, where the sequence ends.
        """
        items = list(parts)
        return "".join(
            self._part(kind, value, flags, is_last=is_last and place == len(items) - 1)
            for place, (kind, value) in enumerate(items)
        )

    def _part(self, kind: Any, value: Any, flags: int, *, is_last: bool) -> str:
        if kind in (words.LITERAL, words.NOT_LITERAL):
            return self._folded(f"[{'^' if kind is words.NOT_LITERAL else ''}{_code(value)}]", [value], flags)
        if kind is words.ANY:
            # Python's dot excludes the line feed alone, which RE2 needs as a class.
            return "(?s:.)" if flags & re.DOTALL else r"[^\n]"
        if kind is words.IN:
            return self._class(value, flags)
        if kind is words.BRANCH:
            # Each branch may be the last part.
            return f"(?:{'|'.join(self.sequence(each, flags, is_last=is_last) for each in value[1])})"
        if kind is words.SUBPATTERN:
            _, added, removed, parts = value
            # Groups capture nothing here: only whether something is found counts.
            return f"(?:{self.sequence(parts, (flags | added) & ~removed, is_last=is_last)})"
        if kind in (words.MAX_REPEAT, words.MIN_REPEAT):
            return self._repeat(value, flags)
        if kind is words.AT:
            return self._place(value, flags, is_last=is_last)
        raise _Different

    def _repeat(self, value: Any, flags: int) -> str:
        least, most, parts = value
        # RE2 refuses more repeats, for it unrolls them.
        if least > MAX_REPEATS or (most is not words.MAXREPEAT and most > MAX_REPEATS):
            raise _Different
        bounds = f"{least}," if most is words.MAXREPEAT else f"{least},{most}"
        # Nothing inside a repeat is the end of the text.
        return f"(?:{self.sequence(parts, flags, is_last=False)}){{{bounds}}}"

    def _place(self, value: Any, flags: int, *, is_last: bool) -> str:
        if value is words.AT_BEGINNING:
            return "(?m:^)" if flags & re.MULTILINE else r"\A"
        if value is words.AT_BEGINNING_STRING:
            return r"\A"
        if value is words.AT_END_STRING:
            return r"\z"
        if value is words.AT_END and flags & re.MULTILINE:
            return "(?m:$)"
        if value is words.AT_END and is_last:
            # Python's `$` also matches before a last line feed.
            return r"\n?\z"
        if value is words.AT_BOUNDARY:
            # A word's boundary depends on what counts as a letter, which RE2 knows of ASCII alone.
            self.is_for_ascii |= not flags & re.ASCII
            return r"\b"
        raise _Different

    def _class(self, items: Sequence[tuple[Any, Any]], flags: int) -> str:
        ranges: list[tuple[int, int]] = []
        codes: list[int] = []
        is_negated = has_category = False
        for kind, value in items:
            if kind is words.NEGATE:
                is_negated = True
            elif kind is words.LITERAL:
                ranges.append((value, value))
                codes.append(value)
            elif kind is words.RANGE:
                ranges.append(value)
                codes += value
            elif kind is words.CATEGORY:
                has_category = True
                ranges += self._category(value, flags)
            else:
                raise _Different
        # Folding a class of characters with categories differs between the two.
        if has_category and codes and flags & re.IGNORECASE:
            raise _Different
        shown = "".join(_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in ranges)
        found = f"[{'^' if is_negated else ''}{shown}]"
        return found if has_category else self._folded(found, codes, flags)

    def _category(self, value: Any, flags: int) -> Sequence[tuple[int, int]]:
        is_ascii = bool(flags & re.ASCII)
        self.is_for_ascii |= not is_ascii
        space = _ASCII_SPACE if is_ascii else _SPACE
        plain = {words.CATEGORY_DIGIT: _DIGIT, words.CATEGORY_WORD: _WORD, words.CATEGORY_SPACE: space}
        others = {words.CATEGORY_NOT_DIGIT: _DIGIT, words.CATEGORY_NOT_WORD: _WORD, words.CATEGORY_NOT_SPACE: space}
        if value in plain:
            return plain[value]
        if value in others:
            return _complement(others[value])
        raise _Different

    def _folded(self, found: str, codes: Sequence[int], flags: int) -> str:
        if not flags & re.IGNORECASE:
            return found
        # Folding beyond ASCII follows other tables in each.
        if max(codes) > 0x7F:
            raise _Different
        self.is_for_ascii |= not flags & re.ASCII
        if flags & re.ASCII:
            # RE2 takes the sign of kelvin for a k whatever the flags.
            self.is_for_ascii = True
        return f"(?i:{found})"


def _complement(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), LAST]
    return [(low, high) for low, high in zip(starts, ends, strict=True) if low <= high]


def _code(code: int) -> str:
    return rf"\x{{{code:X}}}"
