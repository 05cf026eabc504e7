"""A workspace on storage that fails: a disk with bad blocks, a file handle gone stale, a mount whose server died.

The commands are processes whose C library answers as the system does of such storage; forks of one that has it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.publication import Workspace

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).parent / "toys" / "failing_storage.c"
RUN = "0123456789abcdef"
COMMANDS = {
    "status": ("status",),
    "logs": ("logs",),
    "verify": ("verify", "models:/tiny@champion"),
    "clean": ("clean", "--apply"),
    "retrain": ("retrain", "tiny.yaml"),
}
FAILURES = {errno.EIO: "Input/output error", errno.ESTALE: "Stale file handle", errno.ENOTCONN: "not connected"}
PARTS = [(command, part) for command in ("status", "logs", "clean") for part in ("refs", f"runs/{RUN}")]
PARTS += [("retrain", "refs"), ("retrain", "ledger"), ("retrain", "documents")]
SOME_PARTS = (("status", "refs"), ("clean", f"runs/{RUN}"), ("retrain", "ledger"), ("retrain", "documents"))
"""Each part once; the others are for `make soak`."""


def failing_otherwise(command: str, number: int) -> Any:
    """One that reads and one that writes; of the others it is for `make soak`."""
    marks = () if command in ("status", "retrain") else pytest.mark.soak
    return pytest.param(command, "", number, marks=marks)


@pytest.fixture(scope="session")
def failing_storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("failing-storage") / "failing_storage.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@pytest.fixture(scope="module")
def forks(failing_storage: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.flows.toys.forked_commands"],
        cwd=REPOSITORY,
        env={**os.environ, "LD_PRELOAD": str(failing_storage)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("command", "part", "number"),
    [
        *((command, "", errno.EIO) for command in COMMANDS),
        *(failing_otherwise(command, number) for command in COMMANDS for number in FAILURES if number != errno.EIO),
        *(pytest.param(*part, errno.EIO, marks=() if part in SOME_PARTS else pytest.mark.soak) for part in PARTS),
    ],
)
def test_a_command_over_storage_that_fails_ends_in_a_line_that_names_it(
    project: Path, tmp_path: Path, forks: subprocess.Popen[str], command: str, part: str, number: int
) -> None:
    workspace = Workspace.create(str(project / "workspace"))
    workspace.publish("refs/models/tiny/note", b"{}")
    workspace.publish("documents/run/one.json", b"{}")
    (project / "workspace" / "runs" / RUN / "checkpoints").mkdir(parents=True)
    failing = project / "workspace" / part
    told = {
        "arguments": COMMANDS[command],
        "folder": str(project),
        "environment": {**os.environ, "FAILS_BELOW": str(failing), "FAILS_WITH": str(number)},
        "message": str(tmp_path / "message"),
    }
    assert forks.stdin is not None and forks.stdout is not None
    forks.stdin.write(json.dumps(told) + "\n")
    forks.stdin.flush()
    code = int(forks.stdout.readline())
    message = (tmp_path / "message").read_text()
    assert code == EnvironmentProblem.exit_code, message
    line = message.splitlines()[-1]
    assert FAILURES[number] in line and str(part or failing) in line
    assert "Traceback" not in message and "defect" not in message
    assert len(message.splitlines()) == 1 or command == "retrain"
