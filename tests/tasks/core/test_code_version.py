"""No module that decides a result can be left out of its key."""

from __future__ import annotations

import pytest

from headway.tasks.core.code_version import decides_results
from headway.tasks.stages import evaluate, shard, validate, verify
from headway.training.observe.import_closure import modules_below


@pytest.fixture
def home(tmp_path):
    sources = {
        "training/root.py": "from headway.training.parts import first\nimport os, torch\n",
        "training/parts/__init__.py": "",
        "training/parts/first.py": "def lazily():\n    from headway.data_contracts.deep import THING\n",
        "data_contracts/deep.py": "import headway.training.root\n"
        "from headway.training.launch.node.rank_process import arm\n",
        "training/launch/node/rank_process.py": "",
        "training/unused.py": "",
        "tasks/above.py": "from headway.tasks import below\nfrom headway.training import unused\n",
        "tasks/below.py": "",
    }
    for name, text in sources.items():
        path = tmp_path / "headway" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_imports_are_followed_to_the_end_lazy_ones_and_circles_too(home):
    found = modules_below("headway.training.root", follow=decides_results, home=home)
    assert set(found) == {
        "headway.training.root",
        "headway.training.parts",
        "headway.training.parts.first",
        "headway.data_contracts.deep",
    }


def test_a_task_brings_what_it_imports_below_but_not_its_neighbours(home):
    assert set(modules_below("headway.tasks.above", follow=decides_results, home=home)) == {
        "headway.tasks.above",
        "headway.training.unused",
    }


def test_a_root_that_is_gone_is_a_defect(home):
    with pytest.raises(LookupError):
        modules_below("headway.training.gone", follow=decides_results, home=home)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (
            validate.CODE,
            {
                "headway.data_contracts.scans.exact_checks",
                "headway.data_contracts.sources.listing",
                "headway.data_contracts.store.globs",
            },
        ),
        (
            shard.CODE,
            {
                "headway.training.data.encode.encoders",
                "headway.training.config.shards",
                "headway.training.data.splitmix",
            },
        ),
        (
            verify.CODE,
            {
                "headway.training.checkpoint.proof",
                "headway.training.checkpoint.read",
                "headway.training.engine.learner",
            },
        ),
        (
            evaluate.CODE,
            {
                "headway.training.evaluation.baselines",
                "headway.training.evaluation.linear_model",
                "headway.training.data.load.shard_reader",
                "headway.training.checkpoint.read",
            },
        ),
    ],
)
def test_a_stages_key_holds_what_its_result_stands_on(code, wanted):
    found = set(modules_below(*code, follow=decides_results))
    assert wanted <= found
    assert not any(
        name.startswith(("headway.training.launch", "headway.training.observe.ledger", "prefect")) for name in found
    )
