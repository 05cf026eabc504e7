"""`headway schema`: JSON Schemas of the files that people write, so that an editor completes and checks them.

The models are the only description of a file: their fields' names, types, limits, defaults and descriptions.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from headway.data_contracts.rules.contract import Contract
from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.profiles import Profiles
from headway.flows.console.output import write_whole
from headway.training.recipes.built_in import BUILT_IN

FileKind = Literal["pipeline", "contract", "profiles"]
MODELS: dict[FileKind, type[BaseModel]] = {"pipeline": PipelineSpec, "contract": Contract, "profiles": Profiles}
FOLDER = ".headway"
"""Beside the files that name a schema; under version control with them, or made again by `headway schema`."""


class _Draft7(GenerateJsonSchema):
    """In the draft that language servers read: lists of fixed length are `items`. Titles would repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def tuple_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().tuple_schema(schema)
        if "prefixItems" in found:
            found["items"] = found.pop("prefixItems")
        return found


@functools.cache
def schema_of(kind: FileKind) -> dict[str, Any]:
    """The JSON Schema (draft 7) of a kind of file; one for all who ask, to be left as it is."""
    schema = MODELS[kind].model_json_schema(schema_generator=_Draft7)
    if kind == "pipeline":
        # A recipe of one's own has others.
        schema["$defs"]["RecipeSpec"]["properties"]["model"]["properties"] = _recipe_fields()
    return {"$schema": "http://json-schema.org/draft-07/schema#"} | schema | {"title": f"Headway {kind} file"}


def _recipe_fields() -> dict[str, Any]:
    """Fields of the recipes that come with Headway, by name; each says which recipes have it."""
    having: dict[str, dict[str, list[str]]] = {}
    found: dict[str, Any] = {}
    for recipe, built_in in BUILT_IN.items():
        for name, field in built_in.spec_type.model_json_schema(schema_generator=_Draft7)["properties"].items():
            having.setdefault(name, {}).setdefault(field.get("description", ""), []).append(recipe)
            alike = name not in found or found[name].get("default") == field.get("default")
            # Limits and defaults differ between recipes: who reads the file for training holds it to its own.
            found[name] = {"type": field["type"]} | ({"default": field.get("default")} if alike else {})
    for name, meanings in having.items():
        lines = [f"{text} (`{'`, `'.join(recipes)}`)" for text, recipes in meanings.items()]
        found[name]["description"] = " ".join(lines)
    return found


def schema_comment(kind: FileKind) -> str:
    """The first lines of a file whose folder holds the schemas: VS Code's language server, then PyCharm."""
    path = f"{FOLDER}/{_file_name(kind)}"
    return f"# yaml-language-server: $schema={path}\n# $schema: {path}\n"


def schema_files(folder: Path) -> dict[Path, str]:
    """The schemas' files for those of a folder, with their texts."""
    return {
        folder / FOLDER / _file_name(kind): json.dumps(schema_of(kind), indent=1, ensure_ascii=False) + "\n"
        for kind in MODELS
    }


def write_schemas(folder: Path) -> list[Path]:
    """Write all schemas for the files of a folder, in place of older ones; returns their paths.

    Raises:
        ConfigError: the folder cannot be made.
        EnvironmentProblem: a file in it cannot be written.
    """
    files = schema_files(folder)
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot be written ({error.strerror}).", where=str(path)) from error
        write_whole(path, text.encode())
    return list(files)


def _file_name(kind: FileKind) -> str:
    return f"{kind}.schema.json"
