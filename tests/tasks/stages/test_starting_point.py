"""Which checkpoint a run starts from: what the URI means when it begins, for as long as it is unfinished."""

from __future__ import annotations

import pytest

from headway.data_contracts.store import refs, stages
from headway.data_contracts.store.documents import CheckpointManifest, FittedState, Link, Registration, RunSpec
from headway.data_contracts.store.errors import ConfigError
from headway.tasks.registry import model_refs
from headway.tasks.stages.starting_point import checkpoint_today, record_start, resolve_start, start_ref
from headway.training.config.start_spec import StartSpec

CHAMPION = StartSpec(model="models:/texts@champion")


@pytest.fixture
def world(context, register):
    return World(context, register)


class World:
    """A registry where models become champion, and a run that starts from one."""

    def __init__(self, context, register) -> None:
        self.context, self.workspace, self._register = context, context.workspace, register

    def champion(self, number: int) -> Link:
        """Registers a model and makes it champion; its checkpoint."""
        registration, _ = self._register(number)
        self.crown(registration, number)
        return self.workspace.load(registration, Registration).checkpoint

    def crown(self, registration: Link, number: int) -> None:
        for name in (model_refs.versions_ref("texts"), model_refs.alias_ref("texts", "champion")):
            entry = refs.current(self.workspace, name)
            refs.move(self.workspace, name, registration, expected=entry, reason="", detail={"version": str(number)})

    def champion_of(self, run: RunSpec, like: Link) -> Link:
        """Makes a checkpoint of this run champion; the checkpoint."""
        manifest = self.workspace.load(like, CheckpointManifest)
        made = manifest.model_copy(update={"run": self.workspace.publish_document(run)})
        registration = Registration(
            model="texts",
            run=run.link,
            checkpoint=self.workspace.publish_document(made),
            evaluation=Link(kind="evaluation", sha256="e" * 64),
            artifacts=(),
        )
        self.crown(self.workspace.publish_document(registration), 2)
        return made.link

    def parent_of(self, checkpoint: Link) -> RunSpec:
        return self.workspace.load(self.workspace.load(checkpoint, CheckpointManifest).run, RunSpec)

    def run(self, like: RunSpec, **changes) -> RunSpec:
        return like.model_copy(update={"pipeline": "tuned", "start": None, **changes})

    def finish(self, run: RunSpec) -> None:
        stages.record(self.workspace, "launch", {"run": run.sha256}, self.workspace.publish_document(run))


def test_an_alias_is_settled_to_the_checkpoint_it_means_today_and_a_person_is_told(world):
    first = world.champion(1)
    settled = resolve_start(world.context, world.run(world.parent_of(first)), CHAMPION)
    assert settled.run.start == first
    assert settled.message == f"texts version 1, checkpoint {first.sha256[:12]}"


def test_a_run_that_started_from_the_challenger_keeps_its_start_when_that_becomes_champion(world):
    first, start = world.champion(1), StartSpec(model="models:/texts@challenger")
    target, detail = model_refs.versions(world.workspace, "texts")[0].target, {"version": "1"}
    refs.move(world.workspace, "models/texts/challenger", target, expected=None, reason="", detail=detail)
    with pytest.raises(ConfigError, match="its newest version is the champion"):
        model_refs.resolve(world.workspace, start.model)
    assert resolve_start(world.context, world.run(world.parent_of(first)), start).run.start == first


def test_a_new_champion_is_another_run_but_not_for_one_that_is_unfinished(world):
    first = world.champion(1)
    run = world.run(world.parent_of(first))
    started = resolve_start(world.context, run, CHAMPION)
    record_start(world.context, started)
    second = world.champion(2)

    still = resolve_start(world.context, run, CHAMPION)
    assert still.run == started.run and "as the unfinished run began" in still.message

    world.finish(started.run)
    assert resolve_start(world.context, run, CHAMPION).run.start == second


def test_looking_writes_nothing_down(world):
    run = world.run(world.parent_of(world.champion(1)))
    resolve_start(world.context, run, CHAMPION)
    assert refs.current(world.workspace, start_ref(run)) is None


def test_a_model_that_became_champion_is_not_started_from_by_the_run_that_made_it(world):
    first = world.champion(1)
    run = world.run(world.parent_of(first))
    started = resolve_start(world.context, run, CHAMPION)
    record_start(world.context, started)
    world.finish(started.run)
    own = world.champion_of(started.run, first)

    again = resolve_start(world.context, run, CHAMPION)
    assert again.run == started.run
    edited = world.run(run, environment=run.code.model_copy(update={"path": "another"}))
    assert resolve_start(world.context, edited, CHAMPION).run.start == own


def test_a_model_whose_rows_mean_something_else_is_refused_unless_that_is_asked_for(world):
    def fitted(classes: int, snapshot: str) -> Link:
        state = FittedState(
            encoder="image",
            spec={},
            snapshot=Link(kind="snapshot", sha256=snapshot * 64),
            receipt=Link(kind="receipt", sha256="0" * 64),
            files=(),
            libraries={},
            statistics={"classes": classes},
        )
        return world.workspace.publish_document(state)

    first = world.champion(1)
    parent = world.parent_of(first).model_copy(update={"fitted": fitted(10, "a")})
    own = world.champion_of(parent, first)

    same = world.run(parent, fitted=fitted(10, "b"))
    assert resolve_start(world.context, same, CHAMPION).run.start == own
    other = world.run(parent, fitted=fitted(12, "a"))
    with pytest.raises(ConfigError, match="the same numbers mean something else"):
        resolve_start(world.context, other, CHAMPION)
    anyway = CHAMPION.model_copy(update={"encoding": "any"})
    assert resolve_start(world.context, other, anyway).run.start == own


def test_a_model_that_is_not_there_is_refused_with_what_there_is(world):
    run = world.run(world.parent_of(world.champion(1)))
    with pytest.raises(ConfigError, match=r"no model 'text' in this workspace.*texts"):
        resolve_start(world.context, run, StartSpec(model="models:/text@champion"))


def test_a_trial_starts_from_what_the_alias_meant_when_its_search_began_whoever_became_champion_since(world):
    first = world.champion(1)
    run = world.run(world.parent_of(first))
    began = checkpoint_today(world.context, CHAMPION)
    settled = resolve_start(world.context, run, CHAMPION, held=began)
    record_start(world.context, settled)
    world.finish(settled.run)
    world.champion(2)
    assert resolve_start(world.context, run, CHAMPION, held=began).run == settled.run
    assert resolve_start(world.context, run, CHAMPION).run != settled.run
