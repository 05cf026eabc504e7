"""`headway explain`: what a key means, what it may hold, what it is by default, and what an edit to it has run anew."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from rich.table import Table

from headway.data_contracts.store.errors import ConfigError
from headway.flows.act.editor_schemas import FileKind, schema_of
from headway.flows.console.console import headed, plain_console, print_table
from headway.training.config.shards import EXECUTION
from headway.training.config.training_spec import DECIDES_NO_BIT

Schema = dict[str, Any]

MAX_DEFAULT_CHARS = 60
STAGES = {
    "pipeline": "launch",
    "source": "snapshot",
    "contract": "validate",
    "shards": "shard",
    "training": "launch",
    "evaluation": "evaluate",
    "registry": "register",
}
"""Branches of a pipeline file that are part of a stage's key."""
ANY_NAME = "NAME"
NOTHING = "no stage runs anew"
EFFECTS = {
    **{f"shards.{name}": f"{NOTHING}; it says how shards are made, not what they hold" for name in EXECUTION},
    **{f"training.{name}": f"{NOTHING}; a run that is resumed goes by it" for name in DECIDES_NO_BIT},
    "registry.tracking_uri": f"{NOTHING}; the next retrain registers its version there",
    "evaluation.folds": "a model of each fold is trained that there is none of yet, and evaluate runs anew",
    "promotion": f"{NOTHING}; the next retrain decides by it",
    "trials": f"{NOTHING}; `headway trials` finds settings that were trained before",
    "windows": f"{NOTHING}; the next scheduled start goes by it",
    "triggers": f"{NOTHING}; the next look goes by it",
}
EFFECT_OF_FILE = {
    "contract": "validate runs anew, and each later stage whose input comes out different",
    "profiles": f"{NOTHING}; the next `headway deploy` goes by it",
}


class KeyHelp(BaseModel):
    key: str
    meaning: str
    type: str
    required: bool
    default: str
    """As JSON; empty where it is required, or its keys have their own."""


class Explanation(KeyHelp):
    file: FileKind
    effect: str
    """Of an edit."""
    keys: list[KeyHelp]
    """Those below it."""


def explain(key: str, kind: FileKind = "pipeline") -> Explanation:
    """
    Args:
        key: dotted, such as `training.schedule`, with any name for one in a map, as in `columns.NAME.type`. Places in
            lists may be left out. Empty: the file.

    Raises:
        ConfigError: the file has no such key; says the nearest.
    """
    schema = schema_of(kind)
    found, nodes, is_required = schema, list(_plain(schema, schema)), False
    parts = [part for part in key.split(".") if part]
    for number, part in enumerate(parts):
        has_places = any(node.get("type") == "array" for node in nodes)
        nodes = _within_lists(schema, nodes)
        # Alternatives, such as the kinds of a schedule, may share a key.
        having = [node for node in nodes if part in node.get("properties", {})]
        if having:
            found, is_required = having[0]["properties"][part], all(part in node.get("required", ()) for node in having)
            nodes = [each for node in having for each in _plain(schema, node["properties"][part])]
        elif members := [each for node in nodes for each in _members(node)]:
            nodes = [each for member in members for each in _plain(schema, member)]
        # A place in a list changes nothing about what may stand there.
        elif not (has_places and part.isdecimal()):
            raise _unknown(part, parts[:number], nodes, kind)
    return Explanation(
        **_help(schema, ".".join(parts) or f"the {kind} file", found, is_required),
        file=kind,
        effect=_effect(parts) if kind == "pipeline" else EFFECT_OF_FILE[kind],
        keys=_keys(schema, _within_lists(schema, nodes)),
    )


def print_explanation(made: Explanation) -> None:
    console = plain_console()
    console.print(headed(made.key, f"   {made.meaning}" if made.meaning else ""))
    facts = {"holds": made.type, "default": _default(made), "an edit": made.effect}
    for name, value in facts.items():
        if value:
            console.print(f"  {name:<9} {value}")
    if not made.keys:
        return
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for name in ("key", "holds", "default", "meaning"):
        table.add_column(name, overflow="fold")
    for each in made.keys:
        table.add_row(each.key, each.type, _default(each), each.meaning)
    console.print()
    print_table(console, table)


def _default(made: KeyHelp) -> str:
    return "required" if made.required else made.default


def _effect(parts: Sequence[str]) -> str:
    if not parts:
        return ""
    if special := EFFECTS.get(".".join(parts[:2])):
        return special
    stage = STAGES.get(parts[0])
    if stage is None:
        return EFFECTS.get(parts[0], NOTHING)
    later = "" if stage in ("evaluate", "register") else ", and each later stage whose input comes out different"
    return f"{stage} runs anew{later}"


def _keys(schema: Schema, nodes: list[Schema]) -> list[KeyHelp]:
    members = [each for node in nodes for member in _members(node) for each in _plain(schema, member)]
    of_members = (
        each.model_copy(update={"key": f"{ANY_NAME}.{each.key}"})
        for each in _below(schema, _within_lists(schema, members))
    )
    return [*_below(schema, nodes), *of_members]


def _below(schema: Schema, nodes: list[Schema]) -> Iterator[KeyHelp]:
    seen: set[str] = set()
    for node in nodes:
        for name, found in node.get("properties", {}).items():
            if name in seen:
                continue
            seen.add(name)
            having = [each for each in nodes if name in each.get("properties", {})]
            is_required = all(name in each.get("required", ()) for each in having)
            kinds = dict.fromkeys(_type(schema, each["properties"][name]) for each in having)
            yield KeyHelp(**_help(schema, name, found, is_required) | {"type": " or ".join(kinds)})


def _help(schema: Schema, key: str, found: Schema, is_required: bool) -> dict[str, Any]:
    default, plain = found.get("default"), list(_plain(schema, found))
    has_keys = any("properties" in node for node in plain)
    # A key that says what its model says is left without a description.
    meaning = found.get("description") or next((node["description"] for node in plain if "description" in node), "")
    if "const" in found:
        meaning = meaning or "Says which kind it is."
    text = (
        "" if default is None or (has_keys and isinstance(default, dict)) else json.dumps(default, ensure_ascii=False)
    )
    return {
        "key": key,
        "meaning": " ".join(meaning.split()),
        "type": _type(schema, found),
        "required": is_required,
        "default": text if len(text) <= MAX_DEFAULT_CHARS else f"{text[:MAX_DEFAULT_CHARS]}...",
    }


def _plain(schema: Schema, node: Schema) -> Iterator[Schema]:
    """The alternatives that a schema stands for, without references."""
    if (ref := node.get("$ref")) is not None:
        yield from _plain(schema, schema["$defs"][ref.rpartition("/")[2]])
    elif choices := node.get("anyOf") or node.get("oneOf"):
        for choice in choices:
            yield from _plain(schema, choice)
    else:
        yield node


def _within_lists(schema: Schema, nodes: list[Schema]) -> list[Schema]:
    """In place of lists what they hold."""
    found: list[Schema] = []
    for node in nodes:
        items = node.get("items") if node.get("type") == "array" else None
        members = items if isinstance(items, list) else [] if items is None else [items]
        below = [each for member in members for each in _plain(schema, member)]
        found += _within_lists(schema, below) if below else [node]
    return found


def _members(node: Schema) -> list[Schema]:
    """Of a map, what stands below its names."""
    others = node.get("additionalProperties")
    return [*node.get("patternProperties", {}).values(), *([others] if isinstance(others, dict) else [])]


def _type(schema: Schema, found: Schema) -> str:
    return " or ".join(dict.fromkeys(filter(None, (_type_of(schema, node) for node in _plain(schema, found)))))


def _type_of(schema: Schema, node: Schema) -> str:
    if "const" in node:
        return json.dumps(node["const"])
    if "enum" in node:
        return " | ".join(map(str, node["enum"]))
    kind: Any = node.get("type", "anything")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "null":
        return "nothing"
    if kind == "array":
        items = node.get("items")
        inner = items if isinstance(items, list) else [] if items is None else [items]
        names = " or ".join(dict.fromkeys(_type(schema, each) for each in inner))
        return f"list of {names}" if names else "list"
    if kind == "object":
        below = " or ".join(_type(schema, each) for each in _members(node))
        return f"names with {below}" if below else "keys"
    return " ".join((str(node.get("format", kind)), *_limits(node)))


def _limits(node: Schema) -> Iterator[str]:
    for name, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<")):
        if name in node:
            yield f"{sign} {node[name]:,}"


def _unknown(part: str, before: Sequence[str], nodes: list[Schema], kind: FileKind) -> ConfigError:
    known = sorted({name for node in nodes for name in node.get("properties", {})})
    near = difflib.get_close_matches(part, known, n=1, cutoff=0.5)
    others = [each for each in get_args(FileKind) if not before and part in schema_of(each).get("properties", {})]
    if others:
        return ConfigError(
            f"the {kind} file has no key {part!r}.",
            where=part,
            advice=f"It is a key of another kind of file: give {' or '.join(f'`--in {each}`' for each in others)}.",
        )
    where = ".".join(before) or f"the {kind} file"
    if not known:
        return ConfigError(f"{where} has no keys.", where=".".join((*before, part)))
    return ConfigError(
        f"{where} has no key {part!r}.",
        where=".".join((*before, part)),
        advice=f"Did you mean {near[0]}?" if near else f"Its keys are {', '.join(known)}.",
    )
