"""What the files and a profile come to, without a server."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

import headway.flows as flows_package
from headway.data_contracts.store.errors import ConfigError
from headway.flows.deploy.deploying import silence
from headway.flows.deploy.desired import ENTRYPOINTS, desired
from headway.flows.deploy.resources import DesiredState, Resource
from headway.flows.game_day_flow import GameDayRequest
from headway.flows.housekeeping_flow import HousekeepingRequest
from headway.flows.probe_flow import ProbeRequest
from headway.flows.report_flow import ReportRequest
from headway.training.launch.base.gang import LaunchSpec

from .conftest import WINDOWS, pipeline

Make = Callable[..., DesiredState]


def by_name(wanted: DesiredState) -> dict[str, Resource]:
    made = desired(wanted)
    named = {resource.name: resource for resource in made}
    assert len(named) == len(made)
    return named


AUTOMATIONS = (
    *(
        "zombie runs",
        "waiting runs",
        "lost starts",
        "starving pipelines",
        "cost bounds",
        "failed runs",
        "missed windows",
    ),
    "new champions",
)


def test_everything_carries_the_mark_of_its_project_and_profile(make_wanted: Make) -> None:
    made = by_name(make_wanted(profile={"limits": {"gpus": 8}, "variables": {"team": "search"}}))
    mark = "headway:acme:production"
    assert list(made) == [
        *("gpu-pool", f"{mark}:gpus", "team", "retrain/nightly", "retrain/by-hand", "move-champion/champion"),
        *(f"acme production: {each}" for each in AUTOMATIONS),
    ]
    for resource in made.values():
        marked = (resource.name, resource.fields.get("description", ""), *resource.fields.get("tags", ()))
        assert any(mark in each for each in marked), resource


def test_the_workspace_is_tidied_daily_where_a_profile_says_so_and_nothing_goes_unless_it_says_that_too(
    make_wanted: Make,
) -> None:
    assert "housekeeping/workspace" not in by_name(make_wanted())
    requested = {"housekeeping": {"at": "06:05", "keep_last": 7}}
    made = by_name(make_wanted(profile=requested))["housekeeping/workspace"].fields
    (daily,) = made["schedules"]
    assert daily["schedule"] == {"cron": "5 6 * * *", "timezone": "UTC"} and daily["active"]
    request = {"apply": False, "keep_last": 7, "older_than_days": 30, "scrub_gb": 100.0}
    assert daily["parameters"] == made["parameters"] == {"request": request}
    assert HousekeepingRequest.model_validate(request).older_than_days == 30


def test_a_pipeline_with_a_bound_on_its_cost_goes_by_the_profiles_prices_and_needs_some(
    make_wanted: Make,
) -> None:
    pipelines = {"nightly": pipeline("nightly", "cost_bound: {usd_per_month: 50}\n"), "free": pipeline("free", "")}
    with pytest.raises(ConfigError, match=r"nightly: cost_bound.* the profile production has no prices"):
        desired(make_wanted(pipelines=pipelines))
    made = by_name(make_wanted(pipelines=pipelines, profile={"prices": {"device_hour_usd": {"any": 2.0}}}))
    assert made["retrain/nightly"].fields["job_variables"]["env"]["HEADWAY_PROFILE"] == "production"
    assert "HEADWAY_PROFILE" not in made["retrain/free"].fields["job_variables"]["env"]


def test_a_report_is_made_the_morning_after_its_period_with_the_prices_of_the_profile(make_wanted: Make) -> None:
    assert not any(name.startswith("report/") for name in by_name(make_wanted()))
    asked = {"reports": ["week", "quarter"], "prices": {"device_hour_usd": {"any": 2.0}}}
    made = by_name(make_wanted(profile=asked))
    for period, cron in (("week", "0 6 * * mon"), ("quarter", "0 6 1 1,4,7,10 *")):
        fields = made[f"report/{period}"].fields
        (after,) = fields["schedules"]
        assert after["schedule"] == {"cron": cron, "timezone": "UTC"}
        request = ReportRequest.model_validate(fields["parameters"]["request"])
        assert request.period == period and request.prices.device_hour_usd == {"any": 2.0}
    assert "report/month" not in made


def test_a_game_day_is_where_a_profile_says_so_with_its_drills(make_wanted: Make) -> None:
    assert not any(name.startswith("game-day/") for name in by_name(make_wanted()))
    for given, cron in (({"every": "week", "at": "09:05", "drills": ["F4", "F7"]}, "5 9 * * tue"), ({}, "0 10 1 * *")):
        fields = by_name(make_wanted(profile={"game_day": given}))["game-day/sandbox"].fields
        (planned,) = fields["schedules"]
        assert planned["schedule"] == {"cron": cron, "timezone": "UTC"} and planned["active"]
        request = GameDayRequest.model_validate(planned["parameters"]["request"])
        assert request.drills == tuple(given.get("drills", ())) and fields["parameters"] == planned["parameters"]


def test_a_probe_is_made_each_hour_on_the_launcher_of_the_profile(make_wanted: Make) -> None:
    assert not any(name.startswith("probe/") for name in by_name(make_wanted()))
    ssh = {"launcher": "ssh", "nodes": 1, "ssh": {"hosts": ["a"]}}
    for given, name, cron in (({}, "local", "0 * * * *"), ({"every": "day", "launch": ssh}, "ssh", "0 0 * * *")):
        fields = by_name(make_wanted(profile={"probe": given}))[f"probe/{name}"].fields
        (planned,) = fields["schedules"]
        assert planned["schedule"] == {"cron": cron, "timezone": "UTC"} and planned["active"]
        request = ProbeRequest.model_validate(planned["parameters"]["request"])
        assert request.launch == LaunchSpec.model_validate(given.get("launch", {}))
        assert request.interval_s == (3600 if cron == "0 * * * *" else 86400)
        assert fields["parameters"] == planned["parameters"] and fields["concurrency_limit"] == 1


def test_a_probe_that_names_no_launcher_is_made_on_every_one_in_use(make_wanted: Make) -> None:
    ssh = "launch: {launcher: ssh, nodes: 4, ranks_per_node: 8, ssh: {hosts: [a, b, c, d]}}\n"
    pipelines = {"far": pipeline("far", ssh), "near": pipeline("near", "launch: {nodes: 8}\n")}
    made = by_name(make_wanted(pipelines=pipelines, profile={"probe": {"every": "hour"}}))
    assert [name for name in made if name.startswith("probe/")] == ["probe/local", "probe/ssh"]
    for launcher in ("local", "ssh"):
        request = ProbeRequest.model_validate(made[f"probe/{launcher}"].fields["parameters"]["request"])
        assert (request.launch.launcher, request.launch.world_size) == (launcher, 2)


def test_a_game_day_is_made_with_the_launch_that_it_names(make_wanted: Make) -> None:
    ssh = {"launcher": "ssh", "ssh": {"hosts": ["a", "b"]}}
    fields = by_name(make_wanted(profile={"game_day": {"launch": ssh}}))["game-day/sandbox"].fields
    request = GameDayRequest.model_validate(fields["parameters"]["request"])
    assert request.launch == LaunchSpec.model_validate(ssh)


def test_schedules_are_those_of_the_windows_and_keep_to_them(make_wanted: Make) -> None:
    made = by_name(make_wanted())
    rules = [(each["slug"], each["schedule"]) for each in made["retrain/nightly"].fields["schedules"]]
    assert rules == [
        ("window-0130", {"cron": "30 1 * * sat", "timezone": "Europe/Berlin"}),
        ("window-2200", {"cron": "0 22 * * mon,tue", "timezone": "Europe/Berlin"}),
    ]
    for each in made["retrain/nightly"].fields["schedules"]:
        assert each["active"] and each["parameters"] == {"request": {"pipeline": "nightly", "in_window": True}}
    # A person's own run from the form does not wait for a window.
    assert made["retrain/nightly"].fields["parameters"] == {"request": {"pipeline": "nightly"}}


def test_a_pipeline_without_windows_has_no_schedule(make_wanted: Make) -> None:
    assert by_name(make_wanted())["retrain/by-hand"].fields["schedules"] == []


def test_a_profile_may_let_schedules_rest(make_wanted: Make) -> None:
    made = by_name(make_wanted(profile={"schedules_active": False, "suffix": "-dev"}))
    assert [each["active"] for each in made["retrain/nightly-dev"].fields["schedules"]] == [False, False]


def test_environment_is_the_profiles_over_headways_own_and_null_leaves_it_to_the_worker(make_wanted: Make) -> None:
    def env(given: dict[str, str | None]) -> dict[str, str]:
        made = by_name(make_wanted(profile={"env": given}))["retrain/nightly"]
        variables: dict[str, dict[str, str]] = made.fields["job_variables"]
        return variables["env"]

    assert env({}) == {
        "HEADWAY_PROJECT": "/projects/acme",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "180",
        "PYTHONSAFEPATH": "1",
    }
    given = env({"HEADWAY_PROJECT": None, "HEADWAY_WORKSPACE": "s3://bucket/prefix"})
    assert "HEADWAY_PROJECT" not in given and given["HEADWAY_WORKSPACE"] == "s3://bucket/prefix"


def test_every_deployment_runs_one_at_a_time_and_cancels_the_others(make_wanted: Make) -> None:
    made = [each for each in desired(make_wanted()) if each.kind == "deployment"]
    assert len(made) == 3
    for each in made:
        assert each.fields["concurrency_limit"] == 1
        assert each.fields["concurrency_options"] == {"collision_strategy": "CANCEL_NEW"}


@pytest.mark.parametrize("heartbeat_s", [30, 180])
def test_a_run_is_a_zombie_after_three_heartbeats(make_wanted: Make, heartbeat_s: int) -> None:
    made = by_name(make_wanted(profile={"heartbeat_s": heartbeat_s}))
    trigger = made["acme production: zombie runs"].fields["trigger"]
    env = made["retrain/nightly"].fields["job_variables"]["env"]
    assert int(env["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"]) * 3 == trigger["within"] == 3 * heartbeat_s
    assert trigger["posture"] == "Proactive" and trigger["after"] == ["prefect.flow-run.heartbeat"]
    # What ends, or waits for a person, is no zombie.
    awaited = {event.rpartition(".")[2] for event in trigger["expect"]}
    named = {
        "Held",
        "Infrastructure",
        "Stopped",
        "WindowClosed",
        "CostBoundReached",
        "Starving",
        "OutsideWindow",
        "WindowTooShort",
        "Skipped",
        "Blackout",
        "Missed",
    }
    by_type = {"heartbeat", "Completed", "Failed", "Cancelled", "Crashed", "Suspended", "Paused"}
    looked = {"NotDue", "Requested", "WaitingForWindow", "WaitingForRun", "PipelinePaused", "PreviousRequestFailed"}
    assert awaited == by_type | named | looked | {"AwaitingApproval"}, (
        "Prefect calls an event as the state is named, not by its type"
    )


@pytest.mark.parametrize(("heartbeat_s", "within_s"), [(30, 900), (400, 1200)])
def test_a_run_that_waits_is_told_once_for_all_and_not_while_another_shows_that_a_worker_lives(
    make_wanted: Make, heartbeat_s: int, within_s: int
) -> None:
    made = by_name(make_wanted(profile={"heartbeat_s": heartbeat_s}))
    trigger = made["acme production: waiting runs"].fields["trigger"]
    assert (trigger["within"], trigger["for_each"]) == (within_s, [])
    assert "prefect.flow-run.heartbeat" in trigger["expect"]


def test_every_module_that_gives_an_end_a_name_is_one_whose_names_are_awaited() -> None:
    """Who adds one: put its names into `ENDED`, or each run that ends so is told to be a zombie."""
    flows = Path(flows_package.__path__[0])
    naming = {str(path.relative_to(flows)) for path in flows.rglob("*.py") if "Completed(name=" in path.read_text()}
    assert naming == {"report/summary.py", "watch.py", "windows/admission.py"}


def test_automations_hear_of_runs_of_this_profile_alone(make_wanted: Make) -> None:
    made = [each for each in desired(make_wanted()) if each.kind == "automation"]
    assert len(made) == len(AUTOMATIONS)
    mark = "headway:acme:production"
    for each in made:
        tag = f"{mark}:unwatched" if each.name.endswith("lost starts") else mark
        related = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{tag}"}
        assert each.fields["trigger"]["match_related"] == related
        assert tag in by_name(make_wanted())["retrain/nightly"].fields["tags"]


def test_a_pipeline_with_triggers_is_looked_at_and_its_lost_starts_are_no_news(make_wanted: Make) -> None:
    watched = pipeline("nightly", "\ntriggers: {new_data: {rows: 0.1}, event: shop.exported, check_every: 5m}\n")
    made = by_name(make_wanted(pipelines={"nightly": watched}, profile={"suffix": "-dev"}))
    look = made["watch/nightly-dev"].fields
    assert look["schedules"][0]["schedule"] == {"interval": 300.0, "timezone": "UTC"}
    assert look["parameters"] == {"request": {"pipeline": "nightly", "retrain": "retrain/nightly-dev"}}
    event = made["acme production: shop.exported for nightly"].fields
    assert event["trigger"]["expect"] == ["shop.exported"]
    assert event["actions"][0]["deployment"] == "watch/nightly-dev"
    alone = [name for name, each in made.items() if "headway:acme:production:unwatched" in each.fields.get("tags", ())]
    assert alone == ["move-champion/champion-dev"]


def test_what_pipelines_occupy_is_counted_by_priority_and_more_than_there_is_is_refused(make_wanted: Make) -> None:
    urgent = pipeline("nightly", WINDOWS + "  priority: 10\noccupies: {gpus: 4}\n")
    pipelines = {"nightly": urgent, "by-hand": pipeline("by-hand", "\noccupies: {gpus: 1}\n")}
    made = by_name(make_wanted(pipelines=pipelines, profile={"limits": {"gpus": 4}}))
    mark = "headway:acme:production"
    limits = {name: each.fields["limit"] for name, each in made.items() if each.kind == "concurrency limit"}
    assert limits == {f"{mark}:gpus": 4, f"{mark}:gpus:waiting:0": 1000, f"{mark}:gpus:waiting:10": 1000}
    assert made["retrain/nightly"].fields["job_variables"]["env"]["HEADWAY_LIMITS"] == mark
    assert "HEADWAY_LIMITS" not in made["move-champion/champion"].fields["job_variables"]["env"]
    with pytest.raises(ConfigError, match=r"nightly.*occupies 4 gpus, of which the profile production has 3"):
        desired(make_wanted(pipelines=pipelines, profile={"limits": {"gpus": 3}}))


def test_a_notification_is_sent_where_a_block_is_named(make_wanted: Make) -> None:
    wanted = make_wanted(block_ids={"page": "b1", "ticket": "b2"})
    made = [each for each in desired(wanted) if each.kind == "automation"]
    zombies, *telling = made
    assert [action["type"] for action in zombies.fields["actions"]] == ["change-flow-run-state"], "failed runs tell it"
    for each in telling:
        assert each.fields["actions"][-1]["type"] == "send-notification"
        is_page = each.name.endswith(("failed runs", "waiting runs"))
        assert each.fields["actions"][-1]["block_document_id"] == ("b1" if is_page else "b2"), each.name
        assert each.fields["actions"][-1]["subject"].startswith(f"Headway {'page' if is_page else 'ticket'}: ")
        whom = "{{ event.payload.model }}" if each.name.endswith("new champions") else ".name }}"
        assert each.fields["actions"][-1]["subject"].endswith(whom)
        assert not each.fields["actions"][-1]["body"].startswith("Fires"), "what happened comes first"


@pytest.mark.parametrize("name", list(ENTRYPOINTS))
def test_a_worker_finds_each_flow_under_its_name(name: str) -> None:
    module, _, attribute = ENTRYPOINTS[name].rpartition(".")
    assert getattr(importlib.import_module(module), attribute).name == name


def test_a_pipeline_with_trials_has_a_form_for_them_and_no_schedule(make_wanted: Make) -> None:
    requested = "evaluation: {ranking_share: 0.5}\ntrials: {vary: {optimizer.lr: [0.1, 0.2]}}\noccupies: {gpus: 2}\n"
    pipelines = {"nightly": pipeline("nightly", WINDOWS + requested), "by-hand": pipeline("by-hand")}
    made = by_name(make_wanted(pipelines=pipelines, profile={"limits": {"gpus": 8}}))
    trials = made["trials/nightly"].fields
    assert "trials/by-hand" not in made and trials["schedules"] == []
    assert trials["parameters"] == {"request": {"pipeline": "nightly"}}
    assert trials["job_variables"]["env"]["HEADWAY_LIMITS"] == "headway:acme:production", "its devices are counted"
    assert "headway:acme:production:unwatched" in trials["tags"], "a start that is lost is told of"


def test_alerts_that_reach_nobody_are_counted_and_the_advice_says_how_they_would(make_wanted) -> None:
    wanted = make_wanted()
    message = silence(wanted, desired(wanted))
    assert message.startswith("nobody is told of failures and missed windows: the profile")
    assert f"{wanted.profile_name} names no `notify`, and 7 alerts" in message
    assert "prefect block create" in message and "notify: slack-webhook/NAME" in message and "profiles.yaml" in message
    told = dataclasses.replace(wanted, block_ids=dict.fromkeys(("page", "ticket"), "an-id"))
    assert silence(told, desired(told)) == ""
    meant = make_wanted(profile={"notify": "none"})
    assert silence(meant, desired(meant)) == "", "who says `none` has decided"


def test_the_form_offers_the_pipelines_that_are_deployed(make_wanted: Make) -> None:
    pipelines = {name: pipeline(name, "") for name in ("nightly", "by-hand")}
    wanted = make_wanted(pipelines=pipelines)
    asked = {"definitions": {"RetrainRequest": {"properties": {"pipeline": {"type": "string", "examples": ["x"]}}}}}
    made = by_name(dataclasses.replace(wanted, forms=dict.fromkeys(wanted.forms, asked)))
    form = made["retrain/nightly"].fields["parameter_openapi_schema"]
    assert form["definitions"]["RetrainRequest"]["properties"]["pipeline"] == {
        **{"type": "string", "enum": ["by-hand", "nightly"]},
    }
