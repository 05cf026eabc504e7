"""Refused before anything is spent."""

from __future__ import annotations

import pytest

from data_contracts.errors import ConfigError
from flows.pipeline_spec import load_pipeline
from flows.preflight import check_request, check_tracking_uri
from flows.request import RetrainRequest

PIPELINE = """\
pipeline: tiny
source: {{format: text-files, uri: texts, include: ["**/*.txt"]}}
contract: contract.yaml
training: {{recipe: {recipe}}}
registry: {{model: tiny, tracking_uri: "{uri}"}}
"""
CONTRACT = "name: tiny\nversion: 1.0.0\ncolumns:\n  text: {type: string}\n"


@pytest.mark.parametrize(
    "uri", ["", "mlruns", "sqlite:////tmp/x.db", "https://host:5000", "postgresql+psycopg2://host/db"]
)
def test_what_mlflow_takes_is_let_through(uri):
    check_tracking_uri(uri)


@pytest.mark.parametrize(
    ("recipe", "uri", "problem"),
    [
        ("{name: langage-model}", "", "Did you mean language-model"),
        ("{model: {widht: 3}}", "", "Did you mean width"),
        ("{}", "sqllite:///x.db", "scheme 'sqllite'"),
    ],
)
def test_a_mistake_costs_not_even_a_workspace(tmp_path, monkeypatch, recipe, uri, problem):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PROJECT", raising=False)
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    (tmp_path / "tiny.yaml").write_text(PIPELINE.format(recipe=recipe, uri=uri))
    workspace = tmp_path / "workspace"
    with pytest.raises(ConfigError, match=problem):
        check_request(RetrainRequest(pipeline="tiny.yaml", workspace=str(workspace)))
    assert not workspace.exists()


@pytest.mark.parametrize(
    ("evaluation", "named", "problem"),
    [
        ("{}", "region = north", "evaluation.slices does not cut by 'region'"),
        ("{slices: [region]}", "region = north", ""),
        ("{slices: [{column: path, folders: 1}]}", "path = a/", "does not cut by 'path'"),
        ("{slices: [{column: path, folders: 1}]}", "path/1 = a/", ""),
        ("{}", "class 2", ""),
    ],
)
def test_a_shadow_that_no_report_would_have_is_refused(tmp_path, evaluation, named, problem):
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    judged = f'evaluation: {evaluation}\npromotion: {{shadow: {{slice: "{named}"}}}}\n'
    (tmp_path / "tiny.yaml").write_text(PIPELINE.format(recipe="{}", uri="") + judged)
    if not problem:
        assert load_pipeline(tmp_path / "tiny.yaml").promotion.shadow.slice == named
        return
    with pytest.raises(ConfigError, match=problem):
        load_pipeline(tmp_path / "tiny.yaml")
