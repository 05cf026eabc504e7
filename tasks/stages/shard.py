"""Stage *shard*: turn accepted documents into byte-identical Parquet shards, and publish their manifest last."""

from __future__ import annotations

import contextlib
from typing import ClassVar, NamedTuple

from pydantic import Field

from headway.data_contracts.engine.quarantine import excluded_rows
from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store import refs
from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import (
    ContractReceipt,
    Document,
    FittedState,
    Link,
    ShardGroup,
    ShardManifest,
    Snapshot,
    SourceFile,
)
from headway.data_contracts.store.errors import EncodingRefused, IntegrityError, RefConflict
from headway.data_contracts.types.report_text import count
from headway.tasks.core.artifacts import artifact_key, show_table
from headway.tasks.core.code_version import code_version
from headway.tasks.core.context import RunContext
from headway.tasks.core.outlook import Outlook, damaged, look_up, would_run
from headway.tasks.core.stage import StageOutput, find_or_make, stage_task
from headway.tasks.rows.first_rows import require_enough_rows
from headway.tasks.rows.fitted_refs import detail_of, fitted_ref, repaired_state_in_use, state_in_use
from headway.tasks.rows.fold_scores import same_classes
from headway.tasks.rows.set_apart import require_deciding_columns
from headway.tasks.rows.source_rows import source_rows
from headway.tasks.rows.validation_split import refuse_mixed, require_apart
from headway.training.config.encoder_specs import ENCODER_SPEC, TokenSpec
from headway.training.config.given_split import GivenSplit
from headway.training.config.shapes import DataShape
from headway.training.config.shards import ShardSpec
from headway.training.data.encode.data_shape import data_shape, token_shape
from headway.training.data.encode.encoders import libraries
from headway.training.data.encode.fit_sample import sample_line
from headway.training.data.shards.group_store import record_path
from headway.training.data.shards.group_writer import GroupWriter
from headway.training.data.shards.row_blocks import listed_without_rows
from headway.training.data.shards.sharding import fit, write_shards
from headway.training.data.shards.splits import NO_ROWS, GroupTask, SourceRows, plan_groups
from headway.training.frozen.code_archive import encoder_code

CODE = ("headway.training.data.shards.sharding", "headway.training.data.encode.host")
FIRST_FIT, DAMAGED = "first fit", "the state in use is damaged"


@stage_task(name="shard", task_run_name="shard {context.pipeline}")
def shard(context: RunContext, spec: ShardSpec, source: SourceSpec, snapshot: Link, receipt: Link) -> Link:
    """Encode, pack, shuffle and write; groups whose files did not change are found, not written.

    Raises:
        ConfigError: rows that have validated runs are to evaluate, or which rows have chosen models cannot be told.
        DataError: a file differs from the snapshot, or a given split lists a value that looks misspelt.
        EnvironmentProblem: no space left; finished groups are kept.
    """
    taken = context.workspace.load(snapshot, Snapshot)
    require_deciding_columns(context.workspace, context.pipeline, spec, taken.columns)
    require_apart(context, spec, [file.path for file in taken.files], taken.columns)
    _report_without_rows(context, spec, source, snapshot, receipt)
    fitted = current_fitted_state(context, spec, source, snapshot, receipt)
    link = shards_under(context, spec, source, snapshot, receipt, fitted)
    manifest = context.workspace.load(link, ShardManifest)
    if spec.split is not None:
        _report_excluded(context, spec.split, snapshot, receipt, manifest)
    show_table(artifact_key(context.pipeline, "shards"), _rows(manifest), "Shard groups")
    return link


@stage_task(name="shard", task_run_name="shard {context.pipeline} for trials")
def shard_for_trials(context: RunContext, spec: ShardSpec, source: SourceSpec, snapshot: Link, receipt: Link) -> Link:
    """The same with other settings of the encoder or of groups, for data that were sharded by the file's own.

    The pipeline's fitted state stays in use: where that is of another encoder, one is fitted beside it.

    Raises:
        DataError, EnvironmentProblem: as `shard`.
    """
    state = usable_state(context, spec, repaired_state_in_use(context))
    fitted = _newly_fitted(context, spec, source, snapshot, receipt) if isinstance(state, Refit) else state.link
    return shards_under(context, spec, source, snapshot, receipt, fitted, shown="for trials")


class SplitValues(Document):
    """What a given split lists and these data do not have."""

    kind: ClassVar[str] = "split-values"
    without_rows: tuple[str, ...]
    """As they would be written in Python; a retrain says them aloud."""


def _report_without_rows(
    context: RunContext, spec: ShardSpec, source: SourceSpec, snapshot: Link, receipt: Link
) -> None:
    """Say which listed values have no rows, before anything is fitted.

    Raises:
        DataError: one looks misspelt, or a split would be empty.
    """
    if spec.split is None or spec.split.column is None:
        return

    def make() -> StageOutput:
        missing = listed_without_rows(_sources(context, source, snapshot, receipt), spec)
        return StageOutput(document=SplitValues(without_rows=tuple(map(repr, missing))))

    inputs = {"split": spec.splitting, "snapshot": snapshot.sha256, "receipt": receipt.sha256}
    inputs["code"] = code_version("headway.training.data.shards.row_blocks", "headway.training.config.given_split")
    link = find_or_make(context, "split", inputs, make, span="shard.split")
    if missing := context.workspace.load(link, SplitValues).without_rows:
        named = ", ".join(missing[:5]) + (f" and {len(missing) - 5:,} more" if len(missing) > 5 else "")
        what = f"shards.split lists {named}, which no row has in column {spec.split.column!r}."
        context.ledger.event("shard.without_rows", message=what, values=len(missing))


def _report_excluded(
    context: RunContext, split: GivenSplit, snapshot: Link, receipt: Link, manifest: ShardManifest
) -> None:
    """Say how many rows a given split leaves out."""
    workspace = context.workspace
    quarantined = excluded_rows(workspace, workspace.load(receipt, ContractReceipt))
    num_rows = sum(file.num_rows for file in workspace.load(snapshot, Snapshot).files)
    accepted = num_rows - sum(len(rows) for rows in quarantined.values())
    excluded = accepted - sum(group.num_samples for group in manifest.groups)
    if excluded:
        by = "its file" if split.column is None else f"column {split.column!r}"
        what = f"{excluded:,} of {accepted:,} rows are in neither split, by {by}."
        context.ledger.event("shard.excluded", message=what, rows=excluded)


def current_fitted_state(
    context: RunContext, spec: ShardSpec, source: SourceSpec, snapshot: Link, receipt: Link
) -> Link:
    """The pipeline's fitted state: fitted on the first data it saw, then kept until encoder, split or `fit` change."""
    while True:
        entry = repaired_state_in_use(context)
        state = usable_state(context, spec, entry)
        if not isinstance(state, Refit):
            return state.link
        if state.damage:
            context.report_damage("fit", state.damage)
        link = _newly_fitted(context, spec, source, snapshot, receipt)
        if entry is not None and state.damage and link != entry.target:
            message = f"{entry.target.short} came from earlier data; {link.short}, fitted on today's, takes its place."
            context.report_damage("fit", message)
        detail = detail_of(spec)
        if entry is not None and (entry.target, entry.detail) == (link, detail):
            return link
        with contextlib.suppress(RefConflict):  # another retrain fitted meanwhile: its state will do, if ours would
            name = fitted_ref(context.pipeline)
            refs.move(context.workspace, name, link, expected=entry, reason=state.reason, detail=detail)
            return link


def fitted_beside_fold(
    context: RunContext, spec: ShardSpec, source: SourceSpec, snapshot: Link, receipt: Link, classes_from: Link
) -> Link:
    """A state fitted on all rows but those of a fold, under which no row of it has been seen.

    Args:
        spec: names the fold.
        classes_from: the fitted state of the pipeline's own shards, whose classes it has.

    Raises:
        DataError, EncodingRefused: as `fit`.
    """
    try:
        return _newly_fitted(context, spec, source, snapshot, receipt, classes_from)
    except EncodingRefused as error:  # the pipeline's own training split can be encoded, and this fold's cannot
        raise EncodingRefused(
            f"without the rows of {spec.fold}, {error.what}",
            where="evaluation.folds",
            advice="Lower evaluation.folds, take it out, or add rows like those that only this fold has.",
        ) from error


def _newly_fitted(
    context: RunContext,
    spec: ShardSpec,
    source: SourceSpec,
    snapshot: Link,
    receipt: Link,
    classes_from: Link | None = None,
) -> Link:
    """A state fitted on these data, now or before."""

    def make() -> StageOutput:
        sources, own = _sources(context, source, snapshot, receipt), encoder_code(spec.encoder, (str(context.base),))
        state = fit(spec, sources, context.workspace, snapshot=snapshot, receipt=receipt, code=own)
        if message := sample_line(state.statistics):
            context.ledger.event("fit.sample", message=f"{message} (shards.encoder.fit_mb).")
        if classes_from is not None:
            state = same_classes(state, context.workspace.load(classes_from, FittedState))
        return StageOutput(document=state, files=state.files)

    inputs = _fit_inputs(context, spec, snapshot, receipt)
    if classes_from is not None:
        inputs["classes"] = classes_from.sha256
    # Of a fold it is no stage of the run's own.
    span, shown = ("", "") if spec.fold is None else ("folds.fit", str(spec.fold))
    return find_or_make(context, "fit", inputs, make, span=span, shown=shown)


def _fit_inputs(context: RunContext, spec: ShardSpec, snapshot: Link, receipt: Link) -> dict[str, object]:
    own = encoder_code(spec.encoder, (str(context.base),))
    return {
        "encoder": spec.encoder.fitting,
        "split": spec.splitting,
        "snapshot": snapshot.sha256,
        "receipt": receipt.sha256,
        "code": code_version(*CODE),
        "libraries": libraries(spec.encoder),
        **({} if own is None else {"encoder_code": sha256_bytes(own)}),
    }


class Refit(NamedTuple):
    """The state in use will not do."""

    reason: str
    damage: str = ""


def usable_state(context: RunContext, spec: ShardSpec, entry: refs.RefEntry | None) -> FittedState | Refit:
    """The state in use, if it is whole and was fitted for this encoder under this split and `fit`."""
    if entry is None:
        return Refit(FIRST_FIT)
    try:
        state = context.workspace.load(entry.target, FittedState)
        for file in state.files:
            context.workspace.verify(file)
    except IntegrityError as error:
        # Fitting again on the same data gives the same bytes, so a damaged state heals.
        return Refit(DAMAGED, str(error))
    if ENCODER_SPEC.validate_python(state.spec).fitting != spec.encoder.fitting:
        return Refit("another encoder")
    own = encoder_code(spec.encoder, (str(context.base),))
    if own is not None and sha256_bytes(own) not in [file.sha256 for file in state.files]:
        return Refit("the encoder's code changed")
    if entry.detail.get("split") != spec.splitting:
        return Refit("another split")
    fit_before = entry.detail.get("fit", 0)
    return state if fit_before == spec.fit else Refit(f"shards.fit is {spec.fit}, was {fit_before}")


def shards_under(
    context: RunContext,
    spec: ShardSpec,
    source: SourceSpec,
    snapshot: Link,
    receipt: Link,
    fitted: Link,
    *,
    span: str = "stage.shard",
    shown: str = "",
) -> Link:
    """The manifest of these data under this fitted state; `span` is its name in the ledger, `shown` a person's."""
    workspace, ledger = context.workspace, context.ledger
    inputs = shard_inputs(spec, snapshot, receipt, fitted)

    def on_group(group: ShardGroup) -> None:
        counts = {"rows": group.num_rows, "source_rows": group.num_samples}
        ledger.event("shard.group", group=group.group, split=group.split, **counts)
        context.require_time("the next group")

    def make() -> StageOutput:
        state = workspace.load(fitted, FittedState)
        # The tasks write the groups; `write_shards` below finds them, and makes the manifest.
        if spec.group_tasks:
            # Which loads Prefect.
            from headway.tasks.stages.shard_group import ShardJob, share_out

            share_out(
                ShardJob(
                    workspace=workspace.uri,
                    base=str(context.base),
                    spec=spec,
                    source=source,
                    snapshot=snapshot,
                    receipt=receipt,
                    fitted=fitted,
                )
            )
        manifest = write_shards(
            spec,
            state,
            _sources(context, source, snapshot, receipt),
            workspace,
            snapshot=snapshot,
            receipt=receipt,
            scratch=context.scratch,
            digests=context.digests,
            on_group=on_group,
        )
        return StageOutput(document=manifest, files=manifest.files)

    return find_or_make(context, "shard", inputs, make, span=span, shown=shown)


def shard_inputs(spec: ShardSpec, snapshot: Link, receipt: Link, fitted: Link) -> dict[str, object]:
    return {
        "spec": spec.identity,
        "snapshot": snapshot.sha256,
        "receipt": receipt.sha256,
        "fitted": fitted.sha256,
        "code": code_version(*CODE),
        "libraries": libraries(spec.encoder),
    }


def accepted_files(context: RunContext, snapshot: Link, receipt: Link) -> list[SourceFile]:
    """The snapshot's files that are not in quarantine as a whole."""
    excluded = excluded_rows(context.workspace, context.workspace.load(receipt, ContractReceipt))
    files = context.workspace.load(snapshot, Snapshot).files
    return [file for file in files if len(excluded.get(file.path, NO_ROWS)) < file.num_rows]


class ShardOutlook(Outlook):
    num_rows: int | None = Field(default=None, exclude=True)
    """To train on, where the shards are found."""
    shape: DataShape | None = Field(default=None, exclude=True)
    """Of a row, where spec or fitted state tell it before there are shards."""


def outlook(
    context: RunContext, spec: ShardSpec, source: SourceSpec, taken: Snapshot, receipt: Link | None
) -> ShardOutlook:
    """What sharding these data would cost and undo; nothing is written.

    Args:
        receipt: None: what the contract says of the data is not known yet.

    Raises:
        ConfigError: rows that have validated runs are to evaluate, or which rows have chosen models cannot be told.
        DataError: a split would have no rows, or the training split fewer than two classes.
    """
    workspace = context.workspace
    refuse_mixed(workspace, context.pipeline, spec, [file.path for file in taken.files])
    require_deciding_columns(workspace, context.pipeline, spec, taken.columns)
    require_enough_rows(spec, source, taken, base=context.base, digests=context.digests)
    state = usable_state(context, spec, state_in_use(workspace, context.pipeline))
    seen, num_rows = would_run(context, "shard"), None
    if receipt is not None:
        # Fitting again may be found as well: what the pipeline went back to was fitted on these very data before.
        fit = _fit_inputs(context, spec, taken.link, receipt)
        fitted = look_up(context, "fit", fit).document if isinstance(state, Refit) else state.link
        if fitted is not None:
            seen = look_up(context, "shard", shard_inputs(spec, taken.link, receipt, fitted))
        if seen.document is not None:
            num_rows = workspace.load(seen.document, ShardManifest).num_rows("train")
            seen = seen.model_copy(update={"detail": f"{num_rows:,} training rows"})
        else:
            groups = plan_groups(_sources(context, source, taken.link, receipt), spec)
            seen = seen.saying(_costs(context, spec, groups, state))
    return ShardOutlook(**dict(seen), shape=_known_shape(spec, state), num_rows=num_rows)


def _known_shape(spec: ShardSpec, state: FittedState | Refit) -> DataShape | None:
    if isinstance(spec.encoder, TokenSpec):
        return token_shape(spec.encoder)
    return None if isinstance(state, Refit) else data_shape(spec.encoder.model_dump(mode="json"), state.statistics)


def _costs(context: RunContext, spec: ShardSpec, groups: list[GroupTask], state: FittedState | Refit) -> str:
    """What is to be encoded, without reading a row of it."""
    if isinstance(state, Refit):
        if state.reason == FIRST_FIT:
            return f"{count(len(groups), 'group')} to encode"
        undone = (
            f"fits again ({state.reason}): all of {count(len(groups), 'group')} to encode anew, and nothing trained so "
            "far goes with the new state"
        )
        return f"{undone}; {damaged(state.damage)}" if state.damage else undone
    with GroupWriter(spec, state, context.workspace) as writer:
        missing = [group for group in groups if not context.workspace.exists(record_path(writer.key(group)))]
    size_bytes = sum(group.size_bytes for group in missing)
    return f"{len(missing)} of {count(len(groups), 'group')} to encode, {size_bytes / 1e6:,.1f} MB of source"


def _sources(context: RunContext, source: SourceSpec, snapshot: Link, receipt: Link) -> list[SourceRows]:
    return source_rows(context.workspace, context.base, source, snapshot, receipt, context.digests)


def _rows(manifest: ShardManifest) -> list[dict[str, str | int | float]]:
    return [
        {
            "split": group.split,
            "group": group.name,
            "samples": group.num_samples,
            "rows": group.num_rows,
            "MB": round(group.size_bytes / 1e6, 2),
        }
        for group in manifest.groups
    ]
