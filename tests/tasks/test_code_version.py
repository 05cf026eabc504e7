"""No module that decides a result can be left out of its key."""

from __future__ import annotations

import pytest

from tasks import evaluate, shard, validate, verify
from tasks.code_version import decides_results
from training.import_closure import modules_below


@pytest.fixture
def home(tmp_path):
    sources = {
        "training/root.py": "from training.parts import first\nimport os, torch\n",
        "training/parts/__init__.py": "",
        "training/parts/first.py": "def lazily():\n    from data_contracts.deep import THING\n",
        "data_contracts/deep.py": "import training.root\nfrom training.launch.rank import arm\n",
        "training/launch/rank.py": "",
        "training/unused.py": "",
        "tasks/above.py": "from tasks import below\nfrom training import unused\n",
        "tasks/below.py": "",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_imports_are_followed_to_the_end_lazy_ones_and_circles_too(home):
    found = modules_below("training.root", follow=decides_results, home=home)
    assert set(found) == {"training.root", "training.parts", "training.parts.first", "data_contracts.deep"}


def test_a_task_brings_what_it_imports_below_but_not_its_neighbours(home):
    assert set(modules_below("tasks.above", follow=decides_results, home=home)) == {"tasks.above", "training.unused"}


def test_a_root_that_is_gone_is_a_defect(home):
    with pytest.raises(LookupError):
        modules_below("training.gone", follow=decides_results, home=home)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (validate.CODE, {"data_contracts.exact_checks", "data_contracts.source_files", "data_contracts.globs"}),
        (shard.CODE, {"training.data.encoders", "training.data.spec", "training.data.splitmix"}),
        (verify.CODE, {"training.checkpoint.proof", "training.checkpoint.verify", "training.learner"}),
        (evaluate.CODE, {"training.bigram", "training.data.loader", "training.checkpoint.verify"}),
    ],
)
def test_a_stages_key_holds_what_its_result_stands_on(code, wanted):
    found = set(modules_below(*code, follow=decides_results))
    assert wanted <= found
    assert not any(name.startswith(("training.launch", "training.ledger", "prefect")) for name in found)
