"""Which rows have ranked trials of a pipeline: none of them ever evaluates a model.

A row's place among the held-out ones is a hash, and the first of them rank. How far in they do is a fraction of all
data, and the furthest that a pipeline's trials ever went is on record: settings that were chosen there are kept in
later models, which would look too good on those examples.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Document, Json
from headway.data_contracts.store.errors import RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.rows.splitting_rule import key_type, splitting_rule
from headway.training.config.shards import ShardSpec


class RankingSplit(Document):
    """How far into the data a pipeline's trials were ranked."""

    kind: ClassVar[str] = "ranked"
    pipeline: str
    """The pipeline's name."""
    splitting: Json
    """How rows are told apart; under another rule other rows are held out."""
    fraction: float
    """Of all data: those that a split of this `heldout_fraction` would hold out. Of a given split: of what it holds
    out, the rows whose hashes lie below this."""
    listed: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    """What a given split held out: values of its column as texts, or globs. Empty: any, as of an earlier version."""
    key_type: str = Field(default="", exclude_if=operator.not_)
    """What the values of a key that decided were: of another type they have other hashes. Empty: none did, or as of an
    earlier version."""


def ref_of(pipeline: str) -> str:
    return f"ranked/{pipeline}"


def ranking_split(pipeline: str, share: float, shards: ShardSpec, columns: Mapping[str, str] = {}) -> RankingSplit:
    """What ranks now.

    Args:
        share: of the held-out examples.
        columns: of the source, name to type; empty where nobody asks.
    """
    return RankingSplit(
        pipeline=pipeline,
        splitting=splitting_rule(shards),
        fraction=shards.whole_fraction * share,
        listed=() if shards.split is None else tuple(map(str, shards.split.heldout)),
        key_type=key_type(shards, columns),
    )


def remember_ranking(context: RunContext, share: float, shards: ShardSpec, columns: Mapping[str, str]) -> None:
    """Write down, before trials are ranked, on which examples they are.

    Args: as `ranking_split`.
    """
    workspace, own = context.workspace, ranking_split(context.pipeline, share, shards, columns)
    # Only ever further: examples that ranked once are not given back to evaluation.
    while own.fraction and not any(_takes_in(each, own) for each in ranking_splits(workspace, context.pipeline)):
        entry = refs.current(workspace, ref_of(context.pipeline))
        link = workspace.publish_document(own)
        with contextlib.suppress(RefConflict):
            refs.move(workspace, ref_of(context.pipeline), link, expected=entry, reason="trials are ranked")


def _takes_in(recorded: RankingSplit, own: RankingSplit) -> bool:
    is_same = recorded.splitting == own.splitting and recorded.listed in ((), own.listed)
    return is_same and recorded.fraction >= own.fraction and own.key_type in ("", recorded.key_type)


def ranking_splits(workspace: Workspace, pipeline: str) -> Iterator[RankingSplit]:
    """All that ever ranked trials, under whatever rule of splitting."""
    for entry in refs.history(workspace, ref_of(pipeline)):
        yield workspace.load(entry.target, RankingSplit)
