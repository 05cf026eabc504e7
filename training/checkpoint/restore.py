"""Restoring: the whole gang takes up the same verified checkpoint, and bad ones are put aside.

Putting aside takes a verdict that two ranks agree on, or the only one: a rank that finds a fault may have bad memory or
a bad mount, and would put aside one good checkpoint after another. So the first rank that found none reads all of it;
only if it finds the same kind of fault does rank 0 put the checkpoint aside. Else the run stops, and nothing is moved.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from headway.data_contracts.store.documents import CheckpointManifest, Frozen, Link
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, IntegrityError
from headway.data_contracts.store.places import naming_the_place
from headway.training.checkpoint import layout
from headway.training.checkpoint.layout import committed_steps
from headway.training.checkpoint.pieces import State, pieces_of
from headway.training.checkpoint.read import DoesNotFit, VerifiedCheckpoint, read_checkpoint, verify_checkpoint
from headway.training.checkpoint.retention import sweep
from headway.training.checkpoint.verified_files import BlockMissing, nothing, read_manifest
from headway.training.launch.base.fence import NO_FENCE, AttemptFence
from headway.training.ranks.distributed import ProcessGroup

NONE = b"-"
TOKEN_PREFIX = ".seen-"
SHARE_IT = "All hosts must mount one folder at the place of the workspace. No checkpoint was moved."
OnQuarantine = Callable[[Path, IntegrityError], None]


class RestoreFinding(Frozen):
    """What one rank says of a checkpoint."""

    kind: Literal["good", "not there", "wrong"]
    """`not there`: it could not find all of it, or found another; no byte of it was read that is wrong."""
    what: str = ""

    @classmethod
    def of(cls, error: IntegrityError | None) -> RestoreFinding:
        if error is None:
            return cls(kind="good")
        return cls(kind="not there" if isinstance(error, BlockMissing) else "wrong", what=str(error))


class _Read(NamedTuple):
    verified: VerifiedCheckpoint | None
    error: IntegrityError | None


def restore_newest(
    run_dir: Path,
    run: Link,
    process_group: ProcessGroup,
    *,
    state: State | None = None,
    step: int | None = None,
    on_quarantine: OnQuarantine = lambda _directory, _error: None,
    on_part: Callable[[], None] = nothing,
    fence: AttemptFence = NO_FENCE,
) -> VerifiedCheckpoint | None:
    """The newest good checkpoint of this run, the same on every rank; None when there is none yet.

    Rank 0 chooses; every rank reads and verifies its own part of that, by whole blocks, and rank 0 what no rank wants;
    what lies between the rows that ranks want is verified by whoever wants it. One rank's bad part is everybody's, once
    another rank has confirmed it: rank 0 puts the checkpoint aside, and the one before is tried. What interrupted saves
    left is removed.

    Args:
        state: what this rank is to hold, by name; only that is read, however it was sharded when it was saved.
            None: all of it, on every rank.
        step: of the only checkpoint that will do.
        on_part: called after each part that is read.

    Raises:
        ConfigError: the folder holds another run's checkpoints.
        EnvironmentProblem: a rank does not see rank 0's folder, or reads there what others do not.
        IntegrityError: a good checkpoint holds other tensors than `state`.
        Superseded: a later attempt has begun.
    """
    checkpoints = run_dir / "checkpoints"
    require_shared(run_dir, process_group, fence)
    if process_group.leads:
        sweep(checkpoints, fence)
    wanted = None if state is None else _wanted_by_any(state, process_group)
    while True:
        # Chosen by one rank and sent to all: listings of a shared folder may differ for a moment.
        directory = _chosen(checkpoints, step, process_group)
        if directory is None:
            return None
        verified, error = _read(directory, run, process_group, state, wanted, on_part)
        findings = _all_findings(RestoreFinding.of(error), process_group)
        if verified is not None and all(finding.kind == "good" for finding in findings):
            return verified
        _require_agreed(directory, findings, process_group, on_part)
        if process_group.leads:
            rank, finding = next((rank, each) for rank, each in enumerate(findings) if each.kind != "good")
            named = error or IntegrityError(f"rank {rank} cannot use it: {finding.what}", where=str(directory))
            on_quarantine(fence.quarantine(directory, run_dir / "quarantine"), named)


def require_shared(folder: Path, process_group: ProcessGroup, fence: AttemptFence = NO_FENCE) -> None:
    """Raises `EnvironmentProblem`, on all ranks: one does not see what rank 0 writes into its folder of that name."""
    if process_group.world_size == 1:
        return
    token = folder / f"{TOKEN_PREFIX}{secrets.token_hex(8)}"
    if process_group.leads:
        with naming_the_place(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(f"{TOKEN_PREFIX}*"):
                with contextlib.suppress(FileNotFoundError):
                    fence.take_out(left).unlink()
            token.touch()
    # A name that no host has looked for before: none can remember that it was not there.
    name = process_group.gather_bytes(token.name.encode())[0].decode()
    answers = process_group.gather_bytes(b"" if (folder / name).exists() else b"blind")
    if process_group.leads:
        token.unlink(missing_ok=True)
    if blind := [rank for rank, answer in enumerate(answers) if answer]:
        raise EnvironmentProblem(
            f"the folder is not shared: {_ranks(blind)} cannot see what rank 0 writes there.",
            where=str(folder),
            advice=SHARE_IT,
        )


def _wanted_by_any(state: State, process_group: ProcessGroup) -> frozenset[str]:
    """Names of the tensors that any rank holds."""
    return frozenset().union(
        *(json.loads(data) for data in process_group.gather_bytes(json.dumps(sorted(state)).encode()))
    )


def _chosen(checkpoints: Path, step: int | None, process_group: ProcessGroup) -> Path | None:
    """The newest checkpoint that rank 0 sees, or the wanted one if it does."""
    steps = committed_steps(checkpoints) if process_group.leads else []
    if step is not None:
        steps = [kept for kept in steps if kept == step]
    message = process_group.gather_bytes(layout.directory_name(steps[-1]).encode() if steps else NONE)[0]
    return None if message == NONE else checkpoints / message.decode()


def _read(
    directory: Path,
    run: Link,
    process_group: ProcessGroup,
    state: State | None,
    wanted_by_any: Collection[str] | None,
    on_part: Callable[[], None],
) -> _Read:
    """What this rank reads of it. Nothing and no error: rank 0 has found a fault already."""
    manifest: CheckpointManifest | None = None
    problem: IntegrityError | None = None
    try:
        manifest = read_manifest(directory)
    except IntegrityError as error:
        problem = error
    # What rank 0 reads is what all must read: a stale view of a shared folder would mix two checkpoints.
    message = process_group.gather_bytes(NONE if manifest is None else manifest.sha256.encode())[0]
    if manifest is None or message == NONE:
        return _Read(None, problem)
    if message != manifest.sha256.encode():
        return _Read(None, BlockMissing("rank 0 reads another manifest here than this rank.", where=str(directory)))
    if manifest.run != run:
        raise ConfigError(
            f"the checkpoint belongs to {manifest.run.short}, not to {run.short}.",
            where=str(directory),
            advice="Give every run a folder of its own with --run-dir.",
        )
    wanted = None if state is None else [piece.slice(name) for name, piece in pieces_of(state).items()]
    unwanted = {piece.tensor for piece in manifest.layout}.difference(wanted_by_any or ())
    rest = unwanted if process_group.leads else ()
    try:
        return _Read(read_checkpoint(directory, manifest, wanted=wanted, rest=rest, on_part=on_part), None)
    except DoesNotFit:
        # Says nothing against the checkpoint, which is not to be quarantined for it.
        raise
    except IntegrityError as error:
        return _Read(None, error)


def _all_findings(own: RestoreFinding, process_group: ProcessGroup) -> list[RestoreFinding]:
    return [
        RestoreFinding.model_validate_json(data) for data in process_group.gather_bytes(own.model_dump_json().encode())
    ]


def _require_agreed(
    directory: Path, findings: Sequence[RestoreFinding], process_group: ProcessGroup, on_part: Callable[[], None]
) -> None:
    """Return if a rank that found no fault finds one as well once it reads all, or if there is no such rank.

    Raises:
        EnvironmentProblem: on all ranks; they do not see the same bytes.
    """
    second = next((rank for rank, finding in enumerate(findings) if finding.kind == "good"), None)
    others = [finding for finding in findings if finding.kind != "good"]
    if second is not None:
        own = RestoreFinding(kind="good")
        if process_group.rank == second:
            try:
                verify_checkpoint(directory, on_part=on_part)
            except IntegrityError as error:
                own = RestoreFinding.of(error)
        others.append(_all_findings(own, process_group)[second])
    if len({finding.kind for finding in others}) == 1:
        return
    blind = [rank for rank, finding in enumerate(findings) if finding.kind == "not there"]
    if blind:
        raise EnvironmentProblem(
            f"the folder is not shared: {_ranks(blind)} cannot find there what other ranks read "
            f"({findings[blind[0]].what})",
            where=str(directory),
            advice=SHARE_IT,
        )
    rank = next(rank for rank, finding in enumerate(findings) if finding.kind == "wrong")
    raise EnvironmentProblem(
        f"rank {rank} reads other bytes than rank {second}, which finds no fault ({findings[rank].what})",
        where=str(directory),
        advice="See to the memory and the mount of that rank's host. No checkpoint was moved.",
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}"
