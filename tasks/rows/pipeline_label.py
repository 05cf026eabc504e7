"""What a pipeline predicts, and from which columns, for rules that look at both before there are shards."""

from __future__ import annotations

from headway.data_contracts.scans.label_leaks import Label
from headway.training.config.encoder_specs import TabularEncoderSpec
from headway.training.config.shards import ShardSpec


def pipeline_label(spec: ShardSpec) -> Label | None:
    """None where the encoder reads no columns that could tell the label each by itself, such as pictures or texts."""
    encoder = spec.encoder
    if not isinstance(encoder, TabularEncoderSpec) or encoder.label is None:
        return None
    inputs = (*encoder.numeric, *encoder.categorical)
    return Label(column=encoder.label, is_class=encoder.predicts_class, inputs=inputs)
