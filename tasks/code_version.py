"""What code a stage's result stands on: its root modules and every module of ours below that they import.

Imports are read from the source, lazy ones included, so a module cannot be forgotten and nothing heavy is imported.
What is imported by a name made at run time, a run's recipe, is in the run's frozen code instead.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from data_contracts.digests import source_digest

HOME = Path(__file__).resolve().parent.parent
FOLLOWED = ("data_contracts", "training")
# How ranks are started, watched and ended, and what they write of it, changes no result.
NOT_FOLLOWED = ("training.launch", "training.ledger", "training.process_ends", "training.pulse")


@functools.cache
def code_version(*roots: str) -> str:
    """Digest of the modules' source: a stage made by other code is another stage."""
    return source_digest(modules_below(*roots))


def modules_below(*roots: str, home: Path = HOME) -> dict[str, Path]:
    """Name to source file of the roots and of all that they import, directly or not.

    Raises:
        LookupError: a root that does not exist.
    """
    found: dict[str, Path] = {}
    unseen = list(roots)
    while unseen:
        name = unseen.pop()
        path = source_file(name, home)
        if path is None:
            if name in roots:
                raise LookupError(f"no module {name}")
            continue  # a name inside a module, as in `from training.ledger import Ledger`
        if name not in found:
            found[name] = path
            unseen += (imported for imported in imports(path) if is_followed(imported))
    return found


def is_followed(module: str) -> bool:
    def lies_in(packages: tuple[str, ...]) -> bool:
        return any(module == package or module.startswith(f"{package}.") for package in packages)

    return lies_in(FOLLOWED) and not lies_in(NOT_FOLLOWED)


def source_file(module: str, home: Path) -> Path | None:
    stem = home.joinpath(*module.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


def imports(path: Path) -> Iterator[str]:
    """Absolute names that the source imports; of `from a import b` both `a` and `a.b`, for `b` may be a module."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
