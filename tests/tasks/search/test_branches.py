"""Branches of a pipeline file that vary as a whole, and settings below one that the file lacks."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
import yaml

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.flows.trials.report import as_yaml
from headway.tasks.registry.mlflow_store import flattened
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.proposals import PastTrial, next_round
from headway.tasks.search.trials_spec import Trial, TrialsSpec
from headway.tasks.search.values import Settings, shown
from headway.training.config.optimizer import EmaSpec
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec

pytest.importorskip("optuna")  # here, so that its import is no test's time

TRAINING = TrainingSpec(max_steps=540, recipe=RecipeSpec(model={"widths": (8,)}))
TEXT = ShardSpec.model_validate({"encoder": {"kind": "byte-pair", "vocab_size": 512}})
BASE = Configuration(training=TRAINING, shards=TEXT)
WITH_EMA = Configuration(training=TRAINING.model_copy(update={"ema": EmaSpec(decay=0.7)}), shards=TEXT)
RAMP = {"from_sequences": 4, "at_steps": [10]}
FOREST = "gradient-boosting"
FROZEN = [{"parameters": ["*.bias"], "frozen": True}]


def spec(vary: dict[str, Any], **fields: Any) -> TrialsSpec:
    """As a person writes it."""
    return parse_yaml_model(TrialsSpec, yaml.safe_dump({"vary": vary, **fields}, sort_keys=False), "p.yaml")


def drawn(vary: dict[str, Any], base: Configuration = BASE, **fields: Any) -> tuple[Trial, ...]:
    return spec(vary, **fields).drawn(base)


def decays(trials: tuple[Trial, ...]) -> list[float | None]:
    return [None if each.training.ema is None else each.training.ema.decay for each in trials]


def test_a_mapping_is_a_whole_branch_and_null_is_none_of_it() -> None:
    made = drawn({"ema": [None, {"decay": 0.9}, {}]})
    assert decays(made) == [None, 0.9, 0.999]
    assert [str(each) for each in made] == ["ema null", "ema {decay: 0.9}", "ema {}"]
    assert decays(drawn({"ema": [None, {"decay": 0.9}]}, WITH_EMA)) == [None, 0.9]
    # What a mapping leaves out has its default, not what the file says.
    short = TRAINING.schedule.model_copy(update={"warmup_steps": 7})
    file = Configuration(training=TRAINING.model_copy(update={"schedule": short}), shards=TEXT)
    (cosine,) = drawn({"schedule": [{"kind": "cosine"}]}, file)
    assert (cosine.training.schedule.kind, cosine.training.schedule.warmup_steps) == ("cosine", 30)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("batch_ramp", [None, RAMP]),
        ("optimizer", [{"kind": "adamw", "lr": 0.1}, {"kind": "sgd", "groups": FROZEN}]),
        ("optimizer.groups", [[], FROZEN, [*FROZEN, {"parameters": ["a.*"], "lr_multiplier": 0.5}]]),
        ("recipe.model", [{"widths": [3]}, {"widths": [3, 4], "dropout": 0.1}]),
        ("recipe", [{"name": "mlp"}, {"name": "mine:Net", "model": {"width": 3}}]),
        ("order.mix", [[], [{"manifest": "a" * 64, "weight": 2}]]),
        ("start_from", [None, {"model": "models:/tiny/1"}]),
        ("shards.encoder", [{"kind": "byte-pair", "vocab_size": size} for size in (300, 400)]),
    ],
)
def test_every_branch_and_list_of_mappings_varies_and_is_kept_as_a_file_takes_it(name: str, choices: list[Any]) -> None:
    made = drawn({name: choices})
    assert len({each.configuration.key() for each in made}) == len(choices)
    for each in made:
        kept = yaml.safe_load(as_yaml(each.settings, each.configuration))
        sections = {"training": TRAINING.model_dump(mode="json"), "shards": TEXT.model_dump(mode="json")}
        *branches, leaf = name.split(".") if name.startswith("shards") else ("training", *name.split("."))
        into, said = sections, kept
        for part in branches:
            into, said = into[part], said[part]
        into[leaf] = said[leaf]  # the branch as a whole
        assert TrainingSpec.model_validate(sections["training"]) == each.training
        assert ShardSpec.model_validate(sections["shards"]) == each.shards
        # A later process reads them from the record.
        assert BASE.with_settings(json.loads(json.dumps(each.settings))).key() == each.configuration.key()


def test_a_setting_below_a_branch_that_varies_is_one_where_the_branch_is_there() -> None:
    for vary in (
        {"ema": [None, {}], "ema.decay": [0.9, 0.99]},
        {"ema.decay": [0.9, 0.99], "ema": [None, {}]},
        {"ema.decay": {"values": [0.9, 0.99], "when": {"ema": {}}}, "ema": [None, {}]},
    ):
        made = drawn(vary)
        assert decays(made) == [None, 0.9, 0.99] and [len(each.settings) for each in made] == [1, 2, 2]
        assert as_yaml(made[-1].settings, made[-1].configuration) == "training: {ema: {decay: 0.99}}"
    conditional = {"values": [{"decay": 0.5}], "when": {"optimizer.kind": "sgd"}}
    vary = {"optimizer.kind": ["adamw", "sgd"], "ema": conditional, "ema.decay": {"uniform": [0.9, 0.99]}}
    made = drawn(vary, draws=20)
    assert {each.training.ema is not None for each in made if each.training.optimizer.kind == "sgd"} == {True}
    assert {each.training.ema for each in made if each.training.optimizer.kind == "adamw"} == {None}
    assert all(0.9 <= decay <= 0.99 for decay in decays(made) if decay is not None)
    # A place of a list, which one choice has and the other has not.
    made = drawn({"optimizer.groups": [[], [{"parameters": ["*"]}]], "optimizer.groups.0.lr_multiplier": [0.5, 2]})
    assert [[group.lr_multiplier for group in each.training.optimizer.groups] for each in made] == [[], [0.5], [2]]


def test_a_branch_that_nothing_puts_there_is_made_by_a_setting_below_it() -> None:
    assert decays(drawn({"ema.decay": [0.9, 0.99]})) == [0.9, 0.99]
    assert decays(drawn({"ema.decay": [0.9, 0.99]}, WITH_EMA)) == [0.9, 0.99]
    made = drawn(
        {"optimizer.kind": ["adamw", "sgd"], "ema.decay": {"values": [0.9], "when": {"optimizer.kind": "sgd"}}}
    )
    assert decays(made) == [None, 0.9], "elsewhere the file's, which has none"
    assert decays(drawn({"seed": [1]}, derive={"ema.decay": "1 - 1 / max_steps"})) == [1 - 1 / 540]


def test_settings_in_two_spellings_are_one_trial() -> None:
    assert len(drawn({"ema": [{"decay": 0.9}, {"decay": "9e-1"}, {"decay": 0.90}]})) == 1
    assert decays(drawn({"ema": [{}, {"decay": 0.999}, None]})) == [0.999, None]
    turned = dict(reversed(RAMP.items()))
    assert len(drawn({"batch_ramp": [RAMP, turned]})) == 1
    (made,) = drawn({"ema": [{}], "ema.decay": [0.9]})
    assert made.configuration.key() == drawn({"ema": [{"decay": 0.9}]})[0].configuration.key()
    assert made.configuration.key() == drawn({"ema.decay": [0.9]})[0].configuration.key()
    vary = {"batch_ramp": [None, RAMP], "seed": {"values": [1, 2], "when": {"batch_ramp": turned}}}
    assert [each.settings.get("seed") for each in drawn(vary)] == [None, 1, 2]


def test_an_expression_reads_what_a_branch_holds_and_null_below_one_that_is_not_there() -> None:
    made = drawn({"ema": [{}, {"decay": 0.9}]}, WITH_EMA, derive={"optimizer.beta1": "ema.decay"})
    assert [each.training.optimizer.beta1 for each in made] == [0.999, 0.9]
    bound = ["ema.decay == null or ema.decay > 0.95"]
    assert decays(drawn({"ema": [None, {}, {"decay": 0.9}]}, WITH_EMA, require=bound)) == [None, 0.999]
    made = drawn({"ema": [None, {}]}, derive={"ema.decay": "1 - 1 / max_steps"})
    assert [set(each.settings) for each in made] == [{"ema"}, {"ema", "ema.decay"}]
    with pytest.raises(ConfigError, match="`ema` is no single value"):
        drawn({"ema": [{}]}, require=["ema != null"])


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ({"ema": [None, {"decy": 0.9}]}, r"trials\.vary\.ema\[1\]: `ema` has no setting `decy`. Did you mean `decay`"),
        ({"ema": [{"decay": 2}]}, r"trials\.vary\.ema\[0\]: ema\.decay: must be less than 1"),
        ({"ema": [{"decay": "often"}]}, r"ema\.decay: must be a number"),
        ({"ema": [{"decay": True}]}, r"trials\.vary\.ema\[0\]: ema\.decay: a number is wanted, given true"),
        ({"ema": [0.9]}, r"ema: must be a mapping.*what it leaves out has its default, and `null` is none"),
        ({"ema": [[0.9]]}, "ema: must be a mapping"),
        ({"schedule": [None]}, "schedule: must be a mapping"),
        ({"ema": {"decay": 0.9}}, r"vary\.ema \(line 4\): a branch is a choice of a list, such as `\[null, {decay"),
        (
            {"optimizer.lr": [{"value": 0.1}]},
            r"optimizer\.lr\[0\]: `optimizer\.lr` is a single value.*such as `.*: \[0\.1\]`",
        ),
        ({"optimizer.lr": [[{"a": 1}]]}, r"optimizer\.lr: must be a number"),
        ({"batch_ramp": [{"at_steps": [3]}]}, r"batch_ramp\[0\]: batch_ramp: `from_sequences` is missing"),
        ({"optimizer.groups": [[{"parametrs": ["*"]}]]}, r"`optimizer\.groups\.0` has no setting `parametrs`"),
        ({"checkpoints": [{"every_steps": 3}]}, "`checkpoints` decides no bit"),
        ({"profile": [None]}, "`profile` decides no bit"),
        ({"shards.split": [None]}, "decides which examples are held out"),
        ({"shards.encoder": [{"kind": "tabular"}]}, r"encoder\[0\]: an encoder of another kind"),
        ({"shards.encoder": [{"vocab_size": 300}]}, "`kind` is missing.*Give `kind: byte-pair`"),
        ({"validation": [{"every_steps": 9}]}, r"shards keep none for it.*Give shards\.validation_fraction"),
        ({"batch_ramp.from_sequences": [4]}, r"at_steps.*The file has no `batch_ramp`: say it there, or vary it whole"),
        ({"max_steps.x": [1]}, r"`max_steps` is a single value, with no settings below it"),
        ({"seed.x": [1]}, r"`seed` varies and never has a place for `seed\.x`: leave one of the two out"),
        ({"ema": [None], "ema.decay": [0.9]}, r"`ema` varies and never has a place for `ema\.decay`"),
        ({"recipe.model.widths": [[8, 8]], "recipe.model.widths.0": [3]}, r"`recipe\.model\.widths` varies and never"),
        ({"optimizer.groups.0": [{"parameters": ["*"]}]}, r"`optimizer\.groups` is a list, which varies as a whole"),
        ({"optimizer.groups.3.lr_multiplier": [1]}, r"`optimizer\.groups\.3` is not said in `training`"),
        ({"ema": [{"decay": {"a": 1}}]}, r"ema\.decay: must be a number"),
    ],
)
def test_what_is_no_branch_is_refused_by_its_place_whether_or_not_a_draw_has_it(
    vary: dict[str, Any], words: str
) -> None:
    for fields in ({}, {"draws": 1}) if isinstance(next(iter(vary.values())), list) else ({},):
        with pytest.raises(ConfigError, match=f"(?s){words}"):
            drawn({"seed": [1], **vary}, **fields)


def test_a_setting_below_what_is_derived_or_at_rungs_decides_the_length_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`ema` is derived.*leave `ema\.decay` out"):
        spec({"ema.decay": [0.9]}, derive={"ema": "null"})
    trees = {"recipe": [{"name": "gradient-boosting", "model": {"iterations": 5}}]}
    with pytest.raises(ConfigError, match="are to be of one length, and `recipe` varies"):
        drawn(trees, rungs=[40])
    table = ShardSpec.model_validate({"encoder": {"kind": "tabular", "numeric": ["a"], "label": "y"}})
    for name, choices in (("recipe.name", ["mlp", FOREST]), ("recipe", [{"name": "mlp"}, {"name": FOREST}])):
        for own in ("mlp", FOREST):
            recipe = RecipeSpec(name=own)
            file = Configuration(training=TRAINING.model_copy(update={"recipe": recipe}), shards=table)
            with pytest.raises(ConfigError, match=r"ends after \d+ (trees|steps), and the last rung is"):
                drawn({name: choices}, file, rungs=[60])
            assert len(drawn({name: choices}, file)) == 2


def test_where_rows_validate_each_trial_has_them_looked_at_and_its_own_way_of_it() -> None:
    validated = TrainingSpec.model_validate({"max_steps": 40, "validation": {"every_steps": 5}})
    file = Configuration(training=validated, shards=TEXT.model_copy(update={"validation_fraction": 0.1}))
    made = drawn({"validation": [{"every_steps": 5, "patience": 2}, {"every_steps": 5}]}, file)
    assert [each.training.validation.patience for each in made if each.training.validation] == [2, None]
    with pytest.raises(ConfigError, match="which a trial would not look at"):
        drawn({"validation": [None]}, file)


def test_an_encoder_is_what_it_is_beside_a_mixture_that_a_trial_has() -> None:
    vary = {"shards.encoder.vocab_size": [512, 300], "order.mix": [[], [{"manifest": "a" * 64}]]}
    with pytest.raises(ConfigError, match="mixes in is encoded already"):
        drawn(vary)


def test_branches_are_proposed_by_what_they_came_to_and_a_process_that_repeats_it_proposes_the_same() -> None:
    vary = {"ema": [None, {"decay": 0.5}, {}], "ema.decay": {"uniform": [0.9, 0.999]}, "seed": {"integer": [0, 99]}}
    search = spec(vary, search="tpe", draws=8, rounds=2)
    past = [
        PastTrial(trial=each, values={540: 0.1 if each.training.ema is None else 1.0}) for each in search.drawn(BASE)
    ]
    rounds = [[each.settings for each in next_round(search, BASE, 1, past, 540)] for _ in range(2)]
    assert rounds[0] == rounds[1] and len(rounds[0]) == 8
    none = [each for each in rounds[0] if each["ema"] is None]
    assert len(none) >= 4 and all("ema.decay" not in each for each in none)
    with pytest.raises(ConfigError, match="Gaussian process takes no settings"):
        spec(vary, search="gp", draws=8, rounds=2)
    always = {**vary, "ema": [{"decay": 0.5}, {}]}
    assert len(spec(always, search="gp", draws=4, rounds=2).drawn(BASE)) == 4


def test_mlflow_has_a_branch_by_its_settings() -> None:
    (made,) = drawn({"shards.encoder": [{"kind": "byte-pair", "vocab_size": 300}]})
    assert flattened(dict(made.settings))["shards.encoder.vocab_size"] == "300"
    vary = flattened(spec({"ema": [None, {"decay": 0.9}]}).model_dump(mode="json"))["vary.ema"]
    assert vary == '[null,{"decay":0.9}]'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"on": 1, "a b": ["x", None], "c": {}}, '{"on": 1, "a b": ["x", null], c: {}}'),
        (({"a": True}, 2), "[{a: true}, 2]"),
        ({}, "{}"),
        ("word", "word"),
    ],
)
def test_a_value_is_shown_as_yaml_that_says_the_same(value: Any, text: str) -> None:
    assert shown(value) == text
    assert yaml.safe_load(text) == json.loads(json.dumps(value))


def test_a_search_that_was_begun_before_has_the_trials_and_the_keys_that_it_had() -> None:
    """Digests that were taken before branches could vary: a record of then is found by them."""
    vary: dict[str, Any] = {
        "recipe.model.widths": [[64, 64], [128], 32],
        "optimizer.nesterov": {"values": [True, False], "when": {"optimizer.kind": ["sgd"]}},
        "optimizer.momentum": {"values": [0.5, 0.9], "when": {"optimizer.nesterov": False, "optimizer.kind": "sgd"}},
        "optimizer.kind": ["muon", "sgd", "adamw"],
        "optimizer.lr": {"log_uniform": [0.0005, 0.05]},
        "optimizer.beta1": ["9e-1", 0.8],
        "num_threads": {"integer": [1, 4]},
    }
    rest = {"derive": {"schedule.warmup_steps": "max_steps // 20"}, "require": ["optimizer.lr < 0.04"]}
    search = spec(vary, search="tpe", draws=12, rounds=3, rungs=[60, 180], **rest)
    own = Configuration(training=TRAINING, shards=ShardSpec())
    made = search.drawn(own)
    assert digest(search.model_dump(mode="json")) == "cc9e0d26ceb479bb", "by which MLflow's run of it is found"
    assert digest([each.settings for each in made]) == "736eca2c7c2a6153"
    assert digest([each.training.identity for each in made]) == "e631f6e6ada5b196", "which is in a run's key"
    past = []
    for each in made:
        rate = each.settings["optimizer.lr"]
        assert isinstance(rate, float)
        past.append(PastTrial(trial=each, values={60: rate, 540: rate * 2}))
    proposed: list[Settings] = [each.settings for each in next_round(search, own, 1, past, 540)]
    assert digest(proposed) == "bb8609a20c1fc8f4"
    lists = {name: each for name, each in vary.items() if name not in ("optimizer.lr", "num_threads")}
    assert digest([each.settings for each in drawn(lists, own, max_trials=100)]) == "7d41a5625168094b"


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
