"""Who writes what: every box once, by a rank that holds it, and none much more than another."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data_contracts.store.documents import TensorSlice
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.training.checkpoint import plan
from headway.training.checkpoint.layout import check_layout, file_name
from headway.training.checkpoint.plan import CUT_BYTES, CUT_SHARE, share_out, size_bytes


def box(tensor="w", *, offsets=(0, 0), shape=(4, 6), whole=(4, 6), dtype="float32") -> TensorSlice:
    return TensorSlice(tensor=tensor, file="", dtype=dtype, global_shape=whole, offsets=offsets, shape=shape)


def replicated(rows: dict[str, int]) -> plan.Held:
    return tuple(box(name, shape=(count, 256), whole=(count, 256)) for name, count in rows.items())


ROWS = st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 40_000), max_size=12)


@given(ROWS, st.integers(1, 8))
def test_replicated_tensors_are_shared_out_by_bytes(rows, world_size):
    shares = share_out([replicated(rows)] * world_size)
    check_layout([piece for share in shares for piece in share], {file_name(i, world_size) for i in range(world_size)})
    loads = [sum(map(size_bytes, share)) for share in shares]
    even = sum(loads) / world_size
    assert sum(loads) == sum(rows.values()) * 1024
    assert max(loads) <= even + max(CUT_BYTES, CUT_SHARE * even) + 1024 * len(rows)


@given(ROWS, st.integers(1, 8))
def test_every_rank_finds_the_same_plan_in_whatever_order_it_names_its_tensors(rows, world_size):
    held = [replicated(rows)] * world_size
    assert share_out([pieces[::-1] for pieces in held]) == share_out(held)
    assert [plan.from_bytes(plan.to_bytes(pieces)) for pieces in held] == held


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3))
def test_each_box_of_a_sharded_tensor_is_written_once_by_one_of_those_that_hold_it(length, shards, replicas):
    def held(rank: int) -> plan.Held:
        shard = rank % shards  # as HSDP lays ranks out
        start, stop = (min(length, -(-length // shards) * part) for part in (shard, shard + 1))
        return (box(offsets=(start, 0), shape=(stop - start, 6), whole=(length, 6)), box("bias"))

    held_by_rank = [held(rank) for rank in range(shards * replicas)]
    shares = share_out(held_by_rank)

    for share, own in zip(shares, held_by_rank, strict=True):
        assert {piece.model_copy(update={"file": ""}) for piece in share} <= set(own)
    written = [piece for share in shares for piece in share if piece.tensor == "w"]
    assert sum(math.prod(piece.shape) for piece in written) == length * 6
    assert len({piece.offsets for piece in written}) == len(written)


def test_what_only_one_rank_holds_counts_before_replicas_are_shared_out():
    alone = box("alone", shape=(100, 6), whole=(100, 6))
    shares = share_out([(alone, box("a"), box("b")), (box("a"), box("b"))])
    assert [[piece.tensor for piece in share] for share in shares] == [["alone"], ["a", "b"]]


def test_pieces_that_are_not_one_cutting_of_a_tensor_are_refused():
    with pytest.raises(IntegrityError, match=r"tensor w: .*overlap"):
        share_out([(box(shape=(3, 6)),), (box(offsets=(2, 0), shape=(2, 6)),)])
    with pytest.raises(IntegrityError, match=r"tensor w: .*gap"):
        share_out([(box(shape=(3, 6)),)])
    with pytest.raises(ConfigError, match="complex64 cannot be kept"):
        share_out([(box(dtype="complex64"),)])
