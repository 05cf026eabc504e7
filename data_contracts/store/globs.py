"""Glob patterns over relative POSIX paths: `*` stays within a folder, `**` crosses folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

_SET_WITH_SLASH = re.compile(r"\[[^\]]*/")


# Patterns come from a pipeline file and are asked of every path.
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
    # Only a segment of its own stands for folders: in `a**/b` it does not.
    if pattern.startswith("**/", position) and (position == 0 or pattern[position - 1] == "/"):
        return "(?:[^/]+/)*", position + 3
    if pattern.startswith("**", position):
        return ".*", position + 2
    character = pattern[position]
    if character == "*":
        return "[^/]*", position + 1
    if character == "?":
        return "[^/]", position + 1
    if character == "[":
        negated = pattern.startswith("!", position + 1)
        first = position + 1 + negated
        # A bracket that comes first is a member, as in shells.
        closing = pattern.find("]", first + 1)
        if closing > 0:
            return _set(pattern[first:closing], negated), closing + 1
    return re.escape(character), position + 1


def _set(members: str, negated: bool) -> str:
    """One character of a set; a range that runs backwards, such as `z-a`, stands for its own characters."""
    for body in (re.escape(members).replace(r"\-", "-"), re.escape(members)):
        try:
            re.compile(f"[{body}]")
        except re.error:
            continue
        # The look-ahead keeps a negated set from matching a slash.
        return f"(?!/)[{'^' if negated else ''}{body}]"
    raise AssertionError(members)


def path_filter(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path is wanted: some include pattern matches it and no exclude pattern does."""
    wanted = [compile_glob(pattern) for pattern in include]
    unwanted = [compile_glob(pattern) for pattern in exclude]

    def is_wanted(path: str) -> bool:
        return any(each.fullmatch(path) for each in wanted) and not any(each.fullmatch(path) for each in unwanted)

    return is_wanted


def folder_filter(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool]:
    """Whether a folder need be looked into: not when no include pattern matches below it, nor when an exclude pattern
    covers all that is below it."""
    # An excluded tree need not be listed, which for a bucket saves requests.
    covered = [compile_glob(pattern.removesuffix("/**")) for pattern in exclude if pattern.endswith("/**")]
    return lambda folder: (
        any(_may_match_below(folder, pattern) for pattern in include)
        and not any(each.fullmatch(folder) for each in covered)
    )


def _may_match_below(folder: str, pattern: str) -> bool:
    if _SET_WITH_SLASH.search(pattern):
        return True
    parts, segments = folder.split("/"), pattern.split("/")
    for part, segment in zip(parts, segments, strict=False):
        if "**" in segment:
            # From `**` on any depth may match.
            return True
        if not compile_glob(segment).fullmatch(part):
            return False
    return len(segments) > len(parts)
