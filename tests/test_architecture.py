"""The walls of the house: who may import whom, and what a rank pays for."""

from __future__ import annotations

import ast
import graphlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from docs.architecture.rooms import made as drawn_rooms
from headway.training.frozen.code_archive import pack, rank_sources
from headway.training.observe.import_closure import imports

HOME = Path(__file__).resolve().parent.parent
PACKAGES = ("flows", "tasks", "training", "data_contracts")
ROOMS = sorted({path.parent for package in PACKAGES for path in (HOME / package).rglob("*.py")})
MAX_MODULES = 22
HEAVY = ("prefect", "mlflow", "great_expectations", "duckdb", "typer", "rich", "pandas", "pyarrow", "sklearn")

PYTHONS = ("sys.executable", "python", "transport.python", "self._transport.python")
"""How our code calls an interpreter."""

LIBRARIES = (
    "torch",
    "prefect",
    "mlflow",
    "great_expectations",
    "duckdb",
    "pyarrow",
    "typer",
    "pydantic",
    "fsspec",
    "sklearn",
)
NAMED = re.compile(r"`([\w.*]+)`")
REPLACED_BY_NAME = {
    "prefect.settings.sources",
    "torch.distributed.elastic.multiprocessing.api.get_subprocess_handler",
    "torch.nn.init",
}
"""By `setattr`, or while it is imported, which the source does not show as a name."""


def module_of(path: Path) -> str:
    return ".".join(("headway", *path.relative_to(HOME).with_suffix("").parts)).removesuffix(".__init__")


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """Each module to those of ours that it imports, lazily or for types alone too."""
    sources = {module_of(path): path for room in ROOMS for path in room.glob("*.py")}
    return {
        name: {each for each in imports(path, name.rpartition(".")[0]) if each in sources} - {name}
        for name, path in sources.items()
    }


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    sorter = graphlib.TopologicalSorter(edges)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        return [error.args[1]]
    return []


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.relative_to(HOME).as_posix())
def test_a_room_says_what_lives_in_it_and_has_few_modules(room: Path) -> None:
    source = ast.parse((room / "__init__.py").read_text())
    assert len(source.body) == 1, "an import of a package imports nothing else"
    assert 60 < len(ast.get_docstring(source) or "") < 500
    assert len(list(room.glob("*.py"))) - 1 <= MAX_MODULES


def test_no_files_import_each_other(imported: dict[str, set[str]]) -> None:
    assert circles(imported) == []


def test_no_rooms_import_each_other(imported: dict[str, set[str]]) -> None:
    rooms: dict[str, set[str]] = {}
    for name, others in imported.items():
        room = name.rpartition(".")[0]
        rooms.setdefault(room, set()).update({each.rpartition(".")[0] for each in others} - {room})
    for package in PACKAGES:
        below = f"headway.{package}."
        inside = {name: {each for each in others if each.startswith(below)} for name, others in rooms.items()}
        assert circles({name: others for name, others in inside.items() if name.startswith(below)}) == []


def test_the_picture_and_the_table_of_the_rooms_are_those_of_the_code() -> None:
    stale = [path.name for path, text in drawn_rooms().items() if path.read_text() != text]
    assert stale == [], "`python -m docs.architecture.rooms` draws them anew"


@pytest.mark.long
@pytest.mark.process
def test_a_worker_imports_from_the_frozen_archive_alone_and_nothing_heavy(tmp_path: Path) -> None:
    archive = tmp_path / "code.zip"
    archive.write_bytes(pack(rank_sources()))
    probe = (
        "import sys, headway.training.programs.worker, headway.training.programs.session;"
        "import headway.training.programs.evaluation, headway.training.programs.export;"
        "import headway.training.programs.verify_worker, headway.training.recipes.language_model;"
        f"heavy = sorted(set({HEAVY!r}) & set(sys.modules));"
        "own = {m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'headway'};"
        "print(heavy, [f for f in own if f and '.zip' not in f])"
    )
    environment = {**os.environ, "PYTHONPATH": str(archive), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", probe], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] []"


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (
            (
                "headway.flows.retrain",
                "headway.flows.show.plan",
                "headway.flows.champion_flow",
                "headway.flows.cli.prepare",
            ),
            {"torch"},
        ),
        # Who asks at night what goes on, or says stop, waits for no more than is needed.
        (
            (
                "headway.flows.show.status",
                "headway.flows.show.logs",
                "headway.flows.windows.holds",
                "headway.flows.show.verify",
                "headway.flows.act.clean",
            ),
            {"torch", "prefect"},
        ),
    ],
)
def test_a_command_imports_no_more_than_it_needs(modules: tuple[str, ...], heavy: set[str]) -> None:
    heavy = heavy | {"mlflow", "great_expectations"}
    probe = f"import sys, {', '.join(modules)}; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=HOME, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_python_that_is_started_leaves_the_current_folder_off_its_path() -> None:
    """A module there would be imported in place of ours, or of torch, whoever wrote it."""
    wrong = []
    for package in PACKAGES:
        for path in (HOME / package).rglob("*.py"):
            text = path.read_text()
            if not any(word in text for word in PYTHONS):  # most name none, and to parse all of them takes a second
                continue
            for node in ast.walk(ast.parse(text)):
                words = [ast.unparse(each) for each in node.elts] if isinstance(node, ast.Tuple | ast.List) else []
                for word, following in itertools.pairwise((*words, "")):
                    if word in PYTHONS and following not in ("'-P'", ""):
                        wrong.append(f"{path.relative_to(HOME)}:{node.lineno}: {word} {following}")
    assert wrong == []


def private_names(path: Path) -> set[str]:
    """Names of libraries that begin with an underscore, and those that are set from here, as the source calls them."""
    tree = ast.parse(path.read_text())
    of_libraries: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in LIBRARIES:
            of_libraries |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names = {alias.asname or alias.name.partition(".")[0]: alias for alias in node.names}
            ours = {name: alias.name if alias.asname else name for name, alias in names.items()}
            of_libraries |= {name: full for name, full in ours.items() if full.partition(".")[0] in LIBRARIES}
    found = {full for full in of_libraries.values() if is_private(full)}
    written = {id(place) for node in ast.walk(tree) if isinstance(node, ast.Assign) for place in node.targets}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            is_name = root in of_libraries and re.fullmatch(r"[\w.]+", rest)
            if is_name and (is_private(rest) or id(node) in written):
                found.add(f"{of_libraries[root]}.{rest}")
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


@pytest.mark.process  # it parses the whole tree
def test_every_private_name_of_a_library_is_listed_with_its_reason_and_none_that_is_not_used() -> None:
    page = (HOME / "docs/architecture/private_names.md").read_text()
    listed = {
        name.rstrip("*")
        for row in page.splitlines()
        if row.startswith("| `")
        for name in NAMED.findall(row.split("|")[1])
    }
    used = {name for room in ROOMS for path in room.glob("*.py") for name in private_names(path)}
    assert {name for name in used if not any(name.startswith(each) for each in listed)} == set()
    assert {each for each in listed if not any(name.startswith(each) for name in used)} == REPLACED_BY_NAME
