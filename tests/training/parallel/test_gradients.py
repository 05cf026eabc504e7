"""The gradient tree: one order of additions for any number of workers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from headway.data_contracts.store.errors import ConfigError
from headway.training.parallel.gradients import GradientTree, buffer_length, clip_factor, row_squares
from headway.training.ranks.communication import Collectives, tree_sum
from headway.training.ranks.distributed import ProcessGroup

ALONE = Collectives(ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))


def awkward_values(*shape: int) -> torch.Tensor:
    """Values of very different size, whose sum depends on the order."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator) * 10.0 ** torch.randint(-4, 5, shape, generator=generator)


def test_tree_sum_adds_neighbours_then_pairs_then_fours():
    rows = awkward_values(8, 1000)
    a, b, c, d, e, f, g, h = rows.clone()

    total = tree_sum(rows.clone())

    assert torch.equal(total, ((a + b) + (c + d)) + ((e + f) + (g + h)))
    assert not torch.equal(total, rows.sum(dim=0)), "the values should tell orders apart"


@given(st.integers(0, 5), st.integers(0, 3))
def test_summing_in_two_stages_is_the_same_tree(levels, workers):
    workers = min(levels, workers)
    rows = awkward_values(2**levels, 50)
    partial = torch.stack([tree_sum(part.clone()) for part in rows.chunk(2**workers)])
    assert torch.equal(tree_sum(partial), tree_sum(rows.clone()))


def summed(tree, parameters, gradients):
    """What the tree makes of one step, in which each replica's gradient is given, flat, the last parameter first."""
    for row in gradients:
        tree.begin_replica()
        flat = torch.cat([parameter.flatten() for parameter in reversed(parameters)])
        (flat * row).sum().backward()
        tree.end_replica()
    return tree.total()


@pytest.mark.parametrize("num_replicas", [1, 2, 4, 8, 16])
def test_replicas_one_after_another_add_up_as_the_tree(num_replicas):
    parameters = [nn.Parameter(torch.zeros(5, 3)), nn.Parameter(torch.zeros(7))]
    coefficients = awkward_values(num_replicas, 22)
    tree = GradientTree(dict(zip("ab", parameters, strict=True)), collectives=ALONE, num_replicas=num_replicas)
    for _ in range(2):  # buffers are used again in the next step
        total = summed(tree, parameters, coefficients)

        expected = tree_sum(coefficients.clone())
        assert torch.equal(total[:22], expected)
        assert torch.equal(torch.cat([parameter.grad.flatten() for parameter in reversed(parameters)]), expected)


class Rows:
    """In place of an exchange: keeps what each island hands in, and hands out their sum in tree order."""

    def __init__(self):
        self.rows = []

    def start(self, rows):
        self.rows.append(torch.stack([row.clone() for row in rows]))
        rows[-1].copy_(tree_sum(self.rows[-1].clone()))

    def finish(self): ...


@pytest.mark.parametrize(("num_replicas", "islands"), [(1, 1), (8, 1), (8, 2), (8, 4), (8, 8), (16, 2), (4, 4), (2, 1)])
def test_each_island_hands_in_the_sum_of_its_own_replicas(num_replicas, islands):
    parameters = [nn.Parameter(torch.zeros(5, 3)), nn.Parameter(torch.zeros(7))]
    coefficients = awkward_values(num_replicas, 22)
    exchange = Rows()
    tree = GradientTree(
        dict(zip("ab", parameters, strict=True)),
        collectives=ALONE,
        num_replicas=num_replicas,
        exchange=exchange,
        bucket_elements=16,
        block_elements=4,
    )
    tree.expect(range(num_replicas), island=num_replicas // islands)
    for _ in range(2):  # buffers are used again in the next step
        exchange.rows.clear()
        total = summed(tree, parameters, coefficients)

        handed_in = torch.cat(exchange.rows, dim=1)
        assert handed_in.shape == (islands, 24)
        for island, part in zip(handed_in, coefficients.chunk(islands), strict=True):
            assert torch.equal(island[:22], tree_sum(part.clone()))
        assert torch.equal(total[:22], tree_sum(coefficients.clone()))
        by_name = tree.by_name(handed_in)
        assert torch.equal(by_name["b"], handed_in[:, :7])
        assert torch.equal(by_name["a"], handed_in[:, 7:22].view(islands, 5, 3))


@pytest.mark.parametrize("shape", [(1,), (37,), (16, 512), (13, 33), (5, 3, 3, 3), (3, 9000), (40, 1), (50, 4096)])
def test_squares_of_rows_are_the_same_bits_however_rows_are_cut(shape):
    gradient = awkward_values(*shape)
    whole = row_squares({"only": gradient}, {"only": 2}, shape[0] + 3)
    for count in (2, 3, 4, 8):
        cut = torch.zeros_like(whole)
        first = 2
        for part in gradient.chunk(count):
            cut += row_squares({"only": part.clone()}, {"only": first}, len(cut))
            first += len(part)
        assert torch.equal(cut, whole)
    assert float(whole.sum()) == pytest.approx(float(gradient.double().square().sum()), rel=1e-5)


@pytest.mark.parametrize("users", [[1], [0], [2, 3], []])
def test_a_parameter_that_a_replica_does_not_use_contributes_nothing(users):
    used, rare = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    tree = GradientTree({"used": used, "rare": rare}, collectives=ALONE, num_replicas=4)
    for all_use_it in (True, False):  # the first step leaves its sums behind in the buffers
        for replica in range(4):
            tree.begin_replica()
            (used.sum() + (rare.sum() if all_use_it or replica in users else 0)).backward()
            tree.end_replica()
        tree.total()
    assert used.grad.tolist() == [4] * 3
    assert rare.grad.tolist() == [len(users)] * 2


@pytest.mark.parametrize(
    ("leaves", "rows"),
    [
        (range(3, 8), [(3, 4), (4, 8)]),
        (range(5), [(0, 4), (4, 5)]),
        (range(1, 2), [(1, 2)]),
        (range(6, 11), [(6, 8), (8, 10), (10, 11)]),
    ],
)
def test_of_any_stretch_of_replicas_the_largest_subtrees_are_handed_in(leaves, rows):
    parameter, exchange = nn.Parameter(torch.zeros(22)), Rows()
    tree = GradientTree({"only": parameter}, collectives=ALONE, num_replicas=16, exchange=exchange)
    coefficients = awkward_values(16, 22)
    tree.expect(leaves)
    for leaf in leaves:
        tree.begin_replica()
        (parameter * coefficients[leaf]).sum().backward()
        tree.end_replica()
    tree.total()
    handed_in = torch.cat(exchange.rows, dim=1)
    assert len(handed_in) == len(rows)
    for row, (first, end) in zip(handed_in, rows, strict=True):
        assert torch.equal(row, tree_sum(coefficients[first:end].clone()))


@pytest.mark.parametrize(("num_ranks", "length"), [(1, 13), (3, 15), (4, 16)])
def test_a_buffer_is_padded_to_equal_parts_of_ranks(num_ranks, length):
    assert buffer_length([torch.zeros(13)], num_ranks, 1) == length


@pytest.mark.parametrize(("norm", "largest"), [(0.5, 1.0), (1.0, 1.0), (10.0, 1.0), (0.0, 1.0)])
def test_a_clipped_gradient_is_no_longer_than_allowed_and_a_short_one_is_left_alone(norm, largest):
    factor = clip_factor(norm, largest)
    assert norm * factor <= largest
    assert factor == pytest.approx(min(1.0, largest / norm) if norm else 1.0, rel=1e-5)


def run_replicas(tree, parameters, coefficients):
    for row in coefficients:
        tree.begin_replica()
        (torch.cat([parameter.flatten() for parameter in parameters]) * row).sum().backward()
        tree.end_replica()
    return tree.total()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_with_compression_every_node_of_the_tree_is_rounded(dtype):
    parameter = nn.Parameter(torch.zeros(1000))
    a, b, c, d = coefficients = torch.randn(4, 1000, generator=torch.Generator().manual_seed(1))
    tree = GradientTree({"a": parameter}, collectives=ALONE, num_replicas=4, node_dtype=dtype)

    def rounded(values):
        return values.to(dtype).float()

    for _ in range(2):
        total = run_replicas(tree, [parameter], coefficients)
        left, right = rounded(rounded(a) + rounded(b)), rounded(rounded(c) + rounded(d))
        assert torch.equal(total, rounded(left + right))
        assert total.dtype == parameter.grad.dtype == torch.float32
    assert not torch.equal(total, rounded((a + b) + (c + d))), "rounding at the end alone would show"


class Noted:
    """In place of an exchange: notes when each bucket is handed over, and by how many gradients it was preceded."""

    def __init__(self, arrived):
        self.arrived, self.seen = arrived, []

    def start(self, rows):
        (bucket,) = rows
        self.seen.append((len(bucket), len(self.arrived)))

    def finish(self): ...


@pytest.mark.parametrize(("names", "preceding"), [("abc", [1, 2, 3]), ("cba", [3, 3, 3])])
def test_buckets_leave_in_one_order_while_backward_still_runs(names, preceding):
    """The third layer's gradient arrives first; a bucket waits for those before it in the buffer."""
    layers = [nn.Parameter(torch.ones(8)) for _ in names]
    arrived = []
    for parameter in layers:
        parameter.register_post_accumulate_grad_hook(arrived.append)
    named = dict(sorted(zip(names, layers, strict=True)))
    tree = GradientTree(named, collectives=ALONE, num_replicas=4, bucket_elements=8)
    tree._exchange = noted = Noted(arrived)
    for _ in range(4):
        arrived.clear()
        tree.begin_replica()
        first, second, third = layers
        ((first.sum().tanh() * second.sum()).tanh() * third.sum()).backward()
        tree.end_replica()
    assert noted.seen == [(8, number) for number in preceding]


def test_a_gradient_that_arrives_twice_in_one_backward_pass_is_refused_by_name():
    block = nn.Linear(3, 3)
    tree = GradientTree(dict(block.named_parameters()), collectives=ALONE, num_replicas=1)
    tree.begin_replica()
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(ConfigError, match=r"model\.(weight|bias): its gradient arrived twice.*use_reentrant=False"):
        checkpoint(block, checkpoint(block, x, use_reentrant=True), use_reentrant=True).sum().backward()


def test_a_recipe_that_goes_backward_itself_is_refused_by_name():
    parameter = nn.Parameter(torch.ones(3))
    tree = GradientTree({"only": parameter}, collectives=ALONE, num_replicas=2)
    tree.begin_replica()
    parameter.sum().backward()
    with pytest.raises(ConfigError, match=r"model\.only: its gradient arrived twice.*leave `backward` to the engine"):
        parameter.sum().backward()


def test_sparse_gradients_add_up_as_dense_ones_do():
    rows = torch.tensor([1, 3, 3])
    embeddings = [nn.Embedding(5, 2, sparse=sparse) for sparse in (True, False)]
    totals = []
    for embedding in embeddings:
        tree = GradientTree(dict(embedding.named_parameters()), collectives=ALONE, num_replicas=4)
        for replica in range(4):
            tree.begin_replica()
            (embedding(rows[replica // 2 :]) * awkward_values(1, 2)).sum().backward()
            tree.end_replica()
        totals.append(tree.total().clone())
    assert totals[0].count_nonzero() == 4
    assert torch.equal(*totals)
