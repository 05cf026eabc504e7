"""Boosted trees as tensors: a module that says what scikit-learn's histogram trees say, from plain arrays alone.

Every tree has as many nodes as it may have at most, so that tensors have one shape whatever was grown; what is not
grown is a leaf of 0. The trees are grown by `training.engine.tree_growing`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headway.data_contracts.store.errors import IntegrityError
from headway.training.config.recipe_specs import GradientBoostingSpec, TabularModelSpec
from headway.training.config.shapes import TabularNumberShape, TabularShape
from headway.training.recipes.protocol import Losses
from headway.training.recipes.tabular import TabularClassifier, TabularRegressor

WORD_BITS = 32
LARGEST = torch.finfo(torch.float32).max
TREES_AT_A_TIME = 512
"""That rows are led through together: memory is bounded by them, whatever the number of trees."""


def split_by_ids(spec: GradientBoostingSpec, shape: TabularShape | TabularNumberShape) -> list[bool]:
    """Of each column of a record, whether trees split it by sets of ids: those with more ids than bins are numbers."""
    return [False] * shape.num_numeric + [size <= spec.bins for size in shape.cardinalities]


class BoostedTrees(nn.Module):
    """Records float32 (rows, n + m), numbers first, category ids after them, to float32 (rows, outputs).

    Of two classes there is one tree an iteration, for the logit of the second; of more, one for each class. In a node a
    number goes left up to `threshold`, a category whose bit is set in `left_ids`; NaN, and a category that training
    never saw, go where `missing_goes_right` says. In evaluation mode only what was grown is led through.
    """

    by_ids: Tensor
    left_ids: Tensor
    feature: Tensor
    threshold: Tensor
    missing_goes_right: Tensor
    child: Tensor
    num_iterations: Tensor
    num_levels: Tensor

    def __init__(self, spec: GradientBoostingSpec, shape: TabularShape | TabularNumberShape) -> None:
        super().__init__()
        num_classes = 1 if isinstance(shape, TabularNumberShape) else shape.num_classes
        self.num_outputs = 1 if num_classes <= 2 else num_classes
        self._is_binary = num_classes == 2
        by_ids = split_by_ids(spec, shape)
        self._has_ids = any(by_ids)
        self.num_words = -(-max((size for size in shape.cardinalities if size <= spec.bins), default=1) // WORD_BITS)
        """Of the set of ids in each node."""
        self._most = spec.iterations, min(spec.depth, spec.leaves - 1)
        self._iterations, self._levels = self._most
        nodes = 2 * spec.leaves - 1
        trees = (spec.iterations, self.num_outputs, nodes)
        self.value = nn.Parameter(torch.zeros(trees, dtype=torch.float64), requires_grad=False)
        self.baseline = nn.Parameter(torch.zeros(self.num_outputs, dtype=torch.float64), requires_grad=False)
        self.register_buffer("feature", torch.zeros(trees, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(trees))
        self.register_buffer("missing_goes_right", torch.zeros(trees, dtype=torch.bool))
        # A leaf is its own child, so that rows that arrive early stay.
        itself = torch.arange(nodes).expand(trees)
        self.register_buffer("child", torch.stack((itself, itself), dim=3).contiguous())
        self.register_buffer("left_ids", torch.zeros((*trees, self.num_words), dtype=torch.int32))
        self.register_buffer("by_ids", torch.tensor(by_ids))
        self.register_buffer("num_iterations", torch.zeros((), dtype=torch.int64))
        self.register_buffer("num_levels", torch.zeros((), dtype=torch.int64))
        if isinstance(shape, TabularNumberShape):
            self.baseline.data.fill_(shape.mean)

    def train(self, mode: bool = True) -> BoostedTrees:
        """How much there is to be led through is looked up here: a traced graph has it as a constant.

        Raises:
            IntegrityError: more than there can be, which would be led through for ever.
        """
        grown = int(self.num_iterations), int(self.num_levels)
        if not all(0 <= number <= most for number, most in zip(grown, self._most, strict=True)):
            raise IntegrityError(f"trees of {grown[0]} iterations and {grown[1]} levels fit no configuration.")
        self._iterations, self._levels = self._most if mode else grown
        super().train(mode)
        return self

    def forward(self, records: Tensor) -> Tensor:
        raw = self.raw(records).float()
        return torch.cat((torch.zeros_like(raw), raw), dim=1) if self._is_binary else raw

    def raw(self, records: Tensor) -> Tensor:
        """(rows, outputs) float64."""
        # Bounded, so that a split between missing and any number, however large, is one of finite numbers.
        records = records.clamp(-LARGEST, LARGEST)
        total = self.baseline.expand(records.shape[0], self.num_outputs)
        step = max(1, TREES_AT_A_TIME // self.num_outputs)
        for first in range(0, self._iterations, step):
            total = total + self.of_iterations(records, first, min(first + step, self._iterations)).sum(dim=1)
        return total

    def of_iterations(self, records: Tensor, first: int, last: int) -> Tensor:
        """Values of the leaves that each row comes to, (rows, iterations, outputs) float64.

        Args:
            first, last: iterations [first, last).
        """
        trees = slice(first, last)
        feature, threshold = self.feature[trees].flatten(), self.threshold[trees].flatten()
        missing_right, child = self.missing_goes_right[trees].flatten(), self.child[trees].flatten()
        left_ids = self.left_ids[trees].flatten()
        nodes = self.feature.shape[2]
        # The place of each tree's root among the nodes of all.
        roots = torch.arange((last - first) * self.num_outputs, device=records.device) * nodes
        at = roots.expand(records.shape[0], -1)
        for _ in range(self._levels):
            column = feature[at]
            given = records.gather(1, column)
            right = (given > threshold[at]) | (torch.isnan(given) & missing_right[at])
            if self._has_ids:
                # Of a column of numbers what is made here is not used.
                ids = given.nan_to_num(0.0).clamp(0, self.num_words * WORD_BITS - 1).int()
                words = left_ids[at * self.num_words + (ids >> 5)]
                right = torch.where(self.by_ids[column], (words >> (ids & (WORD_BITS - 1))) & 1 == 0, right)
            at = roots + child[at * 2 + right.long()]
        return self.value[trees].flatten()[at].view(records.shape[0], last - first, self.num_outputs)


class GradientBoosting:
    """Recipe of boosted trees over records, of a class or of a number each. No gradient trains them: they are grown."""

    spec_type = GradientBoostingSpec
    shape_type = (TabularShape, TabularNumberShape)

    def __init__(self, spec: GradientBoostingSpec, shape: TabularShape | TabularNumberShape) -> None:
        self.spec, self.shape = spec, shape
        # Losses, measures and inputs are those of the networks for the same rows.
        self._like: TabularClassifier | TabularRegressor = (
            TabularRegressor(TabularModelSpec(), shape)
            if isinstance(shape, TabularNumberShape)
            else TabularClassifier(TabularModelSpec(), shape)
        )

    def build(self) -> nn.Module:
        return BoostedTrees(self.spec, self.shape)

    def inputs(self, batch: Mapping[str, Tensor]) -> Tensor:
        return self._like.inputs(batch)

    def losses(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Losses:
        return self._like.losses(model, batch)

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._like.measures(model, batch)

    def hidden_matrices(self, model: nn.Module) -> tuple[str, ...]:
        return ()

    def example_input(self) -> Tensor:
        return self._like.example_input()
