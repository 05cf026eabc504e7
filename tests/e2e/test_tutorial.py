"""The tutorial's way from one CSV to a champion, and to what it says of new rows, works as it stands there."""

from __future__ import annotations

import csv
import math
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from torch.nn import functional

import headway
from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.errors import ConfigError, DataError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.flows.act.export import export_model
from headway.flows.act.predict import predict
from headway.tasks.registry import model_refs
from headway.tasks.registry.model_facts import latency_of
from tests.pages import block
from tests.training.forked_gangs import forked_gangs

pytestmark = pytest.mark.long

COLUMNS = ("customer_id", "country", "plan", "age", "tickets", "churned")
NUM_ROWS = 2400


def command(beginning: str) -> list[str]:
    """The arguments of the command that the tutorial shows, without its comment."""
    (line,) = (
        line for line in block("console", "contract init data").splitlines() if line.startswith(f"$ {beginning}")
    )
    return shlex.split(line.removeprefix("$ headway"), comments=True)


def write_churn(path: Path) -> None:
    """Who asks often and has no good plan leaves."""
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(COLUMNS)
        for number in range(NUM_ROWS):
            plan, tickets = draw.choice(["basic", "plus", "pro"]), draw.randrange(4)
            leaves = 3 * tickets + 3 * (plan == "basic") + draw.gauss(0, 1) > 7
            age = draw.randrange(18, 90) if draw.random() > 0.02 else ""
            write.writerow([number, draw.choice(["DE", "FR"]), plan, age, tickets, "yes" if leaves else "no"])


class Churn(NamedTuple):
    root: Path
    summary: Any

    @property
    def case(self) -> SimpleNamespace:
        return SimpleNamespace(pipeline=self.root / "churn.pipeline.yaml", workspace=self.root / "workspace")

    def rows(self) -> Any:
        return pyarrow.csv.read_csv(self.root / "data" / "churn.csv")

    def model(self) -> Any:
        return headway.load_table_model("models:/churn@champion", str(self.root / "workspace"))


@pytest.fixture(scope="module")
def churn(tmp_path_factory: pytest.TempPathFactory, retrain_here: Callable[..., Any]) -> Churn:
    """A project that went the tutorial's way; only its steps are fewer."""
    root = tmp_path_factory.mktemp("churn")
    (root / "data").mkdir()
    write_churn(root / "data" / "churn.csv")
    cli = str(Path(sys.executable).with_name("headway"))
    subprocess.run([cli, *command("headway contract init")], cwd=root, check=True, capture_output=True)
    pipeline = root / "churn.pipeline.yaml"
    text = pipeline.read_text()
    for edited in block("diff", "churned").splitlines():
        old_or_new, line = edited[0], edited[1:].strip()
        if old_or_new == "-":
            (taken,) = (there for there in text.splitlines(keepends=True) if there.strip().startswith(line))
        else:
            indent = taken[: len(taken) - len(taken.lstrip())]
            text = text.replace(taken, f"{indent}{line}\n")
    pipeline.write_text(text.replace("max_epochs: 25", "max_epochs: 5"))
    case = SimpleNamespace(pipeline=pipeline, workspace=root / "workspace")
    return Churn(root, retrain_here(case)[0])


@pytest.fixture
def copied(churn: Churn, tmp_path: Path) -> Path:
    """Its workspace, to be damaged."""
    shutil.copytree(churn.root / "workspace", tmp_path / "workspace")
    return tmp_path / "workspace"


def test_one_csv_and_two_edited_lines_make_a_champion(churn: Churn) -> None:
    assert (churn.summary.model, churn.summary.version, churn.summary.is_champion) == ("churn", "1", True)


def test_the_lines_that_use_a_champion_of_tables_work(churn: Churn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(churn.root)
    for name in ("HEADWAY_PROJECT", "HEADWAY_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    shutil.copyfile("data/churn.csv", "new.csv")
    lines: dict[str, Any] = {}
    exec(block("python", "model.predict"), lines)
    made = lines["made"]
    assert made.column_names == ["prediction", "p(no)", "p(yes)"] and made.num_rows == NUM_ROWS
    right = np.array(made["prediction"]) == np.array(churn.rows()["churned"])
    assert right.mean() > 0.8


def test_plain_mlflow_answers_rows_as_the_source_has_them(churn: Churn, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setattr(sys, "path", [*sys.path])  # MLflow puts the model's code there
    uri = f"sqlite:///{churn.root / 'workspace' / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    served = mlflow.pyfunc.load_model("models:/churn@champion")
    rows = pd.read_csv(churn.root / "data" / "churn.csv")  # gaps and texts, and numbers as pandas has them
    pd.testing.assert_frame_equal(served.predict(rows), churn.model().predict(rows).to_pandas())
    example = served.input_example
    assert served.predict(example)["prediction"].item() in ("yes", "no")
    registration = model_refs.champion(Workspace(str(churn.root / "workspace")), "churn")
    assert registration is not None
    assert latency_of(Workspace(str(churn.root / "workspace")), registration[1]) > 0


def test_the_lines_that_use_a_champion_of_text_work(project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    for name in ("HEADWAY_PROJECT", "HEADWAY_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    lines: dict[str, Any] = {}
    exec(block("python", "load_text_model").replace("stdlib-lm", "tiny"), lines)
    assert lines["bits"] > 0 and isinstance(lines["follows"], bytes)


def test_a_text_costs_what_its_tokens_cost_one_after_another(project) -> None:
    model = headway.load_text_model("models:/tiny@champion", str(project.workspace))

    def bits_of(token: bytes, after: str) -> float:
        shares = torch.as_tensor(model.next_token_logits(after)).double().log_softmax(dim=0)
        return -shares[model.vocabulary.index(token)].item() / math.log(2)

    # Bytes that no training text has stay tokens of their own.
    assert model.bits("Q") == pytest.approx(bits_of(b"Q", ""), abs=1e-4)
    assert model.bits("QZ") == pytest.approx(bits_of(b"Q", "") + bits_of(b"Z", "Q"), abs=1e-4)
    assert model.bits("") == 0
    longer_than_the_context = "QZ" * 200
    assert model.next_token_logits(longer_than_the_context).shape == (len(model.vocabulary),)
    assert model.bits(longer_than_the_context) > model.bits("QZ")


def evaluated(case: SimpleNamespace, model: str, columns: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """What evaluation makes of a champion on the held-out rows, and columns of the same rows in the same order."""
    from headway.flows.console.environment import prepare

    prepare()
    from headway.flows.config.request import RetrainRequest
    from headway.flows.run.session import session
    from headway.tasks.core.candidate import read_candidate
    from headway.tasks.registry import model_refs
    from headway.tasks.rows.source_rows import source_rows
    from headway.tasks.stages.scoring import ScoringHarness
    from headway.training.config.shards import HELDOUT
    from headway.training.data.shards.source_values import values_of_split

    request = RetrainRequest(pipeline=str(case.pipeline), workspace=str(case.workspace))
    with forked_gangs(), session(request) as (context, spec):
        now = model_refs.champion(context.workspace, model)
        assert now is not None
        candidate = read_candidate(context.workspace, now[1].checkpoint)
        bench = ScoringHarness(context=context, launch=spec.launch, shards=spec.shards, source=spec.source)
        manifest = context.workspace.load(candidate.run.manifest, ShardManifest)
        sources = source_rows(context.workspace, context.base, spec.source, manifest.snapshot, candidate.run.receipt)
        rows = values_of_split(sources, manifest, HELDOUT, columns, in_row_order=True)
        return bench.score(candidate, baselines=False), rows


def test_rows_get_the_scores_that_evaluation_gave_them_up_to_the_rounding_of_float32(churn: Churn) -> None:
    scores, rows = evaluated(churn.case, "churn", COLUMNS)
    model = churn.model()
    held = pyarrow.table(rows)
    labels = torch.tensor([model.classes.index(label) for label in held["churned"].to_pylist()])
    nats = functional.cross_entropy(torch.as_tensor(model.outputs(held)), labels, reduction="none").double().numpy()
    assert len(nats) > 50
    np.testing.assert_allclose(nats, scores.sums["nats"], rtol=1e-5, atol=1e-6)
    right = np.array(model.predict(held)["prediction"]) == np.array(held["churned"])
    assert right.astype(float).tolist() == scores.sums["correct"].tolist()


def test_a_row_is_told_the_same_alone_and_in_any_kind_of_table(churn: Churn) -> None:
    model, rows = churn.model(), churn.rows()
    whole = model.predict(rows)
    assert model.predict(rows.slice(0, 0)).num_rows == 0
    alone = model.predict(rows.slice(7, 1))
    assert alone["prediction"][0] == whole["prediction"][7]
    assert alone["p(yes)"][0].as_py() == pytest.approx(whole["p(yes)"][7].as_py(), abs=1e-6)
    assert model.predict(pd.read_csv(churn.root / "data" / "churn.csv")).equals(whole)
    assert model.predict(rows.drop_columns(["churned"])).equals(whole)
    unseen = rows.set_column(rows.column_names.index("plan"), "plan", pyarrow.array(["unheard of"] * NUM_ROWS))
    assert model.encode(unseen)["categorical"][:, 1].tolist() == [0] * NUM_ROWS


def test_rows_without_a_column_or_with_another_type_are_refused_by_its_name(churn: Churn) -> None:
    model, rows = churn.model(), churn.rows()
    with pytest.raises(DataError, match="no column 'age'"):
        model.predict(rows.drop_columns(["age"]))
    for name, other in (("plan", "customer_id"), ("age", "plan")):
        place = rows.column_names.index(name)
        with pytest.raises(DataError, match=f"column '{name}' is .* and was fitted as"):
            model.predict(rows.set_column(place, name, rows[other]))


def test_a_column_without_any_value_is_of_no_other_kind_than_in_training(churn: Churn) -> None:
    model, rows = churn.model(), churn.rows()
    some = rows.slice(0, 3).to_pydict()
    mean_age = model.encode({**some, "age": [None, 18, 80]})["numeric"][0]
    assert (model.encode({**some, "age": [None] * 3})["numeric"] == mean_age).all()
    frame = pd.DataFrame(some)
    for nothing in (None, float("nan")):  # an object, and what pandas reads from a column of a CSV that is empty
        for name, place in (("plan", 1), ("tickets", 2)):
            encoded = model.encode(frame.assign(**{name: [nothing] * 3}))["categorical"]
            assert encoded[:, place].tolist() == [0] * 3
            assert encoded[:, 0].tolist() == model.encode(some)["categorical"][:, 0].tolist()


def test_a_table_in_pieces_is_told_row_by_row_and_refused_by_the_number_of_the_row(churn: Churn) -> None:
    model, rows = churn.model(), churn.rows().slice(0, 10)
    pieces = pyarrow.concat_tables([rows.slice(0, 4), rows.slice(4)])
    np.testing.assert_allclose(model.outputs(pieces), model.outputs(rows.combine_chunks()), rtol=1e-6)
    ages = pyarrow.chunked_array([[20.0] * 4, [30.0] * 5 + [float("inf")]])
    with pytest.raises(DataError, match="is infinite in row 9"):
        model.encode(rows.set_column(rows.column_names.index("age"), "age", ages))


@pytest.mark.parametrize("pattern", ["models/churn/*/artifacts/model.pt2", "documents/fitted/*"])
def test_a_model_whose_bytes_have_changed_is_not_used(copied: Path, flip_one_bit, pattern: str) -> None:
    (damaged,) = copied.glob(pattern)
    flip_one_bit(damaged)
    with pytest.raises(IntegrityError):
        headway.load_table_model("models:/churn@champion", str(copied))


def test_a_file_of_rows_is_predicted_as_the_rows_are_by_the_registered_and_by_the_exported_model(
    churn: Churn, tmp_path: Path, flip_one_bit: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace, uri = str(churn.root / "workspace"), "models:/churn@champion"
    export_model(uri, workspace, Path("exported"))

    def predicted(model: str, out: str) -> pyarrow.Table:
        predict(
            model,
            "" if model == "exported" else workspace,
            str(churn.root / "data" / "churn.csv"),
            Path(out),
            key=(),
            on_missing="refuse",
            overwrite=False,
        )
        return pyarrow.parquet.read_table(out)

    made = predicted(uri, "registered.parquet")
    asked = churn.model()
    predictions = asked.predict(churn.rows())
    # By the contract's key. Batches differ, and with them the last bit of a float32.
    assert made["customer_id"].to_pylist() == list(range(NUM_ROWS))
    assert made["prediction"].equals(predictions["prediction"])
    np.testing.assert_allclose(made["p(yes)"], predictions["p(yes)"], rtol=1e-5)
    assert {*made["model_sha256"].to_pylist()} == {asked.version.sha256}
    predicted("exported", "exported.parquet")
    assert Path("exported.parquet").read_bytes() == Path("registered.parquet").read_bytes()
    assert churn.model().version == headway.load_table_model("exported").version
    for name in ("model.pt2", "config.json"):
        good = Path("exported", name).read_bytes()
        flip_one_bit(Path("exported", name))
        with pytest.raises(IntegrityError):
            headway.load_table_model("exported")
        Path("exported", name).write_bytes(good)


def test_a_model_of_another_kind_of_data_is_refused(churn: Churn) -> None:
    with pytest.raises(ConfigError, match="byte-pair"):
        headway.load_text_model("models:/churn@champion", str(churn.root / "workspace"))
