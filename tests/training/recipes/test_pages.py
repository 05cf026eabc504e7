"""What the pages show of recipes and of the optimizer's configuration works as it stands there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from headway.training.config.shapes import ImageShape
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.learner import Learner
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.checked import CheckedRecipe
from headway.training.recipes.load import load_recipe
from tests.pages import block


def test_the_recipe_in_the_documentation_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page_models").mkdir()
    (tmp_path / "page_models" / "pictures.py").write_text(block("python", "class Pictures"))
    monkeypatch.syspath_prepend(str(tmp_path))
    shape = ImageShape(channels=1, height=4, width=4, num_classes=3)
    recipe = load_recipe("page_models.pictures:Pictures", {"width": 8}, shape)
    assert isinstance(recipe, CheckedRecipe)
    batches = {"global_batch_sequences": 8, "micro_batch_sequences": 4}
    spec = TrainingSpec.model_validate({**batches, "schedule": {"warmup_steps": 0}})
    learner = Learner(recipe, spec, ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")))
    batch = {"image": torch.arange(64).view(4, 1, 4, 4), "label": torch.tensor([[0], [1], [2], [0]])}
    before = learner.proof_loss(batch)
    for step in range(3):
        sums = learner.exchange(learner.backward(step, [batch, batch]), stop=False)
        learner.update(step, sums, learner.gradient_norm(sums))
    assert learner.proof_loss(batch) < before
    assert set(recipe.measures(learner.model, batch)) == {"nats", "correct"}
    assert learner.model(recipe.example_input()).shape == (2, 3)


def test_the_configuration_in_the_documentation_is_one() -> None:
    spec = TrainingSpec.model_validate(yaml.safe_load(block("yaml", "scale_with_batch"))["training"])
    assert spec.start_from is not None and spec.optimizer.groups[0].frozen
