"""What the next run of a pipeline would take: as `headway plan` says, and training by the steps measured last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headway.data_contracts.store.publication import Workspace
from headway.flows.config.request import TrainingRequest
from headway.flows.show.plan import Plan, make_plan
from headway.flows.show.status import read_status
from headway.flows.windows.forecast import Work
from headway.tasks.core.outlook import Outlook
from headway.training.launch.base.gang import leader_spools
from headway.training.observe.ledger import SpoolTail


class Estimate(NamedTuple):
    work: list[Work]
    """Stages that would run, in order."""
    never_ran: list[str]
    """Stages of which nothing is known, and which are left out of `work`."""
    step_s: float | None
    """Seconds of one training step, with what checkpoints kept it waiting; None where no step is on record."""


def estimate(request: TrainingRequest) -> Estimate:
    """Raises what would refuse the retrain."""
    plan = make_plan(request)
    step_s = measured_step_s(Workspace(request.workspace), plan.pipeline)
    return from_plan(plan, step_s)


def from_plan(plan: Plan, step_s: float | None) -> Estimate:
    """Training takes its remaining steps, if one was measured, and else what it took as a whole the last time."""
    work, never_ran = [], []
    for stage in plan.stages:
        if stage.state == "found":
            continue
        duration_s = stage.expected_s if stage.stage != "launch" else _training_s(stage, step_s, plan.max_steps)
        if duration_s is None:
            never_ran.append(stage.stage)
        else:
            work.append(Work(stage=stage.stage, duration_s=duration_s, can_be_cut=stage.stage in ("launch", "folds")))
    return Estimate(work, never_ran, step_s)


def _training_s(stage: Outlook, step_s: float | None, max_steps: int | None) -> float | None:
    return stage.expected_s if step_s is None or max_steps is None else step_s * (max_steps - (stage.from_step or 0))


def measured_step_s(workspace: Workspace, pipeline: str) -> float | None:
    """Of the attempt of this pipeline that took a step last, on this machine."""
    newest = max(_attempts(workspace, pipeline), key=lambda steps: steps.last_unix_s, default=None)
    return None if newest is None else (newest.end_unix_s - newest.start_unix_s) / newest.num_steps


class _Steps(NamedTuple):
    """Of one attempt."""

    num_steps: int
    start_unix_s: float
    last_unix_s: float
    """When the last began."""
    end_unix_s: float


def _attempts(workspace: Workspace, pipeline: str) -> Iterator[_Steps]:
    # Before a first run there is nothing to read, and perhaps no workspace.
    if workspace.is_empty():
        return
    for run in read_status(workspace.uri).runs:
        if run.pipeline == pipeline:
            for spool in leader_spools(workspace.local_path(f"runs/{run.run}")):
                first, num_steps, last = None, 0, None
                for event in SpoolTail(spool).stream():
                    if event["event"] == "step":
                        first, num_steps, last = first or event, num_steps + 1, event
                if first is not None and last is not None:
                    last_s = float(last["unix_s"])
                    yield _Steps(num_steps, float(first["unix_s"]), last_s, last_s + float(last["duration_s"]))
