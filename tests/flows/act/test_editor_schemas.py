"""Editors complete and check the files that people write: whatever Headway accepts, its schemas accept."""

from __future__ import annotations

import json
import random
from datetime import date, time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.flows.act.contract_init import draft
from headway.flows.act.editor_schemas import MODELS, FileKind, schema_of, write_schemas
from headway.flows.cli.command_line import app
from tests.flows.config.test_mutated_files import in_text, in_tree

REPOSITORY = Path(__file__).resolve().parents[3]
DEPLOYMENTS = REPOSITORY / "deployments"
SHIPPED: list[tuple[FileKind, Path]] = [
    *(("pipeline", DEPLOYMENTS / f"{name}.yaml") for name in ("stdlib-lm", "digits", "breast-cancer")),
    *(("contract", path) for path in sorted((REPOSITORY / "data_contracts/contracts").glob("*.yaml"))),
    ("profiles", DEPLOYMENTS / "profiles.yaml"),
]
NUM_MUTATIONS = [100, pytest.param(300, marks=pytest.mark.soak)]


@pytest.fixture(scope="module")
def checkers() -> dict[FileKind, jsonschema.Draft7Validator]:
    return {kind: jsonschema.Draft7Validator(schema_of(kind)) for kind in MODELS}


def as_editors_read(value: Any) -> Any:
    """YAML 1.2 knows no dates."""
    if isinstance(value, dict):
        return {str(key): as_editors_read(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_editors_read(each) for each in value]
    return value.isoformat() if isinstance(value, date | time) else value


def is_accepted(kind: FileKind, text: str) -> bool:
    try:
        parse_yaml_model(MODELS[kind], text, where=kind)
    except ConfigError:
        return False
    return True


def complaints(checker: jsonschema.Draft7Validator, text: str) -> list[str]:
    found = checker.iter_errors(as_editors_read(yaml.safe_load(text)))
    return [f"{error.json_path}: {error.message}" for error in found]


@pytest.mark.process
@pytest.mark.parametrize("num_mutations", NUM_MUTATIONS)
def test_a_schema_accepts_what_headway_accepts_of_shipped_files_and_of_altered_ones(
    checkers: dict[FileKind, jsonschema.Draft7Validator], num_mutations: int
) -> None:
    draw = random.Random(20261123)
    texts = [(kind, path.read_text()) for kind, path in SHIPPED]
    for _ in range(num_mutations):
        kind, text = draw.choice(texts[: len(SHIPPED)])
        altered = draw.choice((in_text, in_tree))(draw, text)
        if is_accepted(kind, altered):
            texts.append((kind, altered))
    assert len(texts) > len(SHIPPED) + num_mutations / 10, "most alterations are refused, and some are not"
    for kind, text in texts:
        assert complaints(checkers[kind], text) == [], text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  max_steps: 400", "  max_steps: 400\n  start_from: models:/digits@champion"),
        ("registry:", "evaluation: {slices: [f0, {column: path, folders: 1}]}\nregistry:"),
        ("  launcher: local", "  launcher: ssh\n  ssh: {hosts: [a, {host: b}]}"),
        (
            "  time_zone: UTC",
            "  time_zone: UTC\n  blackouts: [2026-12-24, {first: 2026-12-30, last: 2027-01-01}]",
        ),
    ],
)
def test_short_forms_are_none_that_an_editor_underlines(
    checkers: dict[FileKind, jsonschema.Draft7Validator], old: str, new: str
) -> None:
    text = (DEPLOYMENTS / "digits.yaml").read_text()
    assert old in text
    text = text.replace(old, new, 1)
    parse_yaml_model(MODELS["pipeline"], text, where="digits")
    assert complaints(checkers["pipeline"], text) == []


@pytest.mark.parametrize(
    ("kind", "old", "new", "complaint"),
    [
        ("pipeline", "max_steps: 400", "max_step: 400", "'max_step' was unexpected"),
        ("pipeline", "kind: cosine", "kind: cosin", "'cosin' is not"),
        ("pipeline", "heldout_fraction: 0.2", "heldout_fraction: 2", "2 is greater than"),
        ("pipeline", "contract: ../data_contracts/contracts/digits.yaml", "", "'contract' is a required property"),
        ("contract", "version:", "versions:", "'versions' was unexpected"),
        ("profiles", "project:", "projects:", "'projects' was unexpected"),
    ],
)
def test_what_is_misspelt_or_out_of_bounds_is_underlined(
    checkers: dict[FileKind, jsonschema.Draft7Validator], kind: FileKind, old: str, new: str, complaint: str
) -> None:
    path = {
        "pipeline": DEPLOYMENTS / "digits.yaml",
        "contract": REPOSITORY / "data_contracts/contracts/digits.yaml",
        "profiles": DEPLOYMENTS / "profiles.yaml",
    }[kind]
    text = path.read_text()
    assert old in text
    assert any(complaint in each for each in complaints(checkers[kind], text.replace(old, new, 1)))


def test_every_key_says_what_it_means() -> None:
    silent = []
    for kind in MODELS:
        schema = schema_of(kind)
        for where, model in {"": schema, **schema["$defs"]}.items():
            for name, field in model.get("properties", {}).items():
                named = schema["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else {}
                if not {"description", "const"} & {*field, *named}:
                    silent.append(f"{kind}: {where}.{name}")
    assert silent == []


def test_a_schema_is_the_same_on_every_machine() -> None:
    for kind in MODELS:
        assert str(Path.home()) not in json.dumps(schema_of(kind))
        assert "/bin/python" not in json.dumps(schema_of(kind))


@pytest.mark.process
def test_drafts_name_the_schemas_that_lie_beside_them(
    tmp_path: Path, checkers: dict[FileKind, jsonschema.Draft7Validator]
) -> None:
    (tmp_path / "sales.csv").write_text("id,price\n" + "".join(f"{row},{row * 1.5}\n" for row in range(100)))
    drafted = draft("sales.csv", out="", name="", base=tmp_path)
    kinds: dict[FileKind, Path] = {"contract": drafted.contract, "pipeline": drafted.pipeline}
    for kind, path in kinds.items():
        vs_code, pycharm, *_ = path.read_text().splitlines()
        schema = vs_code.removeprefix("# yaml-language-server: $schema=")
        assert pycharm == f"# $schema: {schema}"
        assert json.loads((path.parent / schema).read_text()) == schema_of(kind)
        assert complaints(checkers[kind], path.read_text()) == []


def test_the_command_writes_all_or_prints_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deployments").mkdir()
    app(["schema"], standalone_mode=False)
    written = capsys.readouterr().out.split()
    assert written == [f"deployments/.headway/{kind}.schema.json" for kind in MODELS]
    app(["schema", "contract"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / written[1]).read_text())


def test_a_schema_takes_the_place_of_a_link(tmp_path: Path) -> None:
    (kept := tmp_path / "kept").write_text("mine")
    (tmp_path / ".headway").mkdir()
    (link := tmp_path / ".headway" / "contract.schema.json").symlink_to(kept)
    write_schemas(tmp_path)
    assert kept.read_text() == "mine" and json.loads(link.read_text()) == schema_of("contract")
