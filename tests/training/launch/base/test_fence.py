"""What an attempt publishes is there before the next one begins, or never."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem, Superseded
from headway.tasks.core.run_progress import read_progress
from headway.training.checkpoint.layout import MANIFEST_NAME, directory_name
from headway.training.checkpoint.read import verify_checkpoint
from headway.training.config.training_spec import RecipeSpec
from headway.training.launch.base import fence as fences
from headway.training.launch.base.gang import Gang, LaunchSpec, attempt_folder
from headway.training.launch.base.ports import free_port
from headway.training.launch.base.process_tree import process_state
from headway.training.launch.base.protocol import ATTEMPT, FENCE, AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.launch.diagnosis.logs import attempts_of
from headway.training.launch.supervise.supervisor import supervise
from headway.training.observe.ledger import Ledger
from tests.training.attempts import begin
from tests.training.conftest import TINY, TinyProject, rank_environment, start_fresh
from tests.waiting import DEADLINE_S, wait_until
from tests.warm_programs import Program

REPOSITORY = Path(__file__).resolve().parents[4]


def test_a_name_that_is_no_attempts_number_takes_nothing_away(tmp_path: Path) -> None:
    attempt = begin(tmp_path, 1)
    for name in ("\u00b2", "\u0663", "9" * 200, "x"):
        (tmp_path / "attempts" / name).mkdir()
    attempt.require()
    assert not attempt.is_revoked
    assert AttemptRecords(tmp_path).next_attempt() == 2
    assert read_progress(tmp_path).attempt == 1
    assert [each.number for each in attempts_of(tmp_path)] == [1]
    begin(tmp_path, 2)
    assert attempt.is_revoked


def test_a_later_attempt_takes_away_the_mandates_of_all_before(tmp_path: Path) -> None:
    earlier = [begin(tmp_path, number) for number in (1, 2, 999)]
    newest = begin(tmp_path, 1000)
    newest.require()
    for fence in earlier:
        with pytest.raises(Superseded, match=r"attempt 1000 has started: attempt \d+ publishes nothing any more"):
            fence.require()


def test_an_attempt_that_begins_behind_a_later_one_has_none(tmp_path: Path) -> None:
    later = begin(tmp_path, 2)
    with pytest.raises(Superseded, match="attempt 2 has started: attempt 1 "):
        begin(tmp_path, 1)
    later.require()


def test_what_was_half_written_goes_with_the_mandate(tmp_path: Path) -> None:
    fence = begin(tmp_path, 1)
    assert fence.folder is not None
    (fence.folder / ".manifest.json.partial").write_text("half")
    begin(tmp_path, 2)
    assert not fence.folder.exists()


def test_what_a_killed_attempt_was_putting_aside_is_brought_there_by_the_next_that_is_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, kept, real = tmp_path / "checkpoints" / "step-1", tmp_path / "quarantine", Path.rename

    def killed(path: Path, target: Path) -> Path:
        if target.parent == kept:
            raise KeyboardInterrupt
        return real(path, target)

    for number in (1, 3):
        fence = begin(tmp_path, number)
        checkpoint.mkdir(parents=True)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", killed)
            with pytest.raises(KeyboardInterrupt):
                fence.quarantine(checkpoint, kept)
            with pytest.raises(KeyboardInterrupt):
                begin(tmp_path, number + 1)
    assert not checkpoint.exists()
    begin(tmp_path, 5)
    assert sorted(path.name for path in kept.iterdir()) == ["step-1.0", "step-1.1"]
    assert not list(tmp_path.glob("attempts/*/fence.withdrawn"))


def test_an_attempt_is_kept_from_publishing_even_if_nothing_of_it_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence = begin(tmp_path, 1)
    assert fence.folder is not None
    staged = fence.folder / ".manifest.json.partial"
    staged.write_text("half")
    monkeypatch.setattr(fences.shutil, "rmtree", lambda *_args, **_kwargs: None)

    begin(tmp_path, 2)

    with pytest.raises(Superseded, match="attempt 2 has started"), fence.fenced():
        staged.replace(tmp_path / "manifest.json")
    with pytest.raises(FileNotFoundError):
        staged.replace(tmp_path / "manifest.json")


def test_no_attempt_begins_while_an_earlier_one_cannot_be_kept_from_publishing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = begin(tmp_path, 1)

    def refused(_path: Path, _target: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(EnvironmentProblem, match=r"cannot be kept from publishing \(Input/output error\)"):
        begin(tmp_path, 2)
    earlier.require()
    assert not (attempt_folder(tmp_path, 2) / fences.NAME).exists()


def test_a_folder_that_cannot_be_asked_for_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = begin(tmp_path, 1)

    def stale(_path: Path) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "stat", stale)
    fence.require()


HALTS = '''
"""The language model, on a rank 0 that halts itself just before what a step writes takes its name, or loses it."""

import os
import signal
from pathlib import Path

from headway.training.recipes.language_model import LanguageModel as Halting

place = os.environ.get("HALT_AT")


def halting(real):
    def moved(path, target):
        if place and os.environ["RANK"] == "0" and (str(path).endswith(place) or str(target).endswith(place)):
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(path, target)

    return moved


Path.replace, Path.rename = halting(Path.replace), halting(Path.rename)
'''


class Trained(NamedTuple):
    recipes: Path
    run: str
    bits: str


@pytest.fixture(scope="module")
def undisturbed(shared_project: TinyProject, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """A run to its end, on a recipe that halts where it is told to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "halting_recipe.py").write_text(HALTS)
    recipe = RecipeSpec(name="halting_recipe:Halting", model=dict(TINY.recipe.model))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        run = shared_project.publish_run(TINY.model_copy(update={"recipe": recipe})).sha256
        yield Trained(folder, run, train(shared_project, run, folder, folder / "run"))


@pytest.mark.long
@pytest.mark.process
@pytest.mark.usefixtures("forked_agents")
@pytest.mark.parametrize("place", [f"{directory_name(4)}/{MANIFEST_NAME}", f"/{directory_name(2)}", "result.json"])
def test_a_rank_that_was_halted_in_a_save_and_goes_on_in_another_attempts_time_changes_nothing_and_ends(
    project: TinyProject, undisturbed: Trained, tmp_path: Path, place: str
) -> None:
    run_dir = tmp_path / "run"
    old = begin_by_hand(project, undisturbed, run_dir, HALT_AT=place)
    wait_until(lambda: process_state(old[0].pid) == "T", what="rank 0, halted")
    assert train(project, undisturbed.run, undisturbed.recipes, run_dir) == undisturbed.bits
    as_it_was = published(run_dir)

    for rank in old:
        rank.send_signal(signal.SIGCONT)
    codes = [rank.wait(DEADLINE_S) for rank in old]

    assert published(run_dir) == as_it_was
    assert codes == [Superseded.exit_code] * 2
    markers = AttemptFiles(attempt_folder(run_dir, 1)).read_markers()
    assert {(marker.state, marker.failure.error) for marker in markers.values()} == {("failed", "Superseded")}
    assert {marker.failure.what for marker in markers.values()} == {
        "attempt 2 has started: attempt 1 publishes nothing any more."
    }
    assert [verify_checkpoint(folder).step for folder in sorted((run_dir / "checkpoints").glob("step-*"))][-1] == 6


def begin_by_hand(
    project: TinyProject, trained: Trained, run_dir: Path, **environment: str
) -> list[subprocess.Popen[Any]]:
    """The ranks of attempt 1, as its guards would start them; nobody will end them."""
    fence, port = begin(run_dir, 1), free_port()
    folder = attempt_folder(run_dir, 1)
    words = ["--workspace", project.workspace.uri, "--run-spec", trained.run, "--run-dir", str(run_dir)]
    told = {
        ATTEMPT: "1",
        FENCE: str(fence.folder),
        "PYTHONPATH": os.pathsep.join((str(trained.recipes), str(REPOSITORY))),
    }
    ranks = [
        start_fresh(
            "headway.training.programs.worker",
            words,
            run_dir,
            folder / f"rank-{rank}.log",
            rank_environment(rank, 2, port, folder) | told | environment,
            Program,
        )
        for rank in (0, 1)
    ]
    project.started += ranks
    return ranks


def train(project: TinyProject, run: str, recipes: Path, run_dir: Path) -> str:
    """The next attempt to its end, under a supervisor. Returns the digest of what was learnt."""
    gang = Gang(
        module="headway.training.programs.worker",
        arguments=("--workspace", project.workspace.uri, "--run-spec", run, "--run-dir", str(run_dir)),
        nodes=2,
        ranks_per_node=1,
        import_path=(str(recipes), str(REPOSITORY)),
        run_dir=run_dir,
    )
    ledger = Ledger(recipes / "owner.jsonl")
    assert supervise(LaunchSpec(), gang, ledger=ledger, budget_scope="one", poll=lambda: None).state == "done"
    return str(json.loads((run_dir / "result.json").read_text())["tensors_sha256"])


def published(run_dir: Path) -> dict[str, tuple[int, int]]:
    """All that the run has made, as the file system knows it."""
    paths = [*(run_dir / "checkpoints").rglob("*"), run_dir / "result.json"]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}
