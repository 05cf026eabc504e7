"""YAML that people write, read strictly: every problem at once, each with its line, its key and the nearest name.

What costs more than it says is refused before it costs anything: the size of a file, its depth, the values that its
aliases and merges stand for, the digits of a number.
"""

from __future__ import annotations

import difflib
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from headway.data_contracts.store.credentials import MAX_CHARACTERS, credential_in_value
from headway.data_contracts.store.errors import (
    LIST_TYPES,
    MAPPING_TYPES,
    ConfigError,
    choices_of,
    plain_message,
    requirement,
)
from headway.data_contracts.store.regular_files import open_regular

M = TypeVar("M", bound=BaseModel)
Location = tuple[int | str, ...]
MAX_SHOWN_CHARS = 60
MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_VALUES = 100_000
"""With whatever aliases stand for written out."""
MAX_PROBLEMS = 50
MAX_CHECKED = 1_000
MAX_DIGITS = 40
"""Of an integer; decimals of 128 bits have 38."""
CORRECT = "Correct the YAML there."
REFUSED_AT = "refused_at"
TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
TOO_MANY = f"more than {MAX_VALUES:,} values, with what aliases stand for"


class _TooMuch(yaml.composer.ComposerError):
    """Of more than a person writes; whoever reads it once more pays once more."""


class _Strict(yaml.composer.Composer, yaml.constructor.SafeConstructor):
    """Refuses a key that is written twice, where plain YAML keeps the last one silently, and numbers that are none."""

    _depth = _num_values = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._num_values += 1  # of a file as large as any, values take a minute to compose
        if self._depth == MAX_DEPTH or self._num_values > MAX_VALUES:
            problem = TOO_DEEP if self._depth == MAX_DEPTH else TOO_MANY
            event = self.peek_event()  # type: ignore[attr-defined]  # of whoever cuts the text into events
            raise _TooMuch(None, None, problem, event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MAX_DIGITS:
            raise _at(node, f"a number of {len(node.value):,} digits")
        return super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        value = super().construct_yaml_float(node)
        if not math.isfinite(value):
            raise _at(node, f"{_shown(node.value)} is no finite number")
        return value

    def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
        try:
            # JSON escapes a character beyond 16 bits as two halves, which YAML leaves apart; no half can be written.
            return super().construct_yaml_str(node).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise _at(node, "half a character (a surrogate without its other half)") from None

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            # What PyYAML makes of `2026-02-30`, `!!int x`, `!!bool 7`, `!!timestamp x`.
            kind = node.tag.rpartition(":")[2]
            raise _at(node, f"not readable as YAML ({kind}: {_shown(str(error))})") from error

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


_Strict.add_constructor("tag:yaml.org,2002:int", _Strict.construct_yaml_int)  # type: ignore[type-var]
_Strict.add_constructor("tag:yaml.org,2002:float", _Strict.construct_yaml_float)  # type: ignore[type-var]
_Strict.add_constructor("tag:yaml.org,2002:str", _Strict.construct_yaml_str)  # type: ignore[type-var]


class _Loader(_Strict, yaml.SafeLoader):
    """Reads all YAML, and says what is wrong with it."""


_Libyaml: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML can be built without it."""


class _QuickLoader(_Strict, _Libyaml):  # type: ignore[misc]
    """Reads most good YAML, to the same nodes, in a quarter of the time: libyaml cuts the text into events."""

    def __init__(self, text: str) -> None:
        _Libyaml.__init__(self, text)
        yaml.composer.Composer.__init__(self)  # it composes, not libyaml's, which asks nobody about depth


_READ_OTHERWISE = re.compile(r"[\t?!\x85\u2028\u2029\ufeff]|[|>][-+0-9]*#|(?:^|\r)---", re.MULTILINE)
"""What libyaml and PyYAML disagree about: whether they take it, or the line that they name."""


def _composed(text: str) -> tuple[_Strict, yaml.Node | None]:
    """The tree, and who makes values of it. Whatever libyaml refuses is read once more, for PyYAML's words."""
    if not _READ_OTHERWISE.search(text):
        try:
            quick = _QuickLoader(text)
            return quick, quick.get_single_node()
        except _TooMuch:
            raise
        except (yaml.YAMLError, RecursionError, ValueError):
            pass
    loader = _Loader(text)
    return loader, loader.get_single_node()


def _at(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def read_text(path: Path) -> str:
    """A file's text, for `parse_yaml_model`.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read, or is no UTF-8; a pipe or a device, which nobody waits for.
        ConfigError: it is larger than any that a person writes.
    """
    with open_regular(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _too_large(str(path))
    return data.decode()


def not_utf8(error: UnicodeDecodeError) -> str:
    """What keeps a file from being read, and where: an editor of Windows may have written one letter otherwise."""
    line = error.object[: error.start].count(b"\n") + 1
    return f"is not text in UTF-8 (byte 0x{error.object[error.start]:02x} in line {line})."


def _too_large(where: str) -> ConfigError:
    return ConfigError(
        f"larger than {MAX_BYTES >> 20} MiB.", where=where, advice="Is it the right file? Keep data out of it."
    )


def parse_yaml(text: str, where: str) -> Any:
    """Parse text into plain values.

    Raises:
        ConfigError: not YAML, a key given twice, or more than a person writes.
    """
    return _parsed(text, where)[0]


def _parsed(text: str, where: str) -> tuple[Any, yaml.Node | None]:
    if len(text) > MAX_BYTES:
        raise _too_large(where)
    try:
        loader, root = _composed(text)
        if root is None:
            return None, None
        _require_few_values(root)
        return loader.construct_document(root), root
    except yaml.YAMLError as error:
        raise _syntax_error(error, where) from error
    except (RecursionError, ValueError, TypeError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {_shown(str(error))}"
        raise ConfigError(f"not readable as YAML ({reason}).", where=where, advice=CORRECT) from error


def _require_few_values(root: yaml.Node) -> None:
    """Each node is looked at once, and counts as often as it stands for a value; merged keys count as well."""
    num_values: dict[int, int] = {}
    inside: set[int] = set()

    def count(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in inside:
            raise _at(node, "an alias contains itself")
        if (known := num_values.get(id(node))) is None:
            inside.add(id(node))
            is_list = isinstance(node, yaml.SequenceNode)
            inner = node.value if is_list else [each for pair in node.value for each in pair]
            known = num_values[id(node)] = 1 + sum(map(count, inner))
            inside.discard(id(node))
        if known > MAX_VALUES:
            raise _at(node, TOO_MANY)
        return known

    count(root)


def parse_yaml_model(model_type: type[M], text: str, where: str) -> M:
    """Parse text into a model.

    Args:
        where: the file's name, for messages.

    Raises:
        ConfigError: not YAML, a key given twice, or values the model refuses: all of them in one message.
    """
    value, root = _parsed(text, where)
    if not isinstance(value, dict):
        raise ConfigError(
            f"must be a mapping of keys to values, not {'empty' if value is None else type(value).__name__}.",
            where=where,
            advice=f"Its keys are: {', '.join(sorted(_keys(model_type)))}.",
        )
    try:
        model = model_type.model_validate(value)
    except ValidationError as error:
        raise _model_error(model_type, error, root, where) from error
    if problems := list(not_numbers(model_type, value)):
        raise _all_of(((_place(location, root), problem) for location, problem in problems), where)
    return model


def not_numbers(model_type: type[BaseModel], value: Any, location: Location = ()) -> Iterator[tuple[Location, str]]:
    """Numbers that only Python takes for what was meant, such as `true` for 1, and integers that are too large.

    Args:
        value: what a file has at the location.
    """
    if isinstance(value, dict | list):
        for part, each in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(part, int | str):
                yield from not_numbers(model_type, each, (*location, part))
    elif isinstance(value, bool):
        kinds = set(annotations_at(model_type, location))
        if kinds & {int, float} and bool not in kinds and Any not in kinds:
            yield location, f"a number is wanted, given {str(value).lower()}."
    elif isinstance(value, int) and abs(value) > largest_integer(model_type):
        yield location, f"a number beyond {largest_integer(model_type):,}."


def largest_integer(model_type: type[BaseModel]) -> int:
    """What counts something, or seeds something, stays below what a float tells apart; a contract's bounds need not."""
    return int(getattr(model_type, "LARGEST_INTEGER", 1 << 53))


def _syntax_error(error: yaml.YAMLError, where: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    line = "" if mark is None else f":{mark.line + 1}"
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    context = getattr(error, "context", None)
    return ConfigError(f"{problem}{f' ({context})' if context else ''}.", where=f"{where}{line}", advice=CORRECT)


def _model_error(
    model_type: type[BaseModel], error: ValidationError, root: yaml.Node | None, where: str
) -> ConfigError:
    # A list of wrong values has one for each.
    details = [_located(each) for each in error.errors(include_url=False)[:MAX_CHECKED]]
    causes = [each for each in details if not _is_consequence(each, details, root)]
    return _all_of(_merged(model_type, causes, root), where)


def _located(detail: ErrorDetails) -> ErrorDetails:
    if detail["type"] == REFUSED_AT:
        detail["loc"] = (*detail["loc"], *detail["ctx"]["location"])
    return detail


def _is_consequence(detail: ErrorDetails, details: Sequence[ErrorDetails], root: yaml.Node | None) -> bool:
    """Whether other problems of the same value cause this one: pydantic counts a list without its wrong values, and of
    a union names what each member would have been."""
    location = detail["loc"]
    if detail["type"] == "too_short":
        below = any(each["loc"][: len(location)] == location and each is not detail for each in details)
        return below and len(detail["input"]) >= (detail.get("ctx") or {})["min_length"]
    if detail["type"] not in LIST_TYPES | MAPPING_TYPES:
        return False
    key = _written(location, root)[0]
    return any(
        (each["input"] is detail["input"] or _written(each["loc"], root)[0].startswith((f"{key}.", f"{key}[")))
        and each["type"] not in LIST_TYPES | MAPPING_TYPES
        for each in details
        if each["loc"][: len(location) - 1] == location[:-1]
    )


def _merged(
    model_type: type[BaseModel], details: Iterable[ErrorDetails], root: yaml.Node | None
) -> Iterator[tuple[str, str]]:
    """Where, by key and line, and what; what a union's members require at one place is one sentence."""
    for (place, _), group in groupby(
        details, lambda each: (_place(each["loc"], root), requirement(each["type"]) == "")
    ):
        same = list(group)
        if required := list(dict.fromkeys(filter(None, (requirement(each["type"]) for each in same)))):
            given = same[0]["input"]
            is_quoted = required == [requirement("string_type")] and isinstance(given, int | float | date)
            yield place, f"must be {' or '.join(required)}{_given(given)}.{' Write it in quotes.' if is_quoted else ''}"
        else:
            yield from ((place, _problem(model_type, each)) for each in same)


def refused_at(location: Location, problem: str) -> PydanticCustomError:
    """To be raised by a model's own check of values that do not go together: one of them, by its location within the
    model. By itself a check speaks of the whole, whose line tells nothing.

    Args:
        problem: the end of a sentence.
    """
    # In this order: a name in braces that the problem quotes is no place to put the location.
    return PydanticCustomError(REFUSED_AT, "{problem}", {"location": location, "problem": problem})


def refused_values(text: str, problems: Iterable[tuple[Location, str]], where: str) -> ConfigError:
    """What other files say against values that the model took, in the words of `parse_yaml_model`.

    Args:
        text: the file's, which was parsed into a model.
        problems: the location of each value, and a sentence of what is wrong with it; one at least.
        where: the file's name, for messages.
    """
    root = _composed(text)[1]
    return _all_of(((_place(location, root), problem) for location, problem in problems), where)


def _all_of(problems: Iterable[tuple[str, str]], where: str) -> ConfigError:
    by_place: dict[str, dict[str, None]] = {}
    for place, problem in problems:
        by_place.setdefault(place, {})[problem] = None  # the members of a union complain one by one
    message = [f"{place}: {' '.join(found)}" for place, found in by_place.items()]
    if len(message) == 1:
        return ConfigError(message[0], where=where)
    listed = message[:MAX_PROBLEMS]
    if len(message) > MAX_PROBLEMS:
        listed.append(f"and {len(message) - MAX_PROBLEMS:,} more.")
    return ConfigError(f"{len(message):,} problems:\n" + "\n".join(f"  - {each}" for each in listed), where=where)


def _place(location: Location, root: yaml.Node | None) -> str:
    key, line = _written(location, root)
    return f"{key} (line {line})" if key and not credential_in_value(key[:MAX_CHARACTERS]) else f"line {line}"


def _problem(model_type: type[BaseModel], detail: ErrorDetails) -> str:
    location = detail["loc"]
    last = location[-1] if location else ""
    if detail["type"] == "extra_forbidden":
        # A blank that is missing after a colon makes a key of a value.
        if credential_in_value(str(last)[:MAX_CHARACTERS]):
            return "unknown key, which may hold a secret. A colon needs a blank after it."
        return f"unknown key `{last}`.{nearest(str(last), keys_at(model_type, location[:-1]))}"
    if detail["type"] == "missing":
        return f"value {last + 1} is missing." if isinstance(last, int) else f"`{last}` is missing."
    message = plain_message(detail).removesuffix(".")
    given = detail["input"]
    context = detail.get("ctx") or {}
    choices = set(choices_of(context))
    close = difflib.get_close_matches(str(context.get("tag", given))[:LONGEST_NAME], sorted(choices), n=1, cutoff=0.5)
    hint = f" Did you mean `{close[0]}`?" if close else ""
    # A message that ends by asking has said what was given.
    return f"{message}{hint}" if message.endswith("?") else f"{message}{_given(given)}.{hint}"


def _given(value: Any) -> str:
    """What stands in the file, as the end of a sentence; empty for a whole branch, and for what may be a secret: who
    reads a log or a page of CI need not be who may read the file."""
    if isinstance(value, BaseModel | dict):
        return ""
    text = str(value) if isinstance(value, date | str) else repr(value)
    if credential_in_value(text[:MAX_CHARACTERS]):
        return ""
    return f", given {_shown(text if isinstance(value, date) else repr(value))}"


def _shown(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."


LONGEST_NAME = 200


def nearest(name: str, known: set[str]) -> str:
    """What may have been meant, as a sentence that follows another; empty where nobody knows."""
    # A long text is no misspelt name, and to compare it takes time that grows with its length.
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5) if len(name) <= LONGEST_NAME else []
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
    return {key for each in annotations_at(model_type, location) for model in _models(each) for key in _keys(model)}


def annotations_at(model_type: type[BaseModel], location: Location) -> list[Any]:
    """The types that a value at a location may have; of a union, its members."""
    annotations: list[Any] = [model_type]
    for part in location:
        stepped = [inner for each in annotations for inner in _step(each, part)]
        annotations = stepped or annotations
    return [member for each in annotations for member in _members(each)]


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
