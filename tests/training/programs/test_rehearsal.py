"""A rehearsal says what a step takes and holds, without data, and a model that cannot be trained is told at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, TrainingFailed
from headway.training.config.communication_spec import SyncSpec
from headway.training.config.shapes import ImageShape, TabularNumberShape, TabularShape, TokenShape
from headway.training.config.training_spec import RecipeSpec, TrainingSpec
from headway.training.launch.base.process_tree import descendants
from headway.training.programs.rehearsal import RehearsalRequest, measure, rehearse
from headway.training.recipes.load import load_recipe

pytestmark = pytest.mark.process

MODEL: dict[str, bool | int | float | str] = {"width": 16, "depth": 1, "heads": 2, "hidden": 32}
SHAPE = TokenShape(vocab_size=300, context_tokens=16)
OWN = """
import os, signal
from headway.training.recipes.language_model import LanguageModel

class Mine(LanguageModel):
    def losses(self, model, batch):
        {body}
"""


def request(recipe: RecipeSpec, world_size: int = 2) -> RehearsalRequest:
    training = TrainingSpec(recipe=recipe, global_batch_sequences=8, micro_batch_sequences=2)
    return RehearsalRequest(training=training, shape=SHAPE, world_size=world_size)


def own_recipe(folder: Path, body: str) -> RecipeSpec:
    (folder / "own_recipe.py").write_text(OWN.format(body=body))
    return RecipeSpec(name="own_recipe:Mine", model=MODEL)


def test_it_measures_the_model_that_would_be_trained() -> None:
    found = rehearse(request(RecipeSpec(model=MODEL)), search_path=())
    model = load_recipe("language-model", MODEL, SHAPE).build()
    num_parameters = sum(value.numel() for value in model.parameters())
    assert found.num_parameters == num_parameters
    assert found.step_s > 0
    assert found.peak_bytes > 4 * num_parameters


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("image-classifier", ImageShape(channels=1, height=8, width=8, num_classes=10)),
        ("tabular-classifier", TabularShape(num_numeric=3, cardinalities=(4,), num_classes=2)),
        ("tabular-regressor", TabularNumberShape(num_numeric=3, cardinalities=(4,), mean=7.0, deviation=2.0)),
    ],
)
def test_every_shipped_recipe_can_be_rehearsed(name, shape) -> None:
    training = TrainingSpec(recipe=RecipeSpec(name=name))
    assert measure(RehearsalRequest(training=training, shape=shape, world_size=1)).num_parameters > 0


def test_what_the_configuration_asks_of_the_model_in_vain_is_said_as_a_retrain_says_it() -> None:
    training = TrainingSpec(
        recipe=RecipeSpec(model=MODEL),
        global_batch_sequences=8,
        micro_batch_sequences=2,
        sync=SyncSpec(every_steps=64, fragments=64, islands=2),
    )
    with pytest.raises(ConfigError, match=r"64 fragments of a model .* 9 tensors\. Say 9 or fewer") as raised:
        rehearse(RehearsalRequest(training=training, shape=SHAPE, world_size=2), search_path=())
    assert raised.value.where == "training.sync.fragments"


@pytest.mark.usefixtures("helpers_are_forks")
def test_a_larger_share_of_the_batch_takes_longer(tmp_path: Path) -> None:
    recipe = own_recipe(
        tmp_path, "import time; time.sleep(0.1); os.write(1, b'\\xff\\n'); return super().losses(model, batch)"
    )
    alone, shared = (rehearse(request(recipe, world), search_path=(str(tmp_path),)).step_s for world in (1, 4))
    assert alone > 4 * 0.1 > shared


@pytest.mark.usefixtures("helpers_are_forks")
@pytest.mark.parametrize(
    ("body", "error", "problem"),
    [
        ("raise ValueError('heads of clay')", ConfigError, r"own_recipe\.py:7 .*: heads of clay"),
        ("os.kill(os.getpid(), signal.SIGKILL)", EnvironmentProblem, "want of memory"),
        ("print('so'); os.write(2, b'\\xff' + b'x' * 999_999); os._exit(0)", TrainingFailed, r"\(x{299}…\)"),
    ],
)
def test_a_model_that_cannot_be_trained_is_told_and_leaves_nothing(tmp_path, body, error, problem) -> None:
    with pytest.raises(error, match=problem):
        rehearse(request(own_recipe(tmp_path, body)), search_path=(str(tmp_path),))
    assert not [pid for pid in descendants(os.getpid()) if "rehearsal" in _command_of(pid)]


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
