"""Data that make a model's loss infinite, or merely terrible."""

from __future__ import annotations

from pathlib import Path

import pytest

POISONED = '''
"""The language model, on whose loss some rows have an effect of their own."""

from headway.training.recipes.language_model import LanguageModel
from headway.training.config.recipe_specs import LanguageModelSpec
from headway.training.recipes.protocol import Losses


class PoisonedSpec(LanguageModelSpec):
    deadly: str = ""
    terrible: str = ""


def marks(text):
    return {int(mark) for mark in text.split(",") if mark}


class Poisoned(LanguageModel):
    spec_type = PoisonedSpec

    def losses(self, model, batch):
        losses = super().losses(model, batch)
        rows = {mark(row) for row in batch["tokens"].tolist()}
        factor = 1.0
        if model.training and rows & marks(self.spec.terrible):
            factor = 100.0
        if model.training and rows & marks(self.spec.deadly):
            factor = float("inf")
        return Losses(nats=losses.nats * factor, valid=losses.valid)


def mark(row):
    return sum(place * token for place, token in enumerate(row, 1))
'''


@pytest.fixture
def recipe_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds `poisoned_recipe.py`; on the path of this process and of ranks."""
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "poisoned_recipe.py").write_text(POISONED)
    monkeypatch.syspath_prepend(str(folder))
    return folder
