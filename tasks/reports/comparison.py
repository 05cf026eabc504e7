"""What two registered versions came to on the same examples."""

from __future__ import annotations

from headway.data_contracts.store.documents import Frozen, Interval, Link
from headway.data_contracts.types.report_text import count
from headway.training.evaluation.measures import MIN_KEYS, has_few_keys


class ComparedVersion(Frozen):
    model: str
    version: str
    registration: Link
    run: Link
    checkpoint: Link
    evaluation: Link

    @property
    def name(self) -> str:
        return f"{self.model} version {self.version}"


class MeasureOfBoth(Frozen):
    name: str
    first: Interval
    second: Interval


class SliceOfBoth(Frozen):
    name: str
    num_examples: int
    first: Interval
    second: Interval
    difference: Interval
    """Second minus first, widened so that all slices together hold at the confidence."""


class Disagreement(Frozen):
    """An example that costs the two differently, by name or number; never its values."""

    name: str
    first: float
    second: float


class Agreement(Frozen):
    """Of classes: how often each was right."""

    both_right: int
    only_first: int
    only_second: int
    both_wrong: int
    num_taken_for_others: int | None
    """Examples that the two take for different classes; None where single predictions are not known."""


class Comparison(Frozen):
    first: ComparedVersion
    second: ComparedVersion
    metric: str
    greater_is_better: bool
    confidence: float
    examples_of: Link
    """The shards whose held-out examples both were scored on: those of the second."""
    num_examples: int
    num_keys: int = 0
    """See `EvaluationReport`."""
    measures: tuple[MeasureOfBoth, ...]
    """The deciding one first."""
    difference: Interval
    """Second minus first, in the deciding measure, paired."""
    slices: tuple[SliceOfBoth, ...]
    agreement: Agreement | None
    disagreements: tuple[Disagreement, ...]
    """The greatest difference first, whoever it speaks for."""

    @property
    def is_decided(self) -> bool:
        return not self.has_few_keys and (self.difference.low > 0 or self.difference.high < 0)

    @property
    def has_few_keys(self) -> bool:
        """Whether no interval of these examples is to be trusted: rows of one key are alike."""
        return has_few_keys(self.num_keys)

    @property
    def examples_words(self) -> str:
        of_keys = f" of {count(self.num_keys, 'key')}" if self.num_keys else ""
        return f"{self.num_examples:,} held-out examples{of_keys}"

    @property
    def headline(self) -> str:
        if self.has_few_keys:
            return (
                f"{self.second.name} and {self.first.name} cannot be told apart by rows of "
                f"{count(self.num_keys, 'key')}, {MIN_KEYS} at least"
            )
        if not self.is_decided:
            return f"{self.second.name} and {self.first.name} do not differ beyond doubt"
        second_is_better = (self.difference.value > 0) == self.greater_is_better
        return f"{self.second.name} is {'better' if second_is_better else 'worse'} than {self.first.name}"
