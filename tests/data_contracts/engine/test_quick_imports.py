from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.data_contracts.engine.quick_imports import quick_imports


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that imports its own charts, and says when they are run."""
    package = tmp_path / "a_library"
    package.mkdir()
    (package / "__init__.py").write_text("from a_library import charts\nran = []\ndef draw(): return charts.draw()\n")
    (package / "charts.py").write_text("import a_library\na_library.ran.append(1)\ndef draw(): return 'drawn'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "a_library"
    for name in ("a_library", "a_library.charts"):
        sys.modules.pop(name, None)


def test_a_module_put_off_is_run_at_its_first_use(library: str) -> None:
    with quick_imports("a_library.charts"):
        import a_library
    assert a_library.ran == []
    assert a_library.draw() == "drawn"
    assert a_library.ran == [1]


def test_a_module_that_is_needed_at_once_is_there(library: str, tmp_path: Path) -> None:
    (tmp_path / library / "__init__.py").write_text("ran = []\nfrom a_library.charts import draw\n")
    with quick_imports("a_library.charts"):
        import a_library
    assert a_library.ran == [1] and a_library.draw() == "drawn"


def test_whatever_happens_imports_and_garbage_are_as_before() -> None:
    finders = list(sys.meta_path)
    with pytest.raises(ModuleNotFoundError), quick_imports("no_such_module"):
        assert not gc.isenabled()
        import no_such_module  # noqa: F401
    assert gc.isenabled() and sys.meta_path == finders
    gc.disable()
    with quick_imports():
        pass
    assert not gc.isenabled()
    gc.enable()


@pytest.mark.long
@pytest.mark.process
def test_charts_and_tests_of_distributions_are_not_run_with_great_expectations() -> None:
    program = (
        "import sys, headway.data_contracts.engine.duckdb_engine\n"
        "print([name for name in ('altair.vegalite', 'scipy.stats._stats_py') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
