"""A user's recipe or encoder that is wrong is refused before a byte of the source is read."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headway.data_contracts.rules.contract import parse_contract
from headway.data_contracts.store.documents import CheckpointManifest, Link
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.flows.ci.checks import Checks, CiRequest
from headway.flows.ci.results import Checklist
from headway.flows.config import first_step
from headway.flows.config.first_step import num_label_values, synthetic_rows
from headway.flows.config.preflight import check_request
from headway.flows.config.request import RetrainRequest
from headway.flows.retrain import retrain_here
from headway.flows.show.plan import make_plan
from tests.tasks.past_work import Maker

pytestmark = pytest.mark.process

PIPELINE = """\
pipeline: words
source: {format: csv, uri: there-is-none, include: ["*.csv"]}
contract: contract.yaml
shards:
  encoder: {kind: own, name: "PACKAGE.encoder:Lengths", options: {column: word}}
training:
  recipe: {name: "PACKAGE.recipe:Linear"}
  optimizer: {kind: adamw}
registry: {model: words}
"""
CONTRACT = """\
name: words
version: 1.0.0
columns:
  word: {type: string}
  language: {type: string, in: [north, south]}
"""
ENCODER = """\
import numpy as np

from headway.data_contracts.store.documents import Frozen, PayloadColumn
from headway.training.data.encode.custom_encoder import EncoderState
from headway.training.config.shapes import CustomShape


class Options(Frozen):
    column: str = "text"


class Lengths:
    spec_type = Options

    @classmethod
    def fit(cls, spec, batches):
        return EncoderState(sorted({value for batch in batches for value in batch.column("language").to_pylist()}))

    def __init__(self, spec, learnt):
        self.spec, self.languages = spec, learnt.state
        lengths = PayloadColumn(name="lengths", dtype="float32", shape=(1,))
        self.shape = CustomShape(columns=(lengths,), num_classes=len(self.languages))

    def encode(self, batch):
        lengths = [len(word) for word in batch.column(self.spec.column).to_pylist()]
        label = [self.languages.index(language) for language in batch.column("language").to_pylist()]
        return {
            "lengths": np.array(lengths, dtype=np.float32)[:, None],
            "label": np.array(label, dtype=np.int32)[:, None],
        }
"""
RECIPE = """\
import torch
from torch import nn

from headway.data_contracts.store.documents import Frozen
from headway.training.config.shapes import CustomShape
from headway.training.recipes.protocol import Losses


class Linear:
    spec_type, shape_type = Frozen, CustomShape

    def __init__(self, spec, shape):
        self.shape = shape

    def build(self):
        return nn.Linear(1, self.shape.num_classes)

    def losses(self, model, batch):
        nats = nn.functional.cross_entropy(model(batch["lengths"]), batch["label"][:, 0], reduction="none")[:, None]
        return Losses(nats, torch.ones_like(nats, dtype=torch.bool))

    def measures(self, model, batch):
        right = model(batch["lengths"]).argmax(dim=1, keepdim=True) == batch["label"]
        return {"nats": self.losses(model, batch).nats, "correct": right.float()}

    def hidden_matrices(self, model):
        return ()

    def example_input(self):
        return torch.zeros(2, 1)
"""


TOKENS = """\
        from headway.training.config.shapes import TokenShape

        self.shape = TokenShape(vocab_size=256, context_tokens=5)

    def encode(self, batch):
        return [np.frombuffer(word.encode(), np.uint8) for word in batch.column(self.spec.column).to_pylist()]
"""


TOKEN_RECIPE = """\
import torch
from torch import nn

from headway.data_contracts.store.documents import Frozen
from headway.training.config.shapes import TokenShape
from headway.training.recipes.protocol import Losses


class Bigram:
    spec_type, shape_type = Frozen, TokenShape

    def __init__(self, spec, shape):
        self.size = shape.vocab_size

    def build(self):
        return nn.Embedding(self.size, self.size)

    def losses(self, model, batch):
        seen, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
        nats = nn.functional.cross_entropy(model(seen).transpose(1, 2), targets, reduction="none")
        return Losses(nats, targets != 1)

    def measures(self, model, batch):
        return {"nats": self.losses(model, batch).nats}

    def hidden_matrices(self, model):
        return ()

    def example_input(self):
        return torch.zeros((2, 4), dtype=torch.int64)


Linear = Bigram
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RetrainRequest]:
    """A project with something else in one place of one file; there are no data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PROJECT", raising=False)

    def made(file: str = "", old: str = "", new: str = "") -> RetrainRequest:
        package = f"own_{uuid.uuid4().hex}"
        files = {
            "words.yaml": PIPELINE.replace("PACKAGE", package),
            "contract.yaml": CONTRACT,
            f"{package}/__init__.py": "",
            f"{package}/encoder.py": ENCODER,
            f"{package}/recipe.py": RECIPE,
        }
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            assert old in text or not name.endswith(file or "-")
            (tmp_path / name).write_text(text.replace(old, new) if file and name.endswith(file) else text)
        return RetrainRequest(pipeline="words.yaml", workspace=str(tmp_path / "workspace"))

    return made


def test_a_good_recipe_and_encoder_are_let_through_once_and_for_all(
    write: Callable[..., RetrainRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = write()
    check_request(request)
    monkeypatch.setattr(
        "headway.flows.config.first_step._try", lambda *_: pytest.fail("its flow asks again, and nothing runs anew")
    )
    check_request(request)


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("recipe.py", 'batch["lengths"]', 'batch["length"]', r"recipe\.py:19 .*KeyError: 'length'"),
        (
            "encoder.py",
            "batch.column(self.spec.column)",
            'batch.column("wrd")',
            r"encoder\.py:\d+.*encode raised KeyError",
        ),
        ("encoder.py", "[len(word)", "[word.length()", r"encoder\.py:\d+.*AttributeError"),
        ("encoder.py", "dtype=np.float32", "dtype=np.float64", "returned lengths as float64"),
    ],
)
def test_a_mistake_in_a_users_code_costs_no_workspace_and_no_look_at_the_source(
    write: Callable[..., RetrainRequest], tmp_path: Path, file: str, old: str, new: str, problem: str
) -> None:
    request = write(file, old, new)
    with pytest.raises(ConfigError, match=problem):
        check_request(request)
    assert not (tmp_path / "workspace").exists()


def test_a_plan_and_the_recipe_check_of_ci_refuse_it_too(write: Callable[..., RetrainRequest], tmp_path: Path) -> None:
    request = write("recipe.py", "nn.Linear(1, ", "nn.Linear(3, ")
    with pytest.raises(ConfigError, match=r"recipe\.py:19 .*mat1 and mat2"):
        make_plan(request)
    checks = Checks(CiRequest(pipeline="words.yaml", smoke=False), request.workspace, lambda _: None)
    checklist = Checklist(lambda _: None)
    checks.make(checklist, tmp_path)
    outcomes = {result.check: result for result in checklist.results}
    assert outcomes["recipe"].outcome == "failed" and "mat1 and mat2" in outcomes["recipe"].reason
    assert outcomes["config"].outcome == outcomes["encoder"].outcome == "passed"


def test_an_encoder_that_wants_other_values_than_made_up_ones_is_left_to_the_first_real_rows(
    write: Callable[..., RetrainRequest],
) -> None:
    from headway.flows.config.first_step import check_first_step
    from headway.flows.config.preflight import check_contract

    request = write("encoder.py", "[len(word)", "[int(word)")
    pipeline, path, _ = check_request(request)
    assert "first rows will tell" in check_first_step(pipeline, path, check_contract(pipeline, path), None)


def test_an_encoder_that_does_not_end_is_told_in_time_and_left_to_the_real_rows(
    write: Callable[..., RetrainRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.flows.config.first_step import check_encodes, check_first_step
    from headway.flows.config.preflight import check_contract
    from headway.training.data.encode import hosted_encoder

    request = write("encoder.py", "return EncoderState(", "import time; time.sleep(1000); return EncoderState(")
    monkeypatch.setattr(hosted_encoder, "WITHIN_S", 3.0)
    pipeline, path, _ = check_request(request)
    contract = check_contract(pipeline, path)
    for untried in (check_first_step(pipeline, path, contract, None), check_encodes(pipeline, path, contract)):
        assert untried == "the encoder did not answer within 3 s"


def on_cuda(write: Callable[..., RetrainRequest]) -> RetrainRequest:
    if torch.cuda.is_available():
        pytest.skip("the device is here")
    return write("recipe.py", 'batch["lengths"]', 'batch["lengths"].to("cuda")')


def test_a_device_that_is_not_here_is_wanted_before_anything_is_spent(write: Callable[..., RetrainRequest]) -> None:
    request = on_cuda(write)
    # The source is not there either, which is what a snapshot would say.
    for check in (check_request, make_plan, retrain_here):
        with pytest.raises(EnvironmentProblem) as refused:
            check(request)
        assert "wants a device that this machine does not have" in refused.value.what
        assert "recipe" in refused.value.where and "launch.launcher" in refused.value.advice
    assert [path.name for path in Path(request.workspace).glob("documents/*")] == ["pipeline-event"]


class OnCuda(Maker):
    def checkpoint(self, run: Link, step: int) -> CheckpointManifest:
        manifest = super().checkpoint(run, step)
        return manifest.model_copy(update={"fingerprint": manifest.fingerprint.model_copy(update={"device": "cuda"})})


def test_code_that_trained_on_a_device_which_is_not_here_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    on_cpu, on_cuda = (
        maker(workspace).run(number, maker(workspace).data(number)) for number, maker in enumerate((Maker, OnCuda))
    )
    for place, is_here in ((tmp_path, True), (tmp_path / "none", False)):
        monkeypatch.setattr(first_step, "ACCELERATORS", (place,))
        assert first_step._has_its_device(workspace, on_cpu.run)
        assert first_step._has_its_device(workspace, on_cuda.run) == is_here


def test_a_check_of_changes_needs_no_device(write: Callable[..., RetrainRequest], tmp_path: Path) -> None:
    request = on_cuda(write)
    checks = Checks(CiRequest(pipeline="words.yaml", smoke=False), request.workspace, lambda _: None)
    checklist = Checklist(lambda _: None)
    checks.make(checklist, tmp_path)
    found = {result.check: result for result in checklist.results}["recipe"]
    assert found.outcome == "passed" and "it wants a device that is not here" in str(found)


@pytest.mark.long
@pytest.mark.parametrize(
    ("is_on_hosts", "new", "words"),
    [
        (True, 'batch["lengths"].to("cuda")', "it wants a device that is not here"),
        (False, 'batch["lengths"] * float("nan")', "the loss of its first step on made-up rows is nan"),
    ],
)
def test_a_plan_says_what_the_first_step_could_not_decide(
    write: Callable[..., RetrainRequest], is_on_hosts: bool, new: str, words: str
) -> None:
    request = on_cuda(write) if is_on_hosts else write("recipe.py", 'batch["lengths"]', new)
    if is_on_hosts:
        pipeline = Path("words.yaml")
        pipeline.write_text(pipeline.read_text() + "launch: {launcher: slurm}\n")
    Path("there-is-none").mkdir()
    Path("there-is-none/words.csv").write_text("word,language\none,north\ntwo,south\n")
    assert words in make_plan(request).untried


def test_made_up_rows_keep_to_the_contract() -> None:
    text = """\
name: t
version: 1.0.0
columns:
  a: {type: int8, min: 3, max: 4}
  b: {type: string, min_length: 30, max_length: 33}
  c: {type: "fixed_size_list<int32>[6]", elements: {min: 7}}
  d: {type: "timestamp[us, tz=UTC]"}
  e: {type: "fixed_size_binary[16]"}
  f: {type: "decimal128(18, 2)", min: 0.5, max: 0.75}
  g: {type: bool}
  h: {type: string, in: [x, y, z]}
"""
    contract = parse_contract(text, where="t")
    rows = synthetic_rows(contract, is_table=True).to_pydict()
    assert set(rows["a"]) == {3, 4} and all(30 <= len(word) <= 33 for word in rows["b"])
    assert all(min(each) >= 7 and len(each) == 6 for each in rows["c"]) and {len(each) for each in rows["e"]} == {16}
    assert all(0.5 <= each <= 0.75 for each in rows["f"]) and set(rows["h"]) == {"x", "y", "z"}
    assert [num_label_values(contract, name) for name in ("a", "b", "g", "h", None)] == [2, None, 2, 3, None]


@pytest.mark.long
def test_a_plan_speaks_of_tokens_where_training_will(write: Callable[..., RetrainRequest], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.csv").write_text("word,language\none,north\n")
    request = write("words.yaml", "uri: there-is-none", "uri: data")
    assert make_plan(request).batch.startswith("examples/step")

    request = write("encoder.py", ENCODER[ENCODER.index("        lengths = P") :], TOKENS)
    (package,) = {each.parent for each in tmp_path.glob("own_*/encoder.py") if "TokenShape(" in each.read_text()}
    (package / "recipe.py").write_text(TOKEN_RECIPE)
    written = (tmp_path / "words.yaml").read_text()
    (tmp_path / "words.yaml").write_text(written.replace("there-is-none", "data"))
    planned = make_plan(request)
    assert "x 5 seq" in planned.batch and planned.batch.endswith("= 40"), "8 rows of 5 tokens"
    assert planned.length == "1,000 steps = 40,000 tokens"


def test_patterns_of_personal_weights_are_tried_on_a_built_in_recipe_too(
    write: Callable[..., RetrainRequest], tmp_path: Path
) -> None:
    request = write()
    file = tmp_path / "words.yaml"
    file.write_text("""\
pipeline: words
source: {format: csv, uri: there-is-none, include: ["*.csv"]}
contract: contract.yaml
shards: {group_by: file, encoder: {kind: tabular, categorical: [word], label: language}}
training:
  recipe: {name: tabular-classifier}
  global_batch_sequences: 64
  micro_batch_sequences: 16
  sync: {every_steps: 8, federated: {personal: ["haed.*"]}}
registry: {model: words}
""")
    with pytest.raises(ConfigError, match=r"'haed\.\*' matches no weight of the model"):
        check_request(request)
    file.write_text(file.read_text().replace("haed", "head"))
    check_request(request)
