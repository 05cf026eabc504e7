"""What the pipeline was at a git ref: its files there, in a folder beside the checkout, which stays as it is."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.config.pipeline_file import named_pipeline

GIT_SETTINGS = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LFS_SKIP_SMUDGE": "1",  # large files are told apart by their pointers; nothing is downloaded
    "LC_ALL": "C",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    ref: str
    commit: str
    is_merge_base: bool
    """Whether the commit is where the checkout's history left the ref; else it is the ref itself."""
    repository: Path
    """The checkout's top folder."""
    tree: Path
    """Every file of the commit, as in a checkout of it."""

    @property
    def message(self) -> str:
        how = "" if self.is_merge_base else ", itself: this clone holds no common ancestor"
        return f"{self.ref} ({self.commit[:12]}{how})"

    def path(self, now: Path) -> Path:
        """Where a file of the checkout lies in the tree; itself where it is outside the checkout."""
        return self.tree / now.relative_to(self.repository) if now.is_relative_to(self.repository) else now

    def pipeline_file(self, now: Path, name: str) -> Path | None:
        """The pipeline's file in the tree: at the same path, else one of the same `pipeline:`; None: it is new there.

        A workspace knows a pipeline by its name: a file that was moved is the same pipeline, with the same contract.

        Args:
            name: of the pipeline, as the checkout's file says.
        """
        same = self.path(now)
        if same.is_file() or not now.is_relative_to(self.repository):
            return same if same.is_file() else None
        others = [path for path in self.tree.rglob("*.y*ml") if path.is_file() and named_pipeline(path) == name]

        def rank(path: Path) -> tuple[bool, bool, Path]:
            is_moved = not (self.repository / path.relative_to(self.tree)).exists()  # else it may be another's copy
            return not is_moved, path.parent != same.parent, path

        return min(others, key=rank, default=None)

    def changed_below(self, folder: Path) -> list[str] | None:
        """Paths, relative to a folder of the checkout, that differ from the base; None where git holds nothing there.

        Files that git ignores are seen by nobody.
        """
        if not folder.is_relative_to(self.repository):
            return None
        held = (
            _lines(self.repository, "ls-files", "-z", "--", str(folder)),
            (_lines(self.repository, "ls-tree", "-r", "-z", "--name-only", self.commit, "--", _pathspec(self, folder))),
        )
        if not any(held):
            return None
        changed = _lines(self.repository, "diff", "--name-only", "--no-renames", "-z", self.commit, "--", str(folder))
        new = _lines(self.repository, "ls-files", "--others", "--exclude-standard", "-z", "--", str(folder))
        return sorted((self.repository / name).relative_to(folder).as_posix() for name in {*changed, *new})


def _pathspec(base: Base, folder: Path) -> str:
    return folder.relative_to(base.repository).as_posix()


def read_base(ref: str, beside: Path, scratch: Path) -> Base:
    """Write the files of a ref out.

    The commit is the last one that the checkout and the ref have in common: what others merged since is no change of
    this checkout's.

    Args:
        beside: a folder of the checkout.
        scratch: an existing folder; the caller removes it.

    Raises:
        EnvironmentProblem: no git, or no checkout of its.
        ConfigError: no such ref in this clone.
    """
    top = _git(beside, "rev-parse", "--show-toplevel")
    if top.returncode != 0:
        raise EnvironmentProblem(
            f"there is no git checkout ({_reason(top)}), so there is no base to compare with.",
            where=str(beside),
            advice="Run it in a checkout of the pull request, or leave --base out.",
        )
    repository = Path(top.stdout.rstrip("\n")).resolve()
    # A name that begins with a dash would be an option of git's.
    found = _git(repository, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}") if ref[:1] != "-" else None
    if found is None or found.returncode != 0:
        raise ConfigError(
            f"this clone has no ref {ref!r}.",
            where="--base",
            advice="Fetch it first: `git fetch origin BRANCH` and --base origin/BRANCH; actions/checkout takes "
            "`fetch-depth: 0`.",
        )
    common = _git(repository, "merge-base", found.stdout.strip(), "HEAD")
    commit = (common if common.returncode == 0 else found).stdout.strip()
    tree = scratch / "base"
    tree.mkdir()
    # An index of its own: git's own one would take the base's files for staged changes of the checkout.
    index = {"GIT_INDEX_FILE": str(scratch / "base.index")}
    for arguments in (("read-tree", commit), ("checkout-index", "--all", "--force", f"--prefix={tree}/")):
        done = _git(repository, *arguments, more=index)
        if done.returncode != 0:
            raise EnvironmentProblem(f"git cannot write the files of {ref} out ({_reason(done)}).", where=str(tree))
    return Base(ref=ref, commit=commit, is_merge_base=common.returncode == 0, repository=repository, tree=tree)


def _git(folder: Path, *arguments: str, more: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    # Set in a git hook, where it names the index of the commit that is being made.
    environment = {name: value for name, value in os.environ.items() if name != "GIT_INDEX_FILE"}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env={**environment, **GIT_SETTINGS, **(more or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
        )
    except OSError as error:
        raise EnvironmentProblem(
            f"git cannot be started ({error.strerror}), so there is no base to compare with.",
            where="git",
            advice="Install it, or leave --base out.",
        ) from error


def _lines(folder: Path, *arguments: str) -> list[str]:
    done = _git(folder, *arguments)
    if done.returncode != 0:
        raise EnvironmentProblem(f"`git {arguments[0]}` failed ({_reason(done)}).", where=str(folder))
    return [name for name in done.stdout.split("\0") if name]


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else f"code {done.returncode}"
