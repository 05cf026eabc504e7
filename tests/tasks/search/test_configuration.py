"""Names of settings in both sections of a pipeline file: which vary, and why the others do not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError
from headway.flows.trials.report import as_yaml
from headway.tasks.search.configuration import (
    SHARDS,
    Configuration,
    examples_rule,
    require_same_examples,
    require_setting,
)
from headway.tasks.search.earlier_trials import fitted
from headway.tasks.search.proposals import PastTrial, next_round
from headway.tasks.search.trials_spec import Trial, TrialsSpec
from headway.training.config.batch_ramp import BatchRampSpec
from headway.training.config.order_spec import MixedDataset, OrderSpec
from headway.training.config.shards import ShardSpec
from headway.training.config.start_spec import StartSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec

VOCABULARY, LENGTH = "shards.encoder.vocab_size", "shards.encoder.sequence_tokens"
TEXT = ShardSpec.model_validate({"encoder": {"kind": "byte-pair", "vocab_size": 512, "sequence_tokens": 128}})
TABLE = ShardSpec.model_validate({"encoder": {"kind": "tabular", "numeric": ["a", "b"], "label": "y"}})
OWN = ShardSpec.model_validate({"encoder": {"kind": "own", "name": "mine:Words", "options": {"column": "word"}}})
TRAINING = TrainingSpec(max_steps=100, global_batch_sequences=8, micro_batch_sequences=4)
MIXED = TrainingSpec(order=OrderSpec(weight=2, mix=(MixedDataset(manifest="a" * 64), MixedDataset(manifest="b" * 64))))


def trials(vary: dict[str, Any], shards: ShardSpec = TEXT, **fields: Any) -> tuple[Trial, ...]:
    training = fields.pop("training", TRAINING)
    spec = TrialsSpec.model_validate({"vary": vary, **fields})
    return spec.drawn(Configuration(training=training, shards=shards))


def test_a_name_says_which_section_it_is_of() -> None:
    assert SHARDS not in TrainingSpec.model_fields and "training" not in ShardSpec.model_fields


def test_settings_of_both_sections_vary_together_and_all_else_is_the_files() -> None:
    made = trials({VOCABULARY: [512, 1024], "optimizer.lr": [0.1, 0.2]})
    of_each = [(each.shards.encoder.model_dump()["vocab_size"], each.training.optimizer.lr) for each in made]
    assert of_each == [(512, 0.1), (512, 0.2), (1024, 0.1), (1024, 0.2)]
    for each in made:
        assert each.configuration.with_settings({VOCABULARY: 512}).shards == TEXT
    assert len(trials({VOCABULARY: [512, 512.0]})) == 1, "as the file has it"


def test_a_list_is_a_value_of_a_setting_alone_and_beside_others() -> None:
    numeric, steps, widths = "shards.encoder.numeric", "batch_ramp.at_steps", "recipe.model.widths"
    vary = {numeric: [["a"], ["a", "b"]], steps: [[20], [40]], widths: [[64, 64], [128], 32]}
    ramp = BatchRampSpec(from_sequences=4, at_steps=(10,))
    training = TRAINING.model_copy(update={"recipe": RecipeSpec(model={"widths": (8,)}), "batch_ramp": ramp})
    made = trials(vary, shards=TABLE, training=training)
    assert len({each.configuration.key() for each in made}) == len(made) == 12
    last = made[-1]
    assert last.shards.encoder.model_dump()["numeric"] == ("a", "b")
    assert last.training.batch_ramp is not None and last.training.batch_ramp.at_steps == (40,)
    assert last.training.recipe.model["widths"] == 32
    assert made[0].training.recipe.model["widths"] == (64, 64)
    kept = yaml.safe_load(as_yaml(made[0].settings, made[0].configuration))
    assert kept["shards"]["encoder"]["numeric"] == ["a"] and kept["training"]["batch_ramp"]["at_steps"] == [20]
    assert TrialsSpec.model_validate(json.loads(TrialsSpec.model_validate({"vary": vary}).model_dump_json()))
    one_of = trials({widths: [[1], [1, 2]], "seed": {"values": [1, 2], "when": {widths: [[1]]}}}, training=training)
    assert [each.settings.get("seed") for each in one_of] == [1, 2, None]
    with pytest.raises(ConfigError, match=r"`recipe\.model\.widths` is no single value"):
        trials({widths: [[1]]}, training=training, require=[f"{widths} > 1"])
    with pytest.raises(ValidationError, match="derive"):
        trials({widths: [[1]]}, training=training, derive={"recipe.model.other": [1, 2]})
    trees = TrainingSpec(recipe=RecipeSpec(name="gradient-boosting", model={"iterations": (5,)}))
    with pytest.raises(ConfigError, match="must be a whole number, given a list"):
        trees.for_rows(100)
    with pytest.raises(ConfigError, match="a number is wanted, given true"):
        trials({steps: [[True]]}, training=training)


@pytest.mark.parametrize("method", ["tpe", "gp"])
def test_lists_are_proposed_by_what_they_came_to(method: str) -> None:
    """In any process alike, and also where they were read back from a search's file."""
    widths = "recipe.model.widths"
    training = TRAINING.model_copy(update={"recipe": RecipeSpec(model={"widths": (8,)})})
    configuration = Configuration(training=training, shards=TEXT)
    lists = [[each, other] for each in range(2) for other in range(8)]
    spec = TrialsSpec.model_validate({"vary": {widths: lists}, "search": method, "draws": 4, "rounds": 2})
    past = [
        PastTrial(trial=trial, values={100: float(trial.settings[widths][0])})  # type: ignore[index,arg-type]
        for trial in spec.drawn(configuration)
    ]
    proposed = next_round(spec, configuration, 1, past, 100)
    assert len(proposed) == 4 and not {each.label for each in proposed} & {each.trial.label for each in past}
    assert [each.settings for each in next_round(spec, configuration, 1, past, 100)] == [
        each.settings for each in proposed
    ]
    read = fitted(spec.space, json.loads(json.dumps(dict(past[0].trial.settings))))
    assert read == past[0].trial.settings


def test_expressions_name_settings_of_both_sections() -> None:
    made = trials(
        {LENGTH: [64, 128, 256], "shards.encoder.fit_mb": [1, 200]},
        derive={"global_batch_sequences": f"2048 // {LENGTH}"},
        require=[f"{LENGTH} < 256 or shards.encoder.fit_mb > {VOCABULARY} // 4"],
    )
    batches = [(each.settings[LENGTH], each.training.global_batch_sequences) for each in made]
    assert batches == [(64, 32), (64, 32), (128, 16), (128, 16), (256, 8)]
    with pytest.raises(ConfigError, match=r"`shards\.encoder\.width` is not said in `shards`"):
        trials({LENGTH: [64]}, require=["shards.encoder.width > 1"])
    words = trials({LENGTH: [64]}, require=["shards.encoder.kind == 'byte-pair' and 'a.0.b' != 'a.1.b'"])
    assert len(words) == 1


def test_weights_and_datasets_of_a_mixture_vary_by_their_places() -> None:
    vary = {"order.weight": {"integer": [1, 5]}, "order.mix.1.manifest": ["b" * 64, "c" * 64]}
    made = trials(
        vary, training=MIXED, draws=6, derive={"order.mix.0.weight": "6 - order.weight + 0 * order.mix.1.weight"}
    )
    for each in made:
        own, first, second = each.training.order.weights
        assert own + first == 6 and second == 1 and each.training.order.mix[0].manifest == "a" * 64
    assert {each.training.order.mix[1].manifest for each in made} == {"b" * 64, "c" * 64}
    with pytest.raises(ConfigError, match=r"`order\.mix\.2` is not said in `training`"):
        trials({"order.mix.2.weight": [1]}, training=MIXED)
    with pytest.raises(ConfigError, match=r"has no setting `order\.mix\.0\.share`"):
        trials({"order.mix.0.share": [1]}, training=MIXED)
    with pytest.raises(ConfigError, match="repeat only after"):
        trials({"order.weight": [0.123456789]}, training=MIXED)


@pytest.mark.parametrize(
    ("shards", "name", "words"),
    [
        *((TEXT, f"shards.{name}", "decides which examples are held out") for name in ("split_by", "split_salt")),
        (TEXT, "shards.heldout_fraction", "decides which examples are held out"),
        (TEXT, "shards.split.column", "decides which examples are held out"),
        *((TABLE, f"shards.{name}", "decides where rows lie") for name in ("group_by", "num_groups", "seed")),
        (OWN, "shards.seed", "decides where rows lie"),
        *((TEXT, f"shards.{name}", "decides no bit") for name in ("memory_mb", "codec", "skew.min_rows")),
        (TEXT, "shards.fit", "has the encoder fitted anew"),
        (TEXT, "shards.encoder.kind", "an encoder of another kind has other settings"),
        (TEXT, "shards.encoder.vocab", "`shards` has no setting `shards.encoder.vocab`.*Did you mean `vocab_size`"),
        (TEXT, "shards", "`shards` has no setting `shards`"),
        (TEXT, "shards.encodr.vocab_size", "Did you mean `encoder`"),
        (TEXT, "profile", "decides no bit of a model"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_or_decides_nothing_is_refused_by_name(
    shards: ShardSpec, name: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        require_setting(name, "trials.vary", Configuration(training=TRAINING, shards=shards))


def test_an_encoder_setting_is_refused_beside_datasets_that_are_mixed_in_and_their_weights_vary() -> None:
    mix = OrderSpec(mix=(MixedDataset(manifest="0" * 64),))
    mixed = Configuration(training=TRAINING.model_copy(update={"order": mix}), shards=TEXT)
    with pytest.raises(ConfigError, match=r"mixes in is encoded already.*\n?.*mix nothing in"):
        require_setting("shards.encoder.vocab_size", "trials.vary", mixed)
    for name in ("order.mix.0.weight", "order.weight", "shards.num_groups"):
        require_setting(name, "trials.vary", mixed)


def test_where_documents_are_known_by_their_paths_groups_may_vary() -> None:
    made = trials({"shards.group_by": ["hash", "folder"], "shards.num_groups": [2, 4], "shards.seed": [0, 1]})
    assert len(made) == 8
    assert len({str(examples_rule(each.shards.identity)) for each in made}) == 1
    seeds = [TABLE.model_copy(update={"seed": seed}) for seed in (0, 1)]
    assert len({str(examples_rule(each.identity)) for each in seeds}) == 2


@pytest.mark.parametrize(
    ("vary", "shards", "words"),
    [
        ({VOCABULARY: [4]}, TEXT, r"shards\.encoder\..*vocab_size.*greater than or equal to 258.*vocab_size 4"),
        ({LENGTH: [True]}, TEXT, r"shards\.encoder\.sequence_tokens: a number is wanted"),
        ({"shards.encoder.label": ["z"]}, TABLE, r"would predict the class in column 'z', and .* in column 'y'"),
        ({"shards.encoder.label_kind": ["number"]}, TABLE, "cannot be compared"),
        ({"shards.encoder.column": ["title"]}, TEXT, "the text in column 'title'"),
        ({"shards.encoder.options.width.more": [3]}, OWN, r"`encoder\.options\.width` is not said in `shards`"),
    ],
)
def test_a_value_that_shards_do_not_take_is_refused_with_what_it_is_so_with(
    vary: dict[str, Any], shards: ShardSpec, words: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        trials(vary, shards)


def test_options_of_an_encoder_of_ones_own_are_its_business() -> None:
    (made,) = trials({"shards.encoder.options.width": [3]}, OWN)
    assert made.shards.encoder.model_dump()["options"] == {"column": "word", "width": 3}


def test_trials_with_rungs_are_of_one_length_where_passes_over_rows_are_asked_for() -> None:
    epochs = TrainingSpec(max_epochs=2)
    for shards, name in ((TEXT, VOCABULARY), (OWN, "shards.encoder.options.width")):
        with pytest.raises(ConfigError, match="are to be of one length, and `shards"):
            trials({name: [300, 400]}, shards, training=epochs, rungs=[50])
    assert len(trials({"shards.encoder.standardise": [True, False]}, TABLE, training=epochs, rungs=[50])) == 2
    assert len(trials({VOCABULARY: [300, 400]}, training=epochs)) == 2
    assert len(trials({VOCABULARY: [300, 400]}, rungs=[50], training=replace_warmup(TRAINING))) == 2


def test_a_trial_validates_by_seconds_or_by_steps_as_the_file_does() -> None:
    shards = TABLE.model_copy(update={"validation_fraction": 0.1})
    by_seconds, by_steps = (TRAINING.model_validate({"validation": {name: 5}}) for name in ("every_s", "every_steps"))
    for training, name in ((by_seconds, "validation.every_steps"), (by_steps, "validation.every_s")):
        with pytest.raises(ConfigError, match="by seconds and by steps"):
            trials({name: [10, 20]}, shards, training=training)
    assert len(trials({"validation.every_s": [10, 20]}, shards, training=by_seconds)) == 2
    settled = TRAINING.model_validate({"validation": {"every_s": 5, "every_steps": 9}})
    assert len(trials({"optimizer.lr": [0.1, 0.2]}, shards, training=settled)) == 2, "of a run that is under way"


def replace_warmup(training: TrainingSpec) -> TrainingSpec:
    return training.model_copy(update={"schedule": training.schedule.model_copy(update={"warmup_steps": 5})})


def test_a_model_to_start_from_has_read_rows_of_one_fitted_state() -> None:
    start = TrainingSpec(start_from=StartSpec(model="models:/tiny/1"), max_steps=100)
    with pytest.raises(ConfigError, match="starts from a model that reads rows of another fitted state"):
        trials({VOCABULARY: [600]}, training=start)
    assert len(trials({LENGTH: [64]}, training=start)) == 1


def test_two_files_are_compared_where_they_hold_out_the_same_examples_under_the_same_names() -> None:
    other = TEXT.model_copy(update={"num_groups": 3, "memory_mb": 64})
    require_same_examples(TEXT, Configuration(training=TRAINING, shards=other).with_settings({VOCABULARY: 300}).shards)
    with pytest.raises(ConfigError, match="decides which examples are held out"):
        require_same_examples(TEXT, TEXT.model_copy(update={"heldout_fraction": 0.1}))
    with pytest.raises(ConfigError, match="decides where rows lie"):
        require_same_examples(TABLE, TABLE.model_copy(update={"num_groups": 3}))
    with pytest.raises(ConfigError, match=r"would predict the class in column 'y', and .* the text"):
        require_same_examples(TEXT, TABLE)
    assert (
        replace(Configuration(training=TRAINING, shards=TEXT)).key()
        != Configuration(training=TRAINING, shards=TABLE).key()
    )
