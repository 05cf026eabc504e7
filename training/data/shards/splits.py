"""Which split and group a row belongs to: decided by its file's path, its key and the spec alone, so growth moves
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.errors import DataError
from headway.training.config.fold import Fold
from headway.training.config.given_split import HELD_OUT, NEITHER, TRAINS, VALIDATES
from headway.training.config.shards import HELDOUT, TRAIN, VALIDATION, ShardSpec
from headway.training.data.splitmix import hash_text, splitmix64

NO_ROWS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
GROUP_BITS = 52
"""Of a group's number where it is a hash: any reader of JSON keeps it exactly."""

MOST = 2**64 - 1
NAMES = {NEITHER: None, TRAINS: TRAIN, HELD_OUT: HELDOUT, VALIDATES: VALIDATION}
"""Of the codes of a given split, which count from 0."""

Mask = NDArray[np.bool_]
Read = Callable[[], Iterator[Any]]
"""All rows of a file in file order, as Arrow record batches of bounded size."""


class SourceRows(NamedTuple):
    """The rows of one source file, as the snapshot names it."""

    path: str
    sha256: str
    size_bytes: int
    num_rows: int
    excluded: NDArray[np.int64]
    """Sorted numbers of rows in quarantine; `read` yields them as well."""
    read: Read
    reading: str = ""
    """Names the way that rows come out of the file's bytes: the same bytes read in another way are other rows."""


class GroupTask(NamedTuple):
    """One unit of work: files whose rows are encoded and shuffled together."""

    group: int
    name: str
    """For a person: the folder or file behind the group's number."""
    splits: tuple[str, ...]
    """One where the path decides, all where rows do."""
    members: tuple[SourceRows, ...]
    """In packing order."""

    @property
    def size_bytes(self) -> int:
        return sum(member.size_bytes for member in self.members)


def plan_groups(sources: Iterable[SourceRows], spec: ShardSpec) -> list[GroupTask]:
    """The sources' groups in manifest order; any listing order gives the same.

    Raises:
        DataError: a path listed twice, or a split that no file falls into.
    """
    # A list: the sources are passed over several times, and listing order must not matter.
    sources = list(sources)
    if spec.split is not None:
        spec.split.require_files([source.path for source in sources])
    groups: dict[tuple[int, tuple[str, ...]], list[SourceRows]] = {}
    names: dict[int, str] = {}
    seen: set[str] = set()
    for source in sources:
        if source.path in seen:
            raise DataError("the path is listed twice.", where=source.path)
        seen.add(source.path)
        # A file whose rows are all in quarantine takes no part, and opens no group.
        if len(source.excluded) == source.num_rows:
            continue
        splits = _splits_of(source.path, spec)
        if not splits:
            continue
        group, names[group] = group_of(source.path, spec)
        groups.setdefault((group, splits), []).append(source)
    _refuse_empty_splits({split for _, splits in groups for split in splits}, len(seen), spec)
    return [
        GroupTask(group, names[group], splits, _in_packing_order(members, spec))
        # Sorted by number: the manifest's order, whatever order the files were listed in.
        for (group, splits), members in sorted(groups.items())
    ]


def split_of(path: str, spec: ShardSpec) -> str | None:
    """Where files decide: by hash of the path, or as the given split says; None: in none.

    Raises:
        DataError: the given split names the file twice, or does not and it is not to be left out.
    """
    if spec.split is not None:
        return NAMES[spec.split.of_path(path)]
    # By hash of the path, so that a file keeps its split while others come and go.
    place = hash_text("split", spec.split_salt, path)
    if spec.fold is not None:
        of_folds = hash_text("split", _salt_of_folds(spec), path)
        is_held_out = _threshold(spec.fold.first_fraction) <= of_folds < _threshold(spec.fold.last_fraction)
    else:
        is_held_out = place < _threshold(spec.heldout_fraction)
    if is_held_out:
        return HELDOUT
    return VALIDATION if spec.validation_fraction and place >= _threshold(_first_validating(spec)) else TRAIN


def _splits_of(path: str, spec: ShardSpec) -> tuple[str, ...]:
    if not (spec.split_by == "file" or (spec.split is not None and spec.split.column is None)):
        return spec.splits
    split = split_of(path, spec)
    return () if split is None else (split,)


def group_of(path: str, spec: ShardSpec) -> tuple[int, str]:
    """The group's number, and its name for a person."""
    if spec.group_by == "hash":
        group = hash_text("group", spec.split_salt, path) % spec.num_groups
        return group, f"{group} of {spec.num_groups}"
    name = path if spec.group_by == "file" else path.rpartition("/")[0]
    # 52 bits: JSON readers hold numbers as doubles, and larger ones would be rounded.
    return hash_text("group", spec.group_by, name) >> (64 - GROUP_BITS), name or "(top level)"


def rows_by_split(
    source: SourceRows, batch: Any, row_numbers: NDArray[np.int64], spec: ShardSpec
) -> tuple[tuple[str, Mask], ...]:
    """Which rows of a batch are in which split, where rows decide; in neither are those that a given split leaves out.

    Args:
        row_numbers: of the batch's rows in their file.

    Raises:
        DataError: the column that decides is missing or of a type that has no one spelling, or a row's value is null
            or in no split.
    """
    if spec.split is not None and spec.split.column is not None:
        from headway.training.data.encode.source_columns import column_of, plain

        values = plain(column_of(batch, spec.split.column, source.path))
        codes = spec.split.of_values(values, source.path)
        # A mask each: a given split may name rows for none of them.
        named = ((HELDOUT, codes == HELD_OUT), (TRAIN, codes == TRAINS), (VALIDATION, codes == VALIDATES))
        return tuple((split, mask) for split, mask in named if split in spec.splits)
    held_out = _held_out(source, batch, row_numbers, spec)
    if VALIDATION not in spec.splits:
        return (HELDOUT, held_out), (TRAIN, ~held_out)
    validates = ~within_fraction(source, batch, row_numbers, spec, _first_validating(spec)) & ~held_out
    return (HELDOUT, held_out), (TRAIN, ~(held_out | validates)), (VALIDATION, validates)


def _held_out(source: SourceRows, batch: Any, row_numbers: NDArray[np.int64], spec: ShardSpec) -> Mask:
    fold = spec.fold
    if fold is None:
        return within_fraction(source, batch, row_numbers, spec, spec.heldout_fraction)
    salted = spec.model_copy(update={"split_salt": _salt_of_folds(spec), "fold": None})
    before, within = (
        within_fraction(source, batch, row_numbers, salted, fraction)
        for fraction in (fold.first_fraction, fold.last_fraction)
    )
    return within & ~before


def _salt_of_folds(spec: ShardSpec) -> str:
    # Of their own: a fold that followed the split's hashes would be held out as a whole, or not at all.
    return f"folds of {spec.split_salt}"


def within_fraction(
    source: SourceRows, batch: Any, row_numbers: NDArray[np.int64], spec: ShardSpec, fraction: float
) -> Mask:
    """Which rows' hashes lie below a fraction: what the split keeps together lies on one side, always the same.

    Raises:
        DataError: as `rows_by_split`.
    """
    threshold = _threshold(fraction)
    if spec.split_by == "file" or (spec.split is not None and spec.split.column is None):
        return np.full(len(row_numbers), hash_text("split", spec.split_salt, source.path) < threshold)
    if spec.split_key is None:
        seed = hash_text("split-row", spec.split_salt, source.path)
        hashes = splitmix64(row_numbers.astype(np.uint64) ^ np.uint64(seed))
    else:
        hashes = _key_hashes(source, batch, spec.split_key, spec.split_salt)
    # At a fraction of 1 the threshold would be 2**64, which 64 bits cannot hold.
    return hashes <= np.uint64(MOST) if fraction >= 1 else hashes < np.uint64(threshold)


def _first_validating(spec: ShardSpec) -> float:
    # From the other end than what is held out: a changed share makes no row that validates one that evaluates.
    return 1 - spec.validation_fraction


def _key_hashes(source: SourceRows, batch: Any, key: str, salt: str) -> NDArray[np.uint64]:
    """64 bits for each row's key: equal keys, equal bits, whatever the file, batch or width of the type."""
    from pyarrow import types

    column = _keys_in(source.path, batch, key)
    if types.is_integer(column.type):
        seed = np.uint64(hash_text("split-number", salt))
        # Two rounds with a seed in between, so that keys in a row do not fall on one side.
        return splitmix64(splitmix64(column.to_numpy().astype(np.uint64)) ^ seed)
    return _of_distinct(column, lambda value: hash_text("split-text", salt, value))


def key_digests(path: str, batch: Any, key: str, salt: str) -> NDArray[np.uint64]:
    """64 bits for each row's key that tell equal keys from others, and not what a key is: of numbers, too.

    Args:
        path: of the rows' file, for the message.

    Raises:
        DataError: as `rows_by_split`.
    """
    from pyarrow import types

    column = _keys_in(path, batch, key)
    # A text `7` is another key than the number, as it is for the split.
    purpose = "key-number" if types.is_integer(column.type) else "key-text"
    return _of_distinct(column, lambda value: hash_text(purpose, salt, str(value)))


def _keys_in(path: str, batch: Any, key: str) -> Any:
    """The column of keys as whole numbers or texts, in an Arrow array."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    from headway.training.data.encode.source_columns import column_of, plain

    column = plain(column_of(batch, key, path))
    # A null has no hash that means anything; all nulls on one side would be a split by absence.
    if column.null_count:
        raise DataError(
            f"column {key!r} decides the split and is null in a row.",
            where=path,
            advice="Quarantine such rows in the contract, or split by another key.",
        )
    if types.is_date32(column.type):
        column = pc.cast(column, pa.int32())
    # As whole numbers: the same day or moment has one hash, whatever the column's type.
    elif types.is_date64(column.type) or types.is_timestamp(column.type):
        column = pc.cast(column, pa.int64())
    if types.is_integer(column.type) or types.is_string(column.type):
        return column
    raise DataError(
        f"column {key!r} is {column.type}; a split can be by whole numbers, texts, dates or timestamps.",
        where=path,
        advice="Name another column in shards.split_key.",
    )


def _of_distinct(column: Any, hashed: Callable[[Any], int]) -> NDArray[np.uint64]:
    import pyarrow.compute as pc

    # Each distinct value is hashed once; a column of keys repeats few.
    encoded = pc.dictionary_encode(column)
    hashes = np.array([hashed(value) for value in encoded.dictionary.to_pylist()], dtype=np.uint64)
    found: NDArray[np.uint64] = hashes[encoded.indices.to_numpy()]
    return found


def _threshold(fraction: float) -> int:
    return int(fraction * 2**64)


def _in_packing_order(members: list[SourceRows], spec: ShardSpec) -> tuple[SourceRows, ...]:
    # By hash, then path: packing order must not follow the alphabet, which often follows time or topic.
    def order(member: SourceRows) -> tuple[int, str]:
        return hash_text("order", str(spec.seed), member.path), member.path

    return tuple(sorted(members, key=order))


def empty_fold(fold: Fold) -> DataError:
    return DataError(
        f"{fold} has no rows.",
        where="evaluation.folds",
        advice="Lower evaluation.folds, add rows, or set shards.split_by to `row`.",
    )


def _refuse_empty_splits(present: set[str], num_files: int, spec: ShardSpec) -> None:
    for split in sorted({*spec.splits} - present):
        if split == HELDOUT and spec.fold is not None:
            raise empty_fold(spec.fold)
        if spec.split is not None:
            raise DataError(
                f"none of {num_files} files falls into split {split!r}, which shards.split gives.",
                advice="Add files, or change the globs.",
            )
        share = "validation_fraction" if split == VALIDATION else "heldout_fraction"
        raise DataError(
            f"none of {num_files} files falls into split {split!r} ({share} {getattr(spec, share)}).",
            advice=f"Add files, change shards.{share} or shards.split_salt, or set shards.split_by to `row`.",
        )
