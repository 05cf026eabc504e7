"""Branches of a pipeline file that trials put where it has none, or another, and settings that lie below them. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from headway.data_contracts.store.errors import ConfigError, plain_message
from headway.data_contracts.types.strict_yaml import annotations_at, keys_at, nearest, not_numbers
from headway.tasks.search.values import Value, plain, shown

Part = str | int
"""Of a name; a number is a place in a list."""
Parts = tuple[Part, ...]


def parts_of(name: str) -> Parts:
    return tuple(int(part) if part.isdecimal() else part for part in name.split("."))


def outermost_first(settings: Mapping[str, Value]) -> list[tuple[str, Value]]:
    """A branch before what lies below it; else as they come."""
    ordered: dict[str, Value] = {}
    for name in settings:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            if (above := ".".join(parts[:depth])) in settings:
                ordered.setdefault(above, settings[above])
    return list(ordered.items())


def paths_in(value: Any) -> Iterator[Parts]:
    """To all that a value has below itself."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for part, each in inner:
        yield (part,)
        yield from ((part, *rest) for rest in paths_in(each))


def has_place_for(value: Value, parts: Parts) -> bool:
    """Whether a setting can stand there below a value: below none there is nothing, nor beyond the end of a list."""
    branch: Any = value
    for part in parts[:-1]:
        if isinstance(branch, dict):
            if part not in branch:
                return True  # which has its defaults
        elif not isinstance(branch, list | tuple) or not isinstance(part, int) or part >= len(branch):
            return False
        branch = branch[part]
    return isinstance(branch, dict)


def put(values: dict[str, Any], model_type: type[BaseModel], parts: Parts, value: Value) -> Parts | None:
    """Change a section's values. A branch has all its defaults written out, so that they can be named.

    Returns:
        A branch that the section lacked and now has; None: it lacked none.

    Raises:
        KeyError: with what is no branch.
    """
    branch: Any = values
    made: Parts | None = None
    for depth, part in enumerate(parts[:-1], start=1):
        is_there = part in branch if isinstance(branch, dict) else part in range(len(branch))
        if (not is_there or branch[part] is None) and isinstance(branch, dict):
            if not any(_is_model(each) for each in annotations_at(model_type, parts[:depth])):
                raise KeyError(parts[:depth])
            branch[str(part)], made = {}, made or parts[:depth]
        elif not is_there:
            raise KeyError(parts[:depth])
        branch = branch[part]
        if not isinstance(branch, dict | list):
            raise KeyError(parts[:depth])
    if not isinstance(branch, dict):
        raise KeyError(parts[:-1])
    branch[str(parts[-1])] = _with_defaults(model_type, parts, plain(value))
    return made


def _with_defaults(model_type: type[BaseModel], parts: Parts, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    try:
        adapter = _adapter(model_type, parts)
        return adapter.dump_python(adapter.validate_python(value), mode="json")
    except ValidationError:
        return value  # what is set below it may make it whole


def require_choices(
    name: str, choices: Iterable[Value], model_type: type[BaseModel], parts: Parts, *, is_whole: bool, where: str
) -> None:
    """Of branches, each by itself: one that no draw has is not to be found out about in a later round.

    Args:
        parts: of the name, below its section.
        is_whole: whether nothing is set below it that may complete it.

    Raises:
        ConfigError: a mapping where none is wanted, or none where one is; a key or a value that it does not have.
    """
    kinds = annotations_at(model_type, parts)
    for place, value in enumerate(choices):
        at = f"{where}.{name}[{place}]"
        is_mapping = isinstance(value, dict) or (
            isinstance(value, tuple) and any(isinstance(each, dict) for each in value)
        )
        if not is_mapping and not any(map(_is_model, kinds)):
            continue  # which the trial that has it tells, with what else it has
        if isinstance(value, dict) and not any(_is_model(each) or _is_dict(each) for each in kinds):
            kind = "a list" if any(get_origin(each) in (tuple, list) for each in kinds) else "a single value"
            raise ConfigError(
                f"`{name}` is {kind}, and no branch: it is given {shown(value)}.",
                where=at,
                advice=f"Name the setting that is meant, such as `{name}: [{_shown_inside(value)}]`.",
            )
        for path in paths_in(plain(value)):
            known = keys_at(model_type, (*parts, *path[:-1]))
            if known and isinstance(path[-1], str) and path[-1] not in known:
                raise ConfigError(
                    f"`{_dotted(name, path[:-1])}` has no setting `{path[-1]}`.",
                    where=at,
                    advice=nearest(path[-1], known).strip() or f"Known there: {', '.join(sorted(known))}.",
                )
        for location, problem in not_numbers(model_type, plain(value), parts):
            what = f"{_dotted(name, location[len(parts) :])}: {problem}"
            raise ConfigError(what, where=at, advice="Correct it there.")
        if is_whole:
            _require_valid(name, value, _adapter(model_type, parts), kinds, at)


def _require_valid(name: str, value: Value, adapter: TypeAdapter[Any], kinds: list[Any], at: str) -> None:
    try:
        adapter.validate_python(plain(value))
    except ValidationError as error:
        paths = {(), *paths_in(plain(value))}
        problems = error.errors(include_url=False)
        # Of a union the first that speaks of something inside is of the member that was meant.
        first = max(problems, key=lambda each: len(_within(paths, each["loc"])))
        what = f"`{first['loc'][-1]}` is missing" if first["type"] == "missing" else plain_message(first)
        location = _within(paths, first["loc"])
        none = ", and `null` is none" if type(None) in kinds else ""
        whole = f"A mapping is the whole branch: what it leaves out has its default{none}."
        is_of_a_value = location and first["type"] != "missing"
        raise ConfigError(
            f"{_dotted(name, location)}: {what}.", where=at, advice="Correct it there." if is_of_a_value else whole
        ) from error


def _within(paths: set[Parts], location: Parts) -> Parts:
    """The part of a location that a value has, without pydantic's labels of a union's members."""
    found: Parts = ()
    for part in location:
        if (*found, part) in paths:
            found = (*found, part)
    return found


def _shown_inside(value: dict[str, Any]) -> str:
    return shown(next(iter(value.values()), None))


def _dotted(name: str, parts: Parts) -> str:
    return ".".join((name, *map(str, parts)))


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _is_dict(kind: Any) -> bool:
    return kind is dict or get_origin(kind) is dict or kind is Any


@functools.cache
def _adapter(model_type: type[BaseModel], parts: Parts) -> TypeAdapter[Any]:
    union: Any = Union[tuple(annotations_at(model_type, parts))]  # noqa: UP007  # of members that no text names
    return TypeAdapter(union)
