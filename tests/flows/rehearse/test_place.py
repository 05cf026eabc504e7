"""A rehearsal's own corner of a workspace: the same storage, and nothing of it left, however the rehearsal ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.data_contracts.store.leftovers import MACHINE, OWNER, claimed
from headway.data_contracts.store.publication import Workspace
from headway.flows.rehearse.place import leaving_no_empty_folder, rehearsal_place


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.process)])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    if request.param == "folder":
        return Workspace.create(str(tmp_path / "workspace"))
    new_bucket: Callable[[], str] = request.getfixturevalue("new_bucket")
    return Workspace.create(f"s3://{new_bucket()}/team")


def test_what_is_published_there_goes_with_the_body_though_it_fails(workspace: Workspace) -> None:
    workspace.publish("refs/kept/0.json", b"{}")
    with pytest.raises(RuntimeError), rehearsal_place(workspace, keep=False) as place:
        place.workspace.publish("documents/one.json", b"{}")
        place.workspace.local_path("runs/a").mkdir(parents=True)
        (place.folder / "project").mkdir()
        assert place.workspace.uri.startswith(f"{workspace.uri}/rehearsals/")
        raise RuntimeError
    assert not place.folder.parent.exists() and not place.workspace.local_root.exists()
    assert workspace.names("rehearsals") == []
    assert workspace.read("refs/kept/0.json") == b"{}"


def test_what_is_to_be_kept_stays_and_what_a_killed_rehearsal_left_goes(workspace: Workspace) -> None:
    with rehearsal_place(workspace, keep=True) as kept:
        kept.workspace.publish("documents/one.json", b"{}")
    left, elsewhere, is_running = (
        workspace.local_path(f"rehearsals/{name}") for name in (f"{MACHINE}-dead", "another-dead", f"{MACHINE}-alive")
    )
    for folder in (left, elsewhere, is_running):
        folder.mkdir()
        (folder / OWNER).touch()
    workspace.publish(f"rehearsals/{left.name}/workspace/documents/two.json", b"{}")
    with claimed(is_running / OWNER), rehearsal_place(workspace, keep=False):
        assert not left.exists() and elsewhere.exists() and is_running.exists()
        assert left.name not in workspace.names("rehearsals")
    assert kept.workspace.read("documents/one.json") == b"{}"


def test_a_workspace_that_was_not_there_is_not_there_again_unless_something_is_in_it(tmp_path: Path) -> None:
    new, used, old = (tmp_path / name for name in ("new", "used", "old"))
    old.mkdir()
    for folder in (new, used, old):
        with leaving_no_empty_folder(str(folder)):
            Workspace.create(str(folder))
            if folder == used:
                (folder / "kept").touch()
    assert (new.exists(), used.exists(), old.exists()) == (False, True, True)
