"""`headway init`: a project that works at once, and nothing of a person's is overwritten."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from headway.data_contracts.rules.contract import load_contract
from headway.data_contracts.store.errors import ConfigError
from headway.flows.act.contract_init import NewFiles
from headway.flows.act.pipeline_draft import drafted_folds, drafted_fraction, heldout_fraction
from headway.flows.config.first_step import check_first_step
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.config.profiles import load_profile
from tests.flows.act.conftest import Headway
from tests.flows.act.orders import orders

pytestmark = pytest.mark.process

OWN = "{name: recipes.network:Network, model: {width: 8}}"
NUMBERS = {"width": [float(row % 7) for row in range(600)], "y": [row * 0.5 for row in range(600)]}


def write_numbers(folder: Path) -> str:
    pa.csv.write_csv(pa.table(NUMBERS), folder / "numbers.csv")
    return "numbers.csv"


def write_texts(folder: Path) -> str:
    (folder / "texts").mkdir()
    for number in range(20):
        (folder / "texts" / f"{number}.txt").write_text(f"{number} bottles of beer on the wall, " * 20)
    return "texts"


@pytest.mark.long
def test_a_new_project_holds_all_it_takes_and_its_data_keep_its_contract(headway: Headway, tmp_path: Path) -> None:
    written = headway("init", "demo")
    assert written.code == 0, written.err
    assert "cd demo" in written.out and "headway retrain demo" in written.out
    found = {
        path.relative_to(tmp_path / "demo").as_posix() for path in (tmp_path / "demo").rglob("*") if path.is_file()
    }
    assert found == {
        *(".gitignore", ".github/workflows/headway.yml", "requirements.txt", "data/breast-cancer.csv"),
        *("deployments/demo.contract.yaml", "deployments/demo.pipeline.yaml", "deployments/profiles.yaml"),
        *("deployments/recipes/__init__.py", "deployments/recipes/network.py"),
        *(f"deployments/.headway/{kind}.schema.json" for kind in ("pipeline", "contract", "profiles")),
    }
    project, _ = load_profile(tmp_path / "demo", "production")
    assert project == "demo", "two projects of one name would remove each other's deployments"
    assert str(tmp_path) not in "".join(path.read_text() for path in (tmp_path / "demo").rglob("*") if path.is_file())
    (tmp_path / "demo").rename(tmp_path / "elsewhere")
    checked = headway("contract", "check", "elsewhere/deployments/demo.pipeline.yaml")
    assert checked.code == 0, checked.out + checked.err


@pytest.mark.long
@pytest.mark.parametrize("write", [None, write_numbers, write_texts], ids=["classes", "a number", "tokens"])
def test_its_network_is_one_for_such_rows_and_takes_a_step(headway: Headway, tmp_path: Path, write) -> None:
    data = ("--data", write(tmp_path)) if write else ()
    assert headway("init", "demo", *data).code == 0
    path = tmp_path / "demo/deployments/demo.pipeline.yaml"
    lines = [f"  recipe: {OWN}" if line.startswith("  recipe:") else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    pipeline = load_pipeline(path)
    contract = load_contract(path.with_name("demo.contract.yaml"))
    assert check_first_step(pipeline, path, contract, workspace=None) == ""


@pytest.mark.parametrize(
    ("num_rows", "fraction"),
    [(10, 0.3), (569, 0.3), (1_400, 0.3), (1_600, 0.25), (1_601, 0.25), (8_000, 0.05), (10**9, 0.05)],
)
def test_enough_rows_are_held_out_to_judge_by_and_of_a_small_table_a_third_at_most(
    num_rows: int, fraction: float
) -> None:
    assert heldout_fraction(num_rows) == fraction


@pytest.mark.parametrize(
    ("num_rows", "folds", "fraction"),
    [(30, 5, 0.3), (50, 5, 0.2), (200, 5, 0.1), (499, 5, 0.1), (500, 0, 0.3), (1_000, 0, 0.3), (8_000, 0, 0.05)],
)
def test_all_rows_of_a_small_table_judge_and_few_of_them_are_held_out_besides(
    num_rows: int, folds: int, fraction: float
) -> None:
    assert drafted_folds(num_rows, is_table=True) == folds
    assert drafted_fraction(num_rows, is_table=True) == fraction
    assert drafted_folds(num_rows, is_table=False) == 0
    assert drafted_fraction(num_rows, is_table=False) == heldout_fraction(num_rows)


def test_a_draft_of_a_small_table_asks_for_folds_and_says_so(headway: Headway, tmp_path: Path) -> None:
    rows = "".join(f"{number},{number % 7},{'yes' if number % 3 else 'no'}\n" for number in range(150))
    (tmp_path / "goods.csv").write_text(f"size,weight,good\n{rows}")
    answer = headway("init", "small", "--data", "goods.csv", "--label", "good")
    assert "judged by    all 150 rows, each by one of 5 further models that never saw it" in answer.out
    assert load_pipeline(tmp_path / "small/deployments/small.pipeline.yaml").evaluation.folds == 5


def test_the_current_folder_becomes_a_project_by_its_own_name(
    headway: Headway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Churn of 2026").mkdir()
    monkeypatch.chdir(tmp_path / "Churn of 2026")
    pa.csv.write_csv(orders(), "orders.csv")
    assert headway("init", "--data", "orders.csv").code == 0
    pipeline = load_pipeline(Path("deployments/churn-of-2026.pipeline.yaml"))
    assert pipeline.source.uri == "..", "relative, for the data are the project's own"


def test_nothing_is_overwritten_and_what_cannot_be_drafted_leaves_nothing(headway: Headway, tmp_path: Path) -> None:
    assert headway("init", "demo").code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "demo").rglob("*") if path.is_file()}
    again = headway("init", "demo")
    assert again.code == 2 and "is not overwritten" in again.err
    assert {path: path.read_bytes() for path in (tmp_path / "demo").rglob("*") if path.is_file()} == before
    lost = headway("init", "other", "--data", "nowhere.csv")
    assert lost.code == 3 and not (tmp_path / "other").exists()
    unnamed = headway("init", "My Project")
    assert unnamed.code == 2 and "my-project" in unnamed.err


def test_a_file_in_place_of_a_name_is_told_how_it_is_drafted_from(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "my sales.csv").write_text("a,b\n1,2\n")
    refused = headway("init", "my sales.csv")
    assert refused.code == 2 and "is a file, and a project is called by a name." in refused.err
    assert "`headway init my-sales --data 'my sales.csv'`" in refused.err


@pytest.mark.parametrize("of_a_person", ["deployments/demo.pipeline.yaml", "deployments/profiles.yaml"])
def test_a_file_of_a_persons_keeps_all_others_from_being_written(
    headway: Headway, tmp_path: Path, of_a_person: str
) -> None:
    mine = tmp_path / "demo" / of_a_person
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    refused = headway("init", "demo")
    assert refused.code == 2 and of_a_person in refused.err
    assert [path for path in (tmp_path / "demo").rglob("*") if path.is_file()] == [mine]


@pytest.mark.parametrize("is_there", [True, False], ids=["an existing folder", "a new folder"])
def test_a_file_that_cannot_be_written_leaves_none_of_the_others_behind(
    headway: Headway, tmp_path: Path, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_there:
        (tmp_path / "demo").mkdir()
        (tmp_path / "demo/mine").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    write = NewFiles.write

    def full(files: NewFiles, path: Path, text: str) -> None:
        write(files, path, text)
        if path.name == "headway.yml":  # the last of them
            raise ConfigError("cannot be written (No space left on device).", where=str(path))

    monkeypatch.setattr(NewFiles, "write", full)
    assert headway("init", "demo").code == 2
    assert sorted(tmp_path.rglob("*")) == before
