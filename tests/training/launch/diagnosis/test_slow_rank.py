"""A real gang, one rank of which takes its time in each forward pass, under the real supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.training.config.training_spec import RecipeSpec
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.supervise.supervisor import supervise
from headway.training.observe.ledger import Ledger, read_events
from tests.training.conftest import TINY, TinyProject

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("forked_agents")]

REPOSITORY = Path(__file__).resolve().parents[4]
SLOW = '''
"""The language model, slow on one rank."""

import os
import time

from headway.training.recipes.language_model import LanguageModel


class Slow(LanguageModel):
    def losses(self, model, batch):
        if model.training and os.environ["RANK"] == "1":
            time.sleep(0.05)
        return super().losses(model, batch)
'''


def test_the_rank_that_the_others_wait_for_is_named_with_the_part_and_what_it_costs(
    project: TinyProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_recipe.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = RecipeSpec(name="slow_recipe:Slow", model=dict(TINY.recipe.model))
    run, run_dir = project.publish_run(TINY.model_copy(update={"recipe": recipe, "max_steps": 110})), tmp_path / "run"
    gang = Gang(
        module="headway.training.programs.worker",
        arguments=("--workspace", project.workspace.uri, "--run-spec", run.sha256, "--run-dir", str(run_dir)),
        nodes=2,
        ranks_per_node=1,
        import_path=(str(tmp_path), str(REPOSITORY)),
        run_dir=run_dir,
    )
    ledger = Ledger(tmp_path / "owner.jsonl")
    assert supervise(LaunchSpec(), gang, ledger=ledger, budget_scope="one", poll=lambda: None).state == "done"

    (told,) = (event for event in read_events(tmp_path / "owner.jsonl") if event["event"] == "rank.slow")
    assert (told["rank"], told["part"], told["attempt"], told["one_host"]) == (1, "forward", 1, True)
    # Two micro-batches each.
    assert told["excess_s"] > 0.05 and told["own_s"] - told["others_s"] > 0.05
    assert str(told["what"]).startswith("rank 1 on ") and "forward takes it 0." in told["what"]
