"""Gangs of ranks for a run: on its frozen code, told where this machine keeps what they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headway.data_contracts.store.documents import RunSpec
from headway.data_contracts.store.errors import ConfigError, RanksLost
from headway.data_contracts.store.places import LOCAL
from headway.tasks.core.context import RunContext
from headway.training.config.execution import ExecutionSpec
from headway.training.launch.base.gang import Gang, LaunchSpec, for_stepless_work
from headway.training.launch.base.protocol import LOG_FORMAT
from headway.training.launch.base.steps import Ended, Tolerable
from headway.training.launch.jobs.follow import Watched, follow, follow_all
from headway.training.launch.supervise.launchers import scheduler_for
from headway.training.launch.supervise.room import Room
from headway.training.launch.supervise.supervisor import supervise
from headway.training.launch.supervise.together import supervise_all
from headway.training.observe.trace_context import TRACEPARENT


def gang_for(
    context: RunContext,
    spec: LaunchSpec,
    run: RunSpec,
    module: str,
    run_dir: Path,
    *arguments: str,
    nodes: int = 1,
    ranks_per_node: int = 1,
    possible_nodes: frozenset[int] | None = None,
    execution: ExecutionSpec | None = None,
) -> Gang:
    """Ranks that import the run's frozen code first, whatever lies on disk now; their devices are taken.

    Args:
        execution: what ranks go by besides the run's document; None: by that alone.

    Raises:
        RunStopped: the time was over before they were free, or nothing more may be spent.
    """
    context.devices.take()
    workspace = context.workspace
    return Gang(
        module=module,
        arguments=("--workspace", workspace.uri, "--run-spec", run.sha256, "--run-dir", str(run_dir), *arguments),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        possible_nodes=possible_nodes,
        import_path=(str(workspace.fetch(run.code)),),
        run_dir=run_dir,
        stop=context.spending.bounding(context.stop, run.sha256[:16]),
        continued_by=context.continued_by,
        environment={
            **({LOCAL: os.environ[LOCAL]} if LOCAL in os.environ else {}),
            **({TRACEPARENT: context.traceparent} if context.traceparent else {}),
            **log_format(),
            **spec.loader.environment(),
            **({} if execution is None else execution.environment()),
        },
    )


def log_format(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What has guards write the lines of ranks as JSON, too; empty: nobody asked for it.

    Raises:
        ConfigError: another format than the two that there are.
    """
    name = environ.get(LOG_FORMAT, "") or "text"
    if name not in ("text", "json"):
        raise ConfigError(f"{name!r} is no format of logs.", where=LOG_FORMAT, advice="Say json, or text.")
    return {LOG_FORMAT: name} if name == "json" else {}


def run_to_completion(context: RunContext, spec: LaunchSpec, gang: Gang, poll: Callable[[], int | None]) -> None:
    """Train under a supervisor of this flow's, or watch the one that a scheduler's job holds.

    Raises:
        TrainingFailed: the budget is spent, or a rank failed for good.
        RunStopped: a stop was asked for.
        EnvironmentProblem: the scheduler refused the job, or somebody watches the run already.
    """
    if spec.is_detached:
        scheduler = scheduler_for(spec)
        follow(scheduler, spec, gang, ledger=context.ledger, budget_scope=context.budget_scope, poll=poll)
    else:
        supervise(spec, gang, ledger=context.ledger, budget_scope=context.budget_scope, poll=poll)


def run_all_to_completion(
    context: RunContext,
    spec: LaunchSpec,
    watched: Sequence[Watched],
    *,
    at_once: int,
    tolerable: Tolerable,
    ended: Ended,
) -> None:
    """Watch the jobs of several runs, of a detached launcher; see `follow_all`."""
    follow_all(
        scheduler_for(spec),
        spec,
        watched,
        ledger=context.ledger,
        budget_scope=context.budget_scope,
        at_once=at_once,
        tolerable=tolerable,
        ended=ended,
    )


def run_side_by_side(
    context: RunContext,
    room: Room,
    num: int,
    begin: Callable[[int], Watched | None],
    *,
    tolerable: Tolerable,
    again: Callable[[int, RanksLost], object],
    ended: Ended,
) -> None:
    """Have several gangs train at a time beside this flow; see `supervise_all`."""
    supervise_all(
        room,
        num,
        begin,
        ledger=context.ledger,
        budget_scope=context.budget_scope,
        tolerable=tolerable,
        again=again,
        ended=ended,
    )


def run_stepless(
    context: RunContext, spec: LaunchSpec, run: RunSpec, module: str, run_dir: Path, *arguments: str, ranks: int = 1
) -> None:
    """Run ranks without steps, on one node, to their end.

    Raises:
        TrainingFailed: the budget is spent, or a rank failed for good.
        RunStopped: a stop was asked for.
    """
    gang = gang_for(context, spec, run, module, run_dir, *arguments, ranks_per_node=ranks)
    supervise(
        for_stepless_work(spec), gang, ledger=context.ledger, budget_scope=context.budget_scope, poll=lambda: None
    )
