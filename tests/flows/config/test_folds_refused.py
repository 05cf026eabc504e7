"""Where cross-validation cannot hold it is refused by the key, before anything is spent."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.flows.config.pipeline_spec import PipelineSpec

PIPELINE = """\
pipeline: words
source: {format: csv, uri: data, include: ["*.csv"]}
contract: contract.yaml
shards: {split_by: row, encoder: {kind: tabular, categorical: [word], label: language}}
training: {recipe: {name: tabular-classifier}}
evaluation: {folds: 5}
registry: {model: words}
"""
MIXED = {"name": "other", "manifest": "0" * 64}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "texts": ({"shards": {"encoder": {"kind": "byte-pair"}}}, "folds are of the rows of tables and pictures"),
    "a given split": (
        {"shards": {"split_by": "given", "split": {"column": "part", "heldout": ["test"]}}},
        "shards.split gives the rows that are held out",
    ),
    "a starting point": (
        {"training": {"start_from": {"model": "models:/words@champion"}}},
        "the model of training.start_from may have seen the rows of any fold",
    ),
    "a ranking share": ({"evaluation": {"ranking_share": 0.5}}, "trials choose by rows that may evaluate no more"),
}


def spec(edit: dict[str, dict[str, Any]]) -> PipelineSpec:
    values = yaml.safe_load(PIPELINE)
    for branch, fields in edit.items():
        values[branch] |= fields
    return parse_yaml_model(PipelineSpec, yaml.safe_dump(values), where="words.yaml")


def test_folds_of_a_table_are_taken() -> None:
    assert spec({}).evaluation.folds == 5
    assert spec({"evaluation": {"folds": None}}).evaluation.folds is None


@pytest.mark.parametrize("what", REFUSED)
def test_folds_are_refused_beside(what: str) -> None:
    edit, reason = REFUSED[what]
    with pytest.raises(ConfigError, match=reason) as refused:
        spec(edit)
    assert "evaluation.folds" in str(refused.value)


@pytest.mark.parametrize("folds", [1, 0, 21, 2.5])
def test_as_many_folds_as_there_may_be(folds: float) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.folds"):
        spec({"evaluation": {"folds": folds}})


def test_no_pipeline_file_says_which_fold_is_held_out() -> None:
    with pytest.raises(ConfigError, match=r"say evaluation\.folds"):
        spec({"shards": {"fold": {"number": 1, "of": 5}}})
