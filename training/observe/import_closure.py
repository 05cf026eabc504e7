"""Which modules of ours a module stands on, directly or not.

Imports are read from the source, lazy ones included, so a module cannot be forgotten and nothing heavy is imported.
What is imported by a name made at run time, such as a recipe, has to be given as a root.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from headway.data_contracts.store.installation import HOME


def modules_below(*roots: str, follow: Callable[[str], bool], home: Path = HOME) -> dict[str, Path]:
    """Name to source file of the roots and of all that they import, directly or not.

    Args:
        follow: whether an imported module, by name, belongs to the closure.

    Raises:
        LookupError: a root that does not exist.
    """
    found: dict[str, Path] = {}
    unseen, seen = list(roots), set(roots)
    while unseen:
        name = unseen.pop()
        path = source_file(name, home)
        if path is None:
            if name in roots:
                raise LookupError(f"no module {name}")
            continue  # a name inside a module, as in `from headway.training.observe.ledger import Ledger`
        found[name] = path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        # `follow` decides by name, before anything is read: libraries are not searched.
        new = {imported for imported in imports(path, package) if follow(imported)} - seen
        seen |= new
        unseen += new
    return found


def lies_in(module: str, packages: tuple[str, ...]) -> bool:
    """Whether the module is one of the packages, or below one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def source_file(module: str, home: Path) -> Path | None:
    stem = home.joinpath(*module.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


def imports(path: Path, package: str = "") -> tuple[str, ...]:
    """Absolute names that the source imports; of `from a import b` both `a` and `a.b`, for `b` may be a module.

    Args:
        package: that the source lies in, for its relative imports; without it they are passed over.
    """
    return _imports(path.read_bytes(), package)


@functools.lru_cache(maxsize=4096)  # by content: stages stand on much the same modules, and an edited one is read anew
def _imports(source: bytes, package: str) -> tuple[str, ...]:
    names: list[str] = []
    # Read, not imported: importing a user's module would run it.
    for node in _statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            # One level of a relative import is the package itself, each further one a parent.
            parts = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join((*parts, *filter(None, [node.module])))
            names += (base, *(f"{base}.{alias.name}" for alias in node.names))
    return tuple(names)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements, however deep. An import is one; expressions, most of a source, hold none."""
    unseen = [tree]
    while unseen:
        node = unseen.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            # Of a lambda and of a conditional expression these are no lists.
            if isinstance(below := getattr(node, field, None), list):
                unseen += below
