"""The checks of `headway ci`, one after another: contract, configuration, code, stages, smoke, proof, full, quality."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from data_contracts.documents import EvaluationReport, Link, Registration
from data_contracts.errors import ConfigError, ContractViolation
from data_contracts.publication import Workspace
from data_contracts.report_text import count
from data_contracts.strict_yaml import parse_yaml, read_text
from flows.ci.anew import compare_stages
from flows.ci.base import Base, read_base
from flows.ci.child import Answer, headway
from flows.ci.results import Checklist, CheckName, NotJudged, Said
from flows.ci.smoke import Smoke, make_smoke
from flows.contract_diff import compare_files, verdict
from flows.environment import project_folder
from flows.first_step import check_encodes, check_first_step
from flows.pipeline_spec import PipelineSpec, find_pipeline_file, load_pipeline
from flows.plan import make_plan
from flows.preflight import check_contract, check_encoder, check_tracking_uri
from flows.request import RetrainRequest
from training.recipes.check import check_recipe

READY: tuple[CheckName, ...] = ("config", "recipe", "encoder")
"""What must have passed before anything is trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    pipeline: str
    base: str = ""
    """A git ref; empty: nothing is compared."""
    workspace: str = ""
    """Where `full` runs and `stages` looks; empty: the usual one for `full`, and none for `stages`."""
    smoke: bool = True
    full: bool = False
    register: bool = False
    """The full run's model, as a version and challenger."""


class Checks:
    """What the checks find out for one another.

    Args:
        workspace: of a full run, and of what is looked up.
        hear: events of the retrains.
    """

    def __init__(self, asked: Asked, workspace: str, hear: Callable[[Answer], object]) -> None:
        self._asked, self._workspace, self._hear = asked, workspace, hear
        self._scratch = Path()
        self._file: Path | None = None
        self._pipeline: PipelineSpec | None = None
        self._base: Base | None = None
        self._smoke: Smoke | None = None
        self._made: Answer = {}
        self._encodes = False

    @property
    def base_commit(self) -> str:
        return "" if self._base is None else self._base.commit

    def make(self, checklist: Checklist, scratch: Path) -> None:
        """Make all checks that were asked for; a failed one stops only those that stand on it.

        Args:
            scratch: an existing folder; the caller removes it.
        """
        asked, self._scratch = self._asked, scratch
        checklist.run("contract", self._contract)
        checklist.run("config", self._config)
        self._encodes = checklist.run("encoder", self._encoder, needs=("config",))  # first: the recipe reads its rows
        checklist.run("recipe", self._recipe, needs=("config",))
        checklist.run("stages", self._stages, needs=READY)
        if asked.smoke:
            checklist.run("smoke", self._retrain_a_little, needs=READY)
            checklist.run("verify", self._verify, needs=("smoke",))
        if asked.full:
            checklist.run("full", self._retrain, needs=(*READY, *(("smoke", "verify") if asked.smoke else ())))
            checklist.run("quality", self._quality, needs=("full",))
        checklist.skip_rest("not asked for")

    def _contract(self) -> Said:
        if not self._asked.base:
            raise NotJudged("no --base to compare with")
        file = self._find()
        self._base = base = read_base(self._asked.base, file.parent, self._scratch)
        now, then = _contract_of(file), _contract_of(base.path(file))
        if now is None:
            raise NotJudged("the pipeline file names no contract; see config")
        if then is None or not then.is_file():
            raise NotJudged(f"{base.said} has no contract of this pipeline")
        try:
            compare_files(then, then)
        except ConfigError as error:
            raise NotJudged(f"the contract of {base.said} cannot be read: {error}") from error
        compared = compare_files(then, now)
        details = tuple(f"{change.effect}  {change.where}  {change.sentence}" for change in compared.changes)
        said = f"{compared.old.version} to {compared.new.version}, against {base.said}: {verdict(compared).plain}"
        return Said(said, details, None if compared.is_announced else ContractViolation(said))

    def _config(self) -> Said:
        file = self._find()
        self._pipeline = pipeline = load_pipeline(file)
        contract = check_contract(pipeline, file)
        check_tracking_uri(pipeline.registry.tracking_uri)
        ranks = pipeline.launch.nodes * pipeline.launch.ranks_per_node
        parallel = pipeline.training.parallel
        return Said(f"{file.name}, {contract.name} {contract.version}, {count(ranks, 'rank')} in mode {parallel.mode}")

    def _recipe(self) -> Said:
        file, pipeline = self._loaded()
        recipe = pipeline.training.recipe
        check_recipe(recipe.name, recipe.model, (str(file.parent),))
        untried = "see encoder"
        if self._encodes:
            untried = check_first_step(pipeline, file, check_contract(pipeline, file), workspace=None)
        return Said(recipe.name, (f"not tried on made-up rows: {untried}",) if untried else ())

    def _encoder(self) -> Said:
        file, pipeline = self._loaded()
        check_encoder(pipeline, file)
        untried = check_encodes(pipeline, file, check_contract(pipeline, file))
        details = (f"not tried on made-up rows: {untried}",) if untried else ()
        return Said(getattr(pipeline.shards.encoder, "name", pipeline.shards.encoder.kind), details)

    def _stages(self) -> Said:
        details: list[str] = []
        if self._asked.workspace:
            plan = make_plan(RetrainRequest(pipeline=self._asked.pipeline, workspace=self._workspace))
            states = ", ".join(f"{stage.stage} {stage.state}" for stage in plan.stages)
            details.append(f"today in {plan.workspace}: {states}")
        if self._base is None:
            if not details:
                raise NotJudged("no base to compare with, and no --workspace to look into")
            return Said("not compared: no base", tuple(details))
        file, pipeline = self._loaded()
        if not self._base.path(file).is_file():
            return Said(f"a pipeline that {self._base.said} does not have: every stage runs", tuple(details))
        try:
            compared = compare_stages(self._base, file, pipeline)
        except ConfigError as error:
            return Said("not compared: the base's own files are refused", (*details, str(error)))
        anew = [stage.stage for stage in compared.stages if stage.runs_anew]
        said = f"{', '.join(anew)} run anew" if anew else "no stage runs anew"
        return Said(said, (*map(str, compared.stages), *compared.notes, *details))

    def _retrain_a_little(self) -> Said:
        file, pipeline = self._loaded()
        self._smoke = smoke = make_smoke(pipeline, file, self._scratch)
        self._made = made = smoke.retrain(self._hear)
        figure = f"{made['metric']} {made['value']:.4f}, which decides nothing"
        return Said(
            f"{count(smoke.project.steps, 'step')} on {smoke.project.subset.said}; {figure}", smoke.project.left_out
        )

    def _verify(self) -> Said:
        assert self._smoke is not None
        proof = self._smoke.verify(f"models:/{self._made['model']}/{self._made['version']}")
        return Said(f"{proof['verdict']}: {len(proof['links'])} links of the smoke's model")

    def _retrain(self) -> Said:
        quietly = "--no-promote" if self._asked.register else "--no-register"
        arguments = ("retrain", self._asked.pipeline, "--workspace", self._workspace, quietly, "--json")
        self._made = made = headway(*arguments, "--note", "headway ci", hear=self._hear)
        figures = f"{made['metric']} {made['value']:.4f} [{made['low']:.4f}, {made['high']:.4f}]"
        stages = ", ".join(made["stages_made"]) or "nothing"
        named = f"version {made['version']}" if made["version"] else "not registered"
        return Said(f"{made['model']}, {named}: {figures}; made {stages}")

    def _quality(self) -> Said:
        from flows.ci.gate import judge_quality  # MLflow takes seconds to import

        _, pipeline = self._loaded()
        registration = Link(kind=Registration.kind, sha256=self._made["registration"])
        evaluation = Link(kind=EvaluationReport.kind, sha256=self._made["evaluation"])
        return judge_quality(Workspace(self._workspace), pipeline.promotion, registration, evaluation)

    def _find(self) -> Path:
        if self._file is None:
            self._file = find_pipeline_file(self._asked.pipeline, project_folder())
        return self._file

    def _loaded(self) -> tuple[Path, PipelineSpec]:
        return self._find(), cast(PipelineSpec, self._pipeline)


def _contract_of(file: Path) -> Path | None:
    """The contract that a pipeline file names, whatever else is wrong with that file."""
    try:
        content = parse_yaml(read_text(file), str(file))
    except (OSError, ValueError, ConfigError):
        return None
    name = content.get("contract") if isinstance(content, dict) else None
    return file.parent / name if isinstance(name, str) else None
