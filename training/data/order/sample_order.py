"""The sample order that a run's configuration asks for, over the rows of its reader."""

from __future__ import annotations

from headway.training.config.order_spec import OrderSpec
from headway.training.data.load.shard_reader import Dataset, ShardReader
from headway.training.data.order.exact_order import ExactOrder, SampleOrder
from headway.training.data.order.mixing import MixedOrder, MixingSchedule
from headway.training.data.order.window_order import WindowOrder
from headway.training.data.splitmix import mix


def sample_order(spec: OrderSpec, reader: ShardReader, *, seed: int) -> SampleOrder:
    """A pure function of the spec, the seed and the reader's row groups.

    Args:
        reader: of the pipeline's manifest and, in the spec's order, those of `spec.mix`.
    """
    orders = [
        _dataset_order(spec, dataset, seed if number == 0 else mix(seed, number))
        for number, dataset in enumerate(reader.datasets)
    ]
    if not spec.mix:
        return orders[0]
    schedule = MixingSchedule(spec.weights)
    return MixedOrder(schedule, orders, [dataset.first_row for dataset in reader.datasets])


def _dataset_order(spec: OrderSpec, dataset: Dataset, seed: int) -> SampleOrder:
    if spec.shuffle == "window":
        return WindowOrder(dataset.row_groups, seed=seed, window_row_groups=spec.window_row_groups)
    return ExactOrder(dataset.row_groups.num_rows, seed=seed)
