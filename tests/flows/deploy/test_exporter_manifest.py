"""`headway deploy PROFILE --render-exporter`: what a real cluster's schemas take, confined, and reading alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.flows.cli.command_line import run
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.deploy.exporter_manifest import TEMPLATE, render_exporter
from headway.flows.deploy.resources import DesiredState
from tests.flows.deploy.conftest import PIPELINE
from tests.kubernetes_objects import VERSIONS, problem
from tests.training.launch.kubernetes.test_manifests import unrestricted

Make = Callable[..., DesiredState]
KUBERNETES = """
launch:
  launcher: kubernetes
  nodes: 2
  kubernetes:
    namespace: speech
    image: registry.acme.example/headway:7
    volumes:
      - {claim: data, mount_path: /srv, read_only: true}
      - {claim: headway-work, mount_path: /srv/headway, sub_path: speech}
    run_as_user: 4711
    fs_group: 4712
    image_pull_secrets: [registry]
"""
ENV = {"env": {"HEADWAY_WORKSPACE": "/srv/headway/workspace"}}


def on_kubernetes(text: str = KUBERNETES) -> PipelineSpec:
    return parse_yaml_model(PipelineSpec, PIPELINE.replace("NAME", "speech") + text, where="speech")


@pytest.mark.parametrize("version", VERSIONS)
def test_it_has_the_projects_names_and_is_confined_as_the_shipped_one(make_wanted: Make, version: str) -> None:
    text = render_exporter(make_wanted(profile=ENV, pipelines={"speech": on_kubernetes()}))
    items = list(yaml.safe_load_all(text))
    assert [problem(item, version) for item in items] == [""] * 3
    assert {item["metadata"]["namespace"] for item in items} == {"speech"}
    deployment, service, policy = items
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert unrestricted(pod) == [] and container["image"] == "registry.acme.example/headway:7"
    context = pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (4711, 4712, 4712)
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "workspace")
    innermost = {"name": "workspace", "mountPath": "/srv/headway", "subPath": "speech", "readOnly": True}
    assert mount == innermost
    (volume,) = (each for each in pod["volumes"] if each["name"] == "workspace")
    assert volume["persistentVolumeClaim"] == {"claimName": "headway-work", "readOnly": True}
    assert {"name": "HEADWAY_WORKSPACE", "value": "/srv/headway/workspace"} in container["env"]
    assert container["livenessProbe"]["tcpSocket"] == container["readinessProbe"]["tcpSocket"] == {"port": "metrics"}
    assert "kubectl --namespace speech create secret" in text and "the pipeline speech" in text
    _, service_of_ours, policy_of_ours = yaml.safe_load_all(TEMPLATE.read_text())
    assert (service["spec"], policy["spec"]) == (service_of_ours["spec"], policy_of_ours["spec"])


def test_a_workspace_is_no_expression_of_kubernetes(make_wanted: Make) -> None:
    profile = {"env": {"HEADWAY_WORKSPACE": "/srv/headway/$(POD_IP)"}}
    text = render_exporter(make_wanted(profile=profile, pipelines={"speech": on_kubernetes()}))
    assert "value: /srv/headway/$$(POD_IP)" in text


def test_a_profile_whose_probe_alone_is_there_has_an_exporter_too(make_wanted: Make) -> None:
    launch = on_kubernetes().launch.model_dump(mode="json", exclude_unset=True)
    wanted = make_wanted(profile=ENV | {"probe": {"every": "hour", "launch": launch}})
    assert "the profile's probe" in render_exporter(wanted)


@pytest.mark.parametrize(
    ("profile", "pipelines", "words"),
    [
        (ENV, {}, "runs on Kubernetes"),
        ({}, {"speech": KUBERNETES}, "it is not known where the workspace is"),
        (
            {"env": {"HEADWAY_WORKSPACE": "/home/me"}},
            {"speech": KUBERNETES},
            "on none of the volumes at /srv, /srv/headway",
        ),
        ({"env": {"HEADWAY_WORKSPACE": "s3://b/w"}}, {"speech": KUBERNETES}, "on none of the volumes"),
    ],
)
def test_what_cannot_be_rendered_is_refused_with_the_reason(
    make_wanted: Make, profile: Any, pipelines: dict[str, str], words: str
) -> None:
    specs = {name: on_kubernetes(text) for name, text in pipelines.items()}
    with pytest.raises(ConfigError, match=words):
        render_exporter(make_wanted(profile=profile, pipelines=specs))


def test_the_command_prints_it_and_asks_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "deployments"
    folder.mkdir()
    contract = "name: c\nversion: 1.0.0\ndescription: none\ncolumns:\n  text: {type: string}\n"
    (tmp_path / "contract.yaml").write_text(contract)
    file = PIPELINE.replace("NAME", "speech").replace("contract.yaml", "../contract.yaml")
    (folder / "speech.yaml").write_text(file + KUBERNETES)
    profiles = {"project": "acme", "profiles": {"production": {"pool": {"name": "p"}, **ENV}}}
    (folder / "profiles.yaml").write_text(yaml.safe_dump(profiles))
    monkeypatch.setenv("HEADWAY_PROJECT", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # nobody listens there
    monkeypatch.setattr(sys, "argv", ["headway", "deploy", "production", "--render-exporter"])
    assert run() == 0
    deployment, *_ = yaml.safe_load_all(capsys.readouterr().out)
    assert deployment["metadata"]["namespace"] == "speech"
    for other in ("--render", "--dry-run"):
        monkeypatch.setattr(sys, "argv", ["headway", "deploy", "production", "--render-exporter", other])
        assert run() == 2


def test_a_workspace_that_may_only_be_read_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is mounted there; root may write whatever the mode says, so the writing itself is refused here."""
    from prometheus_client import generate_latest

    from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
    from tests.flows.accounts.lives import Life

    life = Life(tmp_path)
    life.flow("f", 0.0, 100.0, ("launch", 10.0, 90.0))

    def refused(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Workspace, "publish_json", refused)
    assert "headway_status_timestamp_seconds" in generate_latest(WorkspaceMetrics(life.workspace)).decode()
