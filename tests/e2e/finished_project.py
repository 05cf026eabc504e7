"""The project after its first retrain, which the first test process that asks makes for all: it costs half a minute.

MLflow and the ledger keep absolute paths, so that another process's copy lies at a place of its own with a name of the
same length, which takes the first one's place in every file. Of what is known by its digest, the note of where the
source lay alone holds a path.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.digests import canonical_json, sha256_of
from tests.e2e.project import Project, let_go_of_databases


@dataclass
class Finished:
    """The project, as it was when its first retrain ended, and what that retrain said."""

    project: Project
    first: subprocess.CompletedProcess[str]
    pristine: Path

    def restore(self) -> None:
        shutil.rmtree(self.project.root)
        shutil.copytree(self.pristine, self.project.root, symlinks=True)
        let_go_of_databases()


def finished_project(folder: Path, prefect_home: Path) -> Finished:
    """In a folder of this process's own."""
    root, pristine, shared = folder / "project", folder / "pristine", Path(os.environ["HEADWAY_TESTS_SHARED"])
    told = shared / f"finished-{len(str(root))}.json"
    kept = told.with_suffix("")
    with told.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.is_file():
            first = Project.create(root, prefect_home).retrain(is_fresh=True)
            shutil.copytree(root, kept, symlinks=True)
            told.write_text(json.dumps([str(root), first.returncode, first.stdout, first.stderr]))
    place, code, out, err = json.loads(told.read_text())
    shutil.copytree(kept, pristine, symlinks=True)
    for path in (path for path in pristine.rglob("*") if path.is_file() and not path.is_symlink()):
        if place.encode() in (data := path.read_bytes()):
            times_ns = path.stat().st_atime_ns, path.stat().st_mtime_ns
            moved = data.replace(place.encode(), str(root).encode())
            if path.parent.name == "places":  # which carries a digest of its own
                lies_at = json.loads(moved)["place"]
                moved = canonical_json({"place": lies_at, "sha256": sha256_of(lies_at)})
            path.write_bytes(moved)
            os.utime(path, ns=times_ns)
    root.mkdir(exist_ok=True)
    first = subprocess.CompletedProcess((), code, out.replace(place, str(root)), err)
    return Finished(Project(root, prefect_home), first, pristine)
