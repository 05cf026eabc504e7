"""Which held-out examples rank trials, and which evaluate: none does both, whenever, nor evaluates if it validated."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store.documents import Document, EvaluationReport, Link, ShardManifest
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.code_version import code_version
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage import StageOutput, find_intact, find_or_make
from headway.tasks.rows.set_apart import RowsApart, any_of, rows_apart, rows_that_rank
from headway.tasks.rows.source_rows import source_rows
from headway.training.config.shards import HELDOUT, ShardSpec
from headway.training.data.shards.source_values import heldout_where
from headway.training.evaluation.measures import metric_set_for
from headway.training.evaluation.scorers import places_of_examples

STAGE = "parts"
CODE = (
    "headway.tasks.rows.heldout_parts",
    "headway.tasks.rows.set_apart",
    "headway.tasks.rows.ranking_split",
    "headway.tasks.rows.splitting_rule",
    "headway.training.data.shards.source_values",
)


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
    """Those that rank trials, or that ever ranked some or validated a run."""


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
    """Where it is written down; None: all evaluate."""


def apart_from(context: RunContext, share: float, manifest: ShardManifest) -> tuple[RowsApart, ...]:
    """What is set apart of the examples that shards hold out; as `rows_apart`."""
    return rows_apart(context.workspace, context.pipeline, ShardSpec.model_validate(manifest.spec), share)


def require_parts(context: RunContext, share: float, source: SourceSpec, manifest: Link) -> None:
    """Before anything is spent on models that could not be ranked or evaluated.

    Args:
        share: of the held-out examples, that rank.

    Raises:
        DataError: as `parts_of`.
    """
    shards = context.workspace.load(manifest, ShardManifest)
    if apart_from(context, share, shards):
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


def has_chosen_nothing(context: RunContext, share: float, report: EvaluationReport) -> bool:
    """Whether none of a report's examples has ranked trials or validated runs since; the source is not read for it.

    Args:
        share: of the held-out examples, that rank.

    Raises:
        IntegrityError: what it is of is gone or altered.
    """
    shards = context.workspace.load(report.manifest, ShardManifest)
    if not apart_from(context, share, shards):
        return True
    found = find_intact(context, STAGE, _inputs(context, share, shards))
    if found is None:
        return False  # nobody has told them apart yet
    apart = _masks_of(context.workspace, found.document, shards, None).apart
    if report.heldout_parts is None:
        return not apart.any()
    return not (apart & ~_masks_of(context.workspace, report.heldout_parts, shards, None).apart).any()


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
        others = f"; {before:,} ranked trials or validated runs before, and evaluate no more" if before else ""
        raise DataError(
            f"of {len(ranks):,} held-out examples, {len(parts.ranking):,} rank trials and "
            f"{len(parts.evaluation):,} evaluate{others}.",
            where="evaluation.ranking_share",
            advice="Add data, raise shards.heldout_fraction, or change the share, so that there are some of both.",
        )


def _document(context: RunContext, share: float, source: SourceSpec, shards: ShardManifest) -> Link:
    apart = apart_from(context, share, shards)
    ranking = rows_that_rank(context.pipeline, ShardSpec.model_validate(shards.spec), share)

    def made() -> StageOutput:
        rows = source_rows(context.workspace, context.base, source, shards.snapshot, shards.receipt, context.digests)
        in_row_order = metric_set_for(context.workspace, shards).predicts != "tokens"
        tests = {"ranking": partial(any_of, ranking), "apart": partial(any_of, apart)}
        masks = heldout_where(rows, shards, tests, in_row_order=in_row_order)
        texts = {name: _as_text(mask) for name, mask in masks.items()}
        return StageOutput(document=HeldoutParts(manifest=shards.link, num_examples=len(masks["apart"]), **texts))

    return find_or_make(context, STAGE, _inputs(context, share, shards), made, span="evaluate.parts")


def _inputs(context: RunContext, share: float, shards: ShardManifest) -> dict[str, object]:
    rules = [each.model_dump(mode="json") for each in apart_from(context, share, shards)]
    return {"manifest": shards.sha256, "share": share, "set_apart": rules, "code": code_version(*CODE)}


def _as_text(mask: NDArray[np.bool_]) -> str:
    return base64.b64encode(np.packbits(mask).tobytes()).decode("ascii")


def _from_text(text: str, num_examples: int) -> NDArray[np.bool_]:
    bits = np.frombuffer(base64.b64decode(text), np.uint8)
    return np.unpackbits(bits, count=num_examples).astype(np.bool_)
