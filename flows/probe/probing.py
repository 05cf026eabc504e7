"""Make one probe: the command `headway retrain` on the shipped pipeline, with new data, on a profile's launcher.

Its workspace lies in the one that is probed, so that it stands on the same store, and is seen by the hosts and pods
that see that one. There it registers its model, too. The newest few stay as evidence; the others go as a whole.
"""

from __future__ import annotations

import datetime
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from headway.data_contracts.store.errors import TrainingFailed
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.plain_text import MAX_FIELD_CHARS, one_line
from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.flow_account import PROBE, FlowAccount
from headway.flows.accounts.kept_accounts import FOLDER as ACCOUNTS
from headway.flows.accounts.kept_accounts import NO_RUN, all_accounts, settle
from headway.flows.accounts.probe_records import ProbeRecord, keep_probe, newest_probe
from headway.flows.config.pipeline_spec import SHIPPED
from headway.flows.monitoring.pushing import push_quietly
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.process_tree import die_with_parent, end_in_order, sweep

FOLDER = "probes"
"""Of the probed workspace: a workspace for each of the newest probes."""
KEPT = 3
"""Of a launcher, this one among them."""
FILES = SHIPPED / "deployments" / "probe"
COLUMNS = ("length", "width", "height", "weight")
NUM_FILES, ROWS_A_FILE = 4, 400
OWN = "PROBE_PROJECT"
"""Environment variable of all that a probe starts here: its project's folder."""
END_S = 30.0
"""Beyond the grace of its ranks, for a command that is ended."""
_NOT_FOR_IT = (
    *("PREFECT_", "HEADWAY_PROJECT", "HEADWAY_WORKSPACE", "HEADWAY_LIMITS", "HEADWAY_PREFECT_RECORDS"),
    "HEADWAY_PUSHGATEWAY",
)
"""Beginnings of variables that would lead to what exists: a server on which it would be one more retrain, and a gateway
that would keep the metrics of its workspace for ever."""


def run_probe(workspace: Workspace, launch: LaunchSpec, *, interval_s: float, within_s: float) -> ProbeRecord:
    """Make a probe, and keep what came of it in the workspace: its record, and its account.

    Args:
        interval_s: until the next one is due.
        within_s: how long it may take; it is ended then, and has failed.

    Raises:
        EnvironmentProblem: the workspace cannot be written.
    """
    begin_unix_s = time.time()
    moment = datetime.datetime.fromtimestamp(begin_unix_s, datetime.UTC)
    own = Workspace.create(f"{workspace.uri}/{FOLDER}/{launch.launcher}-{moment:%Y%m%dT%H%M%S%fZ}")
    with scratch_folder("headway-probe-") as project:
        write_project(project, launch, seed=int(begin_unix_s * 1000))
        code, message = _retrain(project, own, within_s, END_S + launch.stop_grace_s)
    settle(own)
    account = max(all_accounts(own), key=lambda each: each.begin_unix_s, default=None)
    has_succeeded = code == 0 and account is not None and account.has_registered
    before = newest_probe(workspace, launch.launcher)
    end_unix_s = time.time()
    record = ProbeRecord(
        launcher=launch.launcher,
        host=socket.gethostname(),
        flow_run="" if account is None else account.flow_run,
        begin_unix_s=begin_unix_s,
        end_unix_s=end_unix_s,
        interval_s=interval_s,
        has_succeeded=has_succeeded,
        stage="" if has_succeeded or account is None else account.stage,
        cause="" if has_succeeded or account is None else account.cause,
        message="" if has_succeeded else message,
        last_success_unix_s=end_unix_s if has_succeeded else before.last_success_unix_s if before else None,
    )
    if account is not None:
        _keep_account(workspace, account)
    keep_probe(workspace, record)
    _prune(workspace, launch.launcher, until=own.uri.rpartition("/")[2])
    push_quietly(workspace.uri)
    return record


def problem_of(record: ProbeRecord, workspace: Workspace) -> TrainingFailed | None:
    """What a failed one ends with; None of one that succeeded."""
    if record.has_succeeded:
        return None
    where = f" in stage {record.stage}" if record.stage else ""
    return TrainingFailed(
        f"the probe of launcher {record.launcher} failed{where}: {record.message or 'it said nothing.'}",
        where=workspace.uri_of(FOLDER),
        advice="`headway status --workspace FOLDER` on the newest folder there shows its failure card. Other "
        "pipelines of this workspace may fail likewise.",
    )


def write_project(folder: Path, launch: LaunchSpec, *, seed: int) -> None:
    """The shipped pipeline with a launcher and data of its own.

    Args:
        seed: of the data; with another one, no stage finds what it made before.
    """
    spec: dict[str, Any] = yaml.safe_load((FILES / "pipeline.yaml").read_text())
    spec["launch"] = launch.model_dump(mode="json", exclude_unset=True)
    # A micro-batch for each rank, and two at least, so that one rank and two give the same bits: a power of two.
    training = spec["training"]
    num_replicas = 1 << max(1, (launch.world_size - 1).bit_length())
    training["global_batch_sequences"] = training["micro_batch_sequences"] * num_replicas
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    shutil.copyfile(FILES / "contract.yaml", folder / "contract.yaml")
    (folder / "data").mkdir()
    draw = random.Random(seed)
    for number in range(NUM_FILES):
        lines = [",".join((*COLUMNS, "kind"))]
        for _ in range(ROWS_A_FILE):
            values = [draw.gauss(0, 1) for _ in COLUMNS]
            kind = 2 * (values[0] > 0) + (values[1] > 0)
            lines.append(",".join((*(f"{value:.6f}" for value in values), str(kind))))
        (folder / "data" / f"part-{number}.csv").write_text("\n".join(lines) + "\n")


def _retrain(project: Path, own: Workspace, within_s: float, grace_s: float) -> tuple[int, str]:
    """Run the command to its end. Returns its exit code, and the last that it said of a failure."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_IT)}
    environment = {
        **ours,
        "HEADWAY_PROJECT": str(project),
        "PREFECT_HOME": str(project / "prefect"),
        OWN: str(project),
    }
    command = (sys.executable, "-P", "-m", "headway", "retrain", "pipeline.yaml", "--workspace", own.uri)
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command,
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=printed,
            process_group=0,
            preexec_fn=die_with_parent,
        )
        took_too_long = False
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            took_too_long = True
        finally:
            # In order where it can: a scheduler's job is cancelled, and ranks end by themselves.
            end_in_order(process, grace_s)
            sweep(OWN, str(project))
        printed.seek(0)
        lines = [line for line in printed.read().decode(errors="replace").splitlines() if line.startswith("headway: ")]
    code = process.wait()
    if took_too_long:
        return code or 1, f"it was not done within {within_s:,.0f} s, and was ended."
    return code, one_line(lines[-1].removeprefix("headway: "), MAX_FIELD_CHARS) if lines else ""


def _keep_account(workspace: Workspace, account: FlowAccount) -> None:
    """Beside those of pipelines, so that costs are whole; of a class that no objective counts, and without a curve."""
    kept = account.model_copy(update={"job_class": PROBE, "curve": None})
    path = f"{ACCOUNTS}/{kept.run or NO_RUN}/{kept.flow_run}.json"
    workspace.publish_json(path, kept.model_dump(mode="json"))


def _prune(workspace: Workspace, launcher: str, until: str) -> None:
    """Names are moments behind the launcher's, and so the newest are the last; no other folder is a probe's.

    Args:
        until: the newest one's name; what is named for a moment to come pushes no evidence out.
    """
    is_ours = re.compile(rf"{re.escape(launcher)}-\d{{8}}T\d{{12}}Z").fullmatch
    for name in sorted(each for each in workspace.names(FOLDER) if is_ours(each) and each <= until)[:-KEPT]:
        if not workspace.is_local:
            for file in list(workspace.files(f"{FOLDER}/{name}")):
                workspace.remove(file.path)
        shutil.rmtree(Workspace(f"{workspace.uri}/{FOLDER}/{name}").local_root, ignore_errors=True)
