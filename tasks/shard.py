"""Stage *shard*: turn accepted documents into byte-identical Parquet shards, and publish their manifest last."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from data_contracts import refs
from data_contracts.documents import ContractReceipt, FittedState, Link, ShardGroup, ShardManifest, Snapshot
from data_contracts.errors import IntegrityError
from data_contracts.sources import SourceSpec, read_file
from tasks.artifacts import artifact_key, show_table
from tasks.code_version import code_version
from tasks.context import RunContext
from tasks.stage import Made, find_or_make, stage_task
from training.data.sharding import fit, write_shards
from training.data.spec import BytePairSpec, ShardSpec
from training.data.splits import SourceDocument

CODE = ("training.data.sharding",)
FIRST_FIT, DAMAGED = "first fit", "the state in use is damaged"


def fitted_ref(pipeline: str) -> str:
    return f"fitted/{pipeline}"


@stage_task(name="shard", task_run_name="shard {context.pipeline}")
def shard(context: RunContext, spec: ShardSpec, source: SourceSpec, snapshot: Link, receipt: Link) -> Link:
    """Encode, pack, shuffle and write; groups whose files did not change are found, not written.

    Raises:
        DataError: a file differs from the snapshot.
        EnvironmentProblem: no space left; finished groups are kept.
    """
    fitted = current_fitted_state(context, spec, source, snapshot, receipt)
    link = shards_under(context, spec, source, snapshot, receipt, fitted)
    manifest = context.workspace.load(link, ShardManifest)
    show_table(artifact_key(context.pipeline, "shards"), _rows(manifest), "Shard groups")
    return link


def current_fitted_state(
    context: RunContext, spec: ShardSpec, source: SourceSpec, snapshot: Link, receipt: Link
) -> Link:
    """The pipeline's fitted state: fitted on the first data it saw, then kept until encoder or split change."""
    workspace = context.workspace
    entry = refs.current(workspace, fitted_ref(context.pipeline))
    reason = reason_to_fit(context, spec, entry)
    if entry is not None and reason is None:
        return entry.target
    inputs = {
        "encoder": spec.encoder.fitting,
        "split": split_fields(spec),
        "snapshot": snapshot.sha256,
        "receipt": receipt.sha256,
        "code": code_version(*CODE),
        "libraries": {"tokenizers": version("tokenizers")},
    }

    def make() -> Made:
        state = fit(
            spec, accepted_documents(context, source, snapshot, receipt), workspace, snapshot=snapshot, receipt=receipt
        )
        return Made(document=state, files=state.files)

    link = find_or_make(context, "fit", inputs, make)
    if entry is not None and reason == DAMAGED and link != entry.target:
        message = f"{entry.target.short} came from earlier data; {link.short}, fitted on today's, takes its place."
        context.ledger.event("stage.damaged", stage="fit", message=message)
    detail = {"split": split_fields(spec)}
    if entry is None or (entry.target, entry.detail) != (link, detail):
        refs.move(
            workspace, fitted_ref(context.pipeline), link, expected=entry, reason=reason or FIRST_FIT, detail=detail
        )
    return link


def known_fitted_state(context: RunContext, spec: ShardSpec) -> Link | None:
    """The state that is in use, if it is whole and was fitted for this encoder under this split."""
    entry = refs.current(context.workspace, fitted_ref(context.pipeline))
    return entry.target if entry is not None and reason_to_fit(context, spec, entry) is None else None


def reason_to_fit(context: RunContext, spec: ShardSpec, entry: refs.RefEntry | None) -> str | None:
    """Why the state in use will not do; None when it does."""
    if entry is None:
        return FIRST_FIT
    workspace = context.workspace
    try:
        state = workspace.load(entry.target, FittedState)
        for file in state.files:
            workspace.verify(file)
    except IntegrityError as error:
        # Fitting again on the same data gives the same bytes, so a damaged state heals.
        context.ledger.event("stage.damaged", stage="fit", message=str(error))
        return DAMAGED
    if BytePairSpec.model_validate(state.spec).fitting != spec.encoder.fitting:
        return "another encoder"
    return None if entry.detail.get("split") == split_fields(spec) else "another split"


def split_fields(spec: ShardSpec) -> dict[str, Any]:
    """Fitting reads the training split alone: under another split, a state has seen what is now held out."""
    return spec.model_dump(mode="json", include={"heldout_fraction", "split_salt"})


def shards_under(
    context: RunContext, spec: ShardSpec, source: SourceSpec, snapshot: Link, receipt: Link, fitted: Link
) -> Link:
    """The manifest of these data under this fitted state."""
    workspace, ledger = context.workspace, context.ledger
    inputs = shard_inputs(spec, snapshot, receipt, fitted)

    def on_group(group: ShardGroup) -> None:
        ledger.event("shard.group", group=group.group, split=group.split, rows=group.num_rows)

    def make() -> Made:
        documents = accepted_documents(context, source, snapshot, receipt)
        state = workspace.load(fitted, FittedState)
        manifest = write_shards(
            spec, state, documents, workspace, snapshot=snapshot, receipt=receipt, on_group=on_group
        )
        return Made(document=manifest, files=tuple(s.file for group in manifest.groups for s in group.shards))

    return find_or_make(context, "shard", inputs, make)


def shard_inputs(spec: ShardSpec, snapshot: Link, receipt: Link, fitted: Link) -> dict[str, object]:
    return {
        "spec": spec.model_dump(mode="json"),
        "snapshot": snapshot.sha256,
        "receipt": receipt.sha256,
        "fitted": fitted.sha256,
        "code": code_version(*CODE),
        "libraries": {name: version(name) for name in ("pyarrow", "tokenizers")},
    }


def accepted_documents(context: RunContext, source: SourceSpec, snapshot: Link, receipt: Link) -> list[SourceDocument]:
    """The snapshot's files without the quarantined ones; reading one checks it against the snapshot."""
    taken = context.workspace.load(snapshot, Snapshot)
    left_out = {row.path for row in context.workspace.load(receipt, ContractReceipt).quarantined}

    return [
        SourceDocument(
            path=file.path,
            sha256=file.sha256,
            size_bytes=file.size_bytes,
            read=lambda file=file: read_file(source, file, base=context.base),  # type: ignore[misc]
        )
        for file in taken.files
        if file.path not in left_out
    ]


def _rows(manifest: ShardManifest) -> list[dict[str, str | int | float]]:
    return [
        {
            "split": group.split,
            "group": group.group,
            "documents": len(group.documents),
            "rows": group.num_rows,
            "MB": round(sum(shard.file.size_bytes for shard in group.shards) / 1e6, 2),
        }
        for group in manifest.groups
    ]
