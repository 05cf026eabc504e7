"""Values of declared families, in the form that Prometheus's own library renders."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from headway.data_contracts.store.plain_text import distinct_line
from headway.flows.accounts.figures import Histogram
from headway.flows.monitoring.families import FAMILIES, Family

MAX_LABEL_CHARS = 500
"""Of a label's value: a ledger that somebody wrote may hold megabytes."""


class Samples:
    """Collects values by family; a family without a value is not rendered."""

    def __init__(self) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily] = {}

    def value(self, name: str, value: float, **labels: str) -> None:
        """Of a counter or a gauge.

        Raises:
            KeyError: the family, or one of its labels, is not declared.
        """
        family = self._family(name)
        assert not isinstance(family, HistogramMetricFamily)
        family.add_metric(_label_values(name, labels), value)

    def histogram(self, name: str, histogram: Histogram, **labels: str) -> None:
        family = self._family(name)
        assert isinstance(family, HistogramMetricFamily)
        bounds = [*map(floatToGoString, histogram.bounds_s), "+Inf"]
        buckets = list(zip(bounds, map(float, itertools.accumulate(histogram.counts)), strict=True))
        family.add_metric(_label_values(name, labels), buckets, histogram.sum_s)

    def _family(self, name: str) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
        if name not in self._families:
            declared = FAMILIES[name]
            self._families[name] = _OF_KIND[declared.kind](name, declared)
        return self._families[name]

    def families(self) -> Iterable[Metric]:
        """In the order of their declaration."""
        return [self._families[name] for name in FAMILIES if name in self._families]


def _label_values(name: str, labels: dict[str, str]) -> Sequence[str]:
    declared = FAMILIES[name].labels
    if labels.keys() != set(declared):
        raise KeyError(f"{name} has the labels {declared}")
    # Prometheus's form spells out line feeds alone, and refuses all that is told where two series have one name.
    return [distinct_line(labels[label], MAX_LABEL_CHARS) for label in declared]


_OF_KIND: dict[str, Callable[[str, Family], CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
    "counter": lambda name, family: CounterMetricFamily(name, family.help, labels=family.labels),
    "gauge": lambda name, family: GaugeMetricFamily(name, family.help, labels=family.labels),
    "histogram": lambda name, family: HistogramMetricFamily(name, family.help, labels=family.labels),
}
