"""Glob patterns over relative POSIX paths: `*` stays within a folder, `**` crosses folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache


@lru_cache(maxsize=1024)
def compile_glob(pattern: str) -> re.Pattern[str]:
    """The regular expression that matches a whole path when the pattern does.

    `**/` matches any number of folders, none included; a last `**` matches everything below; `*` and `?` never
    match a slash; `[abc]`, `[a-z]` and `[!abc]` are sets.
    """
    expression, position = "", 0
    while position < len(pattern):
        piece, position = _translate(pattern, position)
        expression += piece
    return re.compile(expression, re.DOTALL)


def _translate(pattern: str, position: int) -> tuple[str, int]:
    if pattern.startswith("**/", position) and (position == 0 or pattern[position - 1] == "/"):
        return "(?:[^/]+/)*", position + 3
    if pattern.startswith("**", position):
        return ".*", position + 2
    character = pattern[position]
    if character == "*":
        return "[^/]*", position + 1
    if character == "?":
        return "[^/]", position + 1
    closing = pattern.find("]", position + 2)
    if character == "[" and closing > 0:
        members = pattern[position + 1 : closing]
        negated = members.startswith("!")
        body = re.escape(members[1:] if negated else members).replace(r"\-", "-")
        return f"(?!/)[{'^' if negated else ''}{body}]", closing + 1
    return re.escape(character), position + 1


def path_filter(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path is wanted: some include pattern matches it and no exclude pattern does."""
    wanted = [compile_glob(pattern) for pattern in include]
    unwanted = [compile_glob(pattern) for pattern in exclude]

    def is_wanted(path: str) -> bool:
        return any(each.fullmatch(path) for each in wanted) and not any(each.fullmatch(path) for each in unwanted)

    return is_wanted


def folder_filter(exclude: Sequence[str]) -> Callable[[str], bool]:
    """Whether a folder need be looked into: not when an exclude pattern covers all that is below it."""
    covered = [compile_glob(pattern.removesuffix("/**")) for pattern in exclude if pattern.endswith("/**")]
    return lambda folder: not any(each.fullmatch(folder) for each in covered)
