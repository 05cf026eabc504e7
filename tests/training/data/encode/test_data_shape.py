from __future__ import annotations

import subprocess
import sys

import pytest

from headway.data_contracts.store.errors import IntegrityError
from headway.training.config.shapes import ImageShape, TabularNumberShape, TabularShape, TokenShape
from headway.training.data.encode.data_shape import data_shape

LABEL = {"column": "y", "values": ["a", "b", "c"]}
NUMBER = {"column": "a", "num_values": 4, "mean": 1.0, "deviation": 1.0}


def test_each_kind_of_data_has_its_shape() -> None:
    assert data_shape({"kind": "byte-pair", "vocab_size": 300, "sequence_tokens": 16}, None) == TokenShape(
        vocab_size=300, context_tokens=16
    )
    assert data_shape({"kind": "token-ids", "vocab_size": 300, "sequence_tokens": 16}, None) == TokenShape(
        vocab_size=302, context_tokens=16
    )
    image = {"kind": "image", "pixels": ["p{0..63}"], "shape": [8, 8]}
    assert data_shape(image, {"label": LABEL}) == ImageShape(channels=1, height=8, width=8, num_classes=3)
    tabular = {"kind": "tabular", "numeric": ["a"], "categorical": ["b", "c"], "label": "y"}
    categories = [{"column": "b", "values": [1, 2]}, {"column": "c", "values": ["x"]}]
    assert data_shape(tabular, {"numeric": [NUMBER], "categorical": categories, "label": LABEL}) == TabularShape(
        num_numeric=1, cardinalities=(3, 2), num_classes=3
    )


def test_the_shape_of_a_number_to_predict_holds_what_it_was_in_training() -> None:
    encoder = {"kind": "tabular", "numeric": ["a"], "label": "y", "label_kind": "number"}
    for deviation, scale in ((2.5, 2.5), (0.0, 1.0)):
        label = {"column": "y", "num_values": 4, "mean": 7.0, "deviation": deviation}
        statistics = {"numeric": [NUMBER], "categorical": [], "label": label}
        assert data_shape(encoder, statistics) == TabularNumberShape(
            num_numeric=1, cardinalities=(), mean=7.0, deviation=scale
        )


def test_statistics_of_another_encoder_are_refused() -> None:
    encoder = {"kind": "tabular", "numeric": ["a"], "label": "y"}
    with pytest.raises(IntegrityError, match="damaged"):
        data_shape(encoder, None)
    with pytest.raises(IntegrityError, match="do not belong together"):
        data_shape(encoder, {"numeric": [{**NUMBER, "column": "b"}], "categorical": [], "label": LABEL})


@pytest.mark.process
def test_nothing_heavy_is_imported() -> None:
    heavy = "{'torch', 'pyarrow', 'tokenizers', 'pandas'}"
    program = f"import sys, headway.training.data.encode.data_shape; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
