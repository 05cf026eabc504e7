"""The checks of `headway ci`, one after another: contract, configuration, code, stages, smoke, trials, quality."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import EvaluationReport, Link, Registration
from headway.data_contracts.store.errors import ConfigError, ContractViolation, PromotionRefused
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.suites.contract_file import using_contract_files
from headway.data_contracts.types.report_text import count
from headway.data_contracts.types.strict_yaml import parse_yaml, read_text
from headway.flows.act.contract_diff import compare_files, verdict
from headway.flows.ci.base import Base, read_base
from headway.flows.ci.child import JsonDocument, headway
from headway.flows.ci.invalidated_stages import compare_stages, is_recipe_beside
from headway.flows.ci.results import Checklist, CheckMessage, CheckName, NotEvaluated
from headway.flows.config.first_step import check_encodes, check_first_step
from headway.flows.config.pipeline_file import named_pipeline, same_named, shared_name
from headway.flows.config.pipeline_spec import PipelineSpec, find_pipeline_file, load_pipeline
from headway.flows.config.preflight import check_contract, check_encoder, check_pipeline_recipe, check_tracking_uri
from headway.flows.config.request import CONTINUED_BY, RetrainRequest
from headway.flows.console.commands import command_name, workspace_option
from headway.flows.console.environment import project_folder
from headway.flows.rehearse.project import TEAMS_OWN, SmallProject, make_small_project
from headway.flows.show.plan import make_plan
from headway.flows.trials.wanted import require_comparable
from headway.tasks.registry.promotion_spec import PromotionSpec
from headway.tasks.search.values import shown

READY: tuple[CheckName, ...] = ("config", "recipe", "encoder")
"""What must have passed before anything is trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CiRequest:
    pipeline: str
    base: str = ""
    """A git ref; empty: nothing is compared."""
    workspace: str = ""
    """Where `full` and `trials` run and `stages` looks; empty: the usual one for them, and none for `stages`."""
    smoke: bool = True
    full: bool = False
    trials: int = 0
    """Seeds by which the change's settings are held against the base's; 0: they are not."""
    register: bool = False
    """The full run's model, as a version and challenger."""

    def command(self, workspace: str) -> str:
        """What a person types to have settings compared once more."""
        words = (command_name(), "ci", self.pipeline, "--base", self.base, "--trials", str(self.trials))
        return f"{shlex.join(words)}{workspace_option(workspace)}"


class Checks:
    """What the checks find out for one another.

    Args:
        workspace: of a full run, and of what is looked up.
        on_event: events of the retrains.
    """

    def __init__(self, request: CiRequest, workspace: str, on_event: Callable[[JsonDocument], object]) -> None:
        self._request, self._workspace, self._on_event = request, workspace, on_event
        self._scratch = Path()
        self._file: Path | None = None
        self._pipeline: PipelineSpec | None = None
        self._base: Base | None = None
        self._before: Path | None = None
        """The pipeline's file at the base."""
        self._smoke: Smoke | None = None
        self._retrain_result: JsonDocument = {}
        self._encodes = False

    @property
    def base_commit(self) -> str:
        return "" if self._base is None else self._base.commit

    @using_contract_files()
    def make(self, checklist: Checklist, scratch: Path) -> None:
        """Make all checks that were asked for; a failed one stops only those that stand on it.

        Args:
            scratch: an existing folder; the caller removes it.
        """
        request, self._scratch = self._request, scratch
        checklist.run("contract", self._contract)
        checklist.run("config", self._config)
        self._encodes = checklist.run("encoder", self._encoder, needs=("config",))  # first: the recipe reads its rows
        checklist.run("recipe", self._recipe, needs=("config",))
        checklist.run("stages", self._stages, needs=READY)
        if request.smoke:
            checklist.run("smoke", self._retrain_a_little, needs=READY)
            checklist.run("verify", self._verify, needs=("smoke",))
        passed_smoke: tuple[CheckName, ...] = ("smoke", "verify") if request.smoke else ()
        if request.trials:
            checklist.run("trials", self._compare_settings, needs=(*READY, *passed_smoke))
        if request.full:
            checklist.run("full", self._retrain, needs=(*READY, *passed_smoke))
            checklist.run("quality", self._quality, needs=("full",))
        checklist.skip_rest("not asked for")

    def _contract(self) -> CheckMessage:
        if not self._request.base:
            raise NotEvaluated("no --base to compare with")
        file = self._find()
        self._base = base = read_base(self._request.base, file.parent, self._scratch)
        self._before = before = base.pipeline_file(file, named_pipeline(file) or "")
        now = _contract_of(file)
        if now is None:
            raise NotEvaluated("the pipeline file names no contract; see config")
        # A contract that the base has is held against itself, also by a pipeline that is new.
        then = base.path(now) if before is None else _contract_of(before)
        if then is None or not then.is_file():
            raise NotEvaluated(f"{base.message} has no contract of this pipeline")
        try:
            # Read by itself first: a contract that was broken before is no fault of this change.
            compare_files(then, then)
        except ConfigError as error:
            raise NotEvaluated(f"the contract of {base.message} cannot be read: {error}") from error
        compared = compare_files(then, now)
        details = tuple(f"{change.effect}  {change.where}  {change.sentence}" for change in compared.changes)
        message = f"{compared.old.version} to {compared.new.version}, against {base.message}: {verdict(compared).plain}"
        return CheckMessage(message, details, None if compared.is_announced else ContractViolation(message))

    def _config(self) -> CheckMessage:
        file = self._find()
        self._pipeline = pipeline = load_pipeline(file)
        # As a deployment would refuse it.
        if others := same_named(file, pipeline.pipeline, project_folder()):
            raise shared_name(file, pipeline.pipeline, others)
        contract = check_contract(pipeline, file)
        check_tracking_uri(pipeline.registry.tracking_uri)
        ranks = pipeline.launch.world_size
        parallel = pipeline.training.parallel
        return CheckMessage(
            f"{file.name}, {contract.name} {contract.version}, {count(ranks, 'rank')} in mode {parallel.mode}"
        )

    def _recipe(self) -> CheckMessage:
        file, pipeline = self._loaded()
        recipe = pipeline.training.recipe
        check_pipeline_recipe(pipeline, file)
        untried = "see encoder"
        if self._encodes:
            contract = check_contract(pipeline, file)
            untried = check_first_step(pipeline, file, contract, workspace=None, trains_here=False)
        return CheckMessage(recipe.name, (f"not tried on made-up rows: {untried}",) if untried else ())

    def _encoder(self) -> CheckMessage:
        file, pipeline = self._loaded()
        check_encoder(pipeline, file)
        untried = check_encodes(pipeline, file, check_contract(pipeline, file))
        details = (f"not tried on made-up rows: {untried}",) if untried else ()
        return CheckMessage(getattr(pipeline.shards.encoder, "name", pipeline.shards.encoder.kind), details)

    def _stages(self) -> CheckMessage:
        details: list[str] = []
        if self._request.workspace:
            request = RetrainRequest(pipeline=self._request.pipeline, workspace=self._workspace)
            plan = make_plan(request, trains_here=False)
            states = ", ".join(f"{stage.stage} {stage.state}" for stage in plan.stages)
            details.append(f"today in {plan.workspace}: {states}")
        if self._base is None:
            if not details:
                raise NotEvaluated("no base to compare with, and no --workspace to look into")
            return CheckMessage("not compared: no base", tuple(details))
        file, pipeline = self._loaded()
        if self._before is None:
            return CheckMessage(f"a pipeline that {self._base.message} does not have: every stage runs", tuple(details))
        try:
            compared = compare_stages(self._base, self._before, file, pipeline)
        except ConfigError as error:
            return CheckMessage("not compared: the base's own files are refused", (*details, str(error)))
        invalidated = [stage.stage for stage in compared.stages if stage.is_invalidated]
        message = f"{', '.join(invalidated)} run anew" if invalidated else "no stage runs anew"
        return CheckMessage(message, (*map(str, compared.stages), *compared.notes, *details))

    def _retrain_a_little(self) -> CheckMessage:
        file, pipeline = self._loaded()
        self._smoke = smoke = make_smoke(pipeline, file, self._scratch)
        self._retrain_result = made = smoke.retrain(self._on_event)
        figure = f"{made['metric']} {made['value']:.4f}, which decides nothing"
        return CheckMessage(
            f"{count(smoke.project.steps, 'step')} on {smoke.project.subset.message}; {figure}", smoke.project.excluded
        )

    def _verify(self) -> CheckMessage:
        assert self._smoke is not None
        proof = self._smoke.verify(f"models:/{self._retrain_result['model']}/{self._retrain_result['version']}")
        return CheckMessage(f"{proof['verdict']}: {len(proof['links'])} links of the smoke's model")

    def _compare_settings(self) -> CheckMessage:
        """Training as the change has it beside training as the base has it: the same seeds, rows and examples."""
        if self._base is None:
            raise NotEvaluated("no --base to compare with")
        if self._before is None:
            raise NotEvaluated(f"a pipeline that {self._base.message} does not have")
        _, pipeline = self._loaded()
        try:
            before = load_pipeline(self._before)
            require_comparable(pipeline, before, self._before)
        except ConfigError as error:
            raise NotEvaluated(f"not comparable with {self._base.message}: {error.what}") from error
        if not is_recipe_beside(self._base, self._before, before):
            raise NotEvaluated(
                "the base's recipe is not beside its pipeline file, so the change's would be taken for it"
            )
        arguments = ("--against", str(self._before), "--seeds", str(self._request.trials))
        workspace = ("--workspace", self._workspace, "--json", "--note", "headway ci")
        # The base's file goes with this command, which so is what continues the runs of both.
        environment = {**os.environ, CONTINUED_BY: self._request.command(self._workspace)}
        made = headway(
            *("trials", self._request.pipeline, *arguments, *workspace),
            environment=environment,
            on_event=self._on_event,
        )
        sides = () if made["is_same"] else (("the change", made["this"]), ("the base", made["other"]))
        details = tuple(f"{name}: {_settings(side)}; {_by_seed(side)}" for name, side in sides)
        message = f"{made['verdict']} (this is the change, the other {self._base.message})"
        return CheckMessage(message, details, PromotionRefused(message) if made["outcome"] == "worse" else None)

    def _retrain(self) -> CheckMessage:
        quietly = "--no-promote" if self._request.register else "--no-register"
        arguments = ("retrain", self._request.pipeline, "--workspace", self._workspace, quietly, "--json")
        self._retrain_result = made = headway(*arguments, "--note", "headway ci", on_event=self._on_event)
        figures = f"{made['metric']} {made['value']:.4f} [{made['low']:.4f}, {made['high']:.4f}]"
        stages = ", ".join(made["stages_run"]) or "nothing"
        named = f"version {made['version']}" if made["version"] else "not registered"
        return CheckMessage(f"{made['model']}, {named}: {figures}; made {stages}")

    def _quality(self) -> CheckMessage:
        _, pipeline = self._loaded()
        registration = Link(kind=Registration.kind, sha256=self._retrain_result["registration"])
        evaluation = Link(kind=EvaluationReport.kind, sha256=self._retrain_result["evaluation"])
        return evaluate_quality(Workspace(self._workspace), pipeline.promotion, registration, evaluation)

    def _find(self) -> Path:
        if self._file is None:
            self._file = find_pipeline_file(self._request.pipeline, project_folder())
        return self._file

    def _loaded(self) -> tuple[Path, PipelineSpec]:
        return self._find(), cast(PipelineSpec, self._pipeline)


def _settings(side: JsonDocument) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in side["settings"].items()) or "settings as the other's"


def _by_seed(side: JsonDocument) -> str:
    values = side["values"].items()
    return ", ".join(f"seed {seed} {'failed' if value is None else format(value, '.4f')}" for seed, value in values)


def _contract_of(file: Path) -> Path | None:
    """The contract that a pipeline file names, whatever else is wrong with that file."""
    try:
        content = parse_yaml(read_text(file), str(file))
    except (OSError, ValueError, ConfigError):
        return None
    name = content.get("contract") if isinstance(content, dict) else None
    return file.parent / name if isinstance(name, str) else None


def evaluate_quality(workspace: Workspace, policy: PromotionSpec, registration: Link, evaluation: Link) -> CheckMessage:
    """The model-quality gate: would it become champion today? Nothing is written.

    Args:
        registration: of a model that need not have a version.
        evaluation: the report that the run evaluated it by.

    Raises:
        IntegrityError: a document that it stands on is gone or damaged.
    """
    from headway.tasks.registry import model_refs
    from headway.tasks.registry.champion import decide_promotion  # MLflow takes seconds to import

    model = workspace.load(registration, Registration).model
    now = refs.current(workspace, model_refs.alias_ref(model, "champion"))
    if now is not None and now.target == registration:
        return CheckMessage("the run's model is today's champion: nothing changed for it")
    decision = decide_promotion(workspace, policy, registration, evaluation, now)
    details = tuple(f"{check.name}: {check.status}, {check.detail}" for check in decision.checks)
    refused = PromotionRefused(decision.reason, advice=decision.remedy) if decision.failed else None
    return CheckMessage(decision.reason, details, refused)


@dataclass(frozen=True, kw_only=True, slots=True)
class Smoke:
    """A small project and its workspace, in a folder that somebody removes: a few steps of the real flow.

    Nothing of it reaches a registry, a workspace or a Prefect server of the team's.
    """

    project: SmallProject
    workspace: Path

    def retrain(self, on_event: Callable[[JsonDocument], object]) -> JsonDocument:
        """Returns the summary. Raises `HeadwayError`: the retrain's own."""

        def without_card(event: JsonDocument) -> None:
            # It names files and commands of this workspace, which goes; its cause is the check's own reason.
            if event.get("event") != "flow.card":
                on_event(event)

        try:
            return self._headway("retrain", str(self.project.file), on_event=without_card)
        except ContractViolation as error:
            what, report, _ = str(error).partition(f" Read {self.workspace}")
            if not report:
                raise
            raise ContractViolation(what, advice="`headway contract check --report FILE` writes a report.") from error

    def verify(self, model_uri: str) -> JsonDocument:
        """Returns what was proved. Raises `IntegrityError`: a link of the proof is broken."""
        return self._headway("verify", model_uri)

    def _headway(self, *arguments: str, on_event: Callable[[JsonDocument], object] | None = None) -> JsonDocument:
        environment = {name: value for name, value in os.environ.items() if name not in TEAMS_OWN}
        workspace = ("--workspace", str(self.workspace), "--json")
        return headway(*arguments, *workspace, environment=environment, on_event=on_event)


def make_smoke(pipeline: PipelineSpec, file: Path, scratch: Path) -> Smoke:
    """As `make_small_project`."""
    return Smoke(project=make_small_project(pipeline, file, scratch), workspace=scratch / "workspace")
