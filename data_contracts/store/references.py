"""What is needed, by the names that documents say: pure functions over names, which know no file.

A file is *reached* when a root is it, or when something that is reached needs it. What is not reached goes in an order
in which whatever names a file goes before the file does: an interruption leaves nothing that names what is gone.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from headway.data_contracts.store.documents import Json, Link
from headway.data_contracts.store.published_files import document_path

DIGEST = re.compile(r"[0-9a-f]{64}")

ReferencesOf = Callable[[str], Iterable[str]]
"""The names that a name needs, or says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    """The names in a document, whatever its fields are called: a field that is yet to come is followed as well."""

    digests: frozenset[str]
    paths: frozenset[str]
    links: frozenset[Link]

    @property
    def documents(self) -> list[str]:
        """Where what the links name would lie."""
        return [document_path(link) for link in self.links]


def references_in(value: Json) -> References:
    """What a JSON value names.

    Raises:
        RecursionError: nested too deeply to be a document.
    """
    digests: set[str] = set()
    paths: set[str] = set()
    links: set[Link] = set()
    rest = [value]
    while rest:
        each = rest.pop()
        # Digests anywhere in a text count: a name too many keeps a file, one too few deletes it.
        if isinstance(each, str):
            digests.update(DIGEST.findall(each))
        elif isinstance(each, list):
            rest.extend(each)
        elif isinstance(each, dict):
            if isinstance(path := each.get("path"), str):
                paths.add(path)
            # Exactly the fields of a link, so that no other mapping is taken for one.
            if each.keys() == Link.model_fields.keys():
                with contextlib.suppress(ValidationError):
                    links.add(Link.model_validate(each))
            rest.extend(each.values())
            # Keys may be digests, as in figures by document.
            rest.extend(each.keys())
    return References(digests=frozenset(digests), paths=frozenset(paths), links=frozenset(links))


def reached(roots: Mapping[str, str], needs: ReferencesOf) -> dict[str, str]:
    """Everything that is needed, each with why: a root's own reason, or the name that needs it.

    Args:
        roots: names, each with the reason why it stays.
    """
    why = dict(roots)
    rest = deque(roots)
    while rest:
        name = rest.popleft()
        for needed in needs(name):
            # The first reason found stays: breadth first, so it is a shortest one.
            if needed not in why:
                why[needed] = name
                rest.append(needed)
    return why


def chain(why: Mapping[str, str], name: str) -> list[str]:
    """From a name to the root by which it stays, and the root's reason at the end; empty for what does not stay."""
    found: list[str] = []
    while name in why and name not in found:
        found.append(name)
        name = why[name]
    return [*found, name] if found else []


def removal_order(garbage: Collection[str], references_of: ReferencesOf) -> list[str]:
    """All of `garbage`, each after everything of it that says its name."""
    done: set[str] = set()
    order: list[str] = []
    # Sorted, so that an interrupted removal continues in the same order.
    for first in sorted(garbage):
        # Depth first, without recursion: a name is finished when all that it says are.
        stack = [] if first in done else [(first, iter(_inside(garbage, references_of, first)))]
        done.add(first)
        while stack:
            name, rest = stack[-1]
            following = next((each for each in rest if each not in done), None)
            if following is None:
                order.append(name)
                stack.pop()
            else:
                done.add(following)
                stack.append((following, iter(_inside(garbage, references_of, following))))
    # Reversed, for a name is finished after all that it needs.
    return order[::-1]


def _inside(garbage: Collection[str], references_of: ReferencesOf, name: str) -> list[str]:
    return sorted(each for each in references_of(name) if each in garbage)
