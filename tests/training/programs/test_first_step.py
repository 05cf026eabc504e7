"""What is wrong with a recipe is told by one step on made-up rows, in a process that it may end as it likes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.training.config.communication_spec import IntegerCompressionSpec
from headway.training.config.encoder_specs import BytePairSpec, ImageEncoderSpec, TabularEncoderSpec
from headway.training.config.optimizer import OptimizerSpec, ParameterGroupSpec
from headway.training.config.shapes import DataShape, TabularShape
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.programs import first_step
from headway.training.programs.first_step import FirstStep, FirstStepRequest, require_first_step, take_first_step
from headway.training.programs.synthetic_rows import plausible_shapes

RECIPE = """\
import torch
from torch import nn

from headway.data_contracts.store.documents import Frozen
from headway.training.config.shapes import TabularShape
from headway.training.recipes.protocol import Losses


class Net(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.body = nn.Linear(inputs, 4)
        self.head = nn.Linear(4, classes)

    def forward(self, numeric):
        return self.head(torch.relu(self.body(numeric)))


class Mine:
    spec_type, shape_type = Frozen, TabularShape

    def __init__(self, spec, shape):
        self.shape = shape

    def build(self):
        return Net(self.shape.num_numeric, self.shape.num_classes)

    def losses(self, model, batch):
        nats = nn.functional.cross_entropy(model(batch["numeric"]), batch["label"][:, 0], reduction="none")[:, None]
        return Losses(nats, torch.ones_like(nats, dtype=torch.bool))

    def measures(self, model, batch):
        right = model(batch["numeric"]).argmax(dim=1, keepdim=True) == batch["label"]
        return {"nats": self.losses(model, batch).nats, "correct": right.float()}

    def hidden_matrices(self, model):
        return ("body.weight",)

    def example_input(self):
        return torch.zeros(2, self.shape.num_numeric)
"""
TABLE = TabularShape(num_numeric=3, cardinalities=(), num_classes=2)
Tried = Callable[..., FirstStep]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    """Writes the recipe with something else in one place, under a name of its own; returns that."""

    def made(old: str = "", new: str = "") -> str:
        assert old in RECIPE
        module = f"recipe_{uuid.uuid4().hex}"
        (tmp_path / f"{module}.py").write_text(RECIPE.replace(old, new) if old else RECIPE)
        return f"{module}:Mine"

    return made


@pytest.fixture
def tried(write: Callable[[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tried:
    """A first step in this process."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def take(old: str = "", new: str = "", *shapes: DataShape, **changes: Any) -> FirstStep:
        training = TrainingSpec(recipe=RecipeSpec(name=write(old, new)), **changes)
        return take_first_step(FirstStepRequest(training=training, shapes=shapes or (TABLE,)))

    return take


def test_a_good_recipe_takes_its_first_step(tried: Tried) -> None:
    assert tried() == FirstStep()


@pytest.mark.parametrize(
    ("old", "new", "what", "line"),
    [
        ('batch["numeric"]', 'batch["numbers"]', "KeyError", 29),
        ("nn.Linear(4, classes)", "nn.Linear(5, classes)", "mat1 and mat2", 16),
        ('{"nats": self.losses(model, batch).nats, "correct": right.float()}', "{}", "not a mapping with `nats`", 32),
        ('"body.weight"', '"bodi.weight"', "hidden_matrices names 'bodi.weight'", None),
        ("return torch.zeros(2, self.shape.num_numeric)", "return torch.zeros(2, 7)", "with example_input", 39),
        ("return Net(", "return 1 / 0 or Net(", "ZeroDivisionError", 26),
        ("import nn\n", "import nm\n", "cannot import the recipe", None),
        ("import nn\n", "import nn\nraise SystemExit('no licence')\n", "cannot import the recipe", None),
        ("return self.head(", "print(numeric.sum().item() > 0 and 1 or 2); return self.head(", "torch.export", 9),
        ("torch.relu(self.body(numeric))", "torch.rand_like(self.body(numeric))", "rand_like", None),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tried: Tried, old: str, new: str, what: str, line: int | None) -> None:
    found = tried(old, new)
    assert found.refused and what in found.what, found
    if line is not None:
        assert f".py:{line} " in f"{found.where} ", found


def test_a_model_that_was_converted_is_told_the_key_of_the_pipeline_file(tried: Tried) -> None:
    found = tried("self.head = nn.Linear(4, classes)", "self.head = nn.Linear(4, classes).half()")
    assert "float16" in found.what and "Choose training.precision instead" in found.advice


def test_a_module_that_lies_outside_the_package_is_told_where_it_would_be_found(tried: Tried) -> None:
    found = tried("import torch\n", "import torch\nfrom my_helpers import thing\n")
    assert "No module named 'my_helpers'" in found.what
    assert "Install my_helpers, or put it into the recipe's package" in found.advice
    assert "gradient-boosting" not in found.advice, "the recipe's own name is right"


def test_groups_that_match_nothing_are_told_too(tried: Tried) -> None:
    groups = (ParameterGroupSpec(parameters=("haed.*",), lr_multiplier=2),)
    found = tried(optimizer=OptimizerSpec(groups=groups))
    assert "'haed.*' matches no weight" in found.what and "head" in found.advice


def test_what_islands_that_train_apart_cannot_have_is_told_before_any_rank_starts(tried: Tried) -> None:
    small = {"global_batch_sequences": 4, "micro_batch_sequences": 1}
    apart = {"every_steps": 64, "islands": 4, "delay_steps": 1, "outer": {"momentum": 0.5}}
    assert tried(**small, sync=apart) == FirstStep()
    many = tried(**small, sync=apart | {"fragments": 32, "delay_steps": 0})
    assert many.where == "training.sync.fragments" and "32 fragments of a model that trains" in many.what
    head, normalised = "nn.Linear(4, classes)", "nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, classes))"
    assert tried(head, normalised, **small, sync=apart).where == "training.sync"


def test_a_recipe_whose_gradients_travel_as_whole_numbers_takes_its_first_step_by_itself(tried: Tried) -> None:
    assert tried(gradient_compression=IntegerCompressionSpec(kind="int8", islands=2)) == FirstStep()


def test_a_recipe_that_takes_one_of_the_likely_shapes_is_good(tried: Tried) -> None:
    picky = "assert shape.num_classes == 3; self.shape = shape"
    shapes = plausible_shapes(TabularEncoderSpec(numeric=("a", "b"), label="c"), None)
    assert len(shapes) > 1
    assert tried("self.shape = shape", picky, *shapes) == FirstStep()
    assert tried("self.shape = shape", picky, TABLE).refused == "ConfigError"


def test_a_device_that_is_not_here_refuses_nothing(tried: Tried) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("it is here")
    assert "device" in tried("return Net(", "return nn.Linear(1, 1).cuda() or Net(").undecided


@pytest.mark.process
@pytest.mark.usefixtures("helpers_are_forks")
@pytest.mark.parametrize(
    ("deed", "problem"),
    [
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("print('{}'); raise TypeError('so')", r"recipe_\w+\.py:\d+ .*TypeError: so"),
        ("import sys; sys.exit(0)", r"recipe_\w+\.py:\d+ .*SystemExit: 0"),
        ("import os; os._exit(0)", "ended with exit code 0 and without an answer"),
        (
            "import os; os.write(2, b'\\xff' + b'x' * 999_999); os._exit(3)",
            r"exit code 3; its last line was: x{299}…\.",
        ),
        ("import subprocess; subprocess.Popen(['sleep', '1000']); 1 / 0", "ZeroDivisionError"),
        ("raise ValueError(chr(0xd800))", r"ValueError: \\ud800"),
    ],
)
def test_a_recipe_may_end_its_process_and_say_what_it_likes(
    write: Callable[[str, str], str], tmp_path: Path, deed: str, problem: str
) -> None:
    name = write("    def build(self):\n", f"    def build(self):\n        {deed}\n")
    request = FirstStepRequest(training=TrainingSpec(recipe=RecipeSpec(name=name)), shapes=(TABLE,))
    with pytest.raises(ConfigError, match=problem):
        require_first_step(request, search_path=[str(tmp_path)])


@pytest.mark.process
def test_a_recipe_that_hangs_is_ended_and_refuses_nothing(
    write: Callable[[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_step, "WITHIN_S", 0.5)
    request = FirstStepRequest(training=TrainingSpec(recipe=RecipeSpec(name=write("", ""))), shapes=(TABLE,))
    assert "did not end within 0.5 s" in require_first_step(request, search_path=[str(tmp_path)])


def test_shapes_are_as_the_specs_say() -> None:
    (tokens,) = plausible_shapes(BytePairSpec(vocab_size=300, sequence_tokens=16), None)
    assert (tokens.vocab_size, tokens.context_tokens) == (300, 16)
    (image,) = plausible_shapes(ImageEncoderSpec(pixels=("p_{0..7}",), shape=(2, 2, 2)), 5)
    assert (image.channels, image.height, image.width, image.num_classes) == (2, 2, 2, 5)
    spec = TabularEncoderSpec(numeric=("a",), categorical=("b", "c"), label="d", label_kind="number")
    (number,) = plausible_shapes(spec, None)
    assert (number.num_numeric, len(number.cardinalities)) == (1, 2)
