"""Which stages a change runs anew: those whose keys it enters and those that stand on them, each with why."""

from __future__ import annotations

import pytest

from headway.tasks.core.stage_records import STAGES
from tests.flows.ci.conftest import edit, git

pytestmark = pytest.mark.process

ALL = tuple(stage for stage in STAGES if stage != "folds")
"""Of a pipeline without cross-validation."""
RECIPE = """\
from headway.training.recipes.language_model import LanguageModel


class Net(LanguageModel):
    width = 1
"""


def anew(answer) -> tuple[str, ...]:
    assert answer.code == 0, answer.report
    lines = answer["stages"]["details"]
    return tuple(stage for stage in STAGES if any(line.startswith(f"{stage}: runs anew") for line in lines))


@pytest.mark.parametrize(
    ("file", "old", "new", "stages", "why"),
    [
        ("tiny.yaml", "max_steps: 500", "max_steps: 400", ALL[3:], "launch: runs anew, training.max_steps 500 -> 400"),
        ("tiny.yaml", "include: [", "exclude: [a], include: [", ALL, "snapshot: runs anew, source.exclude"),
        ("tiny.yaml", "contract:", "shards: {seed: 1}\ncontract:", ALL[2:], "shard: runs anew, shards.seed 0 -> 1"),
        ("tiny.yaml", "contract:", "evaluation: {seed: 1}\ncontract:", ("evaluate",), "evaluation.seed 0 -> 1"),
        ("tiny.yaml", "{model: tiny}", "{model: other}", ("register",), "registry.model tiny -> other"),
        ("tiny.yaml", "contract:", "launch: {nodes: 1}\npromotion: {margin: 1}\ncontract:", (), ""),
        ("tiny.yaml", "max_steps: 500", "max_steps: 500, checkpoints: {every_s: 60}, profile: {first_step: 5}", (), ""),
        ("tiny.yaml", "pipeline: tiny", "# a word\npipeline: tiny", (), ""),
        (
            "contract.yaml",
            "name: tiny",
            "# why\nname: tiny",
            ALL[1:],
            "validate: runs anew, the contract's text",
        ),
        ("texts/one.txt", "one", "two", ALL, "snapshot: runs anew, 1 source files, one.txt first"),
    ],
)
def test_a_change_runs_anew_what_it_enters_and_what_follows(ci, checkout, file, old, new, stages, why) -> None:
    edit(checkout / file, old, new)
    answer = ci("--base", "main")
    assert anew(answer) == stages
    assert why in "\n".join(answer["stages"]["details"])


def test_new_and_removed_data_are_seen_and_what_the_source_does_not_read_is_not(ci, checkout) -> None:
    (checkout / "texts" / "note.md").write_text("read by nobody\n")
    assert anew(ci("--base", "main")) == ()
    (checkout / "texts" / "two.txt").write_text("two\n")
    assert anew(ci("--base", "main")) == ALL


def test_data_outside_git_are_taken_to_be_the_same_and_the_report_says_so(ci, checkout, tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir()
    edit(checkout / "tiny.yaml", "uri: texts", f"uri: {tmp_path}/elsewhere")
    git(checkout, "commit", "--all", "--message", "elsewhere")
    answer = ci("--base", "main")
    assert anew(answer) == () and "outside git" in "\n".join(answer["stages"]["details"])


@pytest.mark.long
def test_an_edit_to_a_recipe_of_ones_own_trains_anew_and_shards_nothing(ci, checkout) -> None:
    (checkout / "mine.py").write_text(RECIPE)
    edit(
        checkout / "tiny.yaml",
        "recipe: {model: {width: 16, depth: 1, heads: 2, hidden: 32}}",
        "recipe: {name: 'mine:Net', model: {width: 16, depth: 1, heads: 2, hidden: 32}}",
    )
    git(checkout, "add", ".")
    git(checkout, "commit", "--message", "a recipe")
    assert anew(ci("--base", "main")) == ()
    edit(checkout / "mine.py", "width = 1", "width = 2")
    answer = ci("--base", "main")
    assert anew(answer) == ALL[3:] and "launch: runs anew, the recipe's code" in answer["stages"]["details"]


def test_a_base_that_this_version_refuses_hides_no_check(ci, checkout) -> None:
    edit(checkout / "tiny.yaml", "max_steps", "steps")
    git(checkout, "commit", "--all", "--message", "of an older version")
    edit(checkout / "tiny.yaml", "steps", "max_steps")
    answer = ci("--base", "main")
    assert answer.code == 0 and answer.outcomes["contract"] == "passed"
    assert answer["stages"]["reason"].startswith("not compared")


def test_with_a_workspace_the_report_says_what_would_be_found_there_today(ci, checkout, tmp_path) -> None:
    answer = ci("--workspace", str(tmp_path / "workspace"))
    assert answer.code == 0 and "snapshot run" in answer["stages"]["details"][0]
