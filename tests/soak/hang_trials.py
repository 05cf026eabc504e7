"""Trials of hangs and slow ranks: one run whose every attempt suffers what was planned, each to its end."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.optimizer import OptimizerSpec
from headway.training.config.parallel import ParallelSpec
from headway.training.config.training_spec import RecipeSpec
from headway.training.launch.base.gang import LaunchSpec, attempt_folder
from headway.training.launch.base.protocol import AttemptFiles, NodeStatus, RankMarker
from headway.training.launch.diagnosis.rank_event_stream import rank_spools
from headway.training.launch.hosts.ssh import ALIVE_EVERY_S, ALIVE_MISSES
from headway.training.observe.ledger import Event, read_events
from tests.cluster.conftest import OwnedRun, ssh_spec
from tests.cluster.namespaces import NamespaceHosts
from tests.soak.hang_table import CUT, HEALTHY, SLOW, HangTrial
from tests.soak.hanging import PHASES, PLANS, PLANTED, Plan
from tests.soak.orphan_trials import owned
from tests.training.conftest import TINY, TinyProject
from tests.waiting import wait_until

DEADLINE_S, START_DEADLINE_S = 5.0, 20.0
SILENCE_S = float(ALIVE_EVERY_S * (ALIVE_MISSES + 1))
"""After which a host is taken for lost."""
PATIENCE_S = 300.0
"""How long a trial waits for what should come much sooner."""
POLL_EVERY_S = 0.1
ANY_MOMENT = "any moment"
"""The signal comes from outside, once all ranks are up."""
SLOW_PHASES = ("data", "forward", "optimizer")
SLOW_STEPS = 120
"""After so many, nobody is called slow any more."""
FOREACH = OptimizerSpec(implementation="foreach")
"""The one that exact shards take."""
FOREVER = {"max_attempts": 10_000, "max_cycles_without_progress": 10_000, "backoff_s": 0.0}
HANGING = {"progress_deadline_s": DEADLINE_S, "start_deadline_s": START_DEADLINE_S}
QUICK = {**FOREVER, "peer_grace_s": 0.5, "lost_grace_s": 1.0}


class GangShape(NamedTuple):
    parallel: ParallelSpec
    nodes: int
    ranks_per_node: int

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


FAST: dict[str, Any] = {"mode": "fast", "deferred_init": False}
GANGS = {
    "2 replicas": GangShape(ParallelSpec(), 2, 1),
    "4 replicas": GangShape(ParallelSpec(), 2, 2),
    "4 exact shards": GangShape(ParallelSpec(replicate=1, shard=-1, deferred_init=False), 4, 1),
    "2 DDP": GangShape(ParallelSpec(**FAST), 1, 2),
    "4 HSDP": GangShape(ParallelSpec(**FAST, replicate=2, shard=2), 2, 2),
    "4 in stages": GangShape(ParallelSpec(**FAST, pipeline=2, tensor=2), 2, 2),
}


def hang_plans(chance: random.Random, world_size: int, count: int) -> list[Plan]:
    """Any rank, anywhere in a step, halted or asleep."""
    ways = [("sleep", phase) for phase in PHASES] + [("SIGSTOP", phase) for phase in (*PHASES, ANY_MOMENT)]
    return [_plan(chance, world_size, *chance.choice(ways)) for _ in range(count)]


def slow_plans(chance: random.Random, world_size: int, count: int) -> list[Plan]:
    """Every other attempt is a healthy one."""
    ways = [(SLOW, phase) for phase in SLOW_PHASES] + [(HEALTHY, "")] * len(SLOW_PHASES)
    return [_plan(chance, world_size, *chance.choice(ways)) for _ in range(count)]


def _plan(chance: random.Random, world_size: int, how: str, phase: str) -> Plan:
    after_steps = 0 if how == SLOW else chance.randrange(20)
    return Plan(rank=chance.randrange(world_size), how=how, phase=phase, after_steps=after_steps)


def local_trials(
    folder: Path, project: TinyProject, gang: str, plans: Sequence[Plan], chance: random.Random
) -> Iterator[HangTrial]:
    """Real ranks in one run, on this machine."""
    shape = GANGS[gang]
    recipe = RecipeSpec(name="tests.soak.hanging:Hanging", model=dict(TINY.recipe.model))
    changes = {"recipe": recipe, "parallel": shape.parallel, "optimizer": FOREACH, "max_steps": 10**6}
    training = TINY.model_copy(update={**changes, "checkpoints": CheckpointSpec(every_steps=10)})
    words = ("--workspace", project.workspace.uri, "--run-spec", project.publish_run(training).sha256)
    spec = LaunchSpec(
        nodes=shape.nodes,
        ranks_per_node=shape.ranks_per_node,
        **(HANGING if any(_new_trial(gang, plan).is_hang for plan in plans) else {}),  # type: ignore[arg-type]
        **QUICK,  # type: ignore[arg-type]
    )
    with owned(folder, spec, owner="tests.soak.hang_owner", agents="toys") as run:
        (run.folder / PLANS).write_text(json.dumps([plan.model_dump() for plan in plans]))
        run.begin(*words, nodes=shape.nodes, module="headway.training.programs.worker")
        for attempt, plan in enumerate(plans, 1):
            trial = _new_trial(gang, plan)
            try:
                if plan.how in (SLOW, HEALTHY):
                    _watch_pace(run, attempt, trial)
                else:
                    _hang(run, attempt, plan, chance.uniform(0, 3))
                _judge(run, attempt, trial)
                trial.connected = _meets(run, attempt + 1, shape.world_size) if attempt < len(plans) else None
            except AssertionError as error:
                trial.problem = f"{error} {run.message[-1000:]}".strip()
                trial.was_made = not trial.is_hang or _was_planted(run, attempt)
                yield trial
                return
            yield trial


def _new_trial(gang: str, plan: Plan) -> HangTrial:
    culprit = None if plan.how == HEALTHY else plan.rank
    return HangTrial(gang=gang, how=plan.how, phase=plan.phase, culprit=culprit)


def _hang(run: OwnedRun, attempt: int, plan: Plan, after_s: float) -> None:
    """See to it that one rank of the attempt hangs, and wait for its end."""
    if plan.phase == ANY_MOMENT:
        files = _files(run, attempt)
        marker = wait_until(lambda: files.read_markers().get(plan.rank), PATIENCE_S, f"rank {plan.rank}", every_s=0.02)
        # Any moment is as good as another: what is in it is not waited for.
        time.sleep(after_s)
        os.kill(marker.pid, signal.SIGSTOP)
        (files.folder / PLANTED).write_text("{}")
    wait_until(lambda: _has_ended(run, attempt), PATIENCE_S, f"the end of attempt {attempt}", every_s=POLL_EVERY_S)


def _watch_pace(run: OwnedRun, attempt: int, trial: HangTrial) -> None:
    """Until somebody is called slow, or there was time enough for it; then the attempt is ended."""

    def is_known() -> bool:
        assert not _has_ended(run, attempt), _record(run, attempt)["failure"]["what"]
        return bool(_called_slow(run, attempt)) or _num_steps(run, attempt) >= SLOW_STEPS

    wait_until(is_known, 2 * PATIENCE_S, f"{SLOW_STEPS} steps", every_s=POLL_EVERY_S)
    os.kill(_files(run, attempt).read_markers()[0].pid, signal.SIGKILL)
    wait_until(lambda: _has_ended(run, attempt), PATIENCE_S, f"the end of attempt {attempt}", every_s=POLL_EVERY_S)


def _judge(run: OwnedRun, attempt: int, trial: HangTrial) -> None:
    """Fill in what was said of an attempt that has ended."""
    record = _record(run, attempt)
    overdue = [event for event in run.events("attempt.overdue") if event["attempt"] == attempt]
    trial.called_slow = _called_slow(run, attempt)
    if not trial.is_hang:
        return
    trial.what = str(record["failure"]["what"])
    trial.deadline_s = START_DEADLINE_S if record["step"] is None else DEADLINE_S
    trial.named = (
        tuple(overdue[0]["ranks"]) if overdue else tuple(filter(lambda r: r is not None, (record["failure"]["rank"],)))
    )
    if overdue:
        seen_unix_s = float(overdue[0]["unix_s"])
        trial.seen_s = round(seen_unix_s - _last_word_unix_s(run, attempt, before_unix_s=seen_unix_s), 3)
    if not _was_planted(run, attempt):
        trial.problem, trial.was_made = "the attempt ended before anything was planted.", False


def _was_planted(run: OwnedRun, attempt: int) -> bool:
    return (_files(run, attempt).folder / PLANTED).exists()


def _meets(run: OwnedRun, attempt: int, world_size: int) -> bool:
    """Whether all ranks of the attempt come to be one process group, before it ends."""

    def have_met() -> int:
        events = [read_events(spool) for _, spool in rank_spools(_files(run, attempt))]
        return sum(any(each["event"] == "rendezvous" and each["outcome"] == "ok" for each in of) for of in events)

    wait_until(lambda: have_met() == world_size or _has_ended(run, attempt), PATIENCE_S, "the next gang", every_s=0.05)
    return have_met() == world_size


def _place_of(files: AttemptFiles, node: int) -> tuple[RankMarker, NodeStatus] | None:
    """Of a node with one rank, once both have said where they are."""
    status = files.read_status(node)
    markers = [marker for marker in files.read_markers().values() if marker.node == node]
    return (markers[0], status) if markers and status is not None else None


def _files(run: OwnedRun, attempt: int) -> AttemptFiles:
    return AttemptFiles(attempt_folder(run.folder, attempt))


def _record(run: OwnedRun, attempt: int) -> dict[str, Any]:
    return next(record for record in run.records() if record["attempt"] == attempt)


def _has_ended(run: OwnedRun, attempt: int) -> bool:
    assert run.owners[-1].poll() is None, "the owner has ended."
    return any(record["attempt"] == attempt for record in run.records())


def _called_slow(run: OwnedRun, attempt: int) -> tuple[int, ...]:
    told = {int(event["rank"]) for event in run.events("rank.slow") if event["attempt"] == attempt}
    return tuple(sorted(told))


def _num_steps(run: OwnedRun, attempt: int) -> int:
    return sum(event["event"] == "step" for event in read_events(_files(run, attempt).rank_spool(0)))


def _last_word_unix_s(run: OwnedRun, attempt: int, *, before_unix_s: float) -> float:
    events = [event for _, spool in rank_spools(_files(run, attempt)) for event in read_events(spool)]
    return max(ended for event in events if (ended := _ended_unix_s(event)) < before_unix_s)


def _ended_unix_s(event: Event) -> float:
    return float(event["unix_s"]) + float(event.get("duration_s", 0.0))


def cut_trials(folder: Path, hosts: NamespaceHosts, count: int, chance: random.Random) -> Iterator[HangTrial]:
    """Hosts of a run whose link is cut, one after another; a third stands by. The first has the owner."""
    with owned(folder, ssh_spec(hosts, **FOREVER), hosts.hosts[0], agents="toys") as run:  # type: ignore[arg-type]
        run.begin("--steps", "999999", "--in-step")
        for _ in range(count):
            run.until_it_steps(run.number or 1)
            attempt, node = run.number, chance.randrange(2)
            marker, status = wait_until(partial(_place_of, _files(run, attempt), node), PATIENCE_S, f"node {node}")
            trial = HangTrial(gang="2 hosts", how=CUT, culprit=marker.rank, deadline_s=SILENCE_S)
            (host,) = (host for host in hosts.hosts if host.name == status.host)
            host.cut()
            started_unix_s = time.time()
            try:
                wait_until(lambda a=attempt: _has_ended(run, a), PATIENCE_S, "its end", every_s=POLL_EVERY_S)  # type: ignore[misc]
                lost = [float(each["unix_s"]) for each in run.events("rank.lost") if each["attempt"] == attempt]
                record = _record(run, attempt)
                trial.seen_s = round(min(lost, default=float(record["end_unix_s"])) - started_unix_s, 3)
                trial.what, trial.was_made = str(record["failure"]["what"]), trial.seen_s > 0
                trial.named = (
                    ()
                    if record["failure"]["rank"] is None or record["failure"]["host"] != host.address
                    else (record["failure"]["rank"],)
                )
            finally:
                host.mend()
            yield trial
