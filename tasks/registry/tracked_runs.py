"""MLflow's runs, kept true: RUNNING while somebody trains, and there for as long as their runs' documents are."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link, RunSpec
from headway.data_contracts.store.errors import HeadwayError, RegistryError, RunStopped, Superseded
from headway.data_contracts.store.leftovers import MACHINE
from headway.data_contracts.store.publication import Workspace
from headway.tasks.registry import mlflow_store, model_refs
from headway.tasks.registry.retirement import RETIRED_TAG
from headway.tasks.tracking.local_client import LocalClient
from headway.training.checkpoint.layout import run_folder
from headway.training.launch.base import run_lock

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from headway.tasks.registry.mlflow_store import Client
    from headway.tasks.tracking.records import Run as LocalRun

MACHINE_TAG = "headway.machine"
"""Where the run is trained: there alone can be told whether somebody still does."""
PAGE = 1000


def begin(client: Client, run_id: str) -> None:
    """It is trained here from now on, for the first time or again."""
    client.set_tag(run_id, MACHINE_TAG, MACHINE)
    # Of a resumed run MLflow still shows how its earlier part ended.
    client.update_run(run_id, status="RUNNING")


def ended_as(error: type[BaseException] | None) -> str:
    """MLflow's word for how training ended: by its last step, by a failure, or because somebody or something ended it.

    Args:
        error: what left training; None: nothing did.
    """
    if error is None:
        return "FINISHED"
    is_failure = issubclass(error, HeadwayError) and not issubclass(error, (RunStopped, Superseded))
    return "FAILED" if is_failure else "KILLED"


def end_killed(workspace: Workspace, client: Client) -> list[str]:
    """End as KILLED what this machine trained and nobody trains any more; returns the names of these runs.

    Raises:
        MlflowException: the store refuses.
    """
    ended = []
    for run in _running(client):
        folder = workspace.local_path(run_folder(_link(run)))
        # Of another machine's run the lock cannot be seen from here.
        if run.data.tags.get(MACHINE_TAG) == MACHINE and run_lock.holder_of(folder) is None:
            client.set_terminated(run.info.run_id, "KILLED")
            ended.append(str(run.info.run_name))
    return ended


def of_no_kept_run(client: MlflowClient, kept: Collection[str], limit_unix_s: float) -> list[Run]:
    """Old runs whose documents nobody needs: no registered version came of them.

    Args:
        kept: digests of the runs whose documents stay.
    """
    found = client.search_model_versions(max_results=PAGE * 10)
    versions = {version.run_id for version in found if RETIRED_TAG not in version.tags}
    return [
        run
        for run in _runs(client)
        if run.data.tags[mlflow_store.RUN_TAG] not in kept
        and run.info.run_id not in versions
        and run.info.status != "RUNNING"
        and max(run.info.start_time or 0, run.info.end_time or 0) / 1000 < limit_unix_s
    ]


def tidy(
    workspace: Workspace, client: MlflowClient, kept: Collection[str], limit_unix_s: float, *, apply: bool
) -> tuple[list[str], list[str]]:
    """Names of runs that no kept run's document stands for, and of those that were ended as KILLED.

    Args:
        apply: mark the former as deleted and end the latter; otherwise nothing is changed, and the latter are none.

    Raises:
        RegistryError: the store refuses.
    """
    with mlflow_store.mlflow_client(client.tracking_uri):
        ended = end_killed(workspace, client) if apply else []
        runs = of_no_kept_run(client, kept, limit_unix_s)
        for run in runs if apply else ():
            client.delete_run(run.info.run_id)
    return [str(run.info.run_name) for run in runs], ended


def stores(workspace: Workspace) -> Iterator[MlflowClient]:
    """The MLflow stores that this workspace has used and that answer: its own, and those that its versions are in."""
    uris = {mlflow_store.default_tracking_uri(workspace)}
    for model in workspace.names("refs/models"):
        for entry in refs.history(workspace, model_refs.versions_ref(model)):
            uris.add(
                model_refs.version_detail(model, entry).tracking_uri or mlflow_store.default_tracking_uri(workspace)
            )
    for uri in sorted(uris):
        with contextlib.suppress(RegistryError):  # none was made, or it is gone
            yield mlflow_store.connect(uri, must_exist=True)


def _running(client: Client) -> Iterator[Run | LocalRun]:
    if isinstance(client, LocalClient):
        yield from (run for run in client.running() if mlflow_store.RUN_TAG in run.data.tags)
    else:
        yield from _runs(client, "attributes.status = 'RUNNING'")


def _runs(client: MlflowClient, condition: str = "") -> Iterator[Run]:
    """All of Headway's."""
    for experiment in client.search_experiments(max_results=PAGE):
        token = None
        while True:
            page = client.search_runs([experiment.experiment_id], condition, max_results=PAGE, page_token=token)
            yield from (run for run in page if mlflow_store.RUN_TAG in run.data.tags)
            token = page.token
            if not token:
                break


def _link(run: Run | LocalRun) -> Link:
    return Link(kind=RunSpec.kind, sha256=run.data.tags[mlflow_store.RUN_TAG])
