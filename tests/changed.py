"""Which test files a change may turn red: `python -m tests.changed [BASE]` prints them, by the graph of imports.

A test file counts where it, a conftest above it, or what they import, lazily or by a name in a text such as
`headway.training.programs.worker`, has changed since BASE (the commit that `main` and this branch share), committed or
not. A changed file that is not Python counts where its name stands in the test, or in what that imports. Tests that
start the command itself depend on everything: those of `e2e` and `cluster` are left out, and counted on stderr.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from headway.training.observe.import_closure import imports, source_file

ROOT = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"\b(?:headway|tests)(?:\.\w+)+")
WHOLE = ("tests/e2e/", "tests/prefect/", "tests/cluster/")
FORKS = "tests/warm_programs.py"
"""It names what it forks for whoever asks; who asks names it, too."""
FOR_ALL = ("pyproject.toml", "constraints.txt", "tests/conftest.py", "locks/")


def main(base: str) -> None:
    changed = changed_since(base)
    tests = sorted(path for path in (ROOT / "tests").rglob("test_*.py"))
    found = [path.relative_to(ROOT).as_posix() for path in tests if is_touched(path, changed)]
    whole = [name for name in found if name.startswith(WHOLE)]
    print(
        f"left out: {len(whole)} files of e2e and cluster, which `make test`, `test-long` and `test-cluster` run",
        file=sys.stderr,
    )
    print("\n".join(name for name in found if name not in whole))


def changed_since(base: str) -> set[str]:
    """Paths below the repository, as git has them: `headway/` links to the folders beside it."""
    shared = _git("merge-base", base, "HEAD").strip()
    return {*_git("diff", "--name-only", shared).split(), *_git("ls-files", "--others", "--exclude-standard").split()}


def is_touched(test: Path, changed: set[str]) -> bool:
    if any(name.startswith(FOR_ALL) for name in changed):
        return True
    files = reached(test)
    texts = "\n".join(path.read_text() for path in files if path.is_relative_to(ROOT / "tests"))
    names = {path.relative_to(ROOT).as_posix() for path in files}
    others = {name for name in changed if not name.endswith(".py")}
    return not names.isdisjoint(changed) or any(Path(name).name in texts for name in others)


def reached(test: Path) -> set[Path]:
    above = (folder / "conftest.py" for folder in test.parents if folder.is_relative_to(ROOT / "tests"))
    found: set[Path] = set()
    unseen = [test, *(path for path in above if path.is_file())]
    while unseen:
        path = unseen.pop()
        if path not in found:
            found.add(path)
            unseen += asked_for(path)
    return found


@cache
def asked_for(path: Path) -> tuple[Path, ...]:
    """Files of ours that a file imports or names. Read once: most are reached from most tests."""
    package = ".".join(path.relative_to(ROOT).parent.parts)
    if not package.startswith("tests"):
        package = f"headway.{package}"
    is_named = package.startswith("tests") and path != ROOT / FORKS
    names = {*imports(path, package), *(NAMED.findall(path.read_text()) if is_named else ())}
    files = (_file_of(name) for name in names if name.startswith(("headway", "tests")))
    return tuple(file for file in files if file is not None)


def _file_of(name: str) -> Path | None:
    """Of the module, or of the one that the last part is a name in."""
    for module in (name, name.rpartition(".")[0]):
        if (file := source_file(module, ROOT)) is not None:
            return file.resolve()
    return None


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:] or ["main"])
