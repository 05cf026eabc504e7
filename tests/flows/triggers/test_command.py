"""`headway triggers`, and where else a person reads what was asked for."""

from __future__ import annotations

import io
import json
import sys

import pytest

from headway.flows.cli.command_line import run
from headway.flows.console.console import plain_console
from headway.flows.show.status import print_status, read_status


def headway(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["headway", *arguments])
    return run()


@pytest.mark.process
def test_figures_stand_beside_their_limits_for_people_and_machines(
    tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.say("{new_data: {rows: 0.1, files: 0.9}}")
    tiny.retrain()
    tiny.write("c", 50)
    place = ("tiny.yaml", "--workspace", tiny.workspace.uri)
    assert headway(monkeypatch, "triggers", *place) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["new", "data", "rows", "0.25", "0.1", "250", "after", "200"] in lines
    assert lines[0] == ["tiny", "due:", "new", "data:", "rows", "0.25,", "over", "0.1", "(250", "after", "200)"]
    assert headway(monkeypatch, "triggers", *place, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_due"] and found["requested"] is None
    assert [(each["what"], each["is_over"]) for each in found["figures"]] == [("rows", True), ("files", False)]


@pytest.mark.process
def test_what_was_asked_for_is_in_the_status_until_a_retrain_finishes(tiny) -> None:
    tiny.say("{new_data: {rows: 0.1}}")
    found = tiny.evaluate_triggers()
    tiny.ask(found)
    (requested,) = read_status(tiny.workspace.uri).requested
    assert (requested.pipeline, requested.why) == ("tiny", found.decision.why)
    shown = io.StringIO()
    print_status(read_status(tiny.workspace.uri), plain_console(shown, width=80))
    assert "tiny  retrain asked for" in shown.getvalue() and "no retrain on record" in shown.getvalue()
    tiny.retrain()
    assert read_status(tiny.workspace.uri).requested == []


def test_a_pipeline_without_triggers_is_a_users_mistake(
    tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.say("null")
    assert headway(monkeypatch, "triggers", "tiny.yaml", "--workspace", tiny.workspace.uri) == 2
    assert "has no triggers" in capsys.readouterr().err
