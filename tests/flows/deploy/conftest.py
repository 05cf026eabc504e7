"""A desired state made from two pipelines, one of them with windows; no server."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.profiles import DeploymentProfile
from headway.flows.deploy.desired import ENTRYPOINTS
from headway.flows.deploy.resources import DesiredState

PIPELINE = """
pipeline: NAME
source: {format: text-files, uri: texts}
contract: contract.yaml
registry: {model: NAME}
"""
WINDOWS = """
windows:
  time_zone: Europe/Berlin
  open: [{days: [mon, tue], start: "22:00", end: "06:00"}, {days: [sat], start: "01:30", end: "05:00"}]
"""
NOW = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)


def pipeline(name: str, windows: str = "") -> PipelineSpec:
    return parse_yaml_model(PipelineSpec, PIPELINE.replace("NAME", name) + windows, where=name)


@pytest.fixture
def make_wanted() -> Callable[..., DesiredState]:
    def make(**given: Any) -> DesiredState:
        profile = DeploymentProfile.model_validate({"pool": {"name": "gpu-pool"}, **given.pop("profile", {})})
        usual: dict[str, Any] = {
            "project": "acme",
            "profile_name": "production",
            "profile": profile,
            "pipelines": {"nightly": pipeline("nightly", WINDOWS), "by-hand": pipeline("by-hand")},
            "project_folder": "/projects/acme",
            "forms": {flow: {"title": flow} for flow in ENTRYPOINTS},
            "now": NOW,
        }
        return DesiredState(**usual | given)

    return make
