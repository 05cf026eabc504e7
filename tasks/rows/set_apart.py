"""Which rows judge no model of a pipeline: those that ranked its trials or validated its runs, under whatever split.

Whether a row did is decided by its file's path, its number there, its key, or a value that a given split named. So the
source of today tells it, also where rows are split otherwise by now.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.documents import Frozen, Json
from headway.data_contracts.store.errors import ConfigError, DataError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.rows.ranking_split import RankingSplit, ranking_split, ranking_splits
from headway.tasks.rows.splitting_rule import TRUTHS, key_type, spellings, splitting_rule
from headway.tasks.rows.validation_split import ValidationSplit, validation_splits
from headway.training.config.given_split import HELD_OUT, WHOLE_NUMBER, GivenSplit
from headway.training.config.shards import ShardSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.shards.row_blocks import chosen
from headway.training.data.shards.splits import SourceRows, within_fraction

Mask = NDArray[np.bool_]
ADVICE = (
    "Keep the column in the source as it was, so that those rows judge no model; it need not be an input. Or give the "
    "pipeline another name, under which nothing has chosen yet."
)


class RowsApart(Frozen):
    """Rows that chose models of a pipeline, under one rule of splitting."""

    did: Literal["ranked trials", "validated runs"]
    splitting: dict[str, Json]
    fraction: float
    """Of all rows, by hash: the first that ranked, or the last that validated."""
    listed: tuple[str, ...]
    """By a given split: values of its column as texts, or globs; empty: any."""

    @cached_property
    def spec(self) -> ShardSpec:
        fields = {name: value for name, value in self.splitting.items() if name != "column" and value is not None}
        if self.splitting["split_by"] != "given":
            return ShardSpec.model_validate(fields)
        column: Any = self.splitting["column"]
        listed = self.listed or ("",)  # where nothing is, hashes alone are asked
        # A value may be any that reads so; a glob is a text.
        values = listed if column is None else itertools.chain.from_iterable(map(_values, listed))
        return ShardSpec(**fields, split=GivenSplit(column=column, heldout=tuple(values)))

    @property
    def column(self) -> str | None:
        """Whose values decide; None: paths and numbers of rows do."""
        return self.spec.split_key if self.spec.split is None else self.spec.split.column

    @property
    def setting(self) -> str:
        return "shards.split_key" if self.spec.split is None else "shards.split.column"

    def mask(self, member: SourceRows, block: SourceBlock) -> Mask:
        """Which of a file's rows they are; (rows,).

        Raises:
            DataError: that cannot be told.
        """
        try:
            return self._mask(member, block)
        except DataError as error:
            raise DataError(
                f"which rows {self.did} while {self.setting} was {self.column!r} cannot be told: {error.what}",
                where=error.where,
                advice=ADVICE,
            ) from error

    def _mask(self, member: SourceRows, block: SourceBlock) -> Mask:
        spec = self.spec
        if spec.split_key is not None and block.batch.schema.get_field_index(spec.split_key) >= 0:
            has_key: Mask = block.batch.column(spec.split_key).is_valid().to_numpy(zero_copy_only=False)
            if not has_key.all():  # a row without its key was in no split
                found = np.zeros(len(has_key), bool)
                found[has_key] = self._mask(member, chosen(block, has_key)) if has_key.any() else False
                return found
        if self.did == "validated runs":
            return self._is_listed(member, block) if spec.split else ~self._first(member, block, 1 - self.fraction)
        first = self._first(member, block, self.fraction)
        return first & self._is_listed(member, block) if spec.split and self.listed else first

    def _first(self, member: SourceRows, block: SourceBlock, fraction: float) -> Mask:
        return within_fraction(member, block.batch, block.row_numbers, self.spec, fraction)

    def _is_listed(self, member: SourceRows, block: SourceBlock) -> Mask:
        from headway.training.data.encode.source_columns import column_of, plain

        split = self.spec.split
        assert split is not None
        if split.column is None:
            return np.full(len(block.ids), split.of_path(member.path) == HELD_OUT)
        codes = split.of_values(plain(column_of(block.batch, split.column, member.path)), member.path)
        return np.equal(codes, HELD_OUT)


def _values(text: str) -> Iterator[str | int | bool]:
    yield from sorted(spellings(text))
    if WHOLE_NUMBER.fullmatch(text):
        yield int(text)
    if text.lower() in TRUTHS:
        yield text.lower() == "true"


def rows_that_rank(pipeline: str, shards: ShardSpec, share: float) -> tuple[RowsApart, ...]:
    """Those that rank trials today; none where no share of the held-out examples does."""
    return (_of(ranking_split(pipeline, share, shards)),) if share else ()


def rows_apart(workspace: Workspace, pipeline: str, shards: ShardSpec, share: float) -> tuple[RowsApart, ...]:
    """All that rank now, ever ranked trials or ever validated runs; in an order of their own.

    Those that validate by today's rule are left out: to hold one of them out is refused before there are shards.

    Args:
        share: of the held-out examples, that rank now.
    """
    rule = splitting_rule(shards)
    ranked = map(_of, ranking_splits(workspace, pipeline))
    validated = (_of(each) for each in validation_splits(workspace, pipeline) if each.splitting != rule)
    furthest: dict[bytes, RowsApart] = {}
    for each in (*rows_that_rank(pipeline, shards, share), *ranked, *validated):
        # Of one rule and list the furthest takes in the others.
        key = canonical_json(each.model_dump(mode="json", exclude={"fraction"}))
        furthest[key] = max(furthest.get(key, each), each, key=lambda one: one.fraction)
    return tuple(furthest[key] for key in sorted(furthest))


def _of(recorded: RankingSplit | ValidationSplit) -> RowsApart:
    """Raises `IntegrityError`: its rule of splitting is none that is known here."""
    splitting: Any = recorded.splitting
    did: Any = "ranked trials" if isinstance(recorded, RankingSplit) else "validated runs"
    try:
        apart = RowsApart(did=did, splitting=splitting, fraction=recorded.fraction, listed=recorded.listed)
        apart.spec  # noqa: B018 # now, where it can be answered for: a later version may split in ways of its own
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"rows that {did} were told apart by a rule that this Headway does not know.",
            where=f"{recorded.kind} {recorded.sha256[:12]}",
            advice="Upgrade Headway: a newer version may have written it.",
        ) from error
    return apart


def require_deciding_columns(
    workspace: Workspace, pipeline: str, shards: ShardSpec, columns: Mapping[str, str]
) -> None:
    """Raises `ConfigError`: rows that chose models cannot be told any more, and would judge.

    Args:
        columns: of the source, name to type.
    """
    for recorded in itertools.chain[RankingSplit | ValidationSplit](
        ranking_splits(workspace, pipeline), validation_splits(workspace, pipeline)
    ):
        each = _of(recorded)
        if each.column is None:
            continue
        if each.column not in columns:
            if each.splitting == splitting_rule(shards):
                continue  # sharding says it in its own words
            was, now = repr(each.column), "the source has no such column"
        else:
            now = key_type(each.spec, columns)
            if recorded.key_type in ("", now):
                continue
            was, now = f"{each.column!r} (of {recorded.key_type})", f"the column is of {now} now"
        raise ConfigError(
            f"rows that {each.did} of this pipeline while {each.setting} was {was} cannot be told any "
            f"more, and would judge its models: {now}.",
            where="shards",
            advice=ADVICE,
        )


def any_of(apart: Sequence[RowsApart], member: SourceRows, block: SourceBlock) -> Mask:
    found = np.zeros(len(block.ids), bool)
    for each in apart:
        found |= each.mask(member, block)
    return found
