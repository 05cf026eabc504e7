"""Which tests go together to one of the test processes that run side by side, and in which order.

A file's tests always stay together, as they do with `--dist loadfile`, which would begin with the files of most tests.
The longest have few: begun last, one of them would keep one core while the others idle.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

LONGEST_FIRST: tuple[tuple[str, ...], ...] = (
    ("tests/e2e/",),  # a project that was retrained once, for all of them but these
    (  # and once more: one process would be at it when all others are done
        "tests/e2e/test_cancel.py",
        "tests/e2e/test_ci.py",
        "tests/e2e/test_rehearse.py",
        "tests/e2e/test_resume.py",
        "tests/e2e/test_same_bits.py",
        "tests/e2e/test_trials.py",
    ),
    (
        "tests/e2e/test_own_recipe.py",  # a Prefect server for flows in the test process
        "tests/e2e/test_own_encoder.py",
        "tests/e2e/test_shipped_pipelines.py",
        "tests/e2e/test_incomparable_champion.py",
        "tests/e2e/test_other_data.py",
        "tests/e2e/test_windows.py",
        "tests/flows/windows/test_admission.py",
        "tests/prefect/test_shard_tasks.py",
    ),
    ("tests/prefect/",),  # a Prefect server with a worker
    ("tests/e2e/test_pipes.py",),  # as many looks as all other tests of that project together
    ("tests/e2e/test_object_store.py",),
    ("tests/training/parallel/",),  # a process that has imported torch
    ("tests/training/launch/supervise/test_supervisor.py",),
    ("tests/training/launch/hosts/test_local.py",),
    ("tests/cluster/test_postgres.py",),
    ("tests/cluster/test_conformance.py",),
    ("tests/cluster/test_kubernetes.py",),
    ("tests/cluster/test_slurm.py",),
    ("tests/cluster/test_soak.py",),
    ("tests/cluster/test_alerts.py",),
    ("tests/cluster/test_rehearse.py",),
    ("tests/cluster/test_drill.py",),
    ("tests/cluster/test_runs_together.py",),
    ("tests/cluster/test_ssh.py",),
    ("tests/cluster/test_preflight.py",),
    ("tests/cluster/test_doctor.py",),
    ("tests/training/guards/test_guarded_runs.py",),
    ("tests/training/exact/test_exact_shards.py",),
    ("tests/training/exact/test_exact_replicas.py",),
    ("tests/training/programs/test_worker.py",),
    ("tests/tasks/registry/test_champion_race.py",),
    ("tests/tasks/registry/test_model_card.py",),
    ("tests/tasks/retention/test_clean_retired.py",),
    ("tests/tasks/retention/test_clean.py",),
    (  # MLflow, and a database of its
        "tests/tasks/registry/test_champion_moves.py",
        "tests/tasks/registry/test_approval.py",
    ),
    ("tests/data_contracts/store/test_object_store.py",),
    ("tests/tasks/ownership/test_run_claims.py",),
    ("tests/flows/config/test_first_step.py",),
    ("tests/flows/act/test_project_init.py",),
    ("tests/flows/act/test_foreign_files.py",),
    ("tests/flows/act/test_check.py",),
    ("tests/flows/act/test_init.py",),
    ("tests/flows/show/test_installed_files.py",),
    ("tests/flows/ci/",),
    ("tests/tasks/registry/test_model_versions.py",),
    ("tests/flows/windows/test_openings.py",),
)
"""Files that share something costly to start, or are long themselves. The longest name that fits decides."""


def unit(nodeid: str) -> int:
    """The place in `LONGEST_FIRST`; one past its end for all that is short."""
    fitting = [
        (len(name), number) for number, names in enumerate(LONGEST_FIRST) for name in names if nodeid.startswith(name)
    ]
    return max(fitting)[1] if fitting else len(LONGEST_FIRST)


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    """Hands out files in the order in which they were collected, and those of a unit to one process."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        number = unit(nodeid)
        return f"unit {number}" if number < len(LONGEST_FIRST) else super()._split_scope(nodeid)
