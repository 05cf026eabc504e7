"""Which rows have validated runs of a pipeline: none of them ever evaluates a model.

Rows that validate have the last hashes and those that are held out the first, so a changed share keeps them apart until
one of the two goes beyond what the other had. A given split may name for the one what it named for the other. Both are
refused, for a model that was chosen on some rows looks too good on them.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

from pydantic import Field

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Document, Json
from headway.data_contracts.store.errors import ConfigError, RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.tasks.rows.splitting_rule import key_type, spellings, splitting_rule
from headway.training.config.given_split import matches
from headway.training.config.shards import ShardSpec


class ValidationSplit(Document):
    """Which rows validate runs of a pipeline."""

    kind: ClassVar[str] = "validation-split"
    pipeline: str
    """The pipeline's name."""
    splitting: Json
    """How rows are told apart; under another rule other rows validate."""
    fraction: float
    """Of all rows, those with the last hashes; 0 of a given split."""
    listed: tuple[str, ...]
    """By a given split: values of its column as texts, or globs."""
    key_type: str = Field(default="", exclude_if=operator.not_)
    """As of `RankingSplit`."""


def require_apart(
    context: RunContext, shards: ShardSpec, paths: Collection[str], columns: Mapping[str, str] = {}
) -> None:
    """Write down which rows validate, before shards have them.

    Args:
        paths: of the source's files, which globs are held against.
        columns: of the source, name to type.

    Raises:
        ConfigError: rows that have validated runs of this pipeline are to evaluate models.
    """
    workspace, pipeline = context.workspace, context.pipeline
    refuse_mixed(workspace, pipeline, shards, paths)
    own = ValidationSplit(
        pipeline=pipeline,
        splitting=splitting_rule(shards),
        fraction=shards.validation_fraction,
        listed=() if shards.split is None else tuple(map(str, shards.split.validation)),
        key_type=key_type(shards, columns),
    )
    while (own.fraction or own.listed) and own not in _recorded(workspace, pipeline, shards):
        entry = refs.current(workspace, ref_of(pipeline))
        link = workspace.publish_document(own)
        with contextlib.suppress(RefConflict):
            refs.move(workspace, ref_of(pipeline), link, expected=entry, reason="rows validate")
    refuse_mixed(workspace, pipeline, shards, paths)  # of two that wrote at once, neither missed the other


def refuse_mixed(workspace: Workspace, pipeline: str, shards: ShardSpec, paths: Collection[str] = ()) -> None:
    """As `require_apart`, but nothing is written: for whoever asks before anything is spent.

    Args:
        paths: empty where they are not listed yet: globs are held against nothing then.
    """
    split = shards.split
    # Some room for the rounding of a share that is written otherwise: 1 - 0.9 is not 0.1.
    furthest = max((each.fraction for each in _recorded(workspace, pipeline, shards)), default=0.0)
    if shards.split is None and shards.heldout_fraction + furthest > 1 + 1e-12:
        raise _mixed(f"{shards.heldout_fraction:g} takes in rows that have", "shards.heldout_fraction")
    if split is None:
        return
    seen = {value for each in _recorded(workspace, pipeline, shards) for value in each.listed}
    both = [str(value) for value in split.heldout if spellings(str(value)) & seen]
    if split.column is None:
        heldout = [path for path in paths if any(matches(glob, path) for glob in split.heldout)]
        both = [path for path in heldout if any(matches(glob, path) for glob in seen)]
    if both:
        raise _mixed(f"what {', '.join(map(repr, both[:5]))} names has", "shards.split.heldout")


def ref_of(pipeline: str) -> str:
    return f"validated/{pipeline}"


def _recorded(workspace: Workspace, pipeline: str, shards: ShardSpec) -> Iterator[ValidationSplit]:
    rule = splitting_rule(shards)
    return (each for each in validation_splits(workspace, pipeline) if each.splitting == rule)


def validation_splits(workspace: Workspace, pipeline: str) -> Iterator[ValidationSplit]:
    """All that ever validated runs, under whatever rule of splitting."""
    for entry in refs.history(workspace, ref_of(pipeline)):
        yield workspace.load(entry.target, ValidationSplit)


def _mixed(what: str, where: str) -> ConfigError:
    return ConfigError(
        f"{what} validated runs of this pipeline, and would evaluate its models now.",
        where=where,
        advice="Hold out other rows. Another shards.split_salt draws all of them anew: then the models that there are "
        "have seen some of what evaluates.",
    )
