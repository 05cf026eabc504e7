"""Refused before anything is spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.flows.act.contract_check import resolve_request
from headway.flows.ci.checks import Checks, CiRequest
from headway.flows.ci.results import Checklist
from headway.flows.config.pipeline_spec import PipelineSpec, load_pipeline
from headway.flows.config.preflight import check_request, check_tracking_uri
from headway.flows.config.request import RetrainRequest

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


@pytest.mark.parametrize("uri", ["https://host/data.csv?sig=Zk9Qv2Lr8XwT4sNb", "s3://AKIA:Zk9Qv2Lr8XwT4sNb@bucket/x"])
def test_a_credential_in_the_sources_uri_is_refused_before_a_task_runs_name_or_a_workspace_holds_it(tmp_path, uri):
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    text = PIPELINE.format(recipe="{}", uri="").replace("uri: texts", f'uri: "{uri}"')
    (tmp_path / "tiny.yaml").write_text(text)
    workspace = tmp_path / "workspace"
    with pytest.raises(ConfigError, match=r"source \(line 2\): .*must not hold credentials.*environment") as refused:
        check_request(RetrainRequest(pipeline=str(tmp_path / "tiny.yaml"), workspace=str(workspace)))
    assert refused.value.where == str(tmp_path / "tiny.yaml") and "Zk9" not in str(refused.value)
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
    evaluated = f'evaluation: {evaluation}\npromotion: {{shadow: {{slice: "{named}"}}}}\n'
    (tmp_path / "tiny.yaml").write_text(PIPELINE.format(recipe="{}", uri="") + evaluated)
    if not problem:
        assert load_pipeline(tmp_path / "tiny.yaml").promotion.shadow.slice == named
        return
    with pytest.raises(ConfigError, match=problem):
        load_pipeline(tmp_path / "tiny.yaml")


def test_a_floor_of_a_figure_that_no_report_would_have_is_refused_with_those_it_has(tmp_path):
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    pipeline = tmp_path / "tiny.yaml"
    pipeline.write_text(PIPELINE.format(recipe="{}", uri="") + "promotion: {floors: {bits_per_byte: 2.5}}\n")
    assert load_pipeline(pipeline).promotion.floors == {"bits_per_byte": 2.5}
    pipeline.write_text(pipeline.read_text().replace("bits_per_byte", "rmse"))
    said = r"promotion.floors.rmse \(line \d+\): promotion.floors names rmse.*its figures are bits_per_byte"
    with pytest.raises(ConfigError, match=said):
        load_pipeline(pipeline)


@pytest.mark.parametrize(
    ("parallel", "launch", "problem"),
    [
        ("{shard: 2}", "{stragglers: rebalance}", r"launch.stragglers.*split a model \(shard 2\) have equal shares"),
        ("{shard: 2}", "{speeds: {a: 2}}", r"launch.speeds.*split a model"),
        ("{mode: fast, pipeline: 2}", "{stragglers: rebalance}", "launch.stragglers"),
        ("{shard: 2}", "{stragglers: exclude}", ""),
        ("{mode: fast}", "{stragglers: rebalance}", ""),
        ("{}", "{stragglers: rebalance, speeds: {a: 2}}", ""),
    ],
)
def test_unequal_shares_of_ranks_that_split_a_model_are_refused(tmp_path, parallel, launch, problem):
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    pipeline = tmp_path / "tiny.yaml"
    text = PIPELINE.format(recipe="{}", uri="").replace(
        "training: {", f"training: {{optimizer: {{implementation: foreach}}, parallel: {parallel}, "
    )
    pipeline.write_text(f"{text}launch: {launch}\n")
    if not problem:
        assert load_pipeline(pipeline).launch.world_size == 2
        return
    with pytest.raises(ConfigError, match=problem):
        load_pipeline(pipeline)


WINDOWS = 'windows: {time_zone: UTC, open: [{days: [sun], start: "01:00", end: "05:00"}]}\n'


@pytest.mark.parametrize(
    ("windows", "problem"),
    [
        ("", r"trials.every \(line \d+\): trials.every begins a search in the pipeline's windows, and it has none"),
        (WINDOWS, ""),
    ],
)
def test_a_search_by_schedule_needs_windows(tmp_path, windows, problem):
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    searched = "trials: {vary: {optimizer.lr: [0.001, 0.01]}, every: month}\nevaluation: {ranking_share: 0.5}\n"
    pipeline = tmp_path / "tiny.yaml"
    pipeline.write_text(PIPELINE.format(recipe="{}", uri="") + searched + windows)
    if not problem:
        assert load_pipeline(pipeline).trials.every == "month"
        return
    with pytest.raises(ConfigError, match=problem):
        load_pipeline(pipeline)


TABLE = """\
pipeline: churn
source:
  format: csv
  uri: data
contract: churn.contract.yaml
shards:
  encoder:
    kind: tabular
    numeric: [age, spend]
    categorical:
      - country
    label: churned
  split_by: key
  split_key: customer_id
evaluation:
  slices: [country, {column: path, folders: 1}]
registry: {model: churn}
training: {recipe: {name: tabular-classifier}}
"""
TABLE_CONTRACT = """\
name: churn
version: 1.0.0
columns:
  customer_id: {type: int64}
  age: {type: int64}
  spend: {type: double}
  country: {type: string}
  churned: {type: string}
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Writes `churn.yaml` with something else in one place, and its contract; there are no data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PROJECT", raising=False)

    def write(old="", new="", contract=TABLE_CONTRACT):
        assert old in TABLE
        (tmp_path / "churn.contract.yaml").write_text(contract)
        (tmp_path / "churn.yaml").write_text(TABLE.replace(old, new, 1) if old else TABLE)
        return RetrainRequest(pipeline="churn.yaml", workspace=str(tmp_path / "workspace"))

    return write


@pytest.mark.parametrize(
    ("old", "new", "place", "hint"),
    [
        ("label: churned", "label: churn", "shards.encoder.label (line 12)", "`churned`"),
        ("[age, spend]", "[age, spent]", "shards.encoder.numeric[1] (line 9)", "`spend`"),
        ("- country", "- contry", "shards.encoder.categorical[0] (line 11)", "`country`"),
        ("split_key: customer_id", "split_key: id_customer", "shards.split_key (line 14)", "`customer_id`"),
        ("slices: [country", "slices: [contry", "evaluation.slices[0] (line 16)", "`country`"),
    ],
)
def test_a_column_that_the_contract_lacks_is_told_by_line_and_nearest_name_before_anything_is_spent(
    table, tmp_path, old, new, place, hint
):
    request = table(old, new)
    with pytest.raises(ConfigError) as refused:
        check_request(request)
    assert f"churn.yaml: {place}: the contract churn.contract.yaml has no column" in str(refused.value)
    assert f"Did you mean {hint}?" in str(refused.value)
    assert refused.value.exit_code == 2
    assert not (tmp_path / "workspace").exists()
    with pytest.raises(ConfigError, match="Did you mean"):
        resolve_request("churn.yaml", "")


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("churned: {type: string}", "churned: {type: double}", "label (line 12)", "`label_kind: number`"),
        (
            "churned: {type: string}",
            "churned: {type: string, nullable: true}",
            "label (line 12)",
            "not_null: true, act",
        ),
        ("age: {type: int64}", "age: {type: string}", "numeric[0] (line 9)", "under `categorical`"),
        ("age: {type: int64}", "age: {type: int64, nullable: true}", "numeric[0] (line 9)", "`missing: mean`"),
        ("spend: {type: double}", "spend: {type: double, finite: false}", "numeric[1] (line 9)", "NaN or infinite"),
        ("country: {type: string}", "country: {type: double}", "categorical[0] (line 11)", "under `numeric`"),
    ],
)
def test_a_column_that_the_encoder_cannot_take_is_told_by_line_before_anything_is_spent(
    table, tmp_path, old, new, place, message
):
    request = table(contract=TABLE_CONTRACT.replace(old, new))
    with pytest.raises(ConfigError) as refused:
        check_request(request)
    assert f"churn.yaml: shards.encoder.{place}: " in str(refused.value) and message in str(refused.value)
    assert not (tmp_path / "workspace").exists()


@pytest.mark.parametrize("kept_out", ["not_null: true, action: quarantine", "not_null: true"])
def test_a_label_that_may_be_null_is_taken_where_a_rule_leaves_such_rows_out(table, kept_out):
    contract = TABLE_CONTRACT.replace("churned: {type: string}", "churned: {type: string, nullable: true}")
    request = table(contract=f"{contract}rules:\n  - {{id: labelled, column: churned, {kept_out}}}\n")
    if "quarantine" in kept_out:
        assert check_request(request)[0].pipeline == "churn"
    else:
        with pytest.raises(ConfigError, match="lets `churned` be null"):
            check_request(request)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("string", "`joined` is string by the contract, and this is neither a date nor a time"),
        ("'date32[day]', nullable: true", "no moment stands for it"),
    ],
)
def test_a_time_that_the_encoder_cannot_take_is_told_by_line_before_anything_is_spent(table, kind, message):
    contract = f"{TABLE_CONTRACT}  joined: {{type: {kind}}}\n"
    with pytest.raises(ConfigError) as refused:
        check_request(table("    label: churned\n", "    label: churned\n    times: [joined]\n", contract))
    assert "churn.yaml: shards.encoder.times[0] (line 13): " in str(refused.value) and message in str(refused.value)
    given = "    label: churned\n    times: [joined]\n    missing: mean\n"
    contract = f"{TABLE_CONTRACT}  joined: {{type: 'date32[day]', nullable: true}}\n"
    assert check_request(table("    label: churned\n", given, contract))[0].shards.encoder.times == ("joined",)


def test_a_number_may_be_missing_where_the_encoder_says_what_stands_for_it(table):
    contract = TABLE_CONTRACT.replace("age: {type: int64}", "age: {type: int64, nullable: true}")
    request = table("    label: churned\n", "    label: churned\n    missing: mean\n", contract)
    assert check_request(request)[0].pipeline == "churn"


@pytest.mark.parametrize(
    ("recipe", "place", "message"),
    [
        ("{name: 'mine:Ohter'}", "training.recipe.name (line ", "mine.py) defines no 'Ohter'. Did you mean Other?"),
        ("{name: tabular-clasifier}", "training.recipe.name (line ", "Did you mean tabular-classifier?"),
        ("{name: tabular-classifier, model: {widht: 8}}", "training.recipe.model.widht (line ", "Did you mean width?"),
    ],
)
def test_a_recipe_that_is_not_there_is_told_by_file_and_line(table, tmp_path, recipe, place, message):
    (tmp_path / "mine.py").write_text("class Other: ...\n")
    request = table("{name: tabular-classifier}", recipe)
    with pytest.raises(ConfigError) as refused:
        check_request(request)
    assert f"churn.yaml: {place}" in str(refused.value) and message in str(refused.value)


def test_a_run_that_goes_on_is_not_held_against_the_columns_of_todays_contract(table):
    request = table(contract=TABLE_CONTRACT.replace("age:", "years:"))
    pipeline, _, _ = check_request(request.model_copy(update={"run": "0" * 16}))
    assert pipeline.pipeline == "churn"


def test_all_columns_that_the_contract_lacks_are_told_at_once(table):
    contract = TABLE_CONTRACT.replace("age:", "years:").replace("churned:", "gone:")
    with pytest.raises(ConfigError, match=r"(?s)2 problems:.*numeric\[0\] \(line 9\).*label \(line 12\)"):
        check_request(table(contract=contract))


def test_a_recipe_that_predicts_a_column_is_refused_without_one_before_anything_is_spent(table, tmp_path):
    request = table("    label: churned\n", "")
    with pytest.raises(ConfigError, match=r"\(line 7\): no column to predict.*`label: COLUMN`.*churned"):
        check_request(request)
    assert not (tmp_path / "workspace").exists()
    assert resolve_request("churn.yaml", "").pipeline == "churn", "data are judged while the label is left open"


def test_continuous_integration_refuses_a_misspelt_column_as_a_mistake_in_the_pipeline_file(table, tmp_path):
    table("label: churned", "label: churn")
    checklist = Checklist(lambda _: None)
    Checks(CiRequest(pipeline="churn.yaml", smoke=False), "", lambda _: None).make(checklist, tmp_path)
    config = next(each for each in checklist.results if each.check == "config")
    assert (config.outcome, config.exit_code) == ("failed", 2) and "Did you mean `churned`?" in config.reason


def test_columns_are_not_held_against_a_contract_that_lets_others_in(table):
    request = table("label: churned", "label: other", contract=f"{TABLE_CONTRACT}extra_columns: true\n")
    assert check_request(request)[0].shards.encoder.label == "other"
    assert check_request(table())[0].pipeline == "churn"


def test_a_column_that_nobody_wrote_is_missed_by_what_trains_and_not_by_what_judges_data(table):
    request = table(TABLE[TABLE.index("shards:") :], "registry: {model: churn}\n")
    assert resolve_request("churn.yaml", "").pipeline == "churn"
    with pytest.raises(ConfigError, match="no column `text`, which the encoder byte-pair reads by default"):
        check_request(request)


def test_a_flow_run_reads_its_pipeline_file_once_and_keeps_to_what_it_read(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.flows.config import pipeline_file
    from headway.flows.windows.admission import keeping_to_windows

    paths: list[Path] = []

    def load(path: Path) -> PipelineSpec:
        paths.append(path)
        return load_pipeline(path)

    @keeping_to_windows
    def trains(request: RetrainRequest) -> int:
        text = (project / "tiny.yaml").read_text()
        (project / "tiny.yaml").write_text(text.replace("max_steps: 500", "max_steps: 7"))
        return pipeline_file.pipeline_file(request.pipeline).spec.training.max_steps

    monkeypatch.setattr(pipeline_file, "load_pipeline", load)
    request = RetrainRequest(pipeline="tiny.yaml", workspace=str(project / "workspace"))
    assert trains(request) == 500 and len(paths) == 1
    assert pipeline_file.pipeline_file("tiny.yaml").spec.training.max_steps == 7, "the next run reads it again"
