"""The workflow that users copy is one that GitHub would take, as far as can be told without it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from headway.flows.act.project_init import workflow_text
from headway.flows.cli.command_line import app
from headway.flows.config.pipeline_spec import find_pipeline_file

REPOSITORY = Path(__file__).resolve().parents[3]
WORKFLOW = REPOSITORY / "deployments" / "github" / "headway.yml"
TOP_KEYS = {"name", "on", "permissions", "concurrency", "env", "jobs"}
JOB_KEYS = {"if", "needs", "runs-on", "timeout-minutes", "strategy", "steps", "environment"}
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")
STEP_KEYS = {"name", "if", "uses", "with", "env", "run"}


@pytest.fixture(scope="module", params=["shipped", "of a project"])
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    content = yaml.safe_load(WORKFLOW.read_text() if request.param == "shipped" else workflow_text("digits"))
    content["on"] = content.pop(True)  # YAML 1.1 takes `on` for a truth value; GitHub does not
    return content


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_every_key_is_one_that_github_knows_and_every_step_does_one_thing(workflow) -> None:
    assert set(workflow) <= TOP_KEYS and {"on", "jobs"} <= set(workflow)
    assert set(workflow["on"]) == {"pull_request"}, "pull_request_target would give a stranger's code the secrets"
    for job in workflow["jobs"].values():
        assert set(job) <= JOB_KEYS and {"runs-on", "steps", "timeout-minutes"} <= set(job)
        needed = job.get("needs", [])
        assert {needed} if isinstance(needed, str) else set(needed) <= set(workflow["jobs"])
    for step in steps(workflow):
        assert set(step) <= STEP_KEYS and ("uses" in step) != ("run" in step)
        assert PINNED.fullmatch(step.get("uses", f"actions/checkout@{'0' * 40}")), "a tag is whatever its owner says"


def test_it_may_only_read_and_hands_no_text_of_a_stranger_to_a_shell(workflow) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    assert [step["run"] for step in steps(workflow) if "${{" in step.get("run", "")] == []


def test_code_of_a_pull_request_meets_keys_and_the_teams_runner_in_an_environment_alone_that_people_can_guard(
    workflow,
) -> None:
    for name, job in workflow["jobs"].items():
        is_trusted = "self-hosted" in job["runs-on"] or "secrets." in str(job)
        assert is_trusted == (job.get("environment") == "headway-full-retrain"), name


def test_the_base_is_there_to_be_compared_with(workflow) -> None:
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(workflow["jobs"])
    assert all(step["with"]["fetch-depth"] == 0 for step in checkouts)
    bases = [step["env"]["BASE"] for step in steps(workflow) if "headway ci" in step.get("run", "")]
    assert bases == ["origin/${{ github.base_ref }}"] * len(workflow["jobs"])


def test_its_commands_are_ones_that_headway_takes_and_its_pipelines_exist(workflow) -> None:
    command = typer.main.get_command(app).commands["ci"]
    found = [words for step in steps(workflow) if "headway ci" in step.get("run", "") for words in [step["run"]]]
    assert found
    for line in found:
        words = shlex.split(line)
        command.make_context("ci", words[2:], resilient_parsing=False)
    names = workflow["jobs"]["ci"]["strategy"]["matrix"]["pipeline"]
    assert f"headway ci {names[0]} " in str(workflow["jobs"]["full"]), "the full run is that of the first"
    for name in names:
        assert find_pipeline_file(name, REPOSITORY).is_file()


@pytest.mark.process
def test_actionlint_has_nothing_to_say() -> None:
    if shutil.which("actionlint") is None:
        pytest.skip("actionlint is not installed")
    done = subprocess.run(["actionlint", "-shellcheck=", "-pyflakes=", str(WORKFLOW)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
