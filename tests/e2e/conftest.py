"""A tiny project that went through one whole `headway retrain`, and the hands that work and damage it.

Every test gets it as it was then, at the place where it was made: MLflow keeps absolute paths.
"""

from __future__ import annotations

import contextlib
import contextvars
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.documents import EvaluationReport
from headway.training.observe.ledger import Event
from tests.e2e.finished_project import Finished, finished_project
from tests.e2e.project import Project
from tests.prefect_tables import new_prefect_home
from tests.training.forked_gangs import forked_gangs
from tests.waiting import wait_until
from tests.warm_programs import forked_helpers


@pytest.fixture(autouse=True)
def helpers_are_forks() -> Iterator[None]:
    """Of what these tests do in their own process; the commands they start fork more than helpers."""
    with forked_helpers():
        yield


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_prefect_home(tmp_path_factory.mktemp("prefect"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Iterator[Finished]:
    made = finished_project(tmp_path_factory.mktemp("finished"), prefect_home)
    yield made
    made.project.clean_up()


@pytest.fixture
def project(finished: Finished) -> Iterator[Project]:
    """The project right after its first retrain, to do with as the test likes."""
    assert finished.first.returncode == 0, finished.first.stderr
    finished.restore()
    yield finished.project
    finished.project.clean_up()


@pytest.fixture
def new_project(tmp_path: Path, prefect_home: Path) -> Iterator[Project]:
    """A project nobody has trained yet."""
    made = Project.create(tmp_path / "project", prefect_home)
    yield made
    made.clean_up()


@pytest.fixture
def shared_server(prefect_here: None) -> dict[str, str]:
    """Settings of a project whose commands need no Prefect server of their own, which costs seconds of a core."""
    from tests import shared_prefect

    return shared_prefect.api().settings


@pytest.fixture(scope="session")
def retrain_here(request: pytest.FixtureRequest) -> Callable[..., tuple[Any, list[Event]]]:
    """The real retrain in this process, as the command runs it: its summary and its events.

    Without Prefect, which costs a third of a small retrain, unless the pipeline needs it. Ranks are forks; what is
    about guards and agents uses the command, or says `guarded`.
    """
    from headway.flows.console.environment import prepare

    prepare()
    from headway.flows import retrain
    from headway.flows.config.request import RetrainRequest
    from headway.flows.windows.admission import enter

    def run(project: Project, **options: Any) -> tuple[Any, list[Event]]:
        wanted = RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace))
        if retrain.needs_prefect(wanted):
            in_prefect: Callable[..., tuple[Any, list[Event]]] = request.getfixturevalue("retrain_in_prefect")
            return in_prefect(project, **options)
        return _watched(lambda asked: retrain.retrain_here(enter(asked)), project, **options)

    return run


@pytest.fixture(scope="session")
def retrain_in_prefect(prefect_here: None) -> Callable[..., tuple[Any, list[Event]]]:
    """As `retrain_here`, as a flow against a Prefect server that is started once."""
    from headway.flows.retrain_flow import retrain

    return partial(_watched, retrain)


def _watched(
    retrain: Callable[..., Any],
    project: Project,
    *,
    guarded: bool = False,
    watching: Callable[[Event], None] | None = None,
    **options: Any,
) -> tuple[Any, list[Event]]:
    from headway.flows.config.request import RetrainRequest
    from headway.flows.run.session import watchers

    events: list[Event] = []
    token = watchers.set((events.append, *([] if watching is None else [watching])))
    try:
        with contextlib.nullcontext() if guarded else forked_gangs():
            made = retrain(RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace), **options))
            return made, events
    finally:
        watchers.reset(token)


@pytest.fixture
def train_here() -> Callable[..., list[Event]]:
    """The flow's stages up to training, in this process and without Prefect: the events. Ranks as in `retrain_here`."""
    from headway.flows.console.environment import prepare

    prepare()
    from headway.flows.config.request import RetrainRequest
    from headway.flows.run.session import session, watchers
    from headway.tasks.stages.launch import launch
    from headway.tasks.stages.register import tracking_uri
    from headway.tasks.stages.shard import shard
    from headway.tasks.stages.snapshot import snapshot
    from headway.tasks.stages.validate import validate

    def run(project: Project, *, guarded: bool = False, **options: Any) -> list[Event]:
        events: list[Event] = []
        token = watchers.set((events.append,))
        request = RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace), **options)
        try:
            with contextlib.nullcontext() if guarded else forked_gangs(), session(request) as (run, spec):
                files = snapshot.fn(run, spec.contract, spec.source)
                receipt = validate.fn(run, spec.contract, spec.source, files)
                manifest = shard.fn(run, spec.shards, spec.source, files, receipt)
                launch.fn(run, spec.training, spec.launch, manifest, tracking_uri(run, spec.registry))
        finally:
            watchers.reset(token)
        return events

    return run


@pytest.fixture
def try_here() -> Callable[..., tuple[Any, Any, list[Event]]]:
    """The flow `trials` up to the best one's evaluation, as `train_here`: what it found, its evaluation, the events."""
    from headway.flows.console.environment import prepare

    prepare()
    from headway.flows.config.request import TrialsRequest
    from headway.flows.run.session import session, watchers
    from headway.flows.trials.stages import budget_of
    from headway.flows.trials.wanted import wanted_trials
    from headway.tasks.stages.evaluate import evaluate
    from headway.tasks.stages.register import tracking_uri
    from headway.tasks.stages.search import search
    from headway.tasks.stages.shard import shard
    from headway.tasks.stages.snapshot import snapshot
    from headway.tasks.stages.trial_scores import Scoring
    from headway.tasks.stages.validate import validate
    from headway.tasks.stages.verify import verify

    def run(project: Project, *hear: Callable[[Event], object]) -> tuple[Any, Any, list[Event]]:
        events: list[Event] = []
        token = watchers.set((events.append, *hear))
        request = TrialsRequest(pipeline=str(project.pipeline), workspace=str(project.workspace))
        try:
            with forked_gangs(), session(request) as (run, spec):
                files = snapshot.fn(run, spec.contract, spec.source)
                receipt = validate.fn(run, spec.contract, spec.source, files)
                manifest = shard.fn(run, spec.shards, spec.source, files, receipt)
                uri = tracking_uri(run, spec.registry)
                scoring = Scoring(
                    evaluation=spec.evaluation, launch=spec.launch, shards=spec.shards, source=spec.source
                )
                found = search(
                    run, wanted_trials(spec), spec.training, scoring, manifest, uri, budget=budget_of(run, spec)
                )
                checkpoint = verify.fn(run, spec.launch, found.best.run)
                link = evaluate.fn(
                    run, spec.evaluation, spec.registry, spec.launch, spec.shards, spec.source, checkpoint
                )
                report = run.workspace.load(link, EvaluationReport)
        finally:
            watchers.reset(token)
        return found, report, events

    return run


@pytest.fixture(name="forked_gangs")
def _forked_gangs() -> Iterator[None]:
    """For tests of what ranks did, where nobody asks how they were started."""
    with forked_gangs():
        yield


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command in this process, which need not import everything once more: for what starts no Prefect."""
    from headway.flows.cli.command_line import run

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        before, heard = sys.argv, signal.getsignal(signal.SIGTERM)
        sys.argv = ["headway", *arguments]
        capfd.readouterr()
        try:
            # What a command says of itself, such as when it was started, is no word of the flows that follow it here.
            code = contextvars.copy_context().run(run)
        finally:
            sys.argv = before
            signal.signal(signal.SIGTERM, heard)
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return call


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., object]:
    return wait_until


def flip_one_bit(path: Path, draw: random.Random) -> None:
    """Any bit of the file, drawn."""
    data = bytearray(path.read_bytes())
    place = draw.randrange(8 * len(data))
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)


@pytest.fixture(name="flip_one_bit")
def _flip_one_bit(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Flips a bit drawn by the test's own name, so that a failure can be repeated."""
    draw = random.Random(request.node.nodeid)
    return lambda path: flip_one_bit(path, draw)
