"""An entry whose detail lacks something, or says it otherwise, is named by its file, whoever reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.errors import IntegrityError
from headway.flows.act.champion_moves import _store
from headway.flows.show.champion_history import read_history
from headway.tasks.registry import decisions, mlflow_aliases, mlflow_store, model_card, model_refs, tracked_runs
from headway.tasks.registry.model_versions import ModelVersions
from headway.tasks.stages import starting_point
from tests.tasks.conftest import MODEL, make_context
from tests.tasks.forge import Forge

ENTRY = 3
"""The newest of each ref."""
Read = Callable[[Forge, ModelVersions], object]
READERS: dict[str, dict[str, Read]] = {
    "decisions": {
        "history": lambda f, _: read_history(f.workspace.uri, MODEL),
        "card": lambda f, _: model_card.render(f.workspace, MODEL, f.last.link, "3"),
        "policy": lambda f, _: decisions.last_policy(f.workspace, MODEL),
        "who waits": lambda f, _: decisions.awaiting(f.workspace, MODEL),
        "who was refused": lambda f, _: decisions.current_refusal(f.workspace, MODEL, f.last.link),
    },
    "champion": {
        "history": lambda f, _: read_history(f.workspace.uri, MODEL),
        "card": lambda f, _: model_card.render(f.workspace, MODEL, f.last.link, "3"),
        "way back": lambda f, _: model_refs.previous_champion(
            MODEL, refs.history(f.workspace, model_refs.alias_ref(MODEL, "champion"))
        ),
        "proof": lambda f, _: model_refs.prove_histories(f.workspace, MODEL),
    },
    "versions": {
        "history": lambda f, _: read_history(f.workspace.uri, MODEL),
        "store": lambda f, _: _store(f.workspace, MODEL),
        "stores": lambda f, _: list(tracked_runs.stores(f.workspace)),
        "number": lambda f, _: model_refs.version_of(f.workspace, MODEL, f.last.link, store=""),
        "version": lambda f, _: model_refs.resolve(f.workspace, f"models:/{MODEL}/1"),
    },
    "projected-champion": {"alias": lambda _, versions: mlflow_aliases.sync_mlflow_aliases(versions)},
    "projected-challenger": {"alias": lambda _, versions: mlflow_aliases.sync_mlflow_aliases(versions)},
    "retired": {
        "card": lambda f, _: model_card.render(f.workspace, MODEL, f.last.link, "3"),
        "use": lambda f, _: model_refs.require_in_use(f.workspace, MODEL, "3", f.last.link),
    },
}
FIELDS = {
    "decisions": ("registration", "version", "by"),
    "champion": ("version",),
    "versions": ("version",),
    "projected-champion": ("version",),
    "projected-challenger": ("version",),
    "retired": ("by",),
}
OPTIONAL = {
    "champion": ("how", "by", "decision", "from"),
    "versions": ("tracking_uri",),
    "projected-champion": ("entry",),
    "projected-challenger": ("entry",),
}
DAMAGES = [
    *((ref, field, value) for ref, fields in FIELDS.items() for field in fields for value in (..., 3.5, None, [])),
    *((ref, field, {}) for ref, fields in OPTIONAL.items() for field in fields),
    ("versions", "version", "x"),
    ("versions", "version", "³"),
]


@pytest.fixture
def versions(forge: Forge, tmp_path: Path) -> ModelVersions:
    uri = mlflow_store.default_tracking_uri(forge.workspace)
    return ModelVersions(make_context(forge.workspace, tmp_path / "flow"), lambda: mlflow_store.connect(uri), MODEL, "")


@pytest.mark.parametrize(("ref", "field", "value"), DAMAGES)
def test_a_detail_that_is_not_as_it_was_written_is_named_by_its_file_and_field(
    forge: Forge, versions: ModelVersions, ref: str, field: str, value: Any
) -> None:
    if ref == "retired":
        for number in range(1, ENTRY + 1):
            link = forge.workspace.publish_document(forge.last) if number == ENTRY else forge.runs[0].run
            name = model_refs.retired_ref(MODEL)
            refs.move(forge.workspace, name, link, expected=number - 1, reason="old", detail={"by": "ada"})
    folder = f"refs/models/{MODEL}/{ref}"
    assert len(forge.names(folder)) == ENTRY
    forge.detail(folder, ENTRY, **{field: value})
    for reader, read in READERS[ref].items():
        with pytest.raises(IntegrityError, match=f"does not say its '{field}'") as caught:
            read(forge, versions)
            pytest.fail(f"{reader} says nothing of it")
        assert caught.value.where == f"{folder}/{ENTRY:08d}.json", reader


def test_a_start_that_does_not_say_what_it_began_from_is_named_by_its_file(forge: Forge) -> None:
    name = "starts/tiny/0123"
    refs.move(forge.workspace, name, forge.last.link, expected=None, reason="a run began", detail={})
    entry = refs.current(forge.workspace, name)
    assert entry is not None
    with pytest.raises(IntegrityError, match="does not say its 'message'"):
        refs.detail_of(name, entry, starting_point.StartDetail)


def test_what_a_later_headway_says_besides_is_no_damage(forge: Forge) -> None:
    forge.detail(f"refs/models/{MODEL}/champion", ENTRY, more=1)
    assert read_history(forge.workspace.uri, MODEL).champion == "3"
