"""`headway deploy` on a real server: twice, after edits, broken off, beside others' things; and its automations."""

from __future__ import annotations

import io
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.cli.command_line import run
from headway.flows.console.console import plain_console
from headway.flows.deploy import automations, deploying
from headway.flows.deploy.deploying import DeployReport, deploy
from tests.waiting import wait_until
from tests.warm_programs import run_program

MARK = "headway:shop:production"
PROFILES = """
project: shop
profiles:
  production: {pool: {name: shop}, suffix: -shop, limits: {gpus: 8}, variables: {shop: {team: search}}}
  dev: {pool: {name: shop-dev}, suffix: -dev, schedules_active: false}
  clash: {pool: {name: shop-clash}, suffix: -shop}
"""
WINDOWS = '\nwindows: {time_zone: Europe/Berlin, open: [{start: "01:00", end: "05:00"}]}\n'


class Shop:
    """A user's project of two pipelines, `tiny` with windows, and a server that others may have deployed to before."""

    def __init__(self, service: Any, folder: Path) -> None:
        self.service, self.folder, self.told = service, folder, io.StringIO()

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.folder / "deployments" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def deploy(self, profile: str = "production", **options: Any) -> list[str]:
        """The steps, as a person reads them."""
        made: DeployReport = deploy(self.folder, profile, console=plain_console(self.told, width=200), **options)
        return [str(change) for change in made.changes]

    def marked(self, path: str, mark: str = MARK) -> list[str]:
        """Names of what carries the mark; asked from the server without our own reader."""
        return sorted(each["name"] for each in self.service.api(path, {}) if mark in str(each))


@pytest.fixture
def shop(service: Any, project: Path, tmp_path: Path) -> Iterator[Shop]:
    folder = tmp_path / "shop"
    shutil.copytree(project, folder)
    (folder / "deployments" / "endless.yaml").unlink()
    (folder / "deployments" / "profiles.yaml").write_text(PROFILES)
    with (folder / "deployments" / "tiny.yaml").open("a") as file:
        file.write(WINDOWS)
    made = Shop(service, folder)
    with service.configured():
        yield made
        for path in ("automations", "deployments", "variables", "v2/concurrency_limits", "work_pools"):
            for each in service.api(f"{path}/filter", {}):
                if "headway:shop:" in str(each):
                    service.api(f"{path}/{each['name'] if path == 'work_pools' else each['id']}", method="DELETE")


ALL = [
    "create work pool shop",
    f"create concurrency limit {MARK}:gpus",
    "create variable shop",
    "create deployment retrain/refused-shop",
    "create deployment retrain/tiny-shop",
    "create deployment move-champion/champion-shop",
    "create automation shop production: zombie runs",
    "create automation shop production: waiting runs",
    "create automation shop production: lost starts",
    "create automation shop production: starving pipelines",
    "create automation shop production: cost bounds",
    "create automation shop production: failed runs",
    "create automation shop production: missed windows",
    "create automation shop production: new champions",
]


def test_deployed_twice_the_second_time_changes_nothing_and_edits_are_one_change_each(shop: Shop) -> None:
    assert shop.deploy(dry_run=True) == ALL
    assert shop.marked("deployments/filter") == shop.marked("work_pools/filter") == []
    assert shop.deploy() == ALL
    assert all(f"created {each.removeprefix('create ')}" in shop.told.getvalue() for each in ALL)
    assert shop.told.getvalue().startswith("warning: nobody is told of failures and missed windows: the profile")
    assert shop.told.getvalue().count("tells nobody: no `notify`") == 14, "of the dry run, too"
    assert "is open" not in shop.told.getvalue()
    before = shop.service.api("deployments/name/retrain/tiny-shop")
    assert before["job_variables"]["env"]["HEADWAY_PROJECT"] == str(shop.folder)
    assert shop.deploy() == []
    assert shop.service.api("deployments/name/retrain/tiny-shop") == before

    shop.edit("tiny.yaml", "01:00", "01:30")
    assert shop.deploy() == ["change deployment retrain/tiny-shop"]
    (schedule,) = shop.service.api("deployments/name/retrain/tiny-shop")["schedules"]
    assert (schedule["schedule"]["cron"], schedule["active"]) == ("30 1 * * *", True)
    assert shop.service.api("deployments/name/retrain/tiny-shop")["id"] == before["id"]
    assert shop.deploy() == []

    (shop.folder / "deployments" / "refused.yaml").unlink()
    shop.edit("profiles.yaml", ", limits: {gpus: 8}, variables: {shop: {team: search}}", "")
    gone = ["deployment retrain/refused-shop", "variable shop", f"concurrency limit {MARK}:gpus"]
    form = "change deployment retrain/tiny-shop"  # whose form offers the pipelines that there are
    assert shop.deploy() == [form, *(f"remove {each}" for each in gone)]
    assert shop.marked("deployments/filter") == ["champion-shop", "tiny-shop"]
    assert shop.deploy() == []


def test_what_a_person_changed_on_the_server_is_shown_and_put_back(shop: Shop) -> None:
    shop.deploy()
    limit = shop.service.api(f"v2/concurrency_limits/{MARK}:gpus")
    shop.service.api(f"v2/concurrency_limits/{limit['id']}", {"limit": 1}, method="PATCH")
    automations = shop.service.api("automations/filter", {})
    (automation,) = (each for each in automations if each["name"] == "shop production: zombie runs")
    shop.service.api(f"automations/{automation['id']}", {"enabled": False}, method="PATCH")
    shop.service.api("work_pools/shop", {"concurrency_limit": 2}, method="PATCH")
    changed = ["work pool shop", f"concurrency limit {MARK}:gpus", "automation shop production: zombie runs"]
    assert shop.deploy() == [f"change {each}" for each in changed]
    assert "limit: 1 → 8" in shop.told.getvalue() and "enabled: False → True" in shop.told.getvalue()
    assert shop.deploy() == []


def test_profiles_share_a_server_and_neither_removes_the_others_things(shop: Shop) -> None:
    shop.deploy()
    assert "create deployment retrain/tiny-dev" in shop.deploy("dev")
    assert shop.deploy() == shop.deploy("dev") == []
    (schedule,) = shop.service.api("deployments/name/retrain/tiny-dev")["schedules"]
    assert not schedule["active"]


def test_a_name_that_another_profile_has_is_refused_before_anything_is_done(shop: Shop) -> None:
    shop.deploy()
    with pytest.raises(ConfigError, match=r"nothing was changed.*deployment retrain/tiny-shop"):
        shop.deploy("clash")
    assert shop.marked("work_pools/filter", "headway:shop:clash") == []


def test_broken_off_half_way_it_names_what_was_done_and_a_second_time_does_the_rest(shop: Shop) -> None:
    shop.edit("profiles.yaml", "{team: search}", "x" * 6_000)  # more than Prefect keeps
    with pytest.raises(EnvironmentProblem) as broken:
        shop.deploy()
    assert "could not create variable shop: 422" in broken.value.what
    assert f"Done: create work pool shop, create concurrency limit {MARK}:gpus. Not done:" in broken.value.what
    shop.edit("profiles.yaml", "x" * 6_000, "{team: search}")
    assert shop.deploy() == ALL[2:]
    assert shop.deploy() == []


def test_a_start_that_the_limit_cancelled_raises_an_event(shop: Shop) -> None:
    shop.deploy()
    deployment = shop.service.api("deployments/name/retrain/tiny-shop")["id"]
    runs = [shop.service.api(f"deployments/{deployment}/create_flow_run", {})["id"] for _ in range(2)]
    for each in runs:
        shop.service.api(f"flow_runs/{each}/set_state", {"state": {"type": "PENDING"}})
    assert [shop.service.state(each)["type"] for each in runs] == ["PENDING", "CANCELLED"]
    requested = {"filter": {"event": {"name": ["prefect.automation.triggered"]}}}
    # Others of their names fired in other tests.
    made = shop.service.api("automations/filter", {})
    ours = {f"prefect.automation.{each['id']}": each["name"] for each in made if MARK in str(each)}

    def fired() -> list[str]:
        resources = (each["resource"] for each in shop.service.api("events/filter", requested)["events"])
        return [ours[each["prefect.resource.id"]] for each in resources if each["prefect.resource.id"] in ours]

    assert wait_until(fired, what="the automation", every_s=0.5) == ["shop production: lost starts"]


MOVES = f"""
from prefect import flow, tags
from headway.flows.prefect_api.champion_event import emit_champion_event

@flow
def moves():
    emit_champion_event("tiny", "7", "better by 0.1")

with tags({MARK!r}):
    moves()
"""


class Told(BaseHTTPRequestHandler):
    """Takes what the server's webhook says."""

    heard: ClassVar[list[str]] = []
    status: ClassVar[int] = 200

    def do_POST(self) -> None:
        self.heard.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """No line for each request."""


@pytest.fixture
def webhook(shop: Shop) -> Iterator[list[str]]:
    """What a person who is on call is told, by the block `custom-webhook/on-call`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Told) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        kind = shop.service.api("block_types/slug/custom-webhook")["id"]
        schemas = shop.service.api("block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [kind]}}})
        words = {"subject": "{{subject}}", "body": "{{body}}"}
        data = {"name": "on-call", "url": f"http://127.0.0.1:{listener.server_port}", "json_data": words}
        block = {"name": "on-call", "data": data, "block_type_id": kind, "block_schema_id": schemas[0]["id"]}
        made = shop.service.api("block_documents/", block)
        Told.heard.clear()
        yield Told.heard
        shop.service.api(f"block_documents/{made['id']}", method="DELETE")
        listener.shutdown()


def test_who_is_on_call_hears_of_runs_that_no_worker_takes(
    shop: Shop, webhook: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automations, "LATE_S", 10)  # the least that Prefect takes
    monkeypatch.setattr(automations, "HEARTBEATS_MISSED", 0)
    shop.edit("profiles.yaml", "variables: {shop: {team: search}}", "notify: custom-webhook/on-call")
    shop.deploy()
    deployment = shop.service.api("deployments/name/retrain/tiny-shop")["id"]
    for _ in range(2):
        run = shop.service.api(f"deployments/{deployment}/create_flow_run", {})["id"]
        late = {"type": "SCHEDULED", "name": "Late"}
        shop.service.api(f"flow_runs/{run}/set_state", {"state": late, "force": True})
    told = "retrain/tiny-shop is due, and no worker takes it."
    wait_until(lambda: any("waiting runs: retrain/tiny-shop" in each and told in each for each in webhook), what=told)
    assert len(webhook) == 1, "one alarm for all that wait"
    assert "nobody" not in shop.told.getvalue(), "who deploys is not warned where somebody is told"


def test_who_is_on_call_hears_of_failures_missed_windows_and_new_champions(shop: Shop, webhook: list[str]) -> None:
    shop.edit("profiles.yaml", "variables: {shop: {team: search}}", "notify: custom-webhook/on-call")
    shop.deploy()
    deployment = shop.service.api("deployments/name/retrain/tiny-shop")["id"]
    ends = {
        "failed runs": {"type": "FAILED", "name": "Infrastructure", "message": "rank 1 on node-7 vanished"},
        "missed windows": {"type": "COMPLETED", "name": "Missed", "message": "its window closed at 5"},
    }
    for state in ends.values():
        run = shop.service.api(f"deployments/{deployment}/create_flow_run", {})["id"]
        shop.service.api(f"flow_runs/{run}/set_state", {"state": state, "force": True})

    # In a process of its own: what sends events in this one may have begun to send them to another server.
    environment = shop.service.environment | {"PREFECT_API_URL": shop.service.url}
    run_program([sys.executable, "-c", MOVES], env=environment, check=True, cwd=shop.folder)
    told = [(f"shop production: {what}: ", f"is {state['name']}: {state['message']}") for what, state in ends.items()]
    told.append(("shop production: new champions", "tiny version 7: better by 0.1"))
    for subject, body in told:
        wait_until(lambda: any(subject in each and body in each for each in webhook), 120, subject)  # noqa: B023
    assert len(webhook) == len(told), "and of nothing else"


def test_trying_out_alerts_tells_whom_the_profile_names_and_says_where_nobody_takes_it(
    shop: Shop, webhook: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def try_alerts(*options: str) -> tuple[int, str]:
        # In a process of its own: what sends events in this one would go on to send them to this server.
        command = (sys.executable, "-m", "headway", "alerts", "test", "--profile", "production", *options)
        environment = shop.service.environment | {
            "PREFECT_API_URL": shop.service.url,
            "HEADWAY_PROJECT": str(shop.folder),
        }
        done = run_program(command, env=environment, cwd=shop.folder)
        return done.returncode, done.stdout + done.stderr

    code, said = try_alerts()
    assert code == 2 and "names no `notify`" in said
    shop.edit("profiles.yaml", "variables: {shop: {team: search}}", "notify: custom-webhook/on-call")
    code, said = try_alerts()
    assert code == 0 and "sent         1 page and 1 ticket to custom-webhook/on-call" in said
    assert [severity in each for each, severity in zip(webhook, ("a page", "a ticket"), strict=True)] == [True, True]
    monkeypatch.setattr(Told, "status", 500)
    code, said = try_alerts()
    assert code == 8 and "the message was not taken" in said
    monkeypatch.setattr(Told, "status", 200)
    assert try_alerts("--severity", "ticket")[0] == 0 and "a ticket" in webhook[-1] and "a page" not in webhook[-1]
    shop.edit("profiles.yaml", "notify: custom-webhook/on-call", "notify: custom-webhook/nobody")
    code, said = try_alerts()
    assert code == 2 and "has no block" in said


@pytest.mark.parametrize(
    ("url", "profile", "code", "told"),
    [
        ("http://127.0.0.1:9/api", "production", 8, "does not answer"),
        ("", "production", 8, "no Prefect server is named"),
        (None, "prod", 2, "There are: clash, dev, production."),
    ],
)
def test_bad_input_ends_with_its_code_and_one_message(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    url: str | None,
    profile: str,
    code: int,
    told: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["headway", "deploy", profile])
    monkeypatch.setenv("HEADWAY_PROJECT", str(shop.folder))
    with temporary_settings({} if url is None else {PREFECT_API_URL: url or None}):
        assert run() == code
    message = capsys.readouterr()
    assert told in message.err and "headway: " in message.err and not message.out


def test_who_deploys_to_a_server_that_is_open_is_warned_before_anything_is_done(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploying, "openness", lambda url: f"the Prefect server {url} is open")
    shop.deploy(dry_run=True)
    before, headed, _ = shop.told.getvalue().partition("shop production on ")
    assert headed and f"warning: the Prefect server {shop.service.url} is open\n" in before


def test_a_pipeline_file_that_cannot_be_read_removes_nothing(shop: Shop) -> None:
    shop.deploy()
    shop.edit("refused.yaml", "pipeline: refused", "pipelin: refused")
    with pytest.raises(ConfigError, match="pipelin"):
        shop.deploy()
    for each in (shop.folder / "deployments").glob("*.yaml"):
        if each.name != "profiles.yaml":
            each.unlink()
    with pytest.raises(ConfigError, match="there is no pipeline file"):
        shop.deploy()
    assert shop.marked("deployments/filter") == ["champion-shop", "refused-shop", "tiny-shop"]
