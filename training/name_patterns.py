"""Patterns that name a model's weights, such as `blocks.0.*` or `*.bias`."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection, Iterable

from data_contracts.errors import ConfigError


def require_matches(patterns: Iterable[str], names: Collection[str], *, where: str) -> None:
    """Raises `ConfigError`: a pattern that matches none of the names; the nearest one is told."""
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, list(names), n=1, cutoff=0.4) or list(names)[:1]
            raise ConfigError(
                f"{pattern!r} matches no weight of the model.", where=where, advice=f"It has {', '.join(near)}."
            )


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
