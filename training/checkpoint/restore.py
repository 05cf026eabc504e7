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

from data_contracts.documents import CheckpointManifest, Frozen, Link
from data_contracts.errors import ConfigError, EnvironmentProblem, IntegrityError
from data_contracts.places import naming_the_place
from training.checkpoint import layout
from training.checkpoint.agreement import gathered
from training.checkpoint.blocks import NotThere, nothing
from training.checkpoint.layout import committed_steps
from training.checkpoint.pieces import State, pieces_of
from training.checkpoint.read import Rest, require_fit
from training.checkpoint.retention import sweep
from training.checkpoint.verify import Verified, read_checkpoint, read_manifest, verify_checkpoint
from training.distributed import Gang
from training.launch.mandate import NO_MANDATE, Mandate

NONE = b"-"
TOKEN_PREFIX = ".seen-"
SHARE_IT = "All hosts must mount one folder at the place of the workspace. No checkpoint was moved."
OnQuarantine = Callable[[Path, IntegrityError], None]


class Finding(Frozen):
    """What one rank says of a checkpoint."""

    kind: Literal["good", "not there", "wrong"]
    """`not there`: it could not find all of it, or found another; no byte of it was read that is wrong."""
    what: str = ""

    @classmethod
    def of(cls, error: IntegrityError | None) -> Finding:
        if error is None:
            return cls(kind="good")
        return cls(kind="not there" if isinstance(error, NotThere) else "wrong", what=str(error))


class _Read(NamedTuple):
    verified: Verified | None
    error: IntegrityError | None


def restore_newest(
    run_dir: Path,
    run: Link,
    gang: Gang,
    *,
    state: State | None = None,
    on_quarantine: OnQuarantine = lambda _directory, _error: None,
    on_part: Callable[[], None] = nothing,
    mandate: Mandate = NO_MANDATE,
) -> Verified | None:
    """The newest good checkpoint of this run, the same on every rank; None when there is none yet.

    Rank 0 chooses; every rank reads and verifies its own part of that, by whole blocks, and rank 0 what no rank wants;
    what lies between the rows that ranks want is verified by whoever wants it. One rank's bad part is everybody's, once
    another rank has confirmed it: rank 0 puts the checkpoint aside, and the one before is tried. What interrupted saves
    left is removed.

    Args:
        state: what this rank is to hold, by name; only that is read, however it was sharded when it was saved.
            None: all of it, on every rank.
        on_part: called after each part that is read.

    Raises:
        ConfigError: the folder holds another run's checkpoints.
        EnvironmentProblem: a rank does not see rank 0's folder, or reads there what others do not.
        IntegrityError: a good checkpoint holds other tensors than `state`.
        Superseded: a later attempt has begun.
    """
    checkpoints = run_dir / "checkpoints"
    require_shared(run_dir, gang, mandate)
    if gang.leads:
        sweep(checkpoints, mandate)
    wanted = None if state is None else _wanted_by_any(state, gang)
    while True:
        directory = _chosen(checkpoints, gang)
        if directory is None:
            return None
        verified, error = _read(directory, run, gang, state, wanted, on_part)
        findings = _all_findings(Finding.of(error), gang)
        if verified is not None and all(finding.kind == "good" for finding in findings):
            return verified
        _require_agreed(directory, findings, gang, on_part)
        if gang.leads:
            rank, finding = next((rank, each) for rank, each in enumerate(findings) if each.kind != "good")
            named = error or IntegrityError(f"rank {rank} cannot use it: {finding.what}", where=str(directory))
            on_quarantine(mandate.put_aside(directory, run_dir / "quarantine"), named)


def require_shared(folder: Path, gang: Gang, mandate: Mandate = NO_MANDATE) -> None:
    """Raises `EnvironmentProblem`, on all ranks: one does not see what rank 0 writes into its folder of that name."""
    if gang.world_size == 1:
        return
    token = folder / f"{TOKEN_PREFIX}{secrets.token_hex(8)}"
    if gang.leads:
        with naming_the_place(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(f"{TOKEN_PREFIX}*"):
                with contextlib.suppress(FileNotFoundError):
                    mandate.take_out(left).unlink()
            token.touch()
    # A name that no host has looked for before: none can remember that it was not there.
    name = gathered(gang, token.name.encode())[0].decode()
    answers = gathered(gang, b"" if (folder / name).exists() else b"blind")
    if gang.leads:
        token.unlink(missing_ok=True)
    if blind := [rank for rank, answer in enumerate(answers) if answer]:
        raise EnvironmentProblem(
            f"the folder is not shared: {_ranks(blind)} cannot see what rank 0 writes there.",
            where=str(folder),
            advice=SHARE_IT,
        )


def _wanted_by_any(state: State, gang: Gang) -> frozenset[str]:
    """Names of the tensors that any rank holds."""
    return frozenset().union(*(json.loads(data) for data in gathered(gang, json.dumps(sorted(state)).encode())))


def _chosen(checkpoints: Path, gang: Gang) -> Path | None:
    """The newest checkpoint that rank 0 sees."""
    steps = committed_steps(checkpoints) if gang.leads else []
    said = gathered(gang, layout.directory_name(steps[-1]).encode() if steps else NONE)[0]
    return None if said == NONE else checkpoints / said.decode()


def _read(
    directory: Path,
    run: Link,
    gang: Gang,
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
    said = gathered(gang, NONE if manifest is None else manifest.sha256.encode())[0]
    if manifest is None or said == NONE:
        return _Read(None, problem)
    if said != manifest.sha256.encode():
        return _Read(None, NotThere("rank 0 reads another manifest here than this rank.", where=str(directory)))
    if manifest.run != run:
        raise ConfigError(
            f"the checkpoint belongs to {manifest.run.short}, not to {run.short}.",
            where=str(directory),
            advice="Give every run a folder of its own with --run-dir.",
        )
    wanted = None if state is None else [piece.slice(name) for name, piece in pieces_of(state).items()]
    require_fit(manifest, wanted or ())
    unwanted = {piece.tensor for piece in manifest.layout}.difference(wanted_by_any or ())
    rest: Rest = "check" if gang.leads else "skip"
    try:
        return _Read(
            read_checkpoint(directory, manifest, wanted=wanted, rest=rest, checked=unwanted, on_part=on_part), None
        )
    except IntegrityError as error:
        return _Read(None, error)


def _all_findings(own: Finding, gang: Gang) -> list[Finding]:
    return [Finding.model_validate_json(data) for data in gathered(gang, own.model_dump_json().encode())]


def _require_agreed(directory: Path, findings: Sequence[Finding], gang: Gang, on_part: Callable[[], None]) -> None:
    """Return if a rank that found no fault finds one as well once it reads all, or if there is no such rank.

    Raises:
        EnvironmentProblem: on all ranks; they do not see the same bytes.
    """
    second = next((rank for rank, finding in enumerate(findings) if finding.kind == "good"), None)
    others = [finding for finding in findings if finding.kind != "good"]
    if second is not None:
        own = Finding(kind="good")
        if gang.rank == second:
            try:
                verify_checkpoint(directory, on_part=on_part)
            except IntegrityError as error:
                own = Finding.of(error)
        others.append(_all_findings(own, gang)[second])
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
