"""A recipe that cannot work is refused before anything is spent, without torch and without running a user's code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.training.frozen.recipe_check import check_recipe, may_name_matrices

SOURCE = """
raise SystemExit("a check must not run this")
if True:
    from elsewhere import Imported as Shown
class Own: ...
"""


@pytest.fixture
def search_path(tmp_path):
    package = tmp_path / "my_recipes"
    (package / "deep").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "own.py": SOURCE,
        "deep/__init__.py": "from x import *",
        "bad.py": "(",
    }.items():
        (package / name).write_text(text)
    return (str(tmp_path),)


@pytest.mark.parametrize(
    ("name", "model", "problem"),
    [
        ("langage-model", {}, "Did you mean language-model"),
        ("language-model", {"widht": 32}, r"recipe\.model\.widht: no such field\. Did you mean width"),
        ("language-model", {"width": 20, "heads": 3}, "width 20 is not a multiple of 2 x heads = 6"),
        ("language-model", {"depth": 0}, r"recipe\.model\.depth"),
        ("my_recipes.owm:Own", {}, r"no module 'my_recipes\.owm'\. Did you mean my_recipes\.own"),
        ("my_recipes.own:Onw", {}, r"own\.py\) defines no 'Onw'\. Did you mean Own"),
        ("my_recipes.bad:Own", {}, "cannot be read"),
        ("my_recipe:Own", {}, "no package 'my_recipe'"),
    ],
)
def test_a_mistake_is_refused_with_the_nearest_name(search_path, name, model, problem):
    with pytest.raises(ConfigError, match=problem):
        check_recipe(name, model, search_path)


@pytest.mark.parametrize("place", ["own:Own", "own:Shown", "deep:Anything"])
def test_a_users_own_class_is_found_by_reading(search_path, place):
    check_recipe(f"my_recipes.{place}", {"any": 1}, search_path)


@pytest.mark.parametrize(
    ("body", "may"),
    [
        ("def hidden_matrices(self, model): return ()", False),
        ("def hidden_matrices(self, model): return ('a',)", True),
        ("def hidden_matrices(self, model): return tuple(model.names)", True),
        ("def build(self): return ()", True),
    ],
)
def test_whether_a_users_own_recipe_may_name_matrices_is_read_from_its_class(tmp_path, body, may):
    (tmp_path / "mine.py").write_text(f"class Mine:\n    {body}\n")
    assert may_name_matrices("mine:Mine", (str(tmp_path),)) is may
    assert may_name_matrices("language-model", ())


@pytest.mark.process
def test_checking_needs_no_torch():
    code = "import sys, headway.training.frozen.recipe_check; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
