"""YAML that people write, read strictly: every problem at once, each with its line, its key and the nearest name."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from data_contracts.errors import ConfigError

M = TypeVar("M", bound=BaseModel)
Location = tuple[int | str, ...]
MAX_SHOWN_CHARS = 60


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice; plain YAML keeps the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            line = key_node.start_mark.line + 1
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"key `{key}` is given twice (first in line {seen[key]})", key_node.start_mark
                )
            seen[key] = line
        return super().construct_mapping(node, deep=deep)


def parse_yaml_model(model_type: type[M], text: str, where: str) -> M:
    """Parse text into a model.

    Args:
        where: the file's name, for messages.

    Raises:
        ConfigError: not YAML, a key given twice, or values the model refuses: all of them in one message.
    """
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            value = None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise _syntax_error(error, where) from error
    except (RecursionError, ValueError, TypeError) as error:
        reason = f"{type(error).__name__}: {_shown(str(error))}"
        raise ConfigError(f"not readable as YAML ({reason}).", where=where) from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"must be a mapping of keys to values, not {'empty' if value is None else type(value).__name__}.",
            where=where,
            advice=f"Its keys are: {', '.join(sorted(_keys(model_type)))}.",
        )
    try:
        return model_type.model_validate(value)
    except ValidationError as error:
        raise _model_error(model_type, error, root, where) from error
    except RecursionError as error:
        raise ConfigError("an alias contains itself.", where=where) from error


def _syntax_error(error: yaml.YAMLError, where: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    line = "" if mark is None else f":{mark.line + 1}"
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    context = getattr(error, "context", None)
    return ConfigError(
        f"{problem}{f' ({context})' if context else ''}.", where=f"{where}{line}", advice="Correct the YAML there."
    )


def _model_error(
    model_type: type[BaseModel], error: ValidationError, root: yaml.Node | None, where: str
) -> ConfigError:
    return _all_of((_problem(model_type, detail, root) for detail in error.errors(include_url=False)), where)


def refused_values(text: str, problems: Iterable[tuple[Location, str]], where: str) -> ConfigError:
    """What other files say against values that the model took, in the words of `parse_yaml_model`.

    Args:
        text: the file's, which was parsed into a model.
        problems: the location of each value, and a sentence of what is wrong with it; one at least.
        where: the file's name, for messages.
    """
    root = yaml.compose(text, Loader=_Loader)
    return _all_of(((_place(location, root), problem) for location, problem in problems), where)


def _all_of(problems: Iterable[tuple[str, str]], where: str) -> ConfigError:
    by_place: dict[str, dict[str, None]] = {}
    for place, problem in problems:
        by_place.setdefault(place, {})[problem] = None  # the members of a union complain one by one
    said = [f"{place}: {' '.join(found)}" for place, found in by_place.items()]
    if len(said) == 1:
        return ConfigError(said[0], where=where)
    return ConfigError(f"{len(said)} problems:\n" + "\n".join(f"  - {each}" for each in said), where=where)


def _place(location: Location, root: yaml.Node | None) -> str:
    key, line = _written(location, root)
    return f"{key} (line {line})" if key else f"line {line}"


def _problem(model_type: type[BaseModel], detail: ErrorDetails, root: yaml.Node | None) -> tuple[str, str]:
    """Where, by key and line, and what."""
    location = detail["loc"]
    place = _place(location, root)
    last = str(location[-1]) if location else ""
    if detail["type"] == "extra_forbidden":
        return place, f"unknown key `{last}`.{nearest(last, keys_at(model_type, location[:-1]))}"
    if detail["type"] == "missing":
        return place, f"`{last}` is missing."
    message = str(detail["msg"]).removeprefix("Value error, ").removesuffix(".")
    given = detail["input"]
    shown = "" if isinstance(given, BaseModel | dict) else f", given {_shown(repr(given))}"
    context = detail.get("ctx") or {}
    expected = str(context.get("expected") or context.get("expected_tags") or "")
    choices = set(expected.replace(" or ", ", ").replace("'", "").split(", ")) if expected else set()
    hint = nearest(str(context.get("tag", given)), choices)
    return place, f"{message}{shown}.{hint}"


def _shown(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."


def nearest(name: str, known: set[str]) -> str:
    """What may have been meant, as a sentence that follows another; empty where nobody knows."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    if close and close[0] != name:
        return f" Did you mean `{close[0]}`?"
    return f" Known here: {', '.join(sorted(known))}." if known and len(known) <= 30 else ""


def _written(location: Location, root: yaml.Node | None) -> tuple[str, int]:
    """The dotted key as the file has it, and its line. What the file does not have is left out: a missing key, and
    pydantic's own labels of a union's members."""
    dotted, node, line = "", root, 1 if root is None else root.start_mark.line + 1
    for part in location:
        child = _child(node, part)
        if child is not None:
            node, line = child
            dotted += f"[{part}]" if isinstance(part, int) else f".{part}"
    return dotted.removeprefix("."), line


def _child(node: yaml.Node | None, part: int | str) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return value, key.start_mark.line + 1
    return None


def keys_at(model_type: type[BaseModel], location: Location) -> set[str]:
    """The keys that could stand at a location; through a union, those of every member it may be."""
    annotations: list[Any] = [model_type]
    for part in location:
        stepped = [inner for each in annotations for inner in _step(each, part)]
        annotations = stepped or annotations
    return {key for each in annotations for model in _models(each) for key in _keys(model)}


def _step(annotation: Any, part: int | str) -> Iterator[Any]:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            for name, field in member.model_fields.items():
                if part in (name, field.alias):
                    yield field.annotation
        else:
            origin, arguments = typing.get_origin(member), typing.get_args(member)
            if origin is dict and isinstance(part, str):
                yield arguments[1]
            elif origin in (list, tuple) and isinstance(part, int) and arguments:
                yield arguments[0]


def _members(annotation: Any) -> Iterator[Any]:
    """A union's members; the annotation itself when it is none."""
    if typing.get_origin(annotation) is typing.Annotated:
        yield from _members(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for each in typing.get_args(annotation):
            yield from _members(each)
    else:
        yield annotation


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            yield member


def _keys(model_type: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model_type.model_fields.items()}
