"""`headway deploy`: what should be, what is, the difference; shown, then done."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Collection, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.plain_text import one_line
from headway.flows.champion_flow import move_champion
from headway.flows.config.pipeline_spec import PipelineSpec, find_pipeline_file, load_pipeline
from headway.flows.config.preflight import check_contract
from headway.flows.config.profiles import NOBODY, PLAIN, load_profile
from headway.flows.console.console import headed, print_table
from headway.flows.console.pipeline_names import pipeline_files, pipeline_name
from headway.flows.deploy.actual import actual
from headway.flows.deploy.apply import NOTHING, apply, require_ours
from headway.flows.deploy.automations import notifies_nobody
from headway.flows.deploy.desired import desired
from headway.flows.deploy.difference import ResourceChange, difference
from headway.flows.deploy.exporter_manifest import render_exporter
from headway.flows.deploy.rendering import WHERE_CALLED, render
from headway.flows.deploy.resources import (
    GAME_DAY,
    HOUSEKEEPING,
    MOVE_CHAMPION,
    PROBE,
    REPORT,
    RETRAIN,
    TRIALS,
    WATCH,
    DesiredState,
    ExistingResource,
    Resource,
)
from headway.flows.game_day_flow import game_day
from headway.flows.housekeeping_flow import housekeeping
from headway.flows.prefect_api.client import connected
from headway.flows.prefect_api.server_auth import openness
from headway.flows.probe_flow import probe
from headway.flows.report_flow import report
from headway.flows.retrain_flow import retrain
from headway.flows.search import trials
from headway.flows.triggers.evaluation import require_measured
from headway.flows.watch import watch
from headway.training.config.encoder_specs import CustomEncoderSpec
from headway.training.frozen.code_archive import encoder_code
from headway.training.frozen.recipe_check import check_recipe

MAX_SHOWN_CHARS = 60
DONE = {"create": "created", "change": "changed", "remove": "removed"}


class DeployReport(BaseModel):
    """What `headway deploy` found and did."""

    server: str
    project: str
    profile: str
    dry_run: bool
    warnings: list[str]
    """What a person should mend: deployments of another project, alerts to nobody, a server open to strangers."""
    changes: list[ResourceChange]
    num_unchanged: int

    @property
    def num_steps(self) -> int:
        return sum(change.action not in NOTHING for change in self.changes)


def deploy(
    folder: Path, profile_name: str, *, dry_run: bool = False, adopt: bool = False, console: Console
) -> DeployReport:
    """Make a server what the project's files say.

    Args:
        folder: the project's, the one with `deployments/`.
        console: where the difference is shown, and each step when it is done.
        adopt: take over what others made under a name that is wanted.

    Raises:
        ConfigError: a file is wrong, there is no such profile, or others have a name that is wanted.
        EnvironmentProblem: the server does not answer, or refuses a step; names what was done.
    """
    wanted = _wanted(folder, profile_name)
    notify = wanted.profile.notify
    with connected() as server:
        block_ids = {severity: server.notification_block(name) for severity, name in wanted.profile.blocks.items()}
        wanted = dataclasses.replace(wanted, block_ids=block_ids)
        resources = desired(wanted)
        found = actual(server, wanted.mark)
        changes = difference(resources, found, adopt=adopt)
        touched = {
            (change.kind, change.name) for change in changes if change.wanted is not None or change.action == "refuse"
        }
        report = DeployReport(
            server=server.url,
            project=wanted.project,
            profile=profile_name,
            dry_run=dry_run,
            warnings=list(
                filter(None, (of_another_folder(wanted, found), silence(wanted, resources), openness(server.url)))
            ),
            changes=list(changes),
            num_unchanged=sum((each.kind, each.name) not in touched for each in resources),
        )
        silent = {each.name for each in resources if notifies_nobody(each)} if notify != NOBODY else set()
        _print(report, console, silent)
        if not dry_run:
            require_ours(changes, "--adopt")
            apply(server, changes, lambda change: console.print(f"{DONE[change.action]} {change.kind} {change.name}"))
    return report


def rendered(folder: Path, profile_name: str) -> str:
    """The deployments as a file for `prefect deploy`; no server is asked.

    Raises:
        ConfigError: a file is wrong, or there is no such profile.
    """
    return render(profile_name, desired(_wanted(folder, profile_name, project_folder=WHERE_CALLED)))


def rendered_exporter(folder: Path, profile_name: str) -> str:
    """The exporter's manifests for a cluster of the profile's.

    Raises:
        ConfigError: a file is wrong, there is no such profile, or nothing of it is on Kubernetes.
    """
    return render_exporter(_wanted(folder, profile_name))


def _wanted(folder: Path, profile_name: str, project_folder: str = "") -> DesiredState:
    """All that a server is not asked for.

    Args:
        project_folder: where runs find the project; `folder` if empty.
    """
    # It goes into the runs' environment, where a relative path would start at the worker's folder.
    folder = folder.resolve()
    project, profile = load_profile(folder, profile_name)
    return DesiredState(
        project=project,
        profile_name=profile_name,
        profile=profile,
        pipelines=_pipelines(folder),
        project_folder=project_folder or str(folder),
        forms={
            RETRAIN: _form(retrain),
            TRIALS: _form(trials),
            MOVE_CHAMPION: _form(move_champion),
            WATCH: _form(watch),
            HOUSEKEEPING: _form(housekeeping),
            REPORT: _form(report),
            GAME_DAY: _form(game_day),
            PROBE: _form(probe),
        },
        now=datetime.datetime.now(datetime.UTC),
    )


def _pipelines(folder: Path) -> dict[str, PipelineSpec]:
    files = pipeline_files(folder)
    if not files:
        # An empty folder is a wrong one; as a wish it would take every deployment away.
        raise ConfigError(
            "there is no pipeline file.",
            where=str(folder / "deployments"),
            advice="They are looked for in HEADWAY_PROJECT, or the current folder.",
        )
    pipelines: dict[str, PipelineSpec] = {}
    places: dict[str, str] = {}
    for path in files:
        name = pipeline_name(path)
        if not re.fullmatch(PLAIN, name):
            raise ConfigError(
                "the file's name becomes that of a deployment, which cannot have such characters.",
                where=str(path),
                advice="Rename it, such as to lower case and dashes.",
            )
        spec = load_pipeline(path)
        _require_complete(path, spec)
        require_measured(path, spec)
        if (other := places.setdefault(spec.pipeline, path.name)) != path.name:
            # They would carry on each other's runs, and share what was decided and asked for.
            raise ConfigError(
                f"the pipeline is called {spec.pipeline}, as that of {other} is.",
                where=str(path),
                advice="Give each file a name of its own under `pipeline:`.",
            )
        if name in pipelines:
            raise ConfigError(
                f"another file is called {name}, too.", where=str(path), advice="Rename one: deployments have its name."
            )
        # A deployed run looks for the file by this name, as a command does.
        find_pipeline_file(name, folder)
        pipelines[name] = spec
    return pipelines


def _require_complete(path: Path, spec: PipelineSpec) -> None:
    """What the pipeline file names comes along, or each of its runs would fail.

    Raises:
        ConfigError: its contract, the contract's suite, its recipe or its encoder is not there, or cannot be read.
    """
    try:
        check_contract(spec, path, is_resume=True)
        check_recipe(spec.training.recipe.name, spec.training.recipe.model, (str(path.parent),))
        if isinstance(encoder := spec.shards.encoder, CustomEncoderSpec):
            encoder_code(encoder, (str(path.parent),))
    except ConfigError as error:
        raise ConfigError(
            f"what it names is not all there, or cannot be read: {error.where}: {error.what}",
            where=str(path),
            advice=f"{error.advice} A worker reads the contract, its suite, recipe and encoder beside the pipeline "
            "file, where this one looks for them.".strip(),
        ) from error


def _form(flow: Any) -> Json:
    return flow.parameters.model_dump_for_openapi()


def of_another_folder(wanted: DesiredState, found: Sequence[ExistingResource]) -> str:
    """That what is there came from another folder, and may be another project's of this name; empty otherwise."""
    of_others: dict[str, list[str]] = {}
    for each in found:
        variables = each.fields.get("job_variables")
        env = variables.get("env") if isinstance(variables, dict) else None
        folder = env.get("HEADWAY_PROJECT") if isinstance(env, dict) else None
        if each.ours and folder and folder != wanted.project_folder:
            of_others.setdefault(str(folder), []).append(each.name)
    if not of_others:
        return ""
    named = "; ".join(f"from {folder}: {', '.join(sorted(names))}" for folder, names in sorted(of_others.items()))
    return (
        f"PROJECT {wanted.project!r} HAS DEPLOYMENTS FROM ANOTHER FOLDER on this server ({named}). They are changed to "
        f"{wanted.project_folder}, and removed where no file of it asks for them. If another project is called so, "
        "give one of the two another `project:` in deployments/profiles.yaml first."
    )


def silence(wanted: DesiredState, resources: Sequence[Resource]) -> str:
    """That alerts reach nobody, and what to do about it; empty where they reach somebody."""
    silent = [each for each in resources if notifies_nobody(each)]
    if not silent or wanted.profile.notify == NOBODY:
        return ""
    return (
        f"nobody is told of failures and missed windows: the profile {wanted.profile_name} names no `notify`, and "
        f"{len(silent)} alerts show on the server's pages alone. Make a notification block (`prefect block create "
        "slack-webhook` prints the page for it; `prefect block type ls` lists other kinds), and give the profile "
        "`notify: slack-webhook/NAME` in deployments/profiles.yaml; `notify: none` if that is meant."
    )


def _print(report: DeployReport, console: Console, silent: Collection[str]) -> None:
    for warning in report.warnings:
        console.print(Text(f"warning: {one_line(warning)}"))
    console.print(headed(f"{report.project} {report.profile}", f" on {report.server}"))
    if report.changes:
        print_table(console, _table(report.changes, silent))
    rest = f"{report.num_unchanged} as they should be"
    if refused := sum(change.action == "refuse" for change in report.changes):
        console.print(f"{refused} refused, so that nothing is done; {rest}")
    elif report.num_steps:
        console.print(f"{report.num_steps} to do, {rest}{'; nothing was done' if report.dry_run else ''}")
    else:
        console.print(f"nothing to do, {rest}")


def _table(changes: list[ResourceChange], silent: Collection[str]) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False)
    for change in changes:
        shown = [f"{each.field}: {' → '.join(in_short(each.before, each.after))}" for each in change.fields]
        if change.kind == "automation" and change.wanted is not None and change.name in silent:
            shown.append("tells nobody: no `notify`")
        shown_lines = "\n".join(map(one_line, shown or [change.why]))
        table.add_row(change.action, change.kind, change.name, Text(shown_lines))
    return table


def in_short(before: Json, after: Json) -> tuple[str, str]:
    """Both, and of long ones from a little before where they begin to differ."""
    texts = [" ".join(str(value).split()) for value in (before, after)]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    begin = max(0, same - MAX_SHOWN_CHARS // 3) if max(map(len, texts)) > MAX_SHOWN_CHARS else 0
    shown = (f"…{text[begin + 1 :]}" if begin else text for text in texts)
    left, right = (text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…" for text in shown)
    return left, right
