"""The form by which a champion is moved: what it refuses before a run begins, and what it passes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.flows.champion_flow import MoveRequest, move_champion


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"model": "m", "why": ""}, "why"),
        ({"model": "", "why": "w"}, "model"),
        ({"model": "m", "why": "w", "move": "promote"}, "needs the version"),
        ({"model": "m", "why": "w", "move": "refuse"}, "needs the version"),
        ({"model": "m", "why": "w", "override": "o"}, "nothing to override"),
        ({"model": "m", "why": "w", "move": "refuse", "version": "1", "override": "o"}, "nothing to override"),
        ({"model": "m", "why": "w", "force": True}, "force"),
    ],
)
def test_a_form_that_makes_no_sense_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        MoveRequest(**given)


@pytest.mark.parametrize("move", ["rollback", "promote", "refuse"])
def test_a_move_of_an_unknown_model_says_so(move: str, tmp_path: Path) -> None:
    Workspace(str(tmp_path)).publish("refs/models/other/note", b"{}")
    request = MoveRequest.model_validate(
        {"model": "nobody", "why": "w", "move": move, "version": "1", "workspace": str(tmp_path)}
    )
    with pytest.raises(ConfigError, match="nobody"):
        move_champion.fn(request)


def test_every_field_of_the_form_has_a_title_and_a_description() -> None:
    for name, field in MoveRequest.model_fields.items():
        assert field.title and field.description, name
