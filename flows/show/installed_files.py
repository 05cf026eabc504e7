"""Whether the files of this installation are those that pip put there: Headway's own by digest, its dependencies' by
size.

pip writes down what it installs (RECORD), and nothing looks at it again: not when another package brings a folder of
the same name, nor when an installation is cut short, nor when a disk loses a block.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.installation import HOME
from headway.data_contracts.types.report_text import count

OURS = "headway"
NAMED_AT_MOST = 4
"""Files of one package; of more the number will do."""
HERE = HOME.resolve()
"""The folder that Headway was imported from."""


class RecordedFile(NamedTuple):
    """A file as its package's RECORD has it."""

    path: str
    digest: str
    """`ALGORITHM=TEXT`; empty where none is on record."""
    size_bytes: int | None


def direct_requirements() -> list[Requirement]:
    """What Headway needs here without its extras."""
    needed = [Requirement(line) for line in metadata.requires(OURS) or ()]
    return [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]


def why_unchecked() -> str:
    """Why Headway's own files are held against no record; empty: they are."""
    try:
        ours = metadata.distribution(OURS)
    except metadata.PackageNotFoundError:
        return "it is not installed"
    installed = json.loads(ours.read_text("direct_url.json") or "{}")
    if installed.get("dir_info", {}).get("editable"):
        return f"an editable install has no record of them; they are those of {HERE}"
    if _home(ours) != HERE:
        return f"they are those of {HERE}, and what is installed lies in {_home(ours)}"
    return "" if ours.read_text("RECORD") else "their package has no RECORD"


def check_files() -> str:
    """Hold what is installed against its packages' records.

    A dependency's files are not read: all are looked at in less than a second.

    Raises:
        EnvironmentProblem: files are altered or gone: all packages that they belong to are named.
    """
    problems: list[str] = []
    broken: list[str] = []
    num_own, num_others, packages = 0, 0, 0
    for name in (OURS, *(each.name for each in direct_requirements())):
        is_ours = name == OURS
        if is_ours and why_unchecked():
            continue
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # which is another finding
        files = list(_recorded(package, with_tests=is_ours))
        found = _damaged(_home(package), files, _altered if is_ours else _resized)
        if is_ours:
            num_own = len(files)
        elif files:
            num_others, packages = num_others + len(files), packages + 1
        if found:
            problems.append(f"{name}: {_listed(found)}{_package_of(found) if is_ours else ''}")
            broken.append(f"{name}=={package.version}")
    if problems:
        raise EnvironmentProblem(
            f"{'; '.join(problems)}.",
            where="installed files",
            advice=f"Reinstall: `pip install --force-reinstall --no-deps {' '.join(broken)}`.",
        )
    own = f"Headway's {count(num_own, 'file')} by digest, " if num_own else ""
    return f"{own}{num_others:,} files of {count(packages, 'package')} that it needs by size: as installed"


def _home(package: metadata.Distribution) -> Path:
    return Path(str(package.locate_file(""))).resolve()


def _recorded(package: metadata.Distribution, *, with_tests: bool) -> Iterator[RecordedFile]:
    """What has to be there. Bytecode comes and goes; scripts, which lie elsewhere, are written anew when an environment
    moves; and small images leave out a library's own tests."""
    for row in csv.reader((package.read_text("RECORD") or "").splitlines()):
        path, digest, size = (*row, "", "")[:3]
        parts = path.split("/")
        is_test = not with_tests and "tests" in parts
        if not path or path.endswith(".pyc") or "__pycache__" in parts or is_test or parts[0] == ".." or path[0] == "/":
            continue
        yield RecordedFile(path, digest, int(size) if size.isdecimal() else None)


def _damaged(
    home: Path, files: Iterable[RecordedFile], problem_of: Callable[[str, RecordedFile], str]
) -> list[tuple[str, str]]:
    """Path and problem of each file that is not as recorded."""
    found = []
    for file in files:
        try:
            problem = problem_of(f"{home}/{file.path}", file)
        except (FileNotFoundError, NotADirectoryError):
            problem = "is gone"
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        if problem:
            found.append((file.path, problem))
    return found


def _resized(path: str, file: RecordedFile) -> str:
    size_bytes = os.stat(path).st_size  # noqa: PTH116  # a Path each would double the time of 20,000 files
    if file.size_bytes is None or size_bytes == file.size_bytes:
        return ""
    return f"has {size_bytes:,} bytes, was installed with {file.size_bytes:,}"


def _altered(path: str, file: RecordedFile) -> str:
    algorithm, _, recorded = file.digest.partition("=")
    # RECORD may name an algorithm that this Python does not have.
    if algorithm not in hashlib.algorithms_guaranteed:
        return _resized(path, file)
    digest = hashlib.new(algorithm, Path(path).read_bytes()).digest()
    return "" if base64.urlsafe_b64encode(digest).decode().rstrip("=") == recorded else "is altered"


def _listed(found: list[tuple[str, str]]) -> str:
    message = [f"{path} {problem}" for path, problem in found[:NAMED_AT_MOST]]
    more = len(found) - NAMED_AT_MOST
    return ", ".join(message) + (f", and {more:,} more" if more > 0 else "")


def _package_of(found: list[tuple[str, str]]) -> str:
    """Who else brings files of these names, and so may have overwritten ours."""
    wanted = {path for path, _ in found}
    others = set()
    for package in metadata.distributions():
        name = package.metadata["Name"]
        if name and name.lower() != OURS and _home(package) == HERE:
            paths = (row[0] for row in csv.reader((package.read_text("RECORD") or "").splitlines()) if row)
            if not wanted.isdisjoint(paths):
                others.add(name)
    return f" (installed by {', '.join(sorted(others))} as well: uninstall that first)" if others else ""
