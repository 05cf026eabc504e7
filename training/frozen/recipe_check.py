"""What can be said of a recipe before a rank imports it: no torch, and no code of the user's is run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.data_contracts.store.errors import ConfigError
from headway.training.frozen.code_archive import recipe_sources
from headway.training.recipes.built_in import BUILT_IN, CHOICE, model_fields, nearest


def check_recipe(name: str, model: Mapping[str, Any], search_path: tuple[str, ...]) -> None:
    """Refuse what training would refuse later. A user's own module is read, not run; its fields are its own business.

    Args:
        search_path: folders where a user's package may lie.

    Raises:
        ConfigError: no such recipe, or model fields that a built-in one does not accept.
    """
    if ":" in name:
        _check_own(name, search_path)
    elif name in BUILT_IN:
        model_fields(BUILT_IN[name].spec_type, model)
    else:
        raise ConfigError(
            f"no recipe {name!r} comes with Headway.", where="recipe.name", advice=f"{nearest(name, BUILT_IN)}{CHOICE}"
        )


def _check_own(name: str, search_path: tuple[str, ...]) -> None:
    module, _, attribute = name.partition(":")
    sources = recipe_sources(name, search_path)
    path = _module_file(sources, module)
    if path is None:
        modules = [file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in sources]
        raise ConfigError(f"there is no module {module!r}.", where="recipe.name", advice=nearest(module, modules))
    defined = _top_level_names(path)
    # `*`: what the other module defines cannot be known without running it.
    if attribute not in defined and "*" not in defined:
        raise ConfigError(
            f"{module} ({path}) defines no {attribute!r}.",
            where="recipe.name",
            advice=f"{nearest(attribute, defined)}{CHOICE}",
        )


def _top_level_names(path: Path) -> set[str]:
    """What the module binds at its top level, branches included; `*` when it imports everything of another.

    Raises:
        ConfigError: not Python.
    """
    names: set[str] = set()
    unseen: list[ast.AST] = [_parsed(path)]
    while unseen:
        for node in ast.iter_child_nodes(unseen.pop()):
            # Not into functions and classes: what they bind inside is no name of the module.
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            else:
                unseen.append(node)
    return names


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError, OSError) as error:
        raise ConfigError(f"the recipe's module cannot be read ({error}).", where=str(path)) from error


def may_name_matrices(name: str, search_path: tuple[str, ...]) -> bool:
    """Whether a recipe's `hidden_matrices` may name any: not if it is a user's own and returns `()`.

    Raises:
        ConfigError: not Python.
    """
    definition = _own_class(name, search_path)
    if definition is None:
        return True
    found = [each for each in definition.body if isinstance(each, ast.FunctionDef) and each.name == "hidden_matrices"]
    returned = [node.value for each in found for node in ast.walk(each) if isinstance(node, ast.Return)]
    # Anything but an empty literal may name matrices; which ones, only running it would tell.
    return not returned or any(not isinstance(value, ast.Tuple | ast.List) or bool(value.elts) for value in returned)


def own_methods(name: str, search_path: tuple[str, ...]) -> set[str] | None:
    """What the class of a user's own recipe defines in its body; None where another class may define more.

    Raises:
        ConfigError: not Python.
    """
    definition = _own_class(name, search_path)
    # A base class or a decorator may add methods that are not in this body.
    if definition is None or definition.bases or definition.decorator_list:
        return None
    return {each.name for each in definition.body if isinstance(each, ast.FunctionDef)}


def _own_class(name: str, search_path: tuple[str, ...]) -> ast.ClassDef | None:
    """The class of a user's own recipe; None where its module does not define it as one."""
    module, _, attribute = name.partition(":")
    if not attribute:
        return None
    try:
        sources = recipe_sources(name, search_path)
    except ConfigError:
        return None  # `check_recipe` says so
    path = _module_file(sources, module)
    tree = None if path is None else _parsed(path)
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)) if tree is not None else ()
    return next((node for node in found if node.name == attribute), None)


def _module_file(sources: Mapping[str, Path], module: str) -> Path | None:
    stem = module.replace(".", "/")
    return sources.get(f"{stem}.py") or sources.get(f"{stem}/__init__.py")
