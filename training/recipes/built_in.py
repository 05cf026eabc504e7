"""The recipes that come with Headway, by name, and what can be said of one without importing torch."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from data_contracts.documents import Frozen
from data_contracts.errors import ConfigError
from training.code_archive import recipe_sources
from training.recipes.language_model_spec import LanguageModelSpec

S = TypeVar("S", bound=Frozen)


class BuiltIn(NamedTuple):
    place: str
    """`package.module:Class`."""
    spec_type: type[Frozen]


BUILT_IN = {"language-model": BuiltIn("training.recipes.language_model:LanguageModel", LanguageModelSpec)}
CHOICE = f"Use one of {', '.join(sorted(BUILT_IN))}, or package.module:Class."


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
            f"no recipe {name!r} comes with Headway.", where="recipe.name", advice=f"{_nearest(name, BUILT_IN)}{CHOICE}"
        )


def model_fields(spec_type: type[S], model: Mapping[str, Any]) -> S:
    """A recipe's spec from its fields in the pipeline file.

    Raises:
        ConfigError: names the first field that is unknown or refused.
    """
    try:
        return spec_type.model_validate(dict(model))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in ("recipe", "model", *first["loc"]))
        known = spec_type.model_fields
        is_unknown = first["type"] == "extra_forbidden"
        nearest = _nearest(str(first["loc"][-1]), known) if is_unknown else ""
        what = "no such field" if is_unknown else first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{what}.", where=field, advice=f"{nearest}Its fields are {', '.join(known)}.") from error


def _check_own(name: str, search_path: tuple[str, ...]) -> None:
    module, _, attribute = name.partition(":")
    sources = recipe_sources(name, search_path)
    stem = module.replace(".", "/")
    path = sources.get(f"{stem}.py") or sources.get(f"{stem}/__init__.py")
    if path is None:
        modules = [file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in sources]
        raise ConfigError(f"there is no module {module!r}.", where="recipe.name", advice=_nearest(module, modules))
    defined = _top_level_names(path)
    if attribute not in defined and "*" not in defined:
        raise ConfigError(
            f"{module} defines no {attribute!r}.", where="recipe.name", advice=f"{_nearest(attribute, defined)}{CHOICE}"
        )


def _top_level_names(path: Path) -> set[str]:
    """What the module binds at its top level, branches included; `*` when it imports everything of another.

    Raises:
        ConfigError: not Python.
    """
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError, OSError) as error:
        raise ConfigError(f"the recipe's module cannot be read ({error}).", where=str(path)) from error
    names: set[str] = set()
    unseen: list[ast.AST] = [tree]
    while unseen:
        for node in ast.iter_child_nodes(unseen.pop()):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            else:
                unseen.append(node)
    return names


def _nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return f"Did you mean {found[0]}? " if found else ""
