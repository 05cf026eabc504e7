from __future__ import annotations

import pytest

from headway.data_contracts.store.documents import Shard, ShardGroup, StoredFile
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.training.config.shards import HELDOUT, TRAIN, SkewLimits
from headway.training.data.shards.skew import check_skew, refuse_unjudgeable


def group(number: int, *shards: tuple[int, ...], size_bytes: int = 10, split: str = TRAIN) -> ShardGroup:
    """A group of shards with so many rows of each class."""
    held = [
        Shard(
            file=StoredFile(path="x", size_bytes=size_bytes, sha256="0" * 64),
            num_rows=sum(counts),
            row_groups=(),
            label_counts=counts,
        )
        for counts in shards
    ]
    num_rows = sum(shard.num_rows for shard in held)
    return ShardGroup(
        group=number,
        split=split,
        num_rows=num_rows,
        num_samples=num_rows,
        documents=(),
        shards=tuple(held),
        name=f"g{number}",
    )


OTHER = group(0, (5, 5), split=HELDOUT)


def test_nothing_is_judged_by_default() -> None:
    check_skew([OTHER, group(0, (1, 0)), group(1, (0, 100_000))], SkewLimits())


@pytest.mark.parametrize("split", [TRAIN, HELDOUT])
def test_a_split_without_rows_is_refused_whatever_the_limits(split: str) -> None:
    other = HELDOUT if split == TRAIN else TRAIN
    with pytest.raises(DataError, match=f"split '{split}' has no rows"):
        check_skew([group(0, (5, 5), split=other), group(0, split=split)], SkewLimits())


def test_rows_at_the_limit_pass_and_one_more_does_not() -> None:
    limits = SkewLimits(max_rows_ratio=1.5)
    check_skew([OTHER, group(0, (50,)), group(1, (150,))], limits)
    with pytest.raises(DataError, match=r"group g1 of split train: has 151 rows, 1\.50 times the mean of 2 groups"):
        check_skew([OTHER, group(0, (50,)), group(1, (151,))], limits)


def test_bytes_are_judged_by_themselves() -> None:
    with pytest.raises(DataError, match=r"g0 of split train: has 30 bytes, 1\.50 times"):
        check_skew([OTHER, group(0, (5,), size_bytes=30), group(1, (5,))], SkewLimits(max_bytes_ratio=1.2))


def test_a_shard_whose_classes_differ_is_named_with_both_shares() -> None:
    limits = SkewLimits(max_label_difference=0.1, min_rows=10)
    even = group(0, (50, 50), (52, 48))
    check_skew([OTHER, even, group(1, (45, 55))], limits)
    skewed = [OTHER, even, group(1, (50, 50), (80, 20))]
    for classes, shown in {(): "0", ("no", "yes"): "no"}.items():
        told = rf"g1 of split train, shard 1: class {shown} makes up 80\.0% of its 100 rows and 58\.0% of the split"
        with pytest.raises(DataError, match=told):
            check_skew(skewed, limits, classes)


def test_shares_of_few_rows_are_left_to_chance() -> None:
    limits = SkewLimits(max_label_difference=0.1, min_rows=11)
    check_skew([OTHER, group(0, (5, 5)), group(1, (10, 0)), group(2, (500, 500))], limits)


@pytest.mark.parametrize(("num_classes", "is_evaluated"), [(0, False), (1, True), (1024, True), (1025, False)])
def test_labels_that_shards_do_not_count_are_refused_by_name_and_not_passed_over(
    num_classes: int, is_evaluated: bool
) -> None:
    refuse_unjudgeable(SkewLimits(max_rows_ratio=2), num_classes)
    if is_evaluated:
        refuse_unjudgeable(SkewLimits(max_label_difference=0.1), num_classes)
        return
    with pytest.raises(
        ConfigError, match=rf"shards\.skew\.max_label_difference: asks .* there are {num_classes:,} classes"
    ):
        refuse_unjudgeable(SkewLimits(max_label_difference=0.1), num_classes)


def test_each_split_is_judged_by_itself() -> None:
    limits = SkewLimits(max_rows_ratio=1.1, max_label_difference=0.1, min_rows=1)
    check_skew([group(0, (9, 1), split=HELDOUT), group(0, (500, 500))], limits)
