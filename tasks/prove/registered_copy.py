"""MLflow's own copy of a version, held against the registration: first all that MLflow says of it, then its files.

A store that is a file of this machine is read here. Any other is asked by a child process, `python -m
headway.tasks.prove.registered_copy`: MLflow tries again for as long as it likes, a server may answer a byte a minute,
and what the client of an artifact store raises is its own. The child has a deadline and bounds, and nothing of it
stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from headway.data_contracts.store.digests import sha256_file
from headway.data_contracts.store.documents import Frozen, Link, StoredFile
from headway.data_contracts.store.errors import IntegrityError, RegistryError, shortened
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.publication import Workspace
from headway.tasks.registry import mlflow_store
from headway.training.launch.base.process_tree import beside_headway, die_with_parent, has_ended

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

ANSWERS_WITHIN_S = 120.0
"""All that MLflow says of a version, and the start of the process that asks."""
BYTES_PER_S = 1e6
"""What an artifact store has to give at least, besides."""
MAX_DATA_BYTES = 4 << 30
"""Memory of the child: MLflow holds a whole answer at once, however long it is."""
DATABASE_TRIES = 4
MAX_FAULT_CHARS = 600
IMPATIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "PGCONNECT_TIMEOUT": "10",
}
ADVICE = "Verify again when it answers; nothing here says that the model is other than it was registered."


class Expected(Frozen):
    """What MLflow has to say of a version, and to hold of it."""

    tracking_uri: str
    model: str
    version: str
    run: Link
    tags: dict[str, str]
    aliases: dict[str, str | None]
    """The version that each is to be, None for none."""
    files: dict[str, StoredFile]
    """By their paths in the version's folder."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


def fault_of(expected: Expected, own: Workspace | None) -> str:
    """What is other about MLflow's copy than registration made it; empty where nothing is.

    Args:
        own: the workspace whose own store it is, which keeps its files there.

    Raises:
        RegistryError: a server of MLflow, or the store of its files, does not answer, or not in time; or its database
            is locked.
    """
    if mlflow_store.database_of(expected.tracking_uri) is None:
        return _faults_from_child(expected)
    try:
        with mlflow_store.mlflow_client(expected.tracking_uri):
            fault, place = _faults(expected)
    except RegistryError as error:  # a file that is gone or cannot be read, and no server's silence
        if not mlflow_store.is_held_by_another(error):
            return error.what
        raise RegistryError(
            "another process holds MLflow's database locked.", where=expected.tracking_uri, advice=ADVICE
        ) from error
    if fault:
        return shortened(fault, MAX_FAULT_CHARS)
    if own is not None:
        try:
            mlflow_store.require_within(own, place)
        except IntegrityError as error:  # another place proves nothing of the workspace, and its files may yet go
            return f"{error.what.rstrip('.')}, at {shortened(place, 200)}: not read. {error.advice}"
    if (folder := _folder_of(place)) is not None:
        return _fault_of_folder(expected, folder)
    return _faults_from_child(expected)


def _faults(expected: Expected) -> tuple[str, str]:
    """What is other about what MLflow says, and where it says that the files lie."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.runs_artifact_repo import RunsArtifactRepository

    client = mlflow_store.connect(expected.tracking_uri, must_exist=True)
    try:
        made = client.get_model_version(expected.model, expected.version)
        fetched_from = client.get_model_version_download_uri(expected.model, expected.version)
        fault = _fault_of_place(made, fetched_from)
        if fault:
            return fault, ""
        run = client.get_run(made.run_id)
    except MlflowException as error:
        # Only that it is not there is a finding; silence or an outage says nothing of the model.
        if error.error_code != mlflow_store.NOT_THERE:
            raise
        return f"MLflow has no such version, or not its run: {shortened(str(error), 200)}", ""
    fault = _fault_of_run(expected, run) or _fault_of_tags(expected, made) or _fault_of_aliases(expected, client)
    fault = fault or _fault_of_overlay(client, run)
    return fault, "" if fault else RunsArtifactRepository.get_underlying_uri(made.source, expected.tracking_uri)


def _fault_of_place(made: ModelVersion, fetched_from: str) -> str:
    if made.source != f"runs:/{made.run_id}/{mlflow_store.MODEL_FOLDER}":
        return f"its source is {made.source}, not the files of its run"
    return "" if fetched_from == made.source else "its files are fetched from another place than its source"


def _fault_of_run(expected: Expected, run: Run) -> str:
    if run.info.lifecycle_stage != "active":
        return f"its run {run.info.run_id} was deleted"
    if run.data.tags.get(mlflow_store.RUN_TAG) != expected.run.sha256:
        return f"its run {run.info.run_id} is of another training"
    # SQLite keeps bytes and numbers in a column of texts, too, and MLflow would stumble over them.
    is_place = isinstance(run.info.artifact_uri, str)
    return "" if is_place else f"its run {run.info.run_id} does not say where its files lie"


def _fault_of_tags(expected: Expected, made: ModelVersion) -> str:
    altered = (tag for tag, value in expected.tags.items() if made.tags.get(tag) != value)
    return next((f"its tag {tag} names something else" for tag in altered), "")


def _fault_of_aliases(expected: Expected, client: MlflowClient) -> str:
    for alias, version in expected.aliases.items():
        theirs = mlflow_store.alias_version(client, expected.model, alias)
        if theirs != version:
            return f"its alias {alias} is version {theirs}, the refs say {version or 'none'}"
    return ""


def _fault_of_overlay(client: MlflowClient, run: Run) -> str:
    """Files of a model that MLflow has logged for a run are served in place of the run's own of the same name."""
    condition = f"name = '{mlflow_store.MODEL_FOLDER}'"
    token = None
    while True:
        page = client.search_logged_models([run.info.experiment_id], condition, page_token=token)
        for model in page:
            if model.source_run_id == run.info.run_id:
                return f"MLflow would serve the files of its logged model {model.model_id} in place of the registered"
        token = page.token
        if not token:
            return ""


def _folder_of(place: str) -> Path | None:
    """The folder of this machine that a place is; None where it is none."""
    from mlflow.utils.file_utils import get_local_path_or_none

    path = get_local_path_or_none(place)
    return None if path is None else Path(path)


def _fault_of_folder(expected: Expected, folder: Path) -> str:
    for relative, file in expected.files.items():
        # MLflow writes none, and what it leads to may be another's to change.
        if (folder / relative).is_symlink():
            return f"its copy of {relative} is a link: {folder}/{relative}"
        if not _is_copy(folder / relative, file.sha256):
            return f"its copy of {relative} is gone or altered: {folder}/{relative}"
    more = sorted(_files_below(folder) - expected.files.keys())
    return f"its copy holds {more[0]}, which was not registered: {folder}/{more[0]}" if more else ""


def _is_copy(copy: Path, sha256: str) -> bool:
    try:
        return sha256_file(copy) == sha256
    except (OSError, IntegrityError):
        return False


def _files_below(folder: Path) -> set[str]:
    """Relative paths of all that is no folder; a link to one is none."""
    return {
        Path(top, name).relative_to(folder).as_posix()
        for top, folders, files in os.walk(folder)
        for name in (*files, *(each for each in folders if Path(top, each).is_symlink()))
    }


def _fault_of_fetched(expected: Expected, place: str, scratch: Path) -> str:
    """The same of files elsewhere: no byte is asked for before the list of files is right, and one file at a time."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    repository = get_artifact_repository(place, tracking_uri=expected.tracking_uri)
    found: dict[str, int | None] = {}
    for path, size_bytes in _listed(repository, expected):
        if path not in expected.files:
            return f"its copy holds {path}, which was not registered: {place}/{path}"
        found[path] = size_bytes
    for relative, file in expected.files.items():
        if relative not in found or found[relative] not in (None, file.size_bytes):
            return f"its copy of {relative} is gone or altered: {place}/{relative}"
    for relative, file in expected.files.items():
        if not _is_fetched(repository, relative, file, scratch):
            return f"its copy of {relative} is altered: {place}/{relative}"
    return ""


def _listed(repository: ArtifactRepository, expected: Expected) -> Iterator[tuple[str, int | None]]:
    """Files with their sizes, where the store says them, and folders in which nothing was registered."""
    known = {parent.as_posix() for path in expected.files for parent in Path(path).parents}
    folders = ["."]
    while folders:
        folder = folders.pop()
        known.discard(folder)
        for entry in repository.list_artifacts(None if folder == "." else folder):
            if entry.is_dir and entry.path in known:
                folders.append(entry.path)
            else:
                yield entry.path, entry.file_size


def _is_fetched(repository: ArtifactRepository, relative: str, file: StoredFile, scratch: Path) -> bool:
    """Fetch a file, of which no more than one byte too many is kept, and compare it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.size_bytes + 1, hard))
    copy = scratch / relative
    try:
        repository.download_artifacts(relative, str(scratch))
        return _is_copy(copy, file.sha256)
    except Exception:
        if copy.is_file() and copy.stat().st_size > file.size_bytes:
            return False
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        copy.unlink(missing_ok=True)


def _faults_from_child(expected: Expected) -> str:
    within_s = ANSWERS_WITHIN_S + expected.size_bytes / BYTES_PER_S
    with (
        scratch_folder("headway-verify-") as scratch,
        tempfile.TemporaryFile("w+") as question,
        tempfile.TemporaryFile("w+", errors="replace") as answer,
        tempfile.TemporaryFile("w+", errors="replace") as last_words,
    ):
        question.write(expected.model_dump_json())
        question.seek(0)
        process = subprocess.Popen(
            (sys.executable, "-P", "-m", "headway.tasks.prove.registered_copy", str(scratch)),
            env=os.environ | beside_headway(()) | IMPATIENT,
            stdin=question,
            stdout=answer,
            stderr=last_words,
            process_group=0,  # with all that the client of an artifact store starts
            preexec_fn=die_with_parent,
        )
        try:
            is_done = has_ended(process.pid, within_s)
        finally:
            # Before it is waited for: until then nobody else's group can have its number.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        why = f"the process that asks ended with {process.returncode}: {_last_line(last_words)}"
        message = {"refused": why if is_done else f"no answer within {within_s:,.0f} s", **_answer_of(answer)}
    if "fault" in message:
        return message["fault"]
    raise RegistryError(
        f"{message.get('asked', 'MLflow')} does not hand over version {expected.version} of {expected.model!r}: "
        f"{message['refused'].rstrip('.')}.",
        where=expected.tracking_uri,
        advice=ADVICE,
    )


def _answer_of(answer: IO[str]) -> dict[str, str]:
    """What the child has said so far; of lines that are none of its own, nothing."""
    message: dict[str, str] = {}
    answer.seek(0)
    for line in answer:
        with contextlib.suppress(ValueError, TypeError):
            message |= json.loads(line)
    return message


def _last_line(words: IO[str]) -> str:
    words.seek(0)
    return shortened((words.read().strip().splitlines() or ["it did not say why"])[-1], 200)


def _print_answer(**message: str) -> None:
    # A name or a place that a store says may be of any length.
    print(json.dumps({name: shortened(text, MAX_FAULT_CHARS) for name, text in message.items()}), flush=True)


def main(scratch: Path) -> None:
    """The child: one question, and one answer whatever happens."""
    # Before anything is read: a server's answer, or a file, may be of any size.
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    expected = Expected.model_validate_json(sys.stdin.read())
    try:
        mlflow_store.quiet_mlflow()
        from mlflow.store.db import utils

        # Ten would be two minutes, which a server that is not there does not need.
        utils.MAX_RETRY_COUNT = DATABASE_TRIES
        fault, place = _faults(expected)
        if not fault:
            _print_answer(asked=f"MLflow's store of files, {place},")
            if (folder := _folder_of(place)) is None:
                fault = _fault_of_fetched(expected, place, scratch)
            else:
                fault = _fault_of_folder(expected, folder)
        _print_answer(fault=fault)
    except Exception as error:  # a client of an artifact store raises what it likes
        what = error.what if isinstance(error, RegistryError) else f"{type(error).__name__}: {error}"
        _print_answer(refused=shortened(what, 400))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
