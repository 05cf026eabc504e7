"""Which held-out examples rank trials, and which evaluate: none does both, whenever.

A row's place among the held-out ones is a hash, and the first of them rank. How far in they do is a fraction of all
data, and the furthest that a pipeline's trials ever went is on record: settings that were chosen there are kept in
later models, which would look too good on those examples.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Document, Json, Link, ShardManifest
from headway.data_contracts.store.errors import DataError, RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.code_version import code_version
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage import StageOutput, find_or_make
from headway.tasks.rows.source_rows import source_rows
from headway.training.config.shards import HELDOUT, ShardSpec
from headway.training.data.shards.source_values import heldout_by_less
from headway.training.evaluation.measures import metric_set_for
from headway.training.evaluation.scorers import places_of_examples

CODE = ("headway.tasks.rows.heldout_parts", "headway.training.data.shards.source_values")


SHARES = ("heldout_fraction", "validation_fraction", "split")


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


class HeldoutParts(Document):
    """Which held-out examples are for what; kept, since to find out means to read the whole source."""

    kind: ClassVar[str] = "heldout-parts"
    manifest: Link
    """The shards whose held-out examples they are."""
    num_examples: int
    """In the order of the shards' rows; of packed ones in that of their documents."""
    ranking: str
    """Those that rank trials: a bit each, in base64."""
    apart: str
    """Those that rank trials, or ever did."""


class _Masks(NamedTuple):
    """Of all held-out examples, in the order of `HeldoutParts`; (num_examples,) each."""

    ranking: NDArray[np.bool_]
    apart: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Parts:
    """Held-out examples, by their numbers in the order of their names."""

    ranking: list[int]
    """Trials are ranked on these."""
    evaluation: list[int]
    """Reports and the gate go by these."""
    document: Link | None = field(default=None, compare=False)
    """Where it is written down; None: nothing ranks, or ever did."""


def ref_of(pipeline: str) -> str:
    return f"ranked/{pipeline}"


def remember_ranking(context: RunContext, share: float, shards: ShardSpec) -> None:
    """Write down, before trials are ranked, on which examples they are.

    Args:
        share: of the held-out examples.
    """
    fraction = shards.whole_fraction * share
    # Only ever further: examples that ranked once are not given back to evaluation.
    while _furthest(context, shards) < fraction:
        entry = refs.current(context.workspace, ref_of(context.pipeline))
        ranked = RankingSplit(pipeline=context.pipeline, splitting=splitting_rule(shards), fraction=fraction)
        link = context.workspace.publish_document(ranked)
        try:
            refs.move(context.workspace, ref_of(context.pipeline), link, expected=entry, reason="trials are ranked")
        except RefConflict:
            continue


def ranking_fraction(context: RunContext, share: float, manifest: ShardManifest) -> float:
    """Of all data: what ranks, or has ranked, and does not evaluate.

    Args:
        share: of the held-out examples, that rank now.
    """
    shards = ShardSpec.model_validate(manifest.spec)
    return max(shards.whole_fraction * share, _furthest(context, shards))


def _furthest(context: RunContext, shards: ShardSpec) -> float:
    ranked = ranking_splits(context.workspace, context.pipeline)
    return max((each.fraction for each in ranked if each.splitting == splitting_rule(shards)), default=0.0)


def ranking_splits(workspace: Workspace, pipeline: str) -> Iterator[RankingSplit]:
    """All that was ever set apart to rank trials, under whatever rule of splitting."""
    for entry in refs.history(workspace, ref_of(pipeline)):
        yield workspace.load(entry.target, RankingSplit)


def splitting_rule(shards: ShardSpec) -> dict[str, Json]:
    """What tells rows apart, whatever their shares."""
    # Neither a share nor a list tells other rows apart: what has ranked does not evaluate when either grows.
    rule = {name: value for name, value in shards.splitting.items() if name not in SHARES}
    return rule if shards.split is None else {**rule, "column": shards.split.column}


def require_parts(context: RunContext, share: float, source: SourceSpec, manifest: Link) -> None:
    """Before anything is spent on models that could not be ranked or evaluated.

    Args:
        share: of the held-out examples, that rank.

    Raises:
        DataError: as `parts_of`.
    """
    shards = context.workspace.load(manifest, ShardManifest)
    if ranking_fraction(context, share, shards):
        parts_of(context, share, source, shards)


def parts_of(
    context: RunContext,
    share: float,
    source: SourceSpec,
    shards: ShardManifest,
    examples: Sequence[str] | None = None,
) -> Parts:
    """Tell the examples apart. The source is read once for all that are of the same shards.

    Args:
        share: of the held-out examples, that rank.
        examples: their names, as scores have them; None: all that are held out.

    Raises:
        DataError: nothing is left to evaluate by, or to rank by where a share is to; or a file of the source is gone or
            changed since the snapshot.
    """
    document = _document(context, share, source, shards)
    masks = _masks_of(context.workspace, document, shards, examples)
    parts = replace(_parts_by(masks), document=document)
    _require_some(share, masks, parts)
    return parts


def evaluated(workspace: Workspace, document: Link, shards: ShardManifest, examples: Sequence[str]) -> list[int]:
    """The examples that a report was made of, by what it names; without the source.

    Args:
        document: `EvaluationReport.heldout_parts`.
        examples: names of all that are held out, as scores have them.

    Raises:
        IntegrityError: the document is gone or altered.
    """
    return _parts_by(_masks_of(workspace, document, shards, examples)).evaluation


def _masks_of(workspace: Workspace, document: Link, shards: ShardManifest, examples: Sequence[str] | None) -> _Masks:
    found = workspace.load(document, HeldoutParts)
    masks = _Masks(_from_text(found.ranking, found.num_examples), _from_text(found.apart, found.num_examples))
    if examples is None or metric_set_for(workspace, shards).predicts != "tokens":
        return masks
    places = places_of_examples(shards, HELDOUT, examples)
    return _Masks(*(mask[places] for mask in masks))


def _parts_by(masks: _Masks) -> Parts:
    return Parts(ranking=np.flatnonzero(masks.ranking).tolist(), evaluation=np.flatnonzero(~masks.apart).tolist())


def _require_some(share: float, masks: _Masks, parts: Parts) -> None:
    ranks, is_apart = masks
    if not parts.evaluation or (share and not parts.ranking):
        before = int(np.count_nonzero(is_apart & ~ranks))
        raise DataError(
            f"of {len(ranks):,} held-out examples, {len(parts.ranking):,} rank trials and "
            f"{len(parts.evaluation):,} evaluate"
            f"{f'; {before:,} ranked trials before, and evaluate no more' if before else ''}.",
            where="evaluation.ranking_share",
            advice="Add data, raise shards.heldout_fraction, or change the share, so that there are some of both.",
        )


def _document(context: RunContext, share: float, source: SourceSpec, shards: ShardManifest) -> Link:
    fraction = ShardSpec.model_validate(shards.spec).whole_fraction * share
    apart = ranking_fraction(context, share, shards)

    def made() -> StageOutput:
        rows = source_rows(context.workspace, context.base, source, shards.snapshot, shards.receipt, context.digests)
        in_row_order = metric_set_for(context.workspace, shards).predicts != "tokens"
        # Each look reads the source, and mostly nothing ranked before.
        is_apart = heldout_by_less(rows, shards, apart, in_row_order=in_row_order)
        ranks = is_apart if fraction == apart else heldout_by_less(rows, shards, fraction, in_row_order=in_row_order)
        document = HeldoutParts(
            manifest=shards.link, num_examples=len(ranks), ranking=_as_text(ranks), apart=_as_text(is_apart)
        )
        return StageOutput(document=document)

    inputs = {"manifest": shards.sha256, "share": share, "set_apart": apart, "code": code_version(*CODE)}
    return find_or_make(context, "parts", inputs, made, span="evaluate.parts")


def _as_text(mask: NDArray[np.bool_]) -> str:
    return base64.b64encode(np.packbits(mask).tobytes()).decode("ascii")


def _from_text(text: str, num_examples: int) -> NDArray[np.bool_]:
    bits = np.frombuffer(base64.b64decode(text), np.uint8)
    return np.unpackbits(bits, count=num_examples).astype(np.bool_)
