"""A label of numbers that nobody said is one: refused before anything is made of the data, and the advice leads on."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from headway.data_contracts.store import refs
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.data_contracts.store.publication import Workspace
from headway.flows.act.contract_check import check, print_checked, resolve_request
from headway.flows.act.contract_init import draft
from headway.flows.config.pipeline_spec import find_pipeline_file, load_pipeline
from headway.flows.config.request import RetrainRequest
from headway.flows.show.plan import make_plan
from headway.tasks.core.brief_context import brief_context
from headway.tasks.core.context import RunContext
from headway.tasks.rows.acceptance import accepted_ref
from headway.tasks.stages.snapshot import snapshot
from headway.tasks.stages.validate import validate

pytestmark = pytest.mark.process

DRAW = random.Random(3)
PRICES = [f"{DRAW.uniform(20_000, 200_000):.1f}" for _ in range(400)]
ODD = {50: "n/a", 111: '"1,5"', 112: '"1,5"'}
NUMBER_LABEL = "label: price"


def project(folder: Path, labels: list[str]) -> Path:
    """What `headway contract init` drafts of a table, with a label said by hand; without `label_kind`."""
    (folder / "data").mkdir(exist_ok=True)
    rows = [f"{place % 90},{DRAW.uniform(20, 200):.1f},{label}" for place, label in enumerate(labels)]
    (folder / "data" / "rows.csv").write_text("\n".join(["rooms,area,price", *rows]) + "\n")
    drafted = draft("data", out="", name="homes", base=folder)
    pipeline = folder / "homes.pipeline.yaml"
    text = pipeline.read_text()
    text = re.sub(r"    (numeric|categorical|label|label_kind): .*\n", "", text)
    pipeline.write_text(text.replace("kind: tabular\n", f"kind: tabular\n    numeric: [area]\n    {NUMBER_LABEL}\n"))
    assert drafted.contract.is_file()
    return pipeline


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HEADWAY_PROJECT", "HEADWAY_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[RunContext]:
    with brief_context("homes", Workspace.create(str(tmp_path / "workspace")), tmp_path) as brief:
        yield brief


def refusals(pipeline: Path, context: RunContext) -> list[str]:
    """What check, plan and the gate of a retrain say."""
    spec, workspace = load_pipeline(pipeline), context.workspace.uri
    files = snapshot.fn(context, spec.contract, spec.source)
    found = []
    for act in (
        lambda: check(resolve_request(str(pipeline), "", workspace), now_unix_s=0.0),
        lambda: make_plan(RetrainRequest(pipeline=str(pipeline), workspace=workspace)),
        lambda: validate.fn(context, spec.contract, spec.source, files, spec.shards),
    ):
        with pytest.raises(ConfigError) as refused:
            act()
        found.append(str(refused.value))
    assert not refs.history(context.workspace, accepted_ref("homes")), "what was refused is no promise"
    return found


def test_numbers_among_which_some_cells_are_none_are_refused_everywhere_and_the_advice_leads_on(
    tmp_path: Path, context: RunContext
) -> None:
    pipeline = project(tmp_path, [ODD.get(place, price) for place, price in enumerate(PRICES)])
    message = refusals(pipeline, context)
    assert len(set(message)) == 1 and message[0].startswith("shards.encoder.label: `price` holds no classes")
    for words in ("All but 3", "rows.csv, row 52.", "`quarantine_limit_ratio: 0.0075`", "`label_kind: number`"):
        assert words in message[0]

    text = pipeline.read_text().replace("price: string", "price: double").replace("-classifier", "-regressor")
    pipeline.write_text(text.replace(NUMBER_LABEL, f"{NUMBER_LABEL}\n    label_kind: number"))
    contract = tmp_path / "homes.contract.yaml"
    before, _, after = contract.read_text().partition("  price:\n")
    rest = re.sub(r"\A(    .*\n)*", "", after)
    excluded = "unparsable_rows: quarantine\nquarantine_limit_ratio: 0.0075\n"
    contract.write_text(f"{before}  price:\n    type: double\n{rest}{excluded}")
    checked = check(resolve_request(str(pipeline), "", context.workspace.uri), now_unix_s=0.0)
    assert checked.passed and checked.receipt.num_quarantined == 3
    assert make_plan(RetrainRequest(pipeline=str(pipeline), workspace=context.workspace.uri)).num_files == 1


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([str(int(float(price))) for price in PRICES], "To predict a number, say `label_kind: number`"),
        ([f"customer {place}" for place in range(400)], "Name a column whose values recur"),
    ],
    ids=["whole numbers", "names"],
)
def test_what_is_another_value_in_each_row_is_no_class(
    tmp_path: Path, context: RunContext, labels: list[str], words: str
) -> None:
    assert all(words in message for message in refusals(project(tmp_path, labels), context))


@pytest.mark.parametrize(
    "labels",
    [
        [f"class {place % 50}" for place in range(400)],
        [f"{place % 5}" for place in range(400)],
        [f"rare {place}" if place % 10 == 0 else "common" for place in range(400)],
    ],
    ids=["fifty", "digits", "rare ones"],
)
def test_values_that_recur_are_classes(tmp_path: Path, labels: list[str]) -> None:
    pipeline = project(tmp_path, labels)
    assert check(resolve_request(str(pipeline), "", str(tmp_path / "none")), now_unix_s=0.0).passed


def test_a_label_that_may_be_null_is_named_by_the_check_too(tmp_path: Path) -> None:
    pipeline = project(tmp_path, [f"class {place % 5}" for place in range(400)])
    contract = tmp_path / "homes.contract.yaml"
    contract.write_text(contract.read_text().replace("  price:\n", "  price:\n    nullable: true\n"))
    with pytest.raises(
        ConfigError, match=r"label \(line \d+\): the contract lets `price` be null.*quarantine_limit_ratio"
    ):
        resolve_request(str(pipeline), "")


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["same"] * 400, "column 'price' has 1 class(es) in the training split"),
        (["one", "other", "one", "other", "one"], "split 'heldout' has no rows"),
    ],
    ids=["one class", "five rows"],
)
def test_what_sharding_would_refuse_is_refused_by_check_and_plan_in_its_words(
    tmp_path: Path, context: RunContext, labels: list[str], words: str
) -> None:
    pipeline = project(tmp_path, labels)
    text = re.sub(r"heldout_fraction: [\d.]+", "heldout_fraction: 0.001", pipeline.read_text())
    pipeline.write_text(text)
    contract = tmp_path / "homes.contract.yaml"
    contract.write_text(re.sub(r"^  min: \d+", "  min: 1", contract.read_text(), flags=re.MULTILINE))
    workspace = context.workspace.uri
    for act in (
        lambda: check(resolve_request(str(pipeline), "", workspace), now_unix_s=0.0),
        lambda: make_plan(RetrainRequest(pipeline=str(pipeline), workspace=workspace)),
    ):
        with pytest.raises(DataError, match=re.escape(words)) as refused:
            act()
        assert refused.value.advice


@pytest.fixture
def classes_project(tmp_path: Path) -> Path:
    return project(tmp_path, [f"class {place % 5}" for place in range(400)])


def leak(rows: Path) -> None:
    """From now on `area` says the class."""
    head, *lines = rows.read_text().splitlines()
    cells = [line.split(",") for line in lines]
    leaking = [f"{rooms},{100 + int(label[-1])}.5,{label}" for rooms, _, label in cells]
    rows.write_text("\n".join([head, *leaking]) + "\n")


def test_a_plan_before_anything_is_made_names_the_input_that_alone_tells_the_label(
    classes_project: Path, tmp_path: Path, context: RunContext
) -> None:
    spec, workspace = load_pipeline(classes_project), context.workspace.uri

    def said_of_validation() -> str:
        planned = make_plan(RetrainRequest(pipeline=str(classes_project), workspace=workspace))
        return next(stage.detail for stage in planned.stages if stage.stage == "validate")

    assert said_of_validation() == "in all rows no input alone tells `price`"
    leak(tmp_path / "data" / "rows.csv")
    assert said_of_validation() == "in all rows `area` alone tells `price`"
    files = snapshot.fn(context, spec.contract, spec.source)
    assert said_of_validation() == "in all rows `area` alone tells `price`"
    validate.fn(context, spec.contract, spec.source, files, spec.shards)
    assert "`area` alone tells `price`" in said_of_validation() and "in all rows" not in said_of_validation()


def test_a_leak_in_a_check_is_counted_as_a_warning_and_says_the_way_out(classes_project: Path, tmp_path: Path) -> None:
    leak(tmp_path / "data" / "rows.csv")
    checked = check(resolve_request(str(classes_project), "", str(tmp_path / "none")), now_unix_s=0.0)
    with Console(width=300, record=True, file=io.StringIO()) as console:
        print_checked(checked, console)
    message = console.export_text()
    num_warnings = sum(not verdict.passed for verdict in checked.verdicts)
    name = f"{checked.receipt.contract_name} {checked.receipt.contract_version}"
    assert checked.passed and f"passed {name}, {num_warnings} warning" in message.splitlines()[0]
    assert "`area` alone tells `price`. Take the column out of the inputs" in message


def test_who_names_no_pipeline_file_is_told_of_the_drafts_beside_too(tmp_path: Path) -> None:
    (tmp_path / "deployments").mkdir()
    (tmp_path / "deployments" / "churn.yaml").touch()
    (tmp_path / "homes.pipeline.yaml").touch()
    with pytest.raises(ConfigError, match="a name: homes, churn"):
        find_pipeline_file("house", tmp_path)


def test_a_contract_or_a_table_given_for_a_pipeline_file_is_named_as_what_it_is(tmp_path: Path) -> None:
    project(tmp_path, [f"class {place % 5}" for place in range(400)])
    (tmp_path / "rows.parquet").write_bytes(b"PAR1\xff\xfe\x00")
    for name, words in {"homes.contract.yaml": "is a contract", "rows.parquet": "not a text file"}.items():
        with pytest.raises(ConfigError, match=words) as refused:
            load_pipeline(tmp_path / name)
        assert "pipeline file" in refused.value.advice
    drafted = (tmp_path / "homes.pipeline.yaml").read_text()
    for encoding in ("latin-1", "utf-16"):
        (tmp_path / "other.yaml").write_text(f"# caf\u00e9\n{drafted}", encoding=encoding)
        with pytest.raises(ConfigError, match=r"is not text in UTF-8 \(byte 0x.. in line 1\)\. Save it as UTF-8"):
            load_pipeline(tmp_path / "other.yaml")
    assert find_pipeline_file("homes", tmp_path) == (tmp_path / "homes.pipeline.yaml").resolve()
