"""Patterns that name a model's weights, such as `blocks.0.*` or `*.bias`."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection, Iterable

from headway.data_contracts.store.errors import ConfigError

NAMES_SHOWN = 3


def require_matches(patterns: Iterable[str], names: Collection[str], *, where: str) -> None:
    """Raises `ConfigError`: a pattern that matches none of the names; the nearest one is told."""
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, list(names), n=1, cutoff=0.4) or list(names)[:1]
            raise ConfigError(
                f"{pattern!r} matches no weight of the model.", where=where, advice=f"It has {', '.join(near)}."
            )


def require_known(wanted: Iterable[str], names: Collection[str], *, source: str, where: str) -> None:
    """Raises `ConfigError`: some of the wanted names are none of the model's; the nearest of each is told.

    Args:
        source: names them, for the message.
    """
    unknown = [name for name in wanted if name not in names]
    if not unknown:
        return
    shown = unknown[:NAMES_SHOWN]
    near = [each for name in shown for each in difflib.get_close_matches(name, list(names), n=1, cutoff=0.4)]
    rest = f" and {len(unknown) - len(shown)} more" if len(unknown) > len(shown) else ""
    raise ConfigError(
        f"{source} names {', '.join(map(repr, shown))}{rest}, and no weight of the model is called so.",
        where=where,
        advice=f"It has {', '.join(dict.fromkeys(near)) or ', '.join(list(names)[:NAMES_SHOWN])}.",
    )


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
