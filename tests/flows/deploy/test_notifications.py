"""What a chat is told of data is text there: it calls nobody, and links nowhere under another wording."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from prefect.server.utilities.user_templates import render_user_template_sync

from headway.flows.deploy import automations

NASTY = "column <!channel> <https://evil.example|log in> @everyone [here](https://evil.example) <@U1> {{ 7 * 7 }}"


@pytest.mark.parametrize("template", [automations.OF_THE_RUN, automations.OF_THE_CHAMPION])
def test_text_of_data_calls_nobody_and_is_no_link(template: str) -> None:
    message = f"Flow run encountered an exception: DataError: {NASTY}"
    run = SimpleNamespace(name="retrain tiny", state=SimpleNamespace(name="Failed", message=message))
    event = SimpleNamespace(payload={"model": "tiny", "version": "2", "reason": NASTY})
    told = render_user_template_sync(template, {"flow_run": run, "event": event})
    assert "evil.example" in told and "everyone" in told and "{{ 7 * 7 }}" in told
    assert "exception" not in told
    assert not [sign for sign in ("<", ">", "@", "](") if sign in told]


def test_a_run_that_has_no_message_is_told_without() -> None:
    run = SimpleNamespace(name="retrain tiny", state=SimpleNamespace(name="Crashed", message=None))
    assert render_user_template_sync(automations.OF_THE_RUN, {"flow_run": run}) == "retrain tiny is Crashed: "
