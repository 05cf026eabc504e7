"""Which held-out examples rank trials, and which judge: none does both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from data_contracts.documents import Document, Link, ShardManifest
from data_contracts.errors import DataError
from data_contracts.sources import SourceSpec
from tasks.code_version import code_version
from tasks.context import RunContext
from tasks.shard_group import source_rows
from tasks.stage import Made, find_or_make
from training.data.source_values import heldout_by_less
from training.data.spec import HELDOUT, ShardSpec
from training.measures import yardstick_for
from training.scorers import places_of_examples

CODE = ("tasks.heldout_parts", "training.data.source_values")


class PartSizes(Document):
    """How many held-out examples there are for what."""

    kind: ClassVar[str] = "part-sizes"
    manifest: Link
    num_ranking: int
    num_judging: int


class Parts(NamedTuple):
    """Held-out examples, by their numbers in the order of their names."""

    ranking: list[int]
    """Trials are ranked on these."""
    judging: list[int]
    """Reports and the gate go by these."""


def require_parts(context: RunContext, share: float, source: SourceSpec, manifest: Link) -> None:
    """Before anything is spent on models that could not be ranked or judged.

    Args:
        share: of the held-out examples, that rank.

    Raises:
        DataError: as `parts_of`.
    """
    if not share:
        return
    shards = context.workspace.load(manifest, ShardManifest)

    def made() -> Made:
        parts = parts_of(context, share, source, shards)
        return Made(
            document=PartSizes(manifest=manifest, num_ranking=len(parts.ranking), num_judging=len(parts.judging))
        )

    inputs = {"manifest": manifest.sha256, "share": share, "code": code_version(*CODE)}
    find_or_make(context, "parts", inputs, made, span="evaluate.parts")


def parts_of(
    context: RunContext,
    share: float,
    source: SourceSpec,
    shards: ShardManifest,
    examples: Sequence[str] | None = None,
) -> Parts:
    """Tell the examples apart, by reading the source once more.

    Args:
        share: of the held-out examples, that rank.
        examples: their names, as scores have them; None: all that are held out.

    Raises:
        DataError: nothing ranks, or nothing judges; or a file of the source is gone or changed since the snapshot.
    """
    less = ShardSpec.model_validate(shards.spec).heldout_fraction * share
    rows = source_rows(context.workspace, context.base, source, shards.snapshot, shards.receipt, context.digests)
    packed = yardstick_for(context.workspace, shards).predicts == "tokens"
    ranks = heldout_by_less(rows, shards, less, in_row_order=not packed)
    if packed and examples is not None:
        ranks = ranks[places_of_examples(shards, HELDOUT, examples)]
    parts = Parts(ranking=np.flatnonzero(ranks).tolist(), judging=np.flatnonzero(~ranks).tolist())
    if not parts.ranking or not parts.judging:
        raise DataError(
            f"of {len(ranks):,} held-out examples, {len(parts.ranking):,} rank trials and "
            f"{len(parts.judging):,} judge.",
            where="evaluation.ranking_share",
            advice="Add data, raise shards.heldout_fraction, or change the share, so that there are some of both.",
        )
    return parts
