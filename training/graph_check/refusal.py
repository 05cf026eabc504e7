"""The one error of this package."""

from __future__ import annotations


class UnsafeGraph(ValueError):
    """The archive is none that `headway.training.programs.export` writes: it was damaged, or made to run code."""


def refuse(what: str, found: object) -> UnsafeGraph:
    """Names what was found, in ASCII and never at length: it was written by nobody knows whom."""
    return UnsafeGraph(f"{what}: {ascii(found)[:120]}")
