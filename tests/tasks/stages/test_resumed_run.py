"""Going back in a run whose checkpoints lie in a remote workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.tasks.ownership.run_lease import leased_run
from headway.tasks.stages.resumed_run import named_run, rewind_run
from headway.training.checkpoint.layout import MANIFEST_NAME, checkpoint_path, run_folder
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.protocol import DETACHED
from headway.training.launch.base.run_lock import owning
from tests.tasks.conftest import link, make_context
from tests.tasks.past_work import Maker

RUN = link("run", "7")


def test_a_checkpoint_that_was_published_by_half_is_none_to_go_back_to(tmp_path: Path) -> None:
    workspace = Workspace.create(f"memory://{tmp_path.name}-resumed")
    folders = {step: checkpoint_path(run_folder(RUN), step) for step in (20, 40, 60)}
    for step, folder in folders.items():
        workspace.publish(f"{folder}/tensors.safetensors", b"tensors")
        if step != 40:
            workspace.publish(f"{folder}/{MANIFEST_NAME}", b"{}")
    context = make_context(workspace, tmp_path / "flow")
    with pytest.raises(ConfigError, match=r"It has: 20, 60\."):
        rewind_run(context, RUN, 40, why="its host was broken")
    assert workspace.exists(f"{folders[60]}/{MANIFEST_NAME}"), "nothing is put aside for a step that is not there"
    assert rewind_run(context, RUN, 20, why="its host was broken") == [60]
    assert not workspace.exists(f"{folders[60]}/{MANIFEST_NAME}")
    assert workspace.exists(f"{folders[20]}/{MANIFEST_NAME}")


@pytest.mark.parametrize("held", [".", DETACHED], ids=["trained", "watched"])
def test_nobody_goes_back_in_a_run_that_somebody_trains_or_watches(tmp_path: Path, held: str) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    folder = workspace.local_path(checkpoint_path(run_folder(RUN), 20))
    folder.mkdir(parents=True)
    (folder / MANIFEST_NAME).write_text("{}")
    busy = workspace.local_path(run_folder(RUN)) / held
    busy.mkdir(exist_ok=True)
    context = make_context(workspace, tmp_path / "flow")
    with owning(busy), pytest.raises(EnvironmentProblem, match=f"headway stop {RUN.sha256[:16]}"):
        rewind_run(context, RUN, 0, why="its host was broken")
    assert folder.is_dir()
    assert rewind_run(context, RUN, 0, why="its host was broken") == [20]


def test_nobody_goes_back_in_a_run_that_another_machine_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"memory://{tmp_path.name}-resumed"
    there = make_context(Workspace.create(uri), tmp_path / "there")
    folder = checkpoint_path(run_folder(RUN), 20)
    there.workspace.publish(f"{folder}/{MANIFEST_NAME}", b"{}")
    monkeypatch.setenv("HEADWAY_LOCAL", str(tmp_path / "another machine"))
    here = make_context(Workspace(uri), tmp_path / "here")
    with (
        leased_run(there, RUN, LaunchSpec(owner_lease_s=4.0)),
        pytest.raises(EnvironmentProblem, match="another mach"),
    ):
        rewind_run(here, RUN, 0, why="its host was broken")
    assert there.workspace.exists(f"{folder}/{MANIFEST_NAME}")
    assert rewind_run(here, RUN, 0, why="its host was broken") == [20]


def test_the_run_of_a_folds_model_is_resumed_by_the_retrain_that_it_evaluates_and_never_registered(
    tmp_path: Path,
) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    maker = Maker(workspace)
    of_fold = workspace.load(maker.data(2), ShardManifest).model_copy(update={"spec": {"fold": {"number": 2, "of": 5}}})
    run = maker.run(2, workspace.publish_document(of_fold), finished=False).run
    with pytest.raises(ConfigError, match="trains the model of fold 2 of 5") as refused:
        named_run(workspace, run.sha256[:16], "pipeline-0")
    assert "`headway retrain pipeline-0` resumes it" in refused.value.advice
    usual = maker.run(4, maker.data(4), finished=False).run
    assert named_run(workspace, usual.sha256[:16], "pipeline-0")[0] == usual
