"""A user's recipe that is wrong is told in one sentence with the line to look at; a machine's trouble is left alone."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway.data_contracts.store.documents import PayloadColumn
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.training.config.shapes import CustomShape, DataShape, ImageShape
from headway.training.recipes.checked import require_finite_first_loss
from headway.training.recipes.load import load_recipe
from headway.training.recipes.protocol import Losses, Recipe

SHAPE = ImageShape(channels=1, height=4, width=4, num_classes=3)
BATCH = {"image": torch.ones(5, 1, 4, 4, dtype=torch.int64), "label": torch.zeros(5, 1, dtype=torch.int64)}
GOOD = """\
import torch
from torch import nn
from headway.data_contracts.store.documents import Frozen
from headway.training.config.shapes import ImageShape, CustomShape
from headway.training.recipes.protocol import Losses

class Spec(Frozen):
    width: int = 4

class Mine:
    spec_type, shape_type = Spec, ImageShape
    def __init__(self, spec, shape):
        self.spec = spec
    def build(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    def losses(self, model, batch):
        logits = model(batch["image"].float())
        nats = nn.functional.cross_entropy(logits, batch["label"][:, 0], reduction="none")[:, None]
        return Losses(nats, torch.ones_like(nats, dtype=torch.bool))
    def measures(self, model, batch):
        return {"nats": self.losses(model, batch).nats, "correct": torch.ones(len(batch["label"]), 1)}
    def hidden_matrices(self, model):
        return ()
    def example_input(self):
        return torch.zeros(2, 1, 4, 4)
    def flops_per_token(self, num_parameters):
        return 6 * num_parameters
"""
Write = Callable[..., Recipe]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """The recipe from a package in an archive, as ranks import it, with one piece of its text replaced."""

    def made(old: str = "", new: str = "", shape: DataShape = SHAPE) -> Recipe:
        assert old in GOOD
        with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
            archive.writestr("checked_recipes/__init__.py", "")
            archive.writestr("checked_recipes/mine.py", GOOD.replace(old, new) if old else GOOD)
        monkeypatch.syspath_prepend(str(tmp_path / "code.zip"))
        for name in [name for name in sys.modules if name.startswith("checked_recipes")]:
            monkeypatch.delitem(sys.modules, name)
        return load_recipe("checked_recipes.mine:Mine", {"width": 5}, shape)

    return made


def use(recipe: Recipe) -> None:
    model = recipe.build()
    recipe.losses(model, BATCH)
    recipe.measures(model, BATCH)
    recipe.hidden_matrices(model)
    recipe.example_input()
    assert recipe.flops_per_token(51) == 306


def test_a_good_recipe_goes_through_and_keeps_what_is_its_own(load: Write) -> None:
    recipe = load()
    use(recipe)
    assert recipe.spec.width == 5  # type: ignore[attr-defined]
    assert isinstance(recipe.losses(recipe.build(), BATCH), Losses)


def test_a_recipe_of_numbers_is_asked_for_squared_errors_alone(load: Write) -> None:
    shape = CustomShape(columns=(PayloadColumn(name="image", dtype="uint8", shape=(1, 4, 4)),))
    recipe = load("shape_type = Spec, ImageShape", "shape_type = Spec, CustomShape", shape=shape)
    with pytest.raises(ConfigError, match="a mapping with `squared_error`"):
        recipe.measures(recipe.build(), BATCH)


def test_a_good_recipe_may_be_asked_by_the_last_stage_of_a_pipeline_which_has_no_model_to_give(load: Write) -> None:
    recipe = load()
    outputs = recipe.build()(BATCH["image"].float())
    last_stage: Any = lambda _inputs: outputs  # noqa: E731
    assert recipe.losses(last_stage, BATCH).nats.shape == (5, 1)
    with pytest.raises(ConfigError, match="do not depend"):
        load('reduction="none")', 'reduction="none").detach()').losses(last_stage, BATCH)


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("nn.Linear(16, 3)", "nn.Linear(17, 3)", 17, r"\(logits = model.*RuntimeError: mat1 and mat2 shapes"),
        ('batch["image"]', 'batch["picture"]', 17, r"KeyError: 'picture'\. The batch has image, label"),
        ("self.spec = spec", "self.spec = spec.wdith", 13, "AttributeError"),
        ("def build(self):", "def build(self, extra):", None, "recipe: TypeError: .*missing 1 required"),
        ("return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))", "return nn.Flatten()", 14, "without parameters"),
        ("return nn.Sequential(", "return len, (", 14, "build returned a tuple, not a torch module"),
        ("return Losses(nats, torch", "return nats.mean() #", 16, r"returned a Tensor, not Losses\(nats, valid\)"),
        ("return Losses(nats, torch", "return nats.sum().item() #", 16, "losses returned a float"),
        ("return Losses(nats, torch", "return #", 16, "losses returned nothing"),
        ('reduction="none")[:, None]', 'reduction="none")', 16, r"nats of shape \[5\], not \(rows, targets\)"),
        ("torch.ones_like(nats, dtype", "torch.ones_like(nats[:, 0], dtype", 16, r"valid as bool \[5\], not as bool"),
        ("dtype=torch.bool", "dtype=torch.float", 16, r"valid as float32 \[5, 1\], not as bool \[5, 1\]"),
        ('reduction="none")', 'reduction="none").detach()', 16, "do not depend"),
        ('{"nats": self.losses(model, batch).nats', '{"loss": 1', 20, "measures returned a dict, not a mapping with"),
        (', "correct": torch.ones(len(batch["label"]), 1)', "", 20, "a mapping with `nats` and `correct`"),
        ('"correct": torch.ones(len(batch["label"]), 1)', '"correct": 0.5', 20, "correct as a float, not as a tensor"),
        ("        return ()", '        return ("1.bias",)', 22, r"names 1\.bias, which has 1 dimensions"),
        ("return torch.zeros(2, 1, 4, 4)", "return [0]", 24, "example_input returned a list"),
        ("6 * num_parameters", "num_parameters / 0", 27, "ZeroDivisionError"),
        ("6 * num_parameters", "num_parameters * 0", 26, "flops_per_token returned 0, not a number above 0"),
        ("return 6 *", "pass # ", 26, "flops_per_token returned nothing"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(load: Write, old: str, new: str, line: int | None, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        use(load(old, new))
    place = "recipe" if line is None else f"checked_recipes/mine.py:{line}"
    assert str(caught.value).startswith(place), caught.value


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("class Mine:", "class Mine(:", r"SyntaxError.*mine"),
        ("class Mine:", "1 / 0\nclass Mine:", r"ZeroDivisionError: division by zero, checked_recipes/mine\.py:10"),
        ("class Spec(Frozen):", "class Spec:", "its spec_type is no Frozen model"),
        ("= Spec, ImageShape", "= Spec, int", "its shape_type is none of TokenShape, ImageShape"),
        ("width: int = 4", "height: int = 4", r"recipe\.model\.width: no such field.*Its fields are height"),
    ],
)
def test_what_is_no_recipe_is_told_before_it_is_made(load: Write, old: str, new: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(old, new)


def test_a_loss_that_is_no_number_before_any_step_is_the_recipes_unless_the_rows_hold_none(load: Write) -> None:
    recipe = load()
    require_finite_first_loss(recipe, BATCH, 1.0)
    with pytest.raises(ConfigError, match=r"^checked_recipes/mine\.py:16: losses makes nan of the first 5 rows"):
        require_finite_first_loss(recipe, BATCH, float("nan"))
    with pytest.raises(DataError, match="column numeric"):
        require_finite_first_loss(recipe, {"numeric": torch.full((5, 1), float("inf"))}, float("nan"))


@pytest.mark.parametrize(
    "raised",
    ["torch.OutOfMemoryError()", "RuntimeError('Connection closed by peer')", "RuntimeError('CUDA error: x')"],
)
def test_a_machines_trouble_is_not_the_recipes(load: Write, raised: str) -> None:
    recipe = load("logits = model", f"raise {raised}; logits = model")
    with pytest.raises(RuntimeError):
        recipe.losses(nn.Linear(1, 1), BATCH)
