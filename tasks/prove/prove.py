"""`headway verify`: re-hash everything a model version stands on, and name the first link that is broken.

registration ─ evaluation ─ checkpoint ─ run ─┬─ code, environment
     │                                        ├─ shards ─ fitted state ─ receipt ─ contract, snapshot ─ source files
     │                                        └─ the checkpoint it started from ─ its run ─ ...
     └─ registered files, MLflow's copy and tags
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import (
    CheckpointManifest,
    ContractReceipt,
    EvaluationReport,
    FittedState,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
    Snapshot,
    StoredFile,
)
from headway.data_contracts.store.errors import DataError, EnvironmentProblem, IntegrityError
from headway.data_contracts.store.leftovers import STAGING_SUFFIX, scratch_folder
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count
from headway.tasks.core.run_result import read_result, result_path
from headway.tasks.prove.registered_copy import Expected, fault_of
from headway.tasks.registry import mlflow_store, model_refs
from headway.tasks.registry.model_export import name_in_model, registered_graph
from headway.tasks.registry.model_versions import lineage
from headway.tasks.rows.fold_scores import CrossValidation, fold_of, fold_scores
from headway.tasks.rows.heldout_parts import HeldoutParts
from headway.training.checkpoint.layout import checkpoint_path, run_folder, stored_files
from headway.training.checkpoint.tensor_digest import stored_tensors_sha256
from headway.training.graph_check.safe_graph import require_safe_graph

ProofStatus = Literal["proved", "gone", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainProof:
    """One link of the chain."""

    what: str
    status: ProofStatus
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainFiles:
    """A link of the chain that is proved when each of its files has its digest."""

    what: str
    files: tuple[StoredFile, ...]
    hashed: tuple[StoredFile, ...] = ()
    """Those among them that just were."""


ChainLink = ChainProof | ChainFiles

OUTSIDE = (
    "HTML reports, model cards and decisions (why it was promoted; the version's own contract report is proved)",
    "curves and outputs of single examples (what reports draw; each is held against its digest then)",
    "stage records, group.json, contract states, tables, baselines' scores (they save work: what they name is hashed)",
    "what a search's trials came to (it chose among settings; the one that stayed is proved)",
    "histories of pipelines, ledger, logs, notes of places, and MLflow's series and other rows",
    "other checkpoints of the run",
    "what a run keeps beside its checkpoints: attempts, launches, exports, results of verify and evaluate",
    "MLflow's aliases other than champion and challenger",
    "refs of fitted states, of accepted data and of what MLflow was last given (they steer later runs)",
)
"""What the model does not stand on, and no proof covers."""

UNSIGNED = (
    "that nobody who can write the workspace wrote it anew, histories and documents together",
    "that the newest moves of a history were not taken away, unless MLflow's alias says otherwise",
    "who moved what, when and why, where the newest entry of a history says it",
    "what MLflow holds besides tags, aliases and files",
)
"""What only signatures, or a digest that is kept elsewhere, would prove."""

MayAsk = Callable[[str, str], bool]
"""Whether a model may be looked for in a store that its history names."""


def prove(
    workspace: Workspace,
    model_uri: str,
    read_source: Callable[[Link], Iterator[ChainProof]],
    may_ask: MayAsk,
    *,
    aliases: bool = True,
) -> Iterator[ChainProof]:
    """Every link of the chain, in order, each as soon as it is known.

    Args:
        read_source: proves the source files behind a snapshot; only the caller knows where they lie.
        may_ask: of a store that is not the workspace's own; only the caller knows which ones the pipelines name.
        aliases: do MLflow's aliases have to say what the refs say? Of a version that is about to get one, they do not.

    Raises:
        ConfigError: no such model.
        RegistryError: an MLflow server, or the store of its files, does not answer.
    """
    try:
        name, version, registration_link = model_refs.resolve(workspace, model_uri)
        links = _chain(workspace, name, version, registration_link, read_source, may_ask, aliases)
        yield from _proofs(workspace, links)
    except IntegrityError as error:
        yield ChainProof(what=error.where or "chain", status="broken", detail=error.what)
    except EnvironmentProblem as error:
        if not workspace.is_local:  # the store's silence says nothing of the model
            raise
        yield ChainProof(what=error.where or "chain", status="broken", detail=error.what)


def files_behind(workspace: Workspace, registration: Registration) -> Iterator[StoredFile]:
    """Every stored file that a version stands on, a file as often as it is named. Documents are checked on the way.

    Raises:
        IntegrityError: a document is gone or altered.
    """
    yield from registration.artifacts
    checkpoint = workspace.load(registration.checkpoint, CheckpointManifest)
    yield from stored_files(checkpoint_path(run_folder(registration.run), checkpoint.step), checkpoint)
    run = workspace.load(registration.run, RunSpec)
    for link in (*_run(workspace, registration.run), *_ancestors(workspace, run)):
        yield from link.files if isinstance(link, ChainFiles) else ()


def _histories(workspace: Workspace, name: str) -> Iterator[ChainProof]:
    """Every entry of the model's refs follows the one before."""
    num_moves = model_refs.prove_histories(workspace, name)
    yield ChainProof(what="histories", status="proved", detail=f"{count(num_moves, 'move')}, each after the one before")


def _nothing_else(workspace: Workspace, name: str, registration: Registration) -> Iterator[ChainProof]:
    """The model's folder holds what was registered, perhaps more than once, and a staged file at most."""
    folders = {"/".join(file.path.split("/")[:3]) for file in registration.artifacts}
    known = {file.path for file in registration.artifacts}
    for entry in model_refs.versions(workspace, name):
        with contextlib.suppress(IntegrityError):  # of another version: its own proof says so
            other = workspace.load(entry.target, Registration)
            known |= {file.path for file in other.artifacts if other.checkpoint == registration.checkpoint}
    for folder in sorted(folders):
        # Whoever copies the folder takes all of it for the model, also a file that no document names.
        for found in workspace.files(folder):
            if found.path not in known and not found.path.endswith(STAGING_SUFFIX):
                raise IntegrityError("was not registered, and lies among the model's files.", where=found.path)
    if any(file.path.endswith(".pt2") for file in registration.artifacts):
        graph = registered_graph(registration)
        require_safe_graph(workspace.fetch(graph), graph.path)
        yield ChainProof(
            what="registered graph", status="proved", detail="holds nothing that runs code when it is loaded"
        )


def _chain(
    workspace: Workspace,
    name: str,
    version: str,
    link: Link,
    read_source: Callable[[Link], Iterator[ChainProof]],
    may_ask: MayAsk,
    aliases: bool,
) -> Iterator[ChainLink]:
    # First: by them it was found which registration the name means.
    yield from _histories(workspace, name)
    registration = workspace.load(link, Registration)
    yield _document(f"registration of {name} version {version}", link)
    yield ChainFiles(what="registered model", files=registration.artifacts)
    yield from _nothing_else(workspace, name, registration)
    yield _in_mlflow(workspace, name, version, link, registration, may_ask, aliases)
    evaluation = workspace.load(registration.evaluation, EvaluationReport)
    yield _document("evaluation", registration.evaluation)
    if evaluation.heldout_parts is not None:
        yield from _heldout_parts(workspace, evaluation, evaluation.heldout_parts)
    if evaluation.cross_validation is not None:
        yield from _folds(workspace, registration.run, evaluation, evaluation.cross_validation)
    checkpoint = workspace.load(registration.checkpoint, CheckpointManifest)
    yield _document("checkpoint manifest", registration.checkpoint)
    yield from _checkpoint(workspace, checkpoint, registration.run)
    run = workspace.load(registration.run, RunSpec)
    yield from _run(workspace, registration.run)
    shards = workspace.load(run.manifest, ShardManifest)
    yield _belong_together(name, registration, evaluation, checkpoint, run)
    yield from read_source(shards.snapshot)
    for other in _mixed_in(run):
        yield from _as_mixed_in(read_source(workspace.load(other, ShardManifest).snapshot))
    yield from _ancestors(workspace, run)


def _heldout_parts(workspace: Workspace, evaluation: EvaluationReport, link: Link) -> Iterator[ChainLink]:
    """Which held-out examples the evaluation is of."""
    parts = workspace.load(link, HeldoutParts)
    yield _document("held-out parts", link)
    num_scored = evaluation.num_examples + evaluation.num_ranking_examples
    bonds = {
        "the held-out parts are of the evaluation's shards": parts.manifest == evaluation.manifest,
        "the held-out parts have the evaluation's examples": parts.num_examples >= num_scored,
    }
    yield _bound(bonds)


def _folds(workspace: Workspace, run: Link, evaluation: EvaluationReport, link: Link) -> Iterator[ChainLink]:
    """The models whose figures the evaluation has, each with the data that it never saw."""
    found = workspace.load(link, CrossValidation)
    yield _document("cross-validation", link)
    scores = fold_scores(workspace, found)
    yield _bound(
        {
            "the folds are of the model's run": found.run == run,
            "the folds have the evaluation's examples": found.num_examples == evaluation.num_examples,
        }
    )
    for place, score in zip(found.folds, scores, strict=True):
        yield _document(f"scores of {score.fold}", place)
        files = tuple(file for file in (score.outputs, score.importance) if file is not None)
        if files:
            yield ChainFiles(what=f"outputs of {score.fold}", files=files)
        checkpoint = workspace.load(score.checkpoint, CheckpointManifest)
        yield from _checkpoint(workspace, checkpoint, score.run)
        yield from _run(workspace, score.run)
        of_fold = workspace.load(score.run, RunSpec)
        yield _bound(
            {
                f"the model of {score.fold} belongs to its run": checkpoint.run == score.run,
                f"the model of {score.fold} was scored on its own shards": of_fold.manifest == score.manifest,
                f"the shards of {score.fold} hold it out": fold_of(workspace, of_fold) == score.fold,
            }
        )


def _belong_together(
    name: str, registration: Registration, evaluation: EvaluationReport, checkpoint: CheckpointManifest, run: RunSpec
) -> ChainProof:
    return _bound(
        {
            "the registration carries the model's name": registration.model == name,
            "the evaluation is of the checkpoint": evaluation.checkpoint == registration.checkpoint,
            "the evaluation is on the run's shards": evaluation.manifest == run.manifest,
            "the checkpoint belongs to the run": checkpoint.run == registration.run,
        }
    )


def _run(workspace: Workspace, link: Link) -> Iterator[ChainLink]:
    """A run and all that it was made from, but other runs."""
    run = workspace.load(link, RunSpec)
    yield _document("run", link)
    yield ChainFiles(what="code", files=(run.code,))
    yield ChainFiles(what="environment", files=(run.environment,))
    yield from _data(workspace, run.manifest)
    mixed = _mixed_in(run)
    for other in mixed:
        yield from _as_mixed_in(_data(workspace, other))
    shards = workspace.load(run.manifest, ShardManifest)
    bonds = {
        "the run names the fitted state of the shards": run.fitted == shards.fitted,
        "the run names the receipt of the shards": run.receipt == shards.receipt,
        "what is mixed in has the fitted state of the shards": all(
            workspace.load(other, ShardManifest).fitted == shards.fitted for other in mixed
        ),
        "the configuration says that it starts from a model": (run.start is None) == (_starts_from(run) is None),
    }
    yield _bound(bonds)


def _data(workspace: Workspace, link: Link) -> Iterator[ChainLink]:
    """Shards, and all that they were made from and evaluated by, but the source's files."""
    shards = workspace.load(link, ShardManifest)
    yield _document("shard manifest", link)
    yield ChainFiles(what="shards", files=shards.files)
    fitted = workspace.load(shards.fitted, FittedState)
    yield _document("fitted state", shards.fitted)
    yield ChainFiles(what="encoder", files=fitted.files)
    receipt = workspace.load(shards.receipt, ContractReceipt)
    yield from _receipt(receipt)
    workspace.load(shards.snapshot, Snapshot)
    yield _document("snapshot", shards.snapshot)
    bonds = {
        "the receipt names the snapshot of the shards": receipt.snapshot == shards.snapshot,
        "the receipt passed": receipt.passed,
    }
    yield _bound(bonds)


def _mixed_in(run: RunSpec) -> tuple[Link, ...]:
    """The shards besides its own that the configuration names."""
    mix = run.config.get("order", {}).get("mix", ())
    return tuple(Link(kind=ShardManifest.kind, sha256=dataset["manifest"]) for dataset in mix)


def _as_mixed_in(links: Iterable[ChainLink]) -> Iterator[ChainLink]:
    for link in links:
        yield dataclasses.replace(link, what=f"mixed in: {link.what}")


def _ancestors(workspace: Workspace, run: RunSpec) -> Iterator[ChainLink]:
    """The checkpoints that the weights come from, one behind the other, each with the run that made it."""
    while run.start is not None:
        manifest = workspace.load(run.start, CheckpointManifest)
        yield _document(f"started from ({_starts_from(run)})", run.start)
        folder = checkpoint_path(run_folder(manifest.run), manifest.step)
        yield ChainFiles(what="its checkpoint", files=stored_files(folder, manifest))
        for link in _run(workspace, manifest.run):
            yield dataclasses.replace(link, what=f"its {link.what}")
        run = workspace.load(manifest.run, RunSpec)


def _starts_from(run: RunSpec) -> str | None:
    """The model's URI, as the configuration says it."""
    start = run.config.get("start_from")
    return None if start is None else str(start["model"])


def _document(what: str, link: Link) -> ChainProof:
    return ChainProof(what=what, status="proved", detail=link.short)


def _proofs(workspace: Workspace, links: Iterable[ChainLink]) -> Iterator[ChainProof]:
    """Raises `IntegrityError`: a file is gone, or different."""
    for link in links:
        if isinstance(link, ChainProof):
            yield link
            continue
        for file in link.files:
            if file not in link.hashed:
                workspace.verify(file)
        size_bytes = sum(file.size_bytes for file in link.files)
        detail = f"{count(len(link.files), 'file')}, {size_bytes / 1e6:,.1f} MB re-hashed"
        yield ChainProof(what=link.what, status="proved", detail=detail)


def _receipt(receipt: ContractReceipt) -> Iterator[ChainLink]:
    """The receipt, the contract and suite it evaluates by, and the list of the rows that were left out."""
    yield _document("contract receipt", receipt.link)
    yield ChainFiles(what="contract", files=(receipt.contract,))
    if receipt.suite is not None:
        yield ChainFiles(what="suite", files=(receipt.suite,))
    if receipt.quarantine is not None:
        yield ChainFiles(what="quarantine", files=(receipt.quarantine,))


def _checkpoint(workspace: Workspace, manifest: CheckpointManifest, run: Link) -> Iterator[ChainLink]:
    """The files in the checkpoint's folder, its own manifest and seal included."""
    folder = checkpoint_path(run_folder(run), manifest.step)
    result = read_result(workspace, run)
    if (result.step, result.manifest_sha256) != (manifest.step, manifest.sha256):
        raise IntegrityError("names another checkpoint than the registered one.", where=result_path(run))
    with _on_this_machine(workspace, folder, manifest) as (directory, copied):
        yield ChainFiles(what="checkpoint", files=stored_files(folder, manifest), hashed=copied)
        if stored_tensors_sha256(directory, manifest) != result.tensors_sha256:
            raise IntegrityError("its digest of all tensors is not the checkpoint's.", where=result_path(run))


@contextlib.contextmanager
def _on_this_machine(
    workspace: Workspace, folder: str, manifest: CheckpointManifest
) -> Iterator[tuple[Path, tuple[StoredFile, ...]]]:
    """The checkpoint's folder, and what was copied into it, which was hashed on its way.

    Of a remote workspace it is a copy of the tensors that goes with the body.
    """
    if workspace.is_local:
        yield workspace.local_path(folder), ()
        return
    with scratch_folder("headway-verify-", inside=workspace.local_root) as scratch:
        # Tensors alone: the digest of all of them is what the result is compared with.
        in_layout = {f"{folder}/{piece.file}" for piece in manifest.layout}
        tensors = tuple(file for file in stored_files(folder, manifest) if file.path in in_layout)
        for file in tensors:
            workspace.copy_out(file, scratch / file.path.rpartition("/")[2])
        yield scratch, tensors


def _in_mlflow(
    workspace: Workspace,
    name: str,
    version: str,
    link: Link,
    registration: Registration,
    may_ask: MayAsk,
    check_aliases: bool,
) -> ChainProof:
    """MLflow's own copy carries the same bytes and names the same registration."""
    where = f"MLflow {name} version {version}"
    entry = model_refs.last_entry(workspace, name, link)
    store = "" if entry is None else model_refs.version_detail(name, entry).tracking_uri
    if store and not may_ask(name, store):
        # Whoever can write the workspace would choose which servers are given our credentials, and wait for them.
        detail = (
            f"its history names a store that no pipeline here registers it in, and that is not asked: {store}. "
            "If it is right, verify where the pipeline's file lies, or set MLFLOW_TRACKING_URI to it"
        )
        return ChainProof(what=where, status="broken", detail=detail)
    expected = Expected(
        tracking_uri=store or mlflow_store.default_tracking_uri(workspace),
        model=name,
        version=version,
        run=registration.run,
        tags=lineage(workspace, link),
        aliases=dict(_aliases(workspace, name, store)) if check_aliases else {},
        files={name_in_model(file): file for file in registration.artifacts},
    )
    if fault := fault_of(expected, None if store else workspace):
        return ChainProof(what=where, status="broken", detail=fault)
    return ChainProof(what=where, status="proved", detail=f"{count(len(expected.files), 'file')} as registered")


def _aliases(workspace: Workspace, name: str, store: str) -> Iterator[tuple[str, str | None]]:
    """The version that each of MLflow's aliases is to be; nothing of one that was never registered in this store."""
    moves = {each: refs.current(workspace, model_refs.alias_ref(name, each)) for each in model_refs.ALIASES}
    is_challenger = model_refs.is_challenger(moves["challenger"], moves["champion"])
    for alias, move in moves.items():
        ours = None if move is None else model_refs.version_of(workspace, name, move.target, store=store)
        if move is None or ours is not None:
            # Of the champion it is wrong to say that it is challenger too.
            yield alias, ours if alias == "champion" or is_challenger else None


def _bound(bonds: dict[str, bool]) -> ChainProof:
    """The documents must also name each other: each alone could be whole and belong to another model."""
    for bond, holds in bonds.items():
        if not holds:
            return ChainProof(what="chain", status="broken", detail=f"it is not true that {bond}")
    return ChainProof(what="chain", status="proved", detail=f"{len(bonds)} bonds between documents hold")


def source_proof(snapshot: Snapshot, base: Path, digest: Callable[[str], str]) -> Iterator[ChainProof]:
    """Re-hash the source itself. Sources may move on: the shards prove the model without them."""
    if not base.exists():
        yield ChainProof(what="source", status="gone", detail=f"{base} is not here; the shards prove what it was")
        return
    changed, missing = [], 0
    for file in snapshot.files:
        try:
            sha256 = digest(file.path)
        except (OSError, DataError, IntegrityError):
            missing += 1
            continue
        if sha256 != file.sha256:
            changed.append(file.path)
    if changed or missing:
        example = f", such as {changed[0]}" if changed else ""
        detail = (
            f"{count(len(changed), 'file')} changed{example}, {missing} gone since; the shards prove what they were"
        )
        yield ChainProof(what="source", status="gone", detail=detail)
        return
    yield ChainProof(
        what="source", status="proved", detail=f"{count(len(snapshot.files), 'file')} re-hashed at the source"
    )
