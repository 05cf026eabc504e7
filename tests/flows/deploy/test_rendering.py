"""`headway deploy PROFILE --render`: the file for `prefect deploy`, from the same wish as the command's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.data_contracts.store.errors import ConfigError
from headway.flows.cli.command_line import run
from headway.flows.deploy.desired import desired
from headway.flows.deploy.rendering import render
from headway.flows.deploy.resources import DesiredState

REPOSITORY = Path(__file__).resolve().parents[3]
Make = Callable[..., DesiredState]


def called(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["headway", "deploy", *options])
    monkeypatch.setenv("HEADWAY_PROJECT", str(REPOSITORY))
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # nobody listens there
    return run()


def test_the_shipped_file_is_what_the_shipped_pipelines_and_profile_render_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, "production", "--render") == 0
    shipped = (REPOSITORY / "deployments" / "prefect.yaml").read_text()
    assert capsys.readouterr().out == shipped, "render it anew, as its first line says"
    assert str(REPOSITORY) not in shipped


@pytest.mark.parametrize("option", ["--dry-run", "--adopt", "--json"])
def test_what_asks_a_server_is_refused_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert called(monkeypatch, "production", "--render", option) == 2
    assert "--render stands alone" in capsys.readouterr().err


def parsed(wanted: DesiredState) -> dict[str, dict[str, Any]]:
    file = yaml.safe_load(render("production", desired(wanted)))
    return {each["name"]: each for each in file["deployments"]}


def test_it_holds_every_deployment_with_its_schedules_and_no_reference_from_one_to_another(make_wanted: Make) -> None:
    made = parsed(make_wanted())
    assert list(made) == ["nightly", "by-hand", "champion"]
    assert [(each["slug"], each["cron"], each["timezone"]) for each in made["nightly"]["schedules"]] == [
        ("window-0130", "30 1 * * sat", "Europe/Berlin"),
        ("window-2200", "0 22 * * mon,tue", "Europe/Berlin"),
    ]
    assert all(each["parameters"]["request"]["in_window"] for each in made["nightly"]["schedules"])
    assert made["by-hand"]["schedules"] == made["champion"]["schedules"] == []
    assert "&id" not in render("production", desired(make_wanted()))


def test_commands_that_people_copy_name_a_pool_as_one_word(make_wanted: Make) -> None:
    text = render("production", desired(make_wanted(profile={"pool": {"name": "gpus; id $(id)"}})))
    assert "# " + "  prefect worker start --pool 'gpus; id $(id)'\n" in text


@pytest.mark.parametrize("profile", [{"tags": ["{{ $AWS_SECRET_ACCESS_KEY }}"]}, {"env": {"A": "{{ $HOME }}"}}])
def test_what_prefect_deploy_would_fill_in_from_its_environment_is_refused(make_wanted: Make, profile: Any) -> None:
    with pytest.raises(ConfigError, match="puts something else in the place of"):
        render("production", desired(make_wanted(profile=profile)))


def test_a_suffix_and_resting_schedules_are_the_profiles(make_wanted: Make) -> None:
    made = parsed(make_wanted(profile={"suffix": "-dev", "schedules_active": False}))
    assert [each["active"] for each in made["nightly-dev"]["schedules"]] == [False, False]
