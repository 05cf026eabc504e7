"""Drills, one after another in one sandbox: each is judged by itself, and one that goes wrong ends no other."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, HeadwayError, TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.flows.drill.interruptions import cut_the_network, damage_a_checkpoint, lose_a_rank_and_be_preempted
from headway.flows.drill.objectives import FINISHED, MODES, FailureMode, evaluate
from headway.flows.drill.refusals import feed_uneven_data, forget_a_secret, start_wrong_ranks
from headway.flows.drill.report import DrillReport, DrillResult
from headway.flows.drill.sandbox import LOCAL, NUM_NODES, Sandbox, sandbox
from headway.flows.drill.steps import contend, run_out_of_memory, slow_a_rank, spoil_a_loss
from headway.flows.drill.trial import Drill, DrillTrial, NotHere, Undisturbed
from headway.training.launch.base.gang import LaunchSpec

DRILLS: Mapping[str, Drill] = {
    "F1": forget_a_secret,
    "F2": slow_a_rank,
    "F3": cut_the_network,
    "F4": damage_a_checkpoint,
    "F5": spoil_a_loss,
    "F6": run_out_of_memory,
    "F7": lose_a_rank_and_be_preempted,
    "F8": contend,
    "F9": start_wrong_ranks,
    "F10": feed_uneven_data,
}
ON_REQUEST = {"F8": "it keeps a processor of this machine busy, which others may need: name it to have it made."}
"""Made only where somebody names them."""
ONLY_LOCAL = {"F8": "it shares a processor of this machine, on which no rank of launcher {launcher} is."}
FOLDER = "drills"
"""Of the workspace: sandboxes, where ranks are on other machines."""


def run_drills(
    codes: Sequence[str],
    seed: int,
    *,
    launch: LaunchSpec = LOCAL,
    workspace: Workspace | None = None,
    keep: Path | None = None,
    on_result: Callable[[DrillResult], object] = lambda _result: None,
) -> DrillReport:
    """Make these drills, or all of them.

    Args:
        codes: such as F4; empty: all that need not be named.
        seed: of data and of what happens to whom, and when.
        launch: how ranks are started; of it there are two nodes of one rank.
        workspace: whose folder the ranks' machines see; the sandbox is made there where they are others than this.
        keep: a folder that is not there yet, and stays.
        on_result: called as each is over.

    Raises:
        ConfigError: no such drill, one that the launcher does not allow, too few hosts, or something is where the
            sandbox is to be kept.
        EnvironmentProblem: not even an undisturbed run comes to its end here.
    """
    if unknown := sorted(set(codes) - MODES.keys()):
        raise ConfigError(
            f"there is no drill {', '.join(unknown)}.", where="headway drill", advice=f"There are {', '.join(MODES)}."
        )
    impossible = {} if launch.launcher == "local" else ONLY_LOCAL
    _require_possible(launch, [code for code in MODES if code in codes and code in impossible])
    shared = None if launch.launcher == "local" or workspace is None else workspace.local_root / FOLDER
    begin_unix_s = time.time()
    drills: list[DrillResult] = []
    with sandbox(seed, keep, launch, shared) as made:
        undisturbed = Undisturbed(made)
        for code, mode in MODES.items():
            if codes and code not in codes:
                continue
            skipped = "" if codes else impossible.get(code, ON_REQUEST.get(code, "")).format(launcher=launch.launcher)
            drills.append(_skipped(mode, skipped) if skipped else _made(mode, made, undisturbed))
            on_result(drills[-1])
    return DrillReport(
        headway=version("headway"),
        host=socket.gethostname(),
        launcher=launch.launcher,
        seed=seed,
        begin_unix_s=begin_unix_s,
        end_unix_s=time.time(),
        kept="" if keep is None else str(made.root),
        drills=drills,
    )


def _require_possible(launch: LaunchSpec, impossible: Sequence[str]) -> None:
    """Raises `ConfigError` before anything is spent."""
    if impossible:
        why = "; ".join(f"{code}: {ONLY_LOCAL[code].format(launcher=launch.launcher)}" for code in impossible)
        raise ConfigError(
            f"not with launcher {launch.launcher}: {why}",
            where="headway drill",
            advice="Leave it out, or drill with the local launcher.",
        )
    if launch.ssh is not None and len(launch.ssh.hosts) < NUM_NODES:
        raise ConfigError(
            f"a drill has {NUM_NODES} nodes, and `ssh.hosts` names {len(launch.ssh.hosts)}.",
            where="headway drill",
            advice="Name another host in the launch that the drill takes.",
        )


def _made(mode: FailureMode, made: Sandbox, undisturbed: Undisturbed) -> DrillResult:
    trial = DrillTrial(mode, made, random.Random(f"{made.seed}/{mode.code}"), undisturbed)
    made.exit_codes.clear()
    started_s, problem = time.monotonic(), ""
    try:
        DRILLS[mode.code](trial)
    except NotHere as here:
        return _skipped(mode, str(here))
    except EnvironmentProblem:
        raise
    except HeadwayError as error:
        # What cannot be read of the disturbed run is a finding: its objectives are missed.
        problem = f"{type(error).__name__}: {error}"
    trial.figures["finished"] = made.exit_codes[-1:] == [0]
    if FINISHED in mode.objectives and not trial.figures["finished"] and not problem:
        problem = f"the last command ended with {made.exit_codes[-1:]}: {made.last_message}"
    objectives = evaluate(mode.objectives, trial.figures, made.launch.launcher)
    return DrillResult(
        mode=mode.code,
        title=mode.title,
        state="missed" if problem or not all(each.is_met for each in objectives) else "passed",
        reason=problem,
        planted=trial.planted,
        detected=trial.detected,
        cause=trial.cause,
        message=trial.message,
        figures=trial.figures,
        objectives=objectives,
        alert=trial.alert,
        runbooks=list(mode.runbooks),
        exit_codes=list(made.exit_codes),
        took_s=round(time.monotonic() - started_s, 3),
    )


def _skipped(mode: FailureMode, reason: str) -> DrillResult:
    return DrillResult(mode=mode.code, title=mode.title, state="skipped", reason=reason, runbooks=list(mode.runbooks))


def problem_of(report: DrillReport) -> HeadwayError | None:
    """What the command ends with: an objective was missed, or nothing was drilled at all; None where all went well."""
    if report.missed:
        codes = [drill.mode for drill in report.missed]
        again = f"headway drill {' '.join(codes)} --seed {report.seed} --keep FOLDER"
        return TrainingFailed(
            f"{', '.join(codes)} missed an objective.",
            where="headway drill",
            advice=f"The report says which; `{again}` makes the same again, and keeps its ledgers.",
        )
    if not report.passed:
        return EnvironmentProblem(
            "no drill could be made here.", where="headway drill", advice="The report says why each was skipped."
        )
    return None
