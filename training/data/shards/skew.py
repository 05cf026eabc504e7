"""The skew gate: groups and shards as even as the spec asks, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from headway.data_contracts.store.documents import ShardGroup
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.training.config.fold import Fold
from headway.training.config.shards import HELDOUT, SPLITS, VALIDATION, SkewLimits
from headway.training.data.shards.group_store import MAX_CLASSES_COUNTED
from headway.training.data.shards.splits import empty_fold


class SkewRefused(DataError):
    """Groups or shards are less even than the file's `shards.skew` asks."""


ADVICE = "Balance the source, change shards.group_by or shards.num_groups, or raise the limit in shards.skew."


def refuse_unjudgeable(limits: SkewLimits, num_classes: int) -> None:
    """A limit that could never refuse anything is no limit.

    Args:
        num_classes: to predict; 0 where there are none.

    Raises:
        ConfigError: labels are to be judged, and shards do not count them.
    """
    # A limit that never refuses would look like a check that passed.
    if limits.max_label_difference is None or 0 < num_classes <= MAX_CLASSES_COUNTED:
        return
    raise ConfigError(
        f"asks how a class is spread over shards, and there are {num_classes:,} classes to predict; of 1 to "
        f"{MAX_CLASSES_COUNTED:,} classes rows are counted.",
        where="shards.skew.max_label_difference",
        advice="Take it out; max_rows_ratio and max_bytes_ratio are checked whatever there is to predict.",
    )


def check_skew(
    groups: Sequence[ShardGroup],
    limits: SkewLimits,
    classes: Sequence[int | str] = (),
    *,
    splits: Sequence[str] = SPLITS,
    fold: Fold | None = None,
) -> None:
    """Judge each split by itself.

    Args:
        classes: what the source calls each class; by number where nobody knows.
        fold: that is held out, in cross-validation.

    Raises:
        DataError: names the first group or shard beyond a limit, its figure and the limit; or a split without rows.
    """
    # Each split by itself: held-out groups are few, and would hide among the others.
    for split in splits:
        members = [group for group in groups if group.split == split]
        if not sum(group.num_rows for group in members):
            raise without_rows(split) if fold is None or split != HELDOUT else empty_fold(fold)
        _check_ratio(members, "rows", lambda group: group.num_rows, limits.max_rows_ratio)
        _check_ratio(members, "bytes", lambda group: group.size_bytes, limits.max_bytes_ratio)
        if limits.max_label_difference is not None:
            _check_labels(members, limits.max_label_difference, limits.min_rows, classes)


def without_rows(split: str) -> DataError:
    share = "validation_fraction" if split == VALIDATION else "heldout_fraction"
    return DataError(
        f"split {split!r} has no rows.",
        advice=f"Add data, or change shards.{share}, shards.split_salt or what shards.split lists.",
    )


def _check_ratio(
    groups: Sequence[ShardGroup], what: str, figure: Callable[[ShardGroup], int], limit: float | None
) -> None:
    if limit is None:
        return
    mean = sum(map(figure, groups)) / len(groups)
    largest = max(groups, key=figure)
    if figure(largest) > limit * mean:
        raise SkewRefused(
            f"has {figure(largest):,} {what}, {figure(largest) / mean:.2f} times the mean of {len(groups)} groups; "
            f"the limit is {limit:g}.",
            where=_name(largest),
            advice=ADVICE,
        )


def _check_labels(groups: Sequence[ShardGroup], limit: float, min_rows: int, classes: Sequence[int | str]) -> None:
    counted = list(_label_counts(groups))
    if not counted:
        return
    total = np.sum([counts for _, counts in counted], axis=0)
    shares = total / total.sum()
    for where, counts in counted:
        differences = np.abs(counts / max(1, counts.sum()) - shares)
        worst = int(differences.argmax())
        # Small shards differ by chance; the limit is for those with enough rows to judge.
        if counts.sum() >= min_rows and differences[worst] > limit:
            name = classes[worst] if classes else worst
            raise SkewRefused(
                f"class {name} makes up {counts[worst] / counts.sum():.1%} of its {int(counts.sum()):,} rows and "
                f"{shares[worst]:.1%} of the split; the limit is {limit:.1%} apart.",
                where=where,
                advice=ADVICE,
            )


def _label_counts(groups: Sequence[ShardGroup]) -> Iterator[tuple[str, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    for group in groups:
        for number, shard in enumerate(group.shards):
            if shard.label_counts:
                yield f"{_name(group)}, shard {number}", np.array(shard.label_counts, dtype=np.int64)


def _name(group: ShardGroup) -> str:
    return f"group {group.name or group.group} of split {group.split}"
