"""What Python compiled of a module says the same imports as its source, and stands for that source alone."""

from __future__ import annotations

import os

import pytest

from headway.data_contracts.store.installation import HOME
from headway.training.observe.import_closure import compiled, imports, imports_of_code

ALL_KINDS = """
import os.path, sys as system
from . import beside
from ..above import one, two as second
from typing import *
if TYPE_CHECKING:
    from hidden import Name

class Holder:
    import in_class

    def lazily(self):
        from in_method import deep
        return [(lambda: __import__("never"))() for _ in deep]
"""


def test_compiled_code_names_every_import_of_its_source():
    assert set(imports_of_code(compile(ALL_KINDS, "x", "exec"), "a.b.c")) == {
        *("os.path", "sys", "a.b.c", "a.b.c.beside", "a.b.above", "a.b.above.one", "a.b.above.two"),
        *("typing", "typing.*", "hidden", "hidden.Name", "in_class", "in_method", "in_method.deep"),
    }


def test_an_import_whose_name_has_a_large_number_is_found():
    names = "\n".join(f"name_{number} = {number}.5" for number in range(70_000))
    code = compile(f"{names}\nfrom far.away import thing\n", "x", "exec")
    assert imports_of_code(code) == ("far.away", "far.away.thing")


@pytest.mark.process  # some seconds of compiling
def test_the_same_imports_are_read_of_source_and_code_of_the_whole_installation():
    folders = [HOME / "headway" / name for name in ("data_contracts", "training", "tasks", "flows")]
    sources = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    assert len(sources) > 400
    for path in sources:
        package = ".".join(path.relative_to(HOME).parent.parts)
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        assert set(imports_of_code(code, package)) == set(imports(path, package)), path


def test_an_edit_within_the_second_of_its_compilation_is_seen(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("import old\n")
    assert imports_of_code(compiled("module", path)) == ("old",)
    second = path.stat().st_mtime_ns // 10**9 * 10**9
    [cached] = (tmp_path / "__pycache__").iterdir()
    os.utime(cached, ns=(second, second))
    path.write_text("import new\n")
    os.utime(path, ns=(second + 1000, second + 1000))
    assert compiled("module", path) is None


def test_a_module_that_is_no_python_is_left_to_who_reads_its_source(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("import (\n")
    assert compiled("module", path) is None
