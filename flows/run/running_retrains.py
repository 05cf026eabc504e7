"""Retrains that run on this machine: their stage, attempt, steps, and which of their processes are stopped or silent.

Read from what they write down anyway, and from the kernel: a stopped process can say nothing itself.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from pydantic import BaseModel

from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.places import all_named, entries
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import length
from headway.flows.accounts.flow_ledgers import living_flow
from headway.tasks.core.run_progress import read_progress, read_rank_steps
from headway.tasks.core.stage_records import STAGES, newest_record_of
from headway.training.checkpoint.layout import MANIFEST_NAME, committed_steps, directory_name
from headway.training.launch.base.launcher import Handle
from headway.training.launch.base.process_tree import process_state, processes_with
from headway.training.launch.base.protocol import TOKEN, AttemptFiles, NodeStatus, attempt_numbers, read_json
from headway.training.launch.base.record import record_or_none
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.launch.diagnosis.stragglers import steps_of_all, work_ratios
from headway.training.observe.ledger import Event, read_events

SILENT_S = 60.0
"""After which a rank or guard without a sign of life is named; ranks of long steps get ten of these."""
SLOW_RATIO = 1.5
"""From which a rank's work is worth a line; a `rank.slow` event needs proof, this is a look."""
GUARD_SILENT_S = 30.0
"""A guard reports twice a second."""
STOPPED = "Tt"
"""The kernel's letters of a process that a signal, or a debugger, has stopped."""


class RankStatus(BaseModel):
    rank: int
    pid: int
    state: str
    last_sign_unix_s: float
    """When it wrote down anything last."""
    step: int | None = None
    """The newest that it wrote down."""
    work_ratio: float | None = None
    """Its work in a step over the other ranks', over the newest steps: 1.0 is as long as theirs."""


class ProcessProblem(BaseModel):
    """A process of a run that does not get on."""

    role: str
    """`flow`, `guard`, `agent`, `rank N`, or `process` for what one of them started."""
    pid: int
    state: str
    """`stopped`, or `silent`."""
    what: str
    advice: str


class RunningRetrain(BaseModel):
    pipeline: str
    flow_run: str
    pid: int
    stage: str
    """One of the seven; empty between two of them."""
    since_unix_s: float
    """When the stage began, or the flow run where none has."""
    waits: str = ""
    """Who works on the run, where this retrain waits for another."""
    run: str = ""
    trial: str = ""
    """What the run is of, where the flow run trains several, such as `fold 2 of 5`."""
    attempt: int | None = None
    """Of this flow run's attempts at training, the newest."""
    max_attempts: int | None = None
    step: int | None = None
    max_steps: int | None = None
    step_s: float | None = None
    """Wall time a step, over the newest of them."""
    targets_per_s: float | None = None
    targets: str = ""
    """What steps are counted in: tokens, or examples."""
    rows_done: int | None = None
    """Of a stage of data: rows of the source that it is through with."""
    num_rows: int | None = None
    """Of the snapshot."""
    rows_per_s: float | None = None
    last_took_s: float | None = None
    """What the stage took when this pipeline last ran it here."""
    eta_s: float | None = None
    """Seconds to the last step, at that pace; of another stage to its end, by its rows or by what it took before."""
    checkpoint_step: int | None = None
    """Of the newest checkpoint; it is verified before anything resumes from it."""
    checkpoint_unix_s: float | None = None
    """When it was complete."""
    ranks: list[RankStatus] = []
    problems: list[ProcessProblem] = []


def read_running(workspace: Workspace, ended: Collection[str] = ()) -> list[RunningRetrain]:
    """Those of this workspace whose flow lives on this machine, the newest last.

    Args:
        ended: flow runs that are known to be over, and need no look.
    """
    found = []
    for flow_run in entries(workspace.local_root / "ledger"):
        if flow_run.name in ended:
            continue
        spool = flow_run / "flow.jsonl"
        with contextlib.suppress(OSError):
            if (begin := living_flow(spool)) is not None:
                found.append((float(begin["unix_s"]), _running(workspace, begin, read_events(spool))))
    return [running for _, running in sorted(found, key=lambda each: each[0])]


def _running(workspace: Workspace, begin: Event, events: list[Event]) -> RunningRetrain:
    stage, since_unix_s, waits = "", float(begin["unix_s"]), ""
    run: Event = {}
    for event in events:
        name = str(event["event"])
        if name == "task.begin" and event.get("task") in STAGES:
            stage, since_unix_s = str(event["task"]), float(event["unix_s"])
        elif name == "task" and event.get("task") == stage:
            stage, since_unix_s = "", float(event["unix_s"]) + float(event.get("duration_s") or 0.0)
        elif name == "run.folder":
            run = event
        waits = str(event.get("message", "")) if name == "run.waiting" else "" if name == "run.wait" else waits
    flow_run, pid = str(begin["flow_run"]), int(begin["pid"])
    retrain = RunningRetrain(
        pipeline=str(begin["pipeline"]), flow_run=flow_run, pid=pid, stage=stage, since_unix_s=since_unix_s, waits=waits
    )
    if stage and stage != "launch" and not waits:
        retrain = retrain.model_copy(update=_of_stage(workspace, retrain, events))
    folder = _run_folder(workspace, run)
    problems = [*_stopped("flow", pid)]
    # While it waits, the run's folder and ranks are another retrain's.
    if folder is None or waits:
        return retrain.model_copy(update={"problems": problems})
    ranks = list(_ranks(folder)) if stage == "launch" else []
    return retrain.model_copy(
        update={
            "run": folder.name,
            "trial": str(run.get("trial", "")) if stage == "launch" else "",
            **(_progress(folder, flow_run, run) if stage == "launch" else {}),
            "ranks": ranks,
            "problems": [*problems, *_problems(folder, ranks)],
        }
    )


def _run_folder(workspace: Workspace, run: Event) -> Path | None:
    """By its name alone: a whole path that the ledger says could be of any folder of the machine."""
    with contextlib.suppress(IntegrityError):
        return workspace.local_path(f"runs/{Path(str(run['path'])).name}") if run else None
    return None


def _of_stage(workspace: Workspace, retrain: RunningRetrain, events: list[Event]) -> dict[str, object]:
    """How far a stage other than training is: by rows where the ledger counts them, else by what it took before."""
    for_s = max(time.time() - retrain.since_unix_s, 1e-9)
    record = newest_record_of(workspace, retrain.pipeline, retrain.stage)
    last_took_s = None if record is None else float(record.provenance["duration_s"])
    facts: dict[str, object] = {"last_took_s": last_took_s}
    if last_took_s is not None:
        facts["eta_s"] = max(last_took_s - for_s, 0.0)
    if retrain.stage == "shard":
        groups = [event for event in events if event["event"] == "shard.group" and "source_rows" in event]
        ours = [event for event in groups if float(event["unix_s"]) >= retrain.since_unix_s]
        done, num_rows = sum(int(event["source_rows"]) for event in ours), _num_rows(workspace, retrain.pipeline)
        if done:
            rate = done / max(float(ours[-1]["unix_s"]) - retrain.since_unix_s, 1e-9)
            facts |= {"rows_done": done, "num_rows": num_rows, "rows_per_s": rate}
            if num_rows is not None:
                facts["eta_s"] = max(num_rows - done, 0) / rate
    return facts


def _num_rows(workspace: Workspace, pipeline: str) -> int | None:
    """Of the pipeline's newest snapshot: stages of data that run now run on it."""
    with contextlib.suppress(IntegrityError):
        record = newest_record_of(workspace, pipeline, "snapshot")
        return None if record is None else workspace.load(record.document, Snapshot).num_rows
    return None


def _progress(folder: Path, flow_run: str, run: Event) -> dict[str, object]:
    attempts = len(AttemptRecords(folder).in_scope(flow_run))
    progress, max_steps = read_progress(folder), run.get("max_steps")
    return {
        "attempt": attempts or None,
        "max_attempts": run.get("max_attempts"),
        "step": progress.step,
        "max_steps": max_steps,
        "step_s": progress.step_s,
        "targets_per_s": progress.tokens_per_s,
        "targets": str(run.get("targets", "")),
        **_newest_checkpoint(folder / "checkpoints"),
        "eta_s": None if max_steps is None else progress.eta_s(int(max_steps), time.time()),
    }


def _newest_checkpoint(checkpoints: Path) -> dict[str, object]:
    # It may expire while we look.
    with contextlib.suppress(OSError):
        if step := max(committed_steps(checkpoints), default=None):
            written = (checkpoints / directory_name(step) / MANIFEST_NAME).stat().st_mtime
            return {"checkpoint_step": step, "checkpoint_unix_s": written}
    return {}


def _newest_attempt(folder: Path) -> AttemptFiles | None:
    attempts = attempt_numbers(folder / "attempts")
    return AttemptFiles(attempts[max(attempts)]) if attempts else None


def _ranks(folder: Path) -> Iterator[RankStatus]:
    files = _newest_attempt(folder)
    if files is None:
        return
    markers = dict(sorted(files.read_markers().items()))
    steps, num_stages = read_rank_steps({rank: files.rank_spool(rank) for rank in markers})
    ratios = work_ratios(steps_of_all(steps), num_stages=num_stages)
    for rank, marker in markers.items():
        signs = [marker.unix_s]
        with contextlib.suppress(OSError):
            # Markers change with a rank's state alone; the spool grows with each step.
            signs.append(files.rank_spool(rank).stat().st_mtime)
        yield RankStatus(
            rank=rank,
            pid=marker.pid,
            state=marker.state,
            last_sign_unix_s=max(signs),
            step=int(steps[rank][-1]["step"]) if steps[rank] else None,
            work_ratio=ratios.get(rank),
        )


def _problems(folder: Path, ranks: list[RankStatus]) -> Iterator[ProcessProblem]:
    """Of all gangs that the run has on this machine: its training's, and those that verify, evaluate and export."""
    for path in all_named("launch.json", folder):
        handle, files = Handle.load(path.parent), _newest_attempt(path.parent)
        if handle is None or files is None or handle.host != socket.gethostname() or not handle.is_of(path.parent):
            continue
        pids = processes_with(TOKEN, handle.token)
        roles = _roles(files)
        for pid in sorted(pids):
            yield from _stopped(roles.get(pid, "process"), pid)
        if pids:
            yield from _silent_guards(files)
    step_s = read_progress(folder).step_s or 0.0
    for rank in ranks:
        silent_s = time.time() - rank.last_sign_unix_s
        if rank.state == "running" and silent_s > max(SILENT_S, 10 * step_s):
            yield ProcessProblem(
                role=f"rank {rank.rank}",
                pid=rank.pid,
                state="silent",
                what=f"rank {rank.rank} (pid {rank.pid}) has given no sign of life for {silent_s:,.0f} s.",
                advice=f"`headway logs {folder.name} --rank {rank.rank}` shows what it wrote; its deadline ends it.",
            )


def _roles(files: AttemptFiles) -> dict[int, str]:
    roles = {marker.pid: f"rank {rank}" for rank, marker in files.read_markers().items()}
    for path in files.folder.glob("node-*.json"):
        if (status := record_or_none(NodeStatus, read_json(path))) is not None:
            roles |= {status.guard_pid: "guard", status.agent_pid: "agent"}
    return roles


def _silent_guards(files: AttemptFiles) -> Iterator[ProcessProblem]:
    for path in files.folder.glob("node-*.vitals.json"):
        reported = (read_json(path) or {}).get("unix_s")
        status = record_or_none(NodeStatus, read_json(files.folder / path.name.replace(".vitals", "")))
        if not isinstance(reported, float) or status is None or status.state == "ended":
            continue
        silent_s, pid = time.time() - reported, status.guard_pid
        # One that is stopped is named as such already.
        if silent_s > GUARD_SILENT_S and process_state(pid) not in STOPPED:
            yield ProcessProblem(
                role="guard",
                pid=pid,
                state="silent",
                what=f"the guard of node {status.node} (pid {pid}) has not reported for {silent_s:,.0f} s.",
                advice="Look whether its disk or file system answers; without its owner it ends its ranks by itself.",
            )


def _stopped(role: str, pid: int) -> Iterator[ProcessProblem]:
    if process_state(pid) in STOPPED:
        yield ProcessProblem(
            role=role,
            pid=pid,
            state="stopped",
            what=f"{role} (pid {pid}) is stopped by a signal: it does nothing, and answers nobody.",
            advice=f"`kill -CONT {pid}` continues it; `kill -KILL {pid}` ends it, and the run continues by a retrain.",
        )


def _eta(retrain: RunningRetrain, for_s: float) -> str:
    if retrain.eta_s is None:
        return ""
    if retrain.stage == "launch":
        return f"training ends in {length(retrain.eta_s)}"
    if retrain.rows_per_s is not None:
        return f"{retrain.stage} ends in {length(retrain.eta_s)}"
    last_s = retrain.last_took_s or 0.0
    # Also of one that was over at once, of which there is no share.
    if for_s > last_s or not last_s:
        return f"takes longer than last time ({length(last_s)})"
    return f"{retrain.stage} ends in {length(retrain.eta_s)} ({for_s / last_s:.0%} of the time it took last)"


def _slow(ranks: list[RankStatus]) -> str:
    slow = sorted((each.work_ratio, each.rank) for each in ranks if (each.work_ratio or 0.0) >= SLOW_RATIO)
    return ", ".join(f"rank {rank} works {ratio:.2g} times as long a step as the others" for ratio, rank in slow[::-1])


def words(retrain: RunningRetrain, now_unix_s: float) -> dict[str, str]:
    """What a person reads, by name."""
    for_s = now_unix_s - retrain.since_unix_s
    of = "" if retrain.max_attempts is None else f" of {retrain.max_attempts}"
    total = ""
    if retrain.max_steps is not None:
        share = "" if retrain.step is None else f" ({retrain.step / max(retrain.max_steps, 1):.0%})"
        total = f" of {retrain.max_steps:,}{share}"
    signs = (f"rank {each.rank} {max(now_unix_s - each.last_sign_unix_s, 0):,.0f} s ago" for each in retrain.ranks)
    pace = f", {1 / retrain.step_s:,.2g} steps/s" if retrain.step_s else ""
    if retrain.targets_per_s is not None:
        pace += f", {retrain.targets_per_s:,.0f} {retrain.targets or 'targets'}/s"
    rows = "" if retrain.rows_done is None else f"{retrain.rows_done:,}"
    if retrain.rows_done is not None and retrain.num_rows:
        rows += f" of {retrain.num_rows:,} ({min(retrain.rows_done / retrain.num_rows, 1.0):.0%})"
    if retrain.rows_per_s is not None:
        rows += f", {retrain.rows_per_s:,.0f} rows/s"
    checkpoint = "none yet" if retrain.stage == "launch" and retrain.step is not None else ""
    if retrain.checkpoint_unix_s is not None:
        checkpoint = f"step {retrain.checkpoint_step:,}, {length(now_unix_s - retrain.checkpoint_unix_s)} ago"
    return {
        "stage": f"{retrain.stage or 'between two stages'}, for {length(for_s)}",
        "waits": retrain.waits,
        "run": " of ".join(filter(None, (retrain.run, retrain.trial))),
        "attempt": "" if retrain.attempt is None else f"{retrain.attempt}{of}",
        "step": "" if retrain.step is None else f"{retrain.step:,}{total}{pace}",
        "rows": rows,
        "checkpoint": checkpoint,
        "ETA": _eta(retrain, for_s),
        "ranks": ("last sign of life of " + ", ".join(signs)) if retrain.ranks else "",
        "slow": _slow(retrain.ranks),
        "flow": f"pid {retrain.pid}, flow run {retrain.flow_run}",
        "TROUBLE": " ".join(f"{problem.what} {problem.advice}" for problem in retrain.problems),
    }
