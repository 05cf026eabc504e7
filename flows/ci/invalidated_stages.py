"""Which stages run anew because of a change, and why: what enters their keys, compared with the base.

Only what a change can say without the workspace: whether a stage is found there depends on what was run there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headway.data_contracts.sources.locations import is_remote, resolve_base_uri
from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.globs import path_filter
from headway.data_contracts.store.installation import HOME
from headway.data_contracts.suites.contract_file import read_contract_file
from headway.data_contracts.types.report_text import count
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.flows.ci.base import Base
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.tasks.core.stage_records import STAGES
from headway.training.frozen.code_archive import encoder_code, pack, recipe_sources

FOLLOWS = {
    "validate": "snapshot",
    "shard": "validate",
    "launch": "shard",
    "verify": "launch",
    "folds": "verify",
    "evaluate": "verify",
    "register": "verify",
}
"""The stage whose document is an input of the stage's key. A new report alone registers nothing anew."""
SHOWN = 4

OWN_FOLDERS = ("data_contracts", "training", "tasks", "flows")
"""Where Headway's code lies in its repository."""


class StageChange(Frozen):
    stage: str
    is_invalidated: bool
    why: str

    def __str__(self) -> str:
        return f"{self.stage}: {'runs anew, ' if self.is_invalidated else ''}{self.why}"


class StageComparison(Frozen):
    stages: tuple[StageChange, ...]
    notes: tuple[str, ...]
    """What could not be compared."""


def compare_stages(base: Base, before_file: Path, file: Path, pipeline: PipelineSpec) -> StageComparison:
    """Compare a pipeline with what it was at the base.

    Args:
        before_file: the pipeline's file in the base's tree.
        file: the pipeline's file.

    Raises:
        ConfigError: the base's file cannot be read by this version of Headway.
    """
    before = parse_yaml_model(PipelineSpec, before_file.read_text(), where=f"{base.ref}: {file.name}")
    notes: list[str] = []
    if before_file != base.path(file):
        notes.append(f"at the base its file is {before_file.relative_to(base.tree).as_posix()}")
    reasons = {
        "snapshot": [*_fields("source", before.source, pipeline.source), *_data(base, file, pipeline, notes)],
        "validate": _contract(file, pipeline, before_file, before),
        "shard": [*_changes("shards", before.shards.identity, pipeline.shards.identity)],
        "launch": [*_changes("training", before.training.identity, pipeline.training.identity)],
        "folds": [*_changes("evaluation.folds", before.evaluation.folds, pipeline.evaluation.folds)],
        "evaluate": [*_fields("evaluation", before.evaluation, pipeline.evaluation)],
        "register": [*_changes("registry.model", before.registry.model, pipeline.registry.model)],
    }
    if before.pipeline != pipeline.pipeline:
        reasons["launch"].append(f"pipeline {before.pipeline} -> {pipeline.pipeline}")
    then, now = _search_path(base, before_file), (str(file.parent),)
    for stage, code in (("shard", _encoder_code), ("launch", _recipe_code)):
        if code(before, then) != code(pipeline, now):
            reasons[stage].append(f"the {'encoder' if stage == 'shard' else 'recipe'}'s code")
    notes.extend(_own_code(base))
    # Without cross-validation there is no such stage.
    stages = [stage for stage in STAGES if stage != "folds" or pipeline.evaluation.folds is not None]
    return StageComparison(stages=tuple(_in_turn(stages, reasons)), notes=tuple(notes))


def is_recipe_beside(base: Base, before_file: Path, before: PipelineSpec) -> bool:
    """Whether the base's recipe is found beside its pipeline file, or comes with Headway or a library.

    Else a process of the checkout would take the checkout's for it.
    """
    return _recipe_code(before, (str(before_file.parent),)) == _recipe_code(before, _search_path(base, before_file))


def _in_turn(stages: Sequence[str], reasons: dict[str, list[str]]) -> Iterator[StageChange]:
    invalidated: set[str] = set()
    for stage in stages:
        own, above = reasons.get(stage, []), FOLLOWS.get(stage)
        why = [_shortened(own)] if own else []
        if above in invalidated:
            why.append(f"follows {above}")
        invalidated |= {stage} if why else set()
        yield StageChange(stage=stage, is_invalidated=bool(why), why="; ".join(why) or "as at the base")


def _shortened(reasons: list[str]) -> str:
    more = f" and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    return ", ".join(reasons[:SHOWN]) + more


def _fields(name: str, before: Frozen, now: Frozen) -> Iterator[str]:
    return _changes(name, before.model_dump(mode="json"), now.model_dump(mode="json"))


def _changes(name: str, before: Any, now: Any) -> Iterator[str]:
    """`name.key old -> new` of every value that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(each for each in now if each not in before)]:
            yield from _changes(f"{name}.{key}", before.get(key), now.get(key))
    elif before != now:
        yield f"{name} {_value(before)} -> {_value(now)}"


def _value(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _data(base: Base, file: Path, pipeline: PipelineSpec, notes: list[str]) -> list[str]:
    """Source files that differ, as far as git holds them."""
    place = resolve_base_uri(pipeline.source, base=file.parent)
    changed = None if is_remote(place) else base.changed_below(Path(place))
    if changed is None:
        notes.append("the data lie outside git and are taken to be the same")
        return []
    is_wanted = path_filter(pipeline.source.include, pipeline.source.exclude)
    found = [path for path in changed if is_wanted(path)]
    return [f"{len(found)} source files, {found[0]} first"] if found else []


def _contract(file: Path, pipeline: PipelineSpec, before_file: Path, before: PipelineSpec) -> list[str]:
    then, now = before_file.parent / before.contract, file.parent / pipeline.contract
    if not then.is_file():
        return ["the contract's file is new"]
    changed = ["the contract's text"] if then.read_bytes() != now.read_bytes() else []
    contract = read_contract_file(now).contract
    if _suite(then) != _suite(now):
        changed.append("the suite")
    # Whether splits share rows is looked up in those that the pipeline makes.
    if contract.leakage:
        changed += _changes("shards", before.shards.splitting, pipeline.shards.splitting)
    return changed


def _suite(path: Path) -> bytes | None:
    try:
        return read_contract_file(path).suite_text
    except ConfigError:
        return None


def _search_path(base: Base, before_file: Path) -> tuple[str, ...]:
    """Where the base's own packages are found: as now, the checkout's folders being the base's."""
    places = [Path(place or os.curdir).resolve() for place in sys.path]
    # Packages outside the checkout, such as libraries, are the same for both.
    inside = [place for place in places if place.is_relative_to(base.repository) and place.is_dir()]
    return (str(before_file.parent), *(str(base.path(place)) for place in inside if base.path(place).is_dir()))


def _encoder_code(pipeline: PipelineSpec, search_path: tuple[str, ...]) -> bytes | None:
    try:
        return encoder_code(pipeline.shards.encoder, search_path)
    except ConfigError:
        return None  # of the base; the checkout's own was checked before


def _recipe_code(pipeline: PipelineSpec, search_path: tuple[str, ...]) -> bytes | None:
    try:
        return pack(recipe_sources(pipeline.training.recipe.name, search_path))
    except ConfigError:
        return None


def _own_code(base: Base) -> Iterator[str]:
    home = HOME.resolve()
    if not home.is_relative_to(base.repository):
        yield "Headway and its libraries are taken to be the same"
        return
    changed = [path for path in base.changed_below(home) or [] if path.partition("/")[0] in OWN_FOLDERS]
    if changed:
        files = count(len(changed), "file")
        yield f"Headway's own code differs in {files}, {changed[0]} first: stages it makes run anew"
