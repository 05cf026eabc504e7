"""What a pipeline predicts, and from which columns, for rules that look at both before there are shards."""

from __future__ import annotations

from data_contracts.label_leaks import Label
from training.data.encoder_specs import TabularSpec
from training.data.spec import ShardSpec


def pipeline_label(spec: ShardSpec) -> Label | None:
    """None where the encoder reads no columns that could tell the label each by itself, such as pictures or texts."""
    encoder = spec.encoder
    if not isinstance(encoder, TabularSpec) or encoder.label is None:
        return None
    inputs = (*encoder.numeric, *encoder.categorical)
    return Label(column=encoder.label, is_class=encoder.predicts_class, inputs=inputs)
