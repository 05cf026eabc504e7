"""What a pipeline file says of clients that never can be is refused by the key, before anything is spent."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.rehearse.project import Subset, smaller

PIPELINE = """\
pipeline: words
source: {format: csv, uri: data, include: ["*.csv"]}
contract: contract.yaml
shards: {split_by: row, encoder: {kind: tabular, categorical: [word], label: language}}
training:
  recipe: {name: tabular-classifier}
  global_batch_sequences: 64
  micro_batch_sequences: 4
  max_steps: 800
  sync: {every_steps: 8, islands: 16, federated: {quorum: 3}}
registry: {model: words}
"""


def spec(**edit: dict[str, Any]) -> PipelineSpec:
    values = yaml.safe_load(PIPELINE)
    for branch, fields in edit.items():
        values[branch] |= fields
    return parse_yaml_model(PipelineSpec, yaml.safe_dump(values), where="words.yaml")


def test_fewer_groups_by_hash_than_a_round_draws_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"16 clients are drawn for each round, and .* 8 groups at most") as refused:
        spec()
    assert "training.sync.islands" in str(refused.value)
    assert spec(shards={"num_groups": 16}).training.islands == 16
    assert spec(shards={"group_by": "file"}).training.islands == 16


@pytest.mark.parametrize("is_all", [True, False])
def test_a_rehearsal_of_few_steps_is_one_round_and_of_a_part_of_the_data_one_without_clients(is_all: bool) -> None:
    whole = spec(
        shards={"group_by": "file", "validation_fraction": 0.1},
        training={"validation": {"at_fractions": [0.1, 0.5, 1]}},
    )
    small = smaller(whole, Subset(source=whole.source, share=1 if is_all else 0.5, message=""))
    # As a rehearsal's file is read.
    read = parse_yaml_model(PipelineSpec, yaml.safe_dump(small.model_dump(mode="json")), where="words.yaml")
    assert read.training.sync is not None and read.training.max_steps == 4
    assert (read.training.federated is not None) == is_all
    assert (read.training.validation is not None) == is_all
