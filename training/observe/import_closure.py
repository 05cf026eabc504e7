"""Which modules of ours a module stands on, directly or not.

Imports are read from the source, lazy ones included, so a module cannot be forgotten and nothing heavy is imported.
Of the installation they are read from what Python compiled of the source, which takes a tenth of the time. What is
imported by a name made at run time, such as a recipe, has to be given as a root.
"""

from __future__ import annotations

import ast
import dis
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType
from typing import Any

from headway.data_contracts.store.digests import stat_identity
from headway.data_contracts.store.installation import HOME

LOAD_CONST, IMPORT_NAME, EXTENDED_ARG = (dis.opmap[name] for name in ("LOAD_CONST", "IMPORT_NAME", "EXTENDED_ARG"))


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
        # Files of another home may be written and read within a moment, and no command starts with them.
        named = (
            imports(path, package)
            if home != HOME
            else _imports_in_place(name, path, package, stat_identity(path.stat()))
        )
        new = {imported for imported in named if follow(imported)} - seen
        seen |= new
        unseen += new
    return found


@functools.lru_cache(maxsize=4096)  # stages stand on much the same modules
def _imports_in_place(name: str, path: Path, package: str, _identity: tuple[int, ...]) -> tuple[str, ...]:
    code = compiled(name, path)
    return imports(path, package) if code is None else imports_of_code(code, package)


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
            names += _names_from(node.module or "", [alias.name for alias in node.names], node.level, package)
    return tuple(names)


def _names_from(module: str, names: Sequence[str], level: int, package: str) -> Iterator[str]:
    # One level of a relative import is the package itself, each further one a parent.
    parts = package.split(".")[: len(package.split(".")) + 1 - level] if level else []
    base = ".".join((*parts, *filter(None, [module])))
    yield base
    for name in names:
        yield f"{base}.{name}"


def compiled(name: str, path: Path) -> CodeType | None:
    """What Python compiled of a module, which it compiles now where it would keep that; None: read the source."""
    try:
        cached = Path(cache_from_source(str(path)))
        if cached.exists():
            # Python goes by whole seconds and the size; an edit within the second would pass for what was before.
            if cached.stat().st_mtime_ns < path.stat().st_mtime_ns:
                return None
        elif sys.dont_write_bytecode or not os.access(path.parent, os.W_OK):
            return None
        return SourceFileLoader(name, str(path)).get_code(name)
    except (OSError, NotImplementedError, SyntaxError):
        return None


def imports_of_code(code: CodeType, package: str = "") -> tuple[str, ...]:
    """What `imports` says of the source that the code was compiled of, but for what can never be reached in it."""
    names: list[str] = []
    unseen = [code]
    while unseen:
        body = unseen.pop()
        unseen += [constant for constant in body.co_consts if isinstance(constant, CodeType)]
        for module, imported, level in _import_instructions(body):
            if not imported and not level:
                names.append(module)
            elif package or not level:
                names += _names_from(module, imported, level, package)
    return tuple(names)


def _import_instructions(code: CodeType) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Of each import its module, what is imported from it, and the level of a relative one."""
    instructions, high = code.co_code, 0
    constants: list[Any] = [None, None]
    for place in range(0, len(instructions), 2):
        operation, argument = instructions[place], instructions[place + 1] | high
        high = argument << 8 if operation == EXTENDED_ARG else 0
        if operation == LOAD_CONST:
            constants = [constants[1], code.co_consts[argument]]
        elif operation == IMPORT_NAME:
            # Python loads both right before it, and nothing between.
            level, imported = constants
            yield code.co_names[argument], imported or (), level


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
