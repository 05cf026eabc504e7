"""The owner of a run whose guards, agents and ranks are forks of it: `python -m tests.soak.hang_owner …`.

Its words are those of `tests.cluster.owner`, and its agents toys.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

from tests.cluster import owner
from tests.soak.forks import fork_from_here

NEEDED = (
    "headway.training.launch.node.node_guard",
    "headway.training.programs.session",
    "headway.training.programs.worker",
    "headway.training.parallel.pipeline_strategy",
)
ALSO = ("exact_shards", "metered_tensors", "mesh_strategy")
TORCH = ("_dynamo", "distributed.fsdp", "distributed.tensor.parallel", "fx.experimental.symbolic_shapes")
"""What ranks of one gang or another import."""

if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # forks are made where nobody else is at work
    for module in (
        *NEEDED,
        *(f"headway.training.parallel.{name}" for name in ALSO),
        *(f"torch.{name}" for name in TORCH),
    ):
        import_module(module)
    fork_from_here()
    sys.exit(owner.main(Path(sys.argv[1]), *sys.argv[2:]))
