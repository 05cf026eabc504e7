"""A workspace on storage that fails: a disk with bad blocks, a file handle gone stale, a mount whose server died.

The commands are processes whose C library answers as the system does of such storage.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.publication import Workspace

pytestmark = pytest.mark.process

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


def failing_otherwise(command: str, number: int) -> Any:
    """One that reads and one that writes; of the others it is for `make soak`, each a process that imports anew."""
    marks = () if command in ("status", "retrain") else pytest.mark.soak
    return pytest.param(command, "", number, marks=marks)


@pytest.fixture(scope="session")
def failing_storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("failing-storage") / "failing_storage.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    ("command", "part", "number"),
    [
        *((command, "", errno.EIO) for command in COMMANDS),
        *(failing_otherwise(command, number) for command in COMMANDS for number in FAILURES if number != errno.EIO),
        *((*part, errno.EIO) for part in PARTS),
    ],
)
def test_a_command_over_storage_that_fails_ends_in_a_line_that_names_it(
    project: Path, failing_storage: Path, command: str, part: str, number: int
) -> None:
    workspace = Workspace.create(str(project / "workspace"))
    workspace.publish("refs/models/tiny/note", b"{}")
    workspace.publish("documents/run/one.json", b"{}")
    (project / "workspace" / "runs" / RUN / "checkpoints").mkdir(parents=True)
    failing = project / "workspace" / part
    environment = {
        **os.environ,
        "LD_PRELOAD": str(failing_storage),
        "FAILS_BELOW": str(failing),
        "FAILS_WITH": str(number),
    }
    done = subprocess.run(
        [sys.executable, "-m", "headway", *COMMANDS[command]], env=environment, capture_output=True, text=True
    )
    message = done.stdout + done.stderr
    assert done.returncode == EnvironmentProblem.exit_code, message
    line = message.splitlines()[-1]
    assert FAILURES[number] in line and str(part or failing) in line
    assert "Traceback" not in message and "defect" not in message
    assert len(message.splitlines()) == 1 or command == "retrain"
