"""What tracing imports: not what it does without, and only while it traces."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import pathlib, sys, torch
from headway.training.programs.export import NOT_TRACED_WITH, write_graph
write_graph(torch.nn.Linear(2, 3).eval(), torch.ones(4, 2), pathlib.Path(sys.argv[1]))
assert "torch._dynamo" in sys.modules
print([name for name in NOT_TRACED_WITH if name in sys.modules])
import torch.distributed.fsdp
assert torch.distributed.fsdp.fully_shard is not None
"""


def test_a_graph_is_traced_without_the_compilers_optional_imports_which_are_there_afterwards(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert (tmp_path / "model.pt2").is_file()
