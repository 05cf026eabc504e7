"""Parameters fall into groups by name, and each group is treated as its recipe or configuration says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch import nn

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.optimizer import OptimizerSpec, ParameterGroupSpec
from headway.training.optimizers.groups import freeze, parameter_groups


def model() -> nn.Module:
    made = nn.Module()
    made.embedding = nn.Embedding(7, 4)
    made.hidden = nn.Linear(4, 4)
    made.convolution = nn.Conv1d(4, 4, 3)
    made.norm = nn.LayerNorm(4)
    made.head = nn.Linear(4, 2)
    return made


def recipe(*groups: ParameterGroupSpec, hidden: tuple[str, ...] = ("hidden.weight",)) -> SimpleNamespace:
    return SimpleNamespace(hidden_matrices=lambda model: hidden, parameter_groups=groups)


def tied() -> nn.Module:
    """A model whose head is its embedding, as most language models' is."""
    made = model()
    made.head = nn.Linear(4, 7, bias=False)
    made.head.weight = made.embedding.weight
    return made


def grouped(spec: OptimizerSpec, *of_recipe: ParameterGroupSpec) -> dict[str, tuple]:
    """Treatment by parameter; None for frozen ones."""
    made = model()
    freeze(made, recipe(*of_recipe), spec)
    groups = parameter_groups(made, recipe(*of_recipe), spec)
    return {name: group.treatment and tuple(group.treatment) for group in groups for name in group.parameters}


def test_norms_biases_and_embeddings_are_not_decayed_and_matrices_and_convolutions_are():
    found = grouped(OptimizerSpec(kind="adamw", weight_decay=0.1))
    decayed = {name for name, treatment in found.items() if treatment[2]}
    assert decayed == {"hidden.weight", "convolution.weight", "head.weight"}
    assert len(found) == 9 and {treatment[0] for treatment in found.values()} == {"adamw"}


def test_an_embedding_that_is_the_head_too_is_not_decayed():
    groups = parameter_groups(tied(), recipe(), OptimizerSpec(kind="adamw", weight_decay=0.1))
    assert all("head.weight" not in group.parameters for group in groups)
    assert next(g for g in groups if "embedding.weight" in g.parameters).treatment.weight_decay == 0.0


def test_muon_has_the_hidden_matrices_alone():
    found = grouped(OptimizerSpec(kind="muon", weight_decay=0.1))
    assert [name for name, treatment in found.items() if treatment[0] == "muon"] == ["hidden.weight"]


def test_the_first_pattern_that_matches_decides_and_the_configuration_comes_before_the_recipe():
    of_config = ParameterGroupSpec(parameters=("head.*",), lr_multiplier=10, weight_decay=0.5)
    of_recipe = ParameterGroupSpec(parameters=("head.bias", "norm.*"), lr_multiplier=2, rule="sgd")
    found = grouped(OptimizerSpec(kind="adamw", groups=(of_config,)), of_recipe)
    assert found["head.bias"] == ("adamw", 10, 0.5)
    assert found["norm.bias"] == ("sgd", 2, 0.0)
    assert found["hidden.bias"] == ("adamw", 1, 0.0)


def test_what_is_frozen_needs_no_gradient_and_has_no_rule():
    spec = OptimizerSpec(groups=(ParameterGroupSpec(parameters=("embedding.*", "norm.*"), frozen=True),))
    made = model()
    freeze(made, recipe(), spec)
    assert [name for name, value in made.named_parameters() if not value.requires_grad] == [
        "embedding.weight",
        "norm.weight",
        "norm.bias",
    ]
    *_, last = parameter_groups(made, recipe(), spec)
    assert last.treatment is None and str(last) == "frozen: 3 tensors, 36 parameters"


def test_a_group_says_what_is_out_of_the_ordinary():
    spec = OptimizerSpec(
        kind="adamw", weight_decay=0.1, groups=(ParameterGroupSpec(parameters=("head.weight",), lr_multiplier=10),)
    )
    message = [str(group) for group in parameter_groups(model(), recipe(), spec)]
    assert "adamw: 1 tensors, 8 parameters, lr x 10, decay 0.1" in message


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        (ParameterGroupSpec(parameters=("haed.*",)), r"'haed\.\*' matches no weight.*head"),
        (ParameterGroupSpec(parameters=("*",), frozen=True), "no parameter is left to train"),
        (ParameterGroupSpec(parameters=("norm.*",), rule="muon"), r"muon updates matrices, and norm\.weight has 1 dim"),
    ],
)
def test_groups_that_do_not_fit_the_model_are_refused_by_name(group, problem):
    with pytest.raises(ConfigError, match=problem):
        grouped(OptimizerSpec(groups=(group,)))


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ConfigError, match="the model has no parameters"):
        freeze(nn.ReLU(), recipe(), OptimizerSpec())


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_a_hidden_matrix_that_the_model_lacks_is_refused_with_the_nearest_name(kind):
    misspelt = recipe(hidden=("hidden.weight", "hiden.weight"))
    with pytest.raises(ConfigError, match=r"hidden_matrices names 'hiden\.weight'.*hidden\.weight"):
        freeze(model(), misspelt, OptimizerSpec(kind=kind))


def test_all_names_that_hidden_matrices_has_wrong_are_told_at_once():
    with pytest.raises(ConfigError, match=r"'a\.weight', 'b\.weight', 'c\.weight' and 2 more"):
        freeze(model(), recipe(hidden=tuple(f"{each}.weight" for each in "abcde")), OptimizerSpec())


@pytest.mark.parametrize("name", ["head.weight", "embedding.weight", "head.*"])
def test_a_tied_weight_answers_to_each_of_its_names(name):
    group = ParameterGroupSpec(parameters=(name,), lr_multiplier=3)
    made = tied()
    spec = OptimizerSpec(kind="adamw", groups=(group,))
    freeze(made, recipe(), spec)
    (found,) = (each for each in parameter_groups(made, recipe(), spec) if "embedding.weight" in each.parameters)
    assert found.treatment.lr_multiplier == 3
    assert list(found.parameters) == ["embedding.weight"], "it is updated once"


def test_a_tied_weight_is_frozen_under_each_of_its_names():
    made = tied()
    freeze(made, recipe(), OptimizerSpec(groups=(ParameterGroupSpec(parameters=("head.weight",), frozen=True),)))
    assert not made.embedding.weight.requires_grad


def test_a_tied_hidden_matrix_answers_to_each_of_its_names():
    made = model()
    made.twin = nn.Linear(4, 4)
    made.twin.weight = made.hidden.weight
    by_twin = recipe(hidden=("twin.weight",))
    freeze(made, by_twin, OptimizerSpec())
    (muon,) = (each for each in parameter_groups(made, by_twin, OptimizerSpec()) if each.treatment.rule == "muon")
    assert list(muon.parameters) == ["hidden.weight"]


def test_a_tied_weight_that_two_groups_treat_otherwise_is_refused_by_both_names():
    of_head = ParameterGroupSpec(parameters=("head.*",), lr_multiplier=3)
    of_embedding = ParameterGroupSpec(parameters=("embedding.*",), frozen=True)
    with pytest.raises(ConfigError, match=r"embedding\.weight and head\.weight are one tensor"):
        freeze(tied(), recipe(), OptimizerSpec(groups=(of_head, of_embedding)))
    alike = (of_head, ParameterGroupSpec(parameters=("embedding.*",), lr_multiplier=3))
    freeze(tied(), recipe(), OptimizerSpec(groups=alike))
    behind = (of_head, ParameterGroupSpec(parameters=("*",), lr_multiplier=2))
    freeze(tied(), recipe(), OptimizerSpec(groups=behind))


def test_what_a_recipe_freezes_by_itself_has_no_rule_and_no_state():
    made = model()
    made.convolution.weight.requires_grad_(False)
    groups = parameter_groups(made, recipe(), OptimizerSpec())
    assert [name for group in groups if group.treatment is None for name in group.parameters] == ["convolution.weight"]
