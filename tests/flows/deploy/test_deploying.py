"""What `headway deploy` warns of before it changes anything; no server."""

from __future__ import annotations

from collections.abc import Callable

from headway.flows.deploy.deploying import of_another_folder
from headway.flows.deploy.resources import DesiredState, ExistingResource


def deployed(name: str, folder: str | None, *, ours: bool = True) -> ExistingResource:
    env = {} if folder is None else {"HEADWAY_PROJECT": folder}
    fields = {"job_variables": {"env": env}}
    return ExistingResource(kind="deployment", name=name, fields=fields, id=name, ours=ours)


def test_deployments_of_the_same_project_name_from_another_folder_are_named_with_it(
    make_wanted: Callable[..., DesiredState],
) -> None:
    found = [deployed("retrain/rents", "/projects/rents"), deployed("retrain/nightly", "/projects/acme")]
    warning = of_another_folder(make_wanted(), found)
    assert "retrain/rents" in warning and "/projects/rents" in warning and "'acme'" in warning
    assert "retrain/nightly" not in warning and "removed" in warning


def test_what_is_this_folders_or_another_projects_or_of_no_folder_is_not_warned_of(
    make_wanted: Callable[..., DesiredState],
) -> None:
    others = deployed("retrain/rents", "/projects/rents", ours=False)
    pool = ExistingResource(kind="work pool", name="gpu-pool", fields={"description": ""}, id="p", ours=True)
    found = [others, pool, deployed("retrain/nightly", "/projects/acme"), deployed("watch/workspace", None)]
    assert of_another_folder(make_wanted(), found) == ""
