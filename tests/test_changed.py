"""Which tests a change is held against: the graph of imports says it, and forgets none that starts a module by name."""

from __future__ import annotations

from tests.changed import ROOT, is_touched, reached

SEEDS = ROOT / "tests" / "training" / "config" / "test_seeds.py"
SHARDING = ROOT / "tests" / "training" / "data" / "shards" / "test_sharding.py"


def test_a_test_is_touched_by_what_it_imports_directly_or_not_and_by_nothing_else() -> None:
    assert is_touched(SEEDS, {"training/config/seeds.py"})
    assert is_touched(SHARDING, {"data_contracts/store/digests.py"}), "which sharding imports"
    assert not is_touched(SEEDS, {"flows/retrain.py", "README.md"})


def test_what_a_test_starts_by_name_is_what_it_stands_on() -> None:
    assert ROOT / "training" / "launch" / "node" / "node_guard.py" in reached(
        ROOT / "tests" / "training" / "launch" / "node" / "test_guard.py"
    )


def test_a_file_that_is_no_module_touches_the_tests_that_name_it() -> None:
    front_door, nasty = ROOT / "tests" / "test_front_door.py", ROOT / "tests" / "test_nasty_text.py"
    assert is_touched(nasty, {"data_contracts/contracts/digits.yaml"})
    assert not is_touched(front_door, {"data_contracts/contracts/digits.yaml"})


def test_settings_of_all_tests_and_their_own_conftest_touch_every_test() -> None:
    assert is_touched(SEEDS, {"pyproject.toml"}) and is_touched(SEEDS, {"tests/training/conftest.py"})
