"""A model of three columns that answers with the first, without training and without a registry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from torch import nn

from headway.tasks.serving.prediction import ModelVersion, TableModel
from headway.training.config.encoder_specs import TabularEncoderSpec
from headway.training.data.encode.tabular import TabularEncoder

STATISTICS = {
    "num_rows": 2,
    "numeric": [{"column": "age", "num_values": 2, "mean": 0.0, "deviation": 1.0}],
    "categorical": [{"column": "grade", "values": [1, 2, 3]}, {"column": "plan", "values": ["basic", "pro"]}],
    "label": None,
}
TYPES = {"age": pa.float64(), "grade": pa.int64(), "plan": pa.string()}
COLUMNS = {"age": [30, 40], "grade": [1, 3], "plan": ["pro", "basic"]}


def table_model(
    missing: str = "refuse", graph: nn.Module | None = None, classes: tuple[str, ...] = (), num_gaps: int = 0
) -> TableModel:
    """Answers with the age.

    Args:
        num_gaps: rows of training that had no age.
    """
    spec = TabularEncoderSpec(numeric=("age",), categorical=("grade", "plan"), missing=missing)  # type: ignore[arg-type]
    recipe: Any = SimpleNamespace(inputs=lambda columns: columns["numeric"])
    encoder = TabularEncoder(spec, STATISTICS | {"num_rows": 2 + num_gaps}, only_known_gaps=True)
    return TableModel(
        version=ModelVersion("toy", "1", "0" * 64),
        encoder=encoder,
        graph=graph or nn.Identity(),
        recipe=recipe,
        classes=classes,
        fitted_types=TYPES,
    )
