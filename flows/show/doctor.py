"""`headway doctor`: what would fail on this installation, or where a pipeline is to be trained."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from headway.data_contracts.store.errors import EnvironmentProblem, HeadwayError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count, moment, size
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.preflight import check_request
from headway.flows.config.profiles import NOBODY, DeploymentProfile
from headway.flows.config.request import RetrainRequest
from headway.flows.console.output import print_json, print_line
from headway.flows.prefect_api.ephemeral_server import require_answer, require_home
from headway.flows.prefect_api.server_auth import openness
from headway.flows.show.delivered_alerts import read_delivered
from headway.flows.show.installed_files import check_files, direct_requirements, why_unchecked
from headway.tasks.prove.scrub import read_report
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.supervise.launchers import launcher_for, scheduler_for

State = Literal["ok", "note", "FAULT"]
RECENT_S = 30 * 86400
GANG_S = 120.0
"""For two processes to import torch and meet, on a busy machine."""
MEETING = """
import sys, torch, torch.distributed as dist
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
value = torch.ones(1)
dist.all_reduce(value)
assert value.item() == 2
devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
if rank == 0:
    print(f"torch {torch.__version__}: two ranks met by gloo, {devices or 'no'} GPU" + "s" * (devices > 1))
dist.destroy_process_group()
"""


class DoctorFinding(BaseModel):
    """What was looked at, and how it is."""

    what: str
    state: State
    message: str


class DoctorReport(BaseModel):
    findings: list[DoctorFinding]

    @property
    def faults(self) -> list[DoctorFinding]:
        return [each for each in self.findings if each.state == "FAULT"]


def diagnose(
    workspace_uri: str,
    pipeline: str = "",
    profile: DeploymentProfile | None = None,
    *,
    on_finding: Callable[[DoctorFinding], object] = lambda _: None,
) -> DoctorReport:
    """Look at everything, whatever was found before.

    Args:
        pipeline: also where this one is to be trained; empty: this installation alone.
        profile: also whether what it is deployed by is ready for production.
        on_finding: hears of each finding when it is made.
    """
    findings: list[DoctorFinding] = []
    for finding in _look(workspace_uri, pipeline, profile):
        on_finding(finding)
        findings.append(finding)
    return DoctorReport(findings=findings)


def _look(workspace_uri: str, pipeline: str, profile: DeploymentProfile | None) -> Iterator[DoctorFinding]:
    yield _try("packages", _packages)
    yield _files_finding()
    yield _try("ranks", _ranks_meet)
    yield _try("workspace", lambda: _workspace(workspace_uri))
    yield prefect_finding()
    yield _tool("xz", "reports compare a language model with `xz -9`; without it that figure is left out")
    yield _tool("git", "a version's provenance names the commit; without it that is left out")
    if pipeline:
        yield from _target(workspace_uri, pipeline)
    if profile is not None:
        yield from _readiness(workspace_uri, profile)


def _target(workspace_uri: str, name: str) -> Iterator[DoctorFinding]:
    try:
        spec, path, workspace = check_request(RetrainRequest(pipeline=name, workspace=workspace_uri))
    except HeadwayError as error:
        yield DoctorFinding(what="pipeline", state="FAULT", message=str(error))
        return
    yield DoctorFinding(
        what="pipeline", state="ok", message=f"{path}: {spec.pipeline}, its contract and its recipe are understood"
    )
    yield _try("registry", lambda: _registry(spec, workspace))
    yield _try(f"hosts ({spec.launch.launcher})", lambda: _hosts(spec.launch, workspace))
    who = f"{spec.owner} hears" if spec.owner else "the pipeline file names nobody who hears"
    state: State = "ok" if spec.owner else "note"
    yield DoctorFinding(what="owner", state=state, message=f"{who} of its alerts; its class is {spec.job_class}")


def _readiness(workspace_uri: str, profile: DeploymentProfile) -> Iterator[DoctorFinding]:
    """What a person on call will miss, and nothing fails without."""

    def finding(what: str, *, is_there: bool, message: str, otherwise: str) -> DoctorFinding:
        return DoctorFinding(what=what, state="ok" if is_there else "note", message=message if is_there else otherwise)

    yield finding(
        "notify",
        is_there=profile.notify not in ("", NOBODY),
        message=f"{profile.notify} hears of failures",
        otherwise="the server tells nobody of failures; name a block as `notify` in deployments/profiles.yaml",
    )
    delivered = read_delivered()
    is_recent = delivered is not None and time.time() - delivered.unix_s < RECENT_S
    when = "" if delivered is None else f"at {delivered.to}, {moment(delivered.unix_s)}"
    yield finding(
        "alerts",
        is_there=is_recent,
        message=f"arrived {when}",
        otherwise=f"{f'last seen to arrive {when}' if when else 'never seen to arrive'}; run `headway alerts test`",
    )
    scrubbed = None
    with contextlib.suppress(HeadwayError, OSError):  # a finding of its own says what is wrong with the workspace
        scrubbed = read_report(Workspace(workspace_uri))
    looks = profile.housekeeping is not None and profile.housekeeping.scrub_gb > 0
    last = "never" if scrubbed is None else moment(scrubbed.looked_unix_s)
    yield finding(
        "scrub",
        is_there=looks,
        message=f"stored files are read again each day; last: {last}",
        otherwise=f"nothing reads stored files again by itself; last: {last}. Say `housekeeping: {{scrub_gb: N}}`",
    )
    yield finding(
        "prices",
        is_there=bool(profile.prices.device_hour_usd),
        message=f"of {', '.join(profile.prices.device_hour_usd)}, in US dollars an hour",
        otherwise="the profile has no `prices`, so that no cost is told and no alert sees one",
    )
    yield finding(
        "reports",
        is_there=bool(profile.reports),
        message=f"each {' and '.join(profile.reports)}",
        otherwise="nobody gets a report by itself; say `reports: [week]`",
    )


def _try(what: str, look: Callable[[], str]) -> DoctorFinding:
    try:
        return DoctorFinding(what=what, state="ok", message=look())
    except (HeadwayError, OSError) as error:
        # What the system refuses is a finding like any other: the rest is to be heard too.
        return DoctorFinding(what=what, state="FAULT", message=str(error))


def _packages() -> str:
    """Raises `EnvironmentProblem`: what is installed is not what Headway was tested with."""
    wrong = []
    needed = direct_requirements()
    for each in needed:
        try:
            found = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{each.name} is not installed")
            continue
        if not each.specifier.contains(found, prereleases=True):
            wrong.append(f"{each.name} is {found}, not {each.specifier}")
    if wrong:
        raise EnvironmentProblem(
            "; ".join(wrong) + ".",
            advice="Install with `pip install --constraint constraints.txt` into a new environment.",
        )
    return f"Headway {metadata.version('headway')}, Python {sys.version.split()[0]}, {len(needed)} requirements met"


def _files_finding() -> DoctorFinding:
    """What has no record fails nothing, and is not called in order either."""
    finding = _try("files", check_files)
    if finding.state == "ok" and (why := why_unchecked()):
        return DoctorFinding(
            what="files", state="note", message=f"{finding.message}; Headway's own were not checked: {why}"
        )
    return finding


def _ranks_meet() -> str:
    """Raises `EnvironmentProblem`: two ranks on this machine cannot talk to each other."""
    with tempfile.TemporaryDirectory() as folder:
        # On loopback: gloo else resolves the host's name, which takes long where a resolver does not answer.
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(
                (sys.executable, "-P", "-c", MEETING, str(rank), str(Path(folder) / "store")),
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        deadline_s = time.monotonic() + GANG_S
        try:
            answers = [rank.communicate(timeout=max(0.0, deadline_s - time.monotonic())) for rank in started]
        except subprocess.TimeoutExpired as error:
            raise EnvironmentProblem(f"two ranks did not meet within {GANG_S:g} s.", where="torch, gloo") from error
        finally:
            for rank in started:
                rank.kill()
                rank.wait()
        if any(rank.returncode for rank in started):
            message = [line for _, err in answers for line in err.splitlines() if line.strip()]
            raise EnvironmentProblem(
                f"two ranks do not meet: {message[-1] if message else 'no word'}", where="torch, gloo"
            )
        return answers[0][0].strip()


def _workspace(uri: str) -> str:
    """Publishes, and takes away again. Raises what publication raises."""
    workspace = Workspace.create(uri)
    made = workspace.publish(f"scratch/doctor-{os.getpid()}", b"headway doctor")
    workspace.remove(made.path)
    free = shutil.disk_usage(workspace.local_root).free
    return f"{workspace.uri}: written and read, {size(free)} free here"


def _prefect() -> str:
    """Raises `EnvironmentProblem`: a configured server does not answer, or none of our own could be started."""
    from prefect.settings import PREFECT_API_URL

    if not (url := PREFECT_API_URL.value()):
        require_home()
        return "no server is configured: each command has one of its own (`headway ui` and workers need one)"
    require_answer(url)
    return f"{url} answers"


def prefect_finding() -> DoctorFinding:
    """An open server fails nothing, and is to be heard of."""
    from prefect.settings import PREFECT_API_URL

    finding = _try("Prefect", _prefect)
    if finding.state == "ok" and (url := PREFECT_API_URL.value()) and (message := openness(url)):
        return DoctorFinding(what=finding.what, state="note", message=message)
    return finding


def _registry(spec: PipelineSpec, workspace: Workspace) -> str:
    """Raises `RegistryError`: MLflow does not answer. Raises `IntegrityError`: its files lie elsewhere."""
    from headway.tasks.registry import mlflow_store

    uri = spec.registry.tracking_uri
    if not uri:
        mlflow_store.require_own_files(workspace, mlflow_store.default_tracking_uri(workspace), spec.pipeline)
        return f"MLflow beside the workspace: {mlflow_store.default_tracking_uri(workspace)}"
    mlflow_store.connect(uri)
    return f"MLflow at {uri} answers"


def _hosts(launch: LaunchSpec, workspace: Workspace) -> str:
    """Where ranks would be started.

    Raises:
        EnvironmentProblem: too few hosts answer, preflight refuses one, or the scheduler would refuse the job.
    """
    runs = workspace.local_path("runs")  # what hosts have to share
    runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=runs) as folder:
        gang = Gang(
            module="none",
            arguments=(),
            nodes=launch.nodes,
            ranks_per_node=launch.ranks_per_node,
            import_path=(),
            run_dir=Path(folder),
        )
        if launch.is_detached:
            # The scheduler's own check of the job; nothing is queued.
            scheduler_for(launch).dry_run(launch, gang)
            name = launch.launcher.capitalize()
            nodes = count(launch.nodes, "node")
            return f"{name} would take a job of {nodes}; each is looked at in the job before its ranks start"
        launcher = launcher_for(launch)
        found = launcher.probe_hosts(gang)
        if len(found.members) < (launch.min_nodes or launch.nodes):
            raise EnvironmentProblem(
                f"{len(found.members)} of {count(launch.nodes, 'host')} can take a node "
                f"({found.describe_unreachable()}).",
                where="launch",
            )
        launcher.preflight(gang, found)
    unreachable = f"; {found.describe_unreachable()}" if found.unreachable else ""
    return ", ".join(sorted({f"{member} at {member.address}" for member in found.members})) + unreachable


def _tool(name: str, why: str) -> DoctorFinding:
    found = shutil.which(name)
    return DoctorFinding(what=name, state="ok" if found else "note", message=found or f"not installed: {why}")


def _print(finding: DoctorFinding) -> None:
    """As soon as it is made: some take a while."""
    print_line(f"{finding.state:<6}{finding.what:<16} {finding.message}")


def doctor(workspace_uri: str, pipeline: str, profile: DeploymentProfile | None = None, *, as_json: bool) -> None:
    """Raises `EnvironmentProblem`: something would fail."""
    findings = diagnose(workspace_uri, pipeline, profile, on_finding=(lambda _: None) if as_json else _print)
    if as_json:
        print_json(findings)
    if findings.faults:
        names = ", ".join(each.what for each in findings.faults)
        raise EnvironmentProblem(f"{len(findings.faults)} of {len(findings.findings)} would fail: {names}.")
