"""`headway explain` knows every key of every file, what it may hold, and what an edit to it has run anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.flows.act.editor_schemas import MODELS, FileKind
from headway.flows.act.explain import NOTHING, explain, print_explanation
from headway.flows.cli.command_line import app
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.tasks.stages.register import registration_inputs
from headway.training.config.shards import EXECUTION

REPOSITORY = Path(__file__).resolve().parents[3]
DIGITS = (REPOSITORY / "deployments" / "digits.yaml").read_text()


def keys_below(kind: FileKind, key: str = "", depth: int = 6) -> Iterator[str]:
    for each in explain(key, kind).keys if depth else ():
        name = ".".join(filter(None, (key, each.key)))
        yield name
        yield from keys_below(kind, name, depth - 1)


@pytest.mark.parametrize("kind", ["contract", "profiles"])
def test_every_key_has_a_meaning_a_type_and_an_effect(kind: FileKind) -> None:
    _has_meaning(kind, keys_below(kind))


@pytest.mark.parametrize("branch", [each.key for each in explain("").keys])
def test_every_key_of_a_pipeline_file_has_a_meaning_a_type_and_an_effect(branch: str) -> None:
    _has_meaning("pipeline", [branch, *keys_below("pipeline", branch)])


def _has_meaning(kind: FileKind, keys: Iterator[str] | list[str]) -> None:
    made = {key: explain(key, kind) for key in keys}
    assert made
    assert [key for key, each in made.items() if not (each.meaning and each.type and each.effect)] == []


@pytest.mark.parametrize(
    ("key", "type_", "default"),
    [
        ("training.max_steps", "integer > 0", "1000"),
        ("training.schedule.kind", "wsd | cosine | linear | constant | inverse-sqrt", '"wsd"'),
        ("training.optimizer.groups.0.lr_multiplier", "number > 0", "1.0"),
        ("windows.open.days", "list of mon | tue | wed | thu | fri | sat | sun", None),
        ("shards.encoder.vocab_size", "integer >= 258 <= 65,536", None),
    ],
)
def test_it_says_what_a_key_may_hold_and_its_default(key: str, type_: str, default: str | None) -> None:
    made = explain(key)
    assert made.type == type_
    assert default is None or made.default == default


def test_a_key_of_a_contracts_column_is_found_by_any_columns_name() -> None:
    assert explain("columns.age.type", "contract").meaning.startswith("Arrow type")


@pytest.mark.parametrize(
    ("key", "kind", "message"),
    [
        ("training.shedule", "pipeline", "training has no key 'shedule'. Did you mean schedule?"),
        ("traning", "pipeline", "the pipeline file has no key 'traning'. Did you mean training?"),
        ("training.max_steps.x", "pipeline", "training.max_steps has no keys."),
        ("registry.zzz", "pipeline", "registry has no key 'zzz'. Its keys are model, tracking_uri."),
        ("rulez", "contract", "the contract file has no key 'rulez'. Did you mean rules?"),
    ],
)
def test_a_key_that_is_none_is_refused_with_the_nearest(key: str, kind: FileKind, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        explain(key, kind)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("key", "stage"),
    [
        ("source.include", "snapshot"),
        ("shards.num_groups", "shard"),
        ("training.seed", "launch"),
        ("evaluation.confidence", "evaluate"),
        ("registry.model", "register"),
    ],
)
def test_the_stage_that_an_edit_has_run_anew_is_named(key: str, stage: str) -> None:
    assert explain(key).effect.startswith(f"{stage} runs anew")


@pytest.mark.parametrize("key", [*(f"shards.{name}" for name in EXECUTION), "launch.nodes", "occupies", "windows.open"])
def test_of_a_key_that_is_in_no_stages_key_an_edit_runs_nothing(key: str) -> None:
    assert explain(key).effect.startswith(NOTHING)


def test_what_is_said_to_run_nothing_is_in_no_stages_key() -> None:
    """By the keys themselves: shards' identity, a run's configuration, a registration's inputs."""
    spec = parse_yaml_model(PipelineSpec, DIGITS, where="digits.yaml")
    for name in type(spec.shards).model_fields.keys() - {"fold"}:  # which no pipeline file says
        # An absent value leaves some out.
        is_in_key = name in spec.shards.identity or name in ("split", "fit", "validation_fraction")
        assert explain(f"shards.{name}").effect.startswith("shard runs anew") == is_in_key, name
    for name in type(spec.training).model_fields:
        # An absent value leaves some out.
        absent = ("ema", "validation", "max_epochs", "batch_ramp", "sync", "asynchronous")
        is_in_key = name in spec.training.identity or name in absent
        assert explain(f"training.{name}").effect.startswith("launch runs anew") == is_in_key, name
    inputs = registration_inputs(spec.registry, Link(kind="checkpoint", sha256="0" * 64))
    for name in type(spec.registry).model_fields:
        assert explain(f"registry.{name}").effect.startswith("register runs anew") == (name in inputs), name


def test_the_command_shows_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_explanation(explain("training.schedule"))
    shown = capsys.readouterr().out
    assert "The learning rate over the run." in shown and "warmup_steps" in shown and "launch runs anew" in shown
    made = CliRunner().invoke(app, ["explain", "rows", "--in", "contract", "--json"])
    assert made.exit_code == 0, made.output
    assert [each["key"] for each in json.loads(made.stdout)["keys"]] == ["min", "max", "severity"]
    assert set(MODELS) == {"pipeline", "contract", "profiles"}


@pytest.mark.parametrize(
    ("key", "kind", "option"),
    [
        ("columns", "pipeline", "contract"),
        ("profiles.NAME", "pipeline", "profiles"),
        ("training", "contract", "pipeline"),
    ],
)
def test_a_key_of_another_kind_of_file_names_the_option_that_finds_it(key: str, kind: FileKind, option: str) -> None:
    with pytest.raises(ConfigError) as raised:
        explain(key, kind)
    assert f"--in {option}" in str(raised.value)
    assert explain(key, cast(FileKind, option)).meaning


@pytest.mark.parametrize("key", ["7", "training.0", "windows.open.0.0"])
def test_a_number_is_a_place_in_a_list_alone(key: str) -> None:
    with pytest.raises(ConfigError, match="has no key"):
        explain(key)
