"""Stored files, read and hashed again on schedule: a disk tells nobody of a bit that it lost.

What is looked at: all that each champion stands on, and the champion before it, which a rollback would bring back; and
of each run on this machine that is not finished the newest checkpoint, and the one that validated best. A look is
bounded by bytes, and begins with what was damaged at the last one and with what nobody looked at for the longest.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, ValidationError

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Frozen, Registration, StoredFile
from headway.data_contracts.store.errors import EnvironmentProblem, IntegrityError
from headway.data_contracts.store.places import entries
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.strict_json import parse_json
from headway.tasks.prove.prove import files_behind
from headway.tasks.registry import model_refs
from headway.tasks.registry.file_lock import holding
from headway.training.checkpoint.layout import (
    RESULT_NAME,
    best_step_of,
    checkpoint_path,
    committed_steps,
    stored_files,
)
from headway.training.checkpoint.verified_files import read_manifest
from headway.training.observe.ledger_lines import LARGEST, LATEST_UNIX_S

REPORT = "integrity/report.json"
"""What the newest look came to."""
CHECKED = "integrity/checked.json"
"""When each file was last found whole."""
MAX_CHECKED_BYTES = 64 << 20
OTHER_SCRUB_WITHIN_S = 1.0
Count = Annotated[int, Field(ge=0, lt=LARGEST)]
"""Such as metrics can hold: one report that others may have written must not silence all of them."""
Moment = Annotated[float, Field(ge=0.0, lt=LATEST_UNIX_S)]


class DamagedFile(Frozen):
    path: str
    fault: str
    needed_by: str


class ScrubReport(Frozen):
    """What one look came to, and how far all looks together have come."""

    format_version: Literal[1] = 1
    looked_unix_s: Moment
    num_files: Count
    """All that have to be whole."""
    size_bytes: Count
    num_checked: Count
    """In this look."""
    checked_bytes: Count
    num_never_checked: Count
    """In no look so far."""
    oldest_check_unix_s: Moment | None
    """Of the file that was not checked for the longest; None while there is one that never was, or no file."""
    damaged: tuple[DamagedFile, ...]


class _Wanted(NamedTuple):
    file: StoredFile
    needed_by: str


def _unheard(_done: int, _total: int) -> None:
    """For who need not be told."""


def scrub(
    workspace: Workspace, *, max_bytes: int | None = None, on_bytes: Callable[[int, int], object] = _unheard
) -> ScrubReport:
    """Look at files, those first that were not looked at for the longest, and publish what it came to.

    Args:
        max_bytes: about so many are read, and at most as many again of what was damaged. One file is, however large;
            None: all.
        on_bytes: told after each file how many bytes were read, and how many there are in all.

    Raises:
        RegistryError: another look is at work here.
        EnvironmentProblem: the workspace cannot be read or written.
    """
    with holding(workspace.local_path("locks/scrub.lock"), within_s=OTHER_SCRUB_WITHIN_S):
        known = _checked(workspace)
        newest = _checkpoints_to_go_on_from(workspace)
        wanted, broken = _all_wanted(workspace, newest)
        before = read_report(workspace)
        checked = {path: unix_s for path, unix_s in known.items() if path in wanted}
        damaged = {each.path: each for each in (before.damaged if before else ()) if each.path in wanted}
        rest = [path for path in wanted if path not in damaged]
        size_bytes = sum(each.file.size_bytes for each in wanted.values())
        num_looked_at = looked_at_bytes = 0
        # By a bound of their own: what nobody mends must not keep the others from their turn.
        suspects, rest = sorted(damaged), sorted(rest, key=lambda path: (checked.get(path, 0.0), path))
        try:
            for path in (*_within(suspects, wanted, max_bytes), *_within(rest, wanted, max_bytes)):
                file, needed_by = wanted[path]
                num_looked_at += 1
                looked_at_bytes += file.size_bytes
                damaged.pop(path, None)
                checked.pop(path, None)
                if fault := _fault(workspace, file):
                    damaged[path] = DamagedFile(path=path, fault=fault, needed_by=needed_by)
                else:
                    checked[path] = time.time()
                on_bytes(looked_at_bytes, size_bytes)
        finally:
            # Who is interrupted every day comes round all the same.
            workspace.publish_json(CHECKED, checked)
        found = [*broken, *damaged.values()]
        given_up = [folder for folder in newest if folder not in _needed_checkpoints(workspace, folder)]
        never_checked = wanted.keys() - checked.keys() - damaged.keys()
        report = ScrubReport(
            looked_unix_s=time.time(),
            num_files=len(wanted),
            size_bytes=size_bytes,
            num_checked=num_looked_at,
            checked_bytes=looked_at_bytes,
            num_never_checked=len(never_checked),
            oldest_check_unix_s=None if never_checked else min(checked.values(), default=None),
            # A run may have gone on meanwhile, and given up the checkpoint that was its newest.
            damaged=tuple(each for each in found if not any(_is_within(each.path, folder) for folder in given_up)),
        )
        workspace.publish_json(REPORT, report.model_dump(mode="json"))
    return report


def _within(paths: Iterable[str], wanted: Mapping[str, _Wanted], max_bytes: int | None) -> Iterator[str]:
    """The first one, and those after it for as long as they come to no more bytes."""
    size_bytes = 0
    for number, path in enumerate(paths):
        size_bytes += wanted[path].file.size_bytes
        if number and max_bytes is not None and size_bytes > max_bytes:
            return
        yield path


def read_report(workspace: Workspace) -> ScrubReport | None:
    """What the newest look came to; None where there was none, or its report is damaged."""
    with contextlib.suppress(IntegrityError, ValidationError, ValueError):
        data = workspace.read_if_there(REPORT)
        return None if data is None else ScrubReport.model_validate(parse_json(data))
    return None


def _checked(workspace: Workspace) -> Mapping[str, float]:
    """Nothing where it cannot be read: all is looked at anew."""
    with contextlib.suppress(IntegrityError, ValueError):
        value = parse_json(workspace.read_if_there(CHECKED, MAX_CHECKED_BYTES) or b"{}")
        if isinstance(value, dict):
            return {
                path: float(at) for path, at in value.items() if type(at) in (int, float) and 0 <= at <= time.time()
            }
    return {}


def _all_wanted(workspace: Workspace, newest: Iterable[str]) -> tuple[dict[str, _Wanted], list[DamagedFile]]:
    """Files by path, and documents on the way to them that are gone or altered: what those name stays unknown."""
    wanted: dict[str, _Wanted] = {}
    damaged = []
    of_runs = ((f"run {folder.split('/')[1]}, to go on from", _files_of(workspace, folder)) for folder in newest)
    for needed_by, files in (*_of_models(workspace), *of_runs):
        try:
            for file in files:
                wanted.setdefault(file.path, _Wanted(file, needed_by))
        except IntegrityError as error:
            damaged.append(DamagedFile(path=error.where, fault=error.what, needed_by=needed_by))
    return wanted, damaged


def _of_models(workspace: Workspace) -> Iterator[tuple[str, Iterator[StoredFile]]]:
    for name in workspace.names("refs/models"):
        yield f"the champion of {name}", _behind_champion(workspace, name)
        yield f"the champion of {name} before today's", _behind_champion(workspace, name, before=True)


def _behind_champion(workspace: Workspace, name: str, *, before: bool = False) -> Iterator[StoredFile]:
    history = refs.history(workspace, model_refs.alias_ref(name, "champion"))
    link = model_refs.previous_champion(name, history) if before else history[-1].target if history else None
    if link is not None:
        yield from files_behind(workspace, workspace.load(link, Registration))


def _checkpoints_to_go_on_from(workspace: Workspace) -> list[str]:
    """Folders of those of unfinished runs."""
    # On this machine, where ranks write: what is published of them is a copy.
    runs = entries(workspace.local_path("runs")) if workspace.is_local else []
    unfinished = [run for run in runs if not (run / RESULT_NAME).exists()]
    return [folder for run in unfinished for folder in _needed_checkpoints(workspace, f"runs/{run.name}/")]


def _needed_checkpoints(workspace: Workspace, path: str) -> list[str]:
    """Of the run that a path `runs/RUN/...` is of: its newest, and what that names as the best, which is the model."""
    run = "/".join(path.split("/")[:2])
    steps = committed_steps(workspace.local_path(f"{run}/checkpoints"))
    if not steps:
        return []
    best = None
    with contextlib.suppress(IntegrityError):  # a manifest that is damaged is found so where its files are listed
        best = best_step_of(read_manifest(workspace.local_path(checkpoint_path(run, steps[-1]))))
    # Of a best one that is gone nothing is left to look at: the run trains it again.
    return [checkpoint_path(run, step) for step in dict.fromkeys((steps[-1], best)) if step in steps]


def _files_of(workspace: Workspace, folder: str) -> Iterator[StoredFile]:
    """Of a checkpoint."""
    try:
        yield from stored_files(folder, read_manifest(workspace.local_path(folder)))
    except IntegrityError as error:
        raise IntegrityError(error.what, where=folder) from error


def _fault(workspace: Workspace, file: StoredFile) -> str:
    """Why it is not what its document says; empty when it is."""
    if workspace.is_local:
        _forget_pages(workspace.local_path(file.path))
    try:
        workspace.verify(file)
    except IntegrityError as error:
        return error.what
    except EnvironmentProblem as error:
        if not workspace.is_local:  # the store's silence says nothing of the file
            raise
        return error.what  # a disk that gives no answer
    return ""


def _forget_pages(path: Path) -> None:
    """Have the next read ask the disk: what memory holds of a file is as it was written."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
