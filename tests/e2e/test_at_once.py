"""Several retrains of one pipeline at the same moment, in one workspace."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.errors import HeadwayError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.ownership.pipeline_history import read
from tests.e2e.project import DEADLINE_S, Project


@pytest.mark.long
def test_of_four_processes_that_come_to_train_the_same_run_one_trains_and_the_others_find_what_it_made(
    new_project: Project, train_here: Callable[..., object]
) -> None:
    """Up to the trained run, without the imports and servers of commands."""
    new_project.edit("tiny.yaml", "max_steps: 120", "max_steps: 20")

    def train(wait_s: float | None) -> None:
        code = 70
        try:
            train_here(new_project, guarded=True, wait_s=wait_s)
            code = 0
        except HeadwayError as error:
            print(error, file=sys.stderr)
            code = error.exit_code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)  # a fork has no part in what its parent does at its own end, and fails at it

    forking = multiprocessing.get_context("fork")
    waits_s = [*[DEADLINE_S] * 3, None]
    processes = [forking.Process(target=train, args=(wait_s,), daemon=True) for wait_s in waits_s]
    for process in processes:
        process.start()
    for process in processes:
        process.join(DEADLINE_S)
    assert [process.exitcode for process in processes[:3]] == [0] * 3
    assert processes[3].exitcode in (0, 8)
    assert len(new_project.attempts()) == 1
    assert len(refs.history(Workspace(str(new_project.workspace)), "fitted/tiny")) == 1


@pytest.mark.soak
def test_of_six_retrains_at_once_one_trains_those_that_wait_find_its_model_and_the_other_is_told_who_trains(
    new_project: Project, shared_server: dict[str, str]
) -> None:
    new_project.settings |= shared_server
    new_project.edit("tiny.yaml", "max_steps: 120", "max_steps: 40")
    waiting = [new_project.start("retrain", "tiny.yaml", "--wait") for _ in range(5)]
    hasty = new_project.start("retrain", "tiny.yaml")
    ends = [(process, *process.communicate(timeout=DEADLINE_S)) for process in (*waiting, hasty)]

    assert [process.returncode for process, _, _ in ends[:5]] == [0] * 5, [err for _, _, err in ends]
    _, _, message = ends[5]
    assert hasty.returncode == 0 or (hasty.returncode == 8 and "trains this run already (pid " in message), message
    waited = [out for _, out, _ in ends[:5] if "\nwaiting    pid " in out]
    assert len(waited) >= 3 and all("works on run " in out for out in waited)

    assert len(new_project.attempts()) == 1
    workspace = Workspace(str(new_project.workspace))
    for name in ("fitted/tiny", "accepted/tiny", "models/tiny/versions", "models/tiny/champion"):
        assert len(refs.history(workspace, name)) == 1, name
    assert read(workspace, "tiny").failed is None
