"""A pipeline file says everything about one model. Each layer owns its branch; here they are joined."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from data_contracts.documents import Frozen
from data_contracts.errors import ConfigError
from data_contracts.sources import SourceSpec
from data_contracts.strict_yaml import parse_yaml_model, read_text
from flows.triggers.spec import TriggersSpec
from flows.windows.spec import WindowsSpec
from tasks.evaluate import EvaluationSpec
from tasks.promotion_spec import PromotionSpec
from tasks.register import RegistrySpec
from tasks.trials_spec import TrialsSpec
from training.config import TrainingSpec
from training.data.spec import ShardSpec
from training.launch.spec import LaunchSpec
from training.parallel.check import require_trainable
from training.recipes.check import own_methods

NAME_PATTERN = r"^[a-z0-9][a-z0-9-]*$"


class PipelineSpec(Frozen):
    pipeline: str = Field(pattern=NAME_PATTERN, description="Name of the pipeline: lower case and dashes.")
    source: SourceSpec = Field(description="Where the data lie.")
    contract: str = Field(description="The data contract's file, relative to this file.")
    shards: ShardSpec = Field(default_factory=ShardSpec, description="How files become shards.")
    training: TrainingSpec = Field(default_factory=TrainingSpec, description="What is trained, and how.")
    launch: LaunchSpec = Field(default_factory=LaunchSpec, description="Where it runs; changes no bit of the model.")
    evaluation: EvaluationSpec = Field(default_factory=EvaluationSpec, description="How it is judged.")
    promotion: PromotionSpec = Field(default_factory=PromotionSpec, description="What it takes to become champion.")
    registry: RegistrySpec = Field(description="Where it is registered.")
    trials: TrialsSpec | None = Field(default=None, description="What `headway trials` tries out; empty: nothing.")
    occupies: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")], Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict,
        description="What its ranks occupy, such as `{gpus: 4}`, of the `limits` of the profile it is deployed by.",
    )
    windows: WindowsSpec | None = Field(default=None, description="When scheduled retrains may train; empty: always.")
    triggers: TriggersSpec | None = Field(default=None, description="What else makes a retrain due; empty: nothing.")

    @property
    def priority(self) -> int:
        """Among those who wait for the same devices."""
        return 0 if self.windows is None else self.windows.priority

    @model_validator(mode="after")
    def _cuts_out_its_shadow(self) -> Self:
        named = "" if self.promotion.shadow is None else self.promotion.shadow.slice
        if " = " in named and not any(named.startswith(by.prefix) for by in self.evaluation.slices):
            raise ValueError(
                f"promotion.shadow.slice names {named!r}, and evaluation.slices does not cut by "
                f"{named.partition(' = ')[0]!r}: no report would have it"
            )
        return self


NO_PIPELINES = ("prefect.yaml", "profiles.yaml")
"""In `deployments/`, beside the pipeline files."""


OF_A_CONTRACT, OF_A_PIPELINE = ".contract.yaml", ".pipeline.yaml"
"""As `headway contract init` calls what it drafts, which may lie there as it is."""


def pipeline_files(folder: Path) -> list[Path]:
    """Those of a project, by name."""
    found = sorted((folder / "deployments").glob("*.yaml"))
    return [path for path in found if path.name not in NO_PIPELINES and not path.name.endswith(OF_A_CONTRACT)]


def pipeline_name(path: Path) -> str:
    """By which people and deployments call a file of `deployments/`."""
    return path.name.removesuffix(OF_A_PIPELINE).removesuffix(".yaml")


def find_pipeline_file(name: str, folder: Path) -> Path:
    """A path to a pipeline file, or the bare name of one in `deployments/`.

    Raises:
        ConfigError: no such file, or it may not be looked at; names what there is.
    """
    deployments = folder / "deployments"
    for candidate in (folder / name, deployments / f"{name}.yaml", deployments / f"{name}{OF_A_PIPELINE}"):
        try:
            if candidate.is_file():
                return candidate.resolve()
        except OSError as error:  # no right to its folder, or a name that is too long
            raise ConfigError("the pipeline file cannot be read.", where=str(candidate), advice=str(error)) from error
    known = [pipeline_name(path) for path in pipeline_files(folder)]
    raise ConfigError(
        "no such pipeline file.",
        where=str(folder / name),
        advice=f"Give the path of one, or a name in deployments/: {', '.join(known) or 'there is none here'}. "
        "They are looked for in HEADWAY_PROJECT, or the current folder.",
    )


def load_pipeline(path: Path) -> PipelineSpec:
    """Read and check a pipeline file, before anything is spent.

    Raises:
        ConfigError: unreadable, malformed, an unknown key (the nearest one is named), or impossible arithmetic.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the pipeline file cannot be read.", where=str(path), advice=str(error)) from error
    spec = parse_yaml_model(PipelineSpec, text, where=str(path))
    world_size = spec.launch.nodes * spec.launch.ranks_per_node
    methods = own_methods(spec.training.recipe.name, (str(path.parent),))
    try:
        require_trainable(spec.training, spec.shards.encoder, world_size, methods)
    except ConfigError as error:
        # `headway deploy` reads many files.
        raise ConfigError(error.what, where=f"{path}: {error.where}", advice=error.advice) from error
    if not (path.parent / spec.contract).is_file():
        raise ConfigError(
            "the contract's file does not exist.",
            where=f"{path}: contract",
            advice=f"Looked for {(path.parent / spec.contract).resolve()}.",
        )
    if spec.trials is not None:
        _check_trials(spec, spec.trials, path, world_size)
    return spec


def _check_trials(spec: PipelineSpec, trials: TrialsSpec, path: Path, world_size: int) -> None:
    where = f"{path}: "
    try:
        if not spec.evaluation.ranking_share:
            raise ConfigError(
                "trials are ranked on held-out examples that judge nothing else, and none are set apart.",
                where="evaluation.ranking_share",
                advice="Say which share, such as `evaluation: {ranking_share: 0.5}`.",
            )
        for trial in trials.trials(spec.training):
            where = f"{path}: {trial.name} ({trial}): "
            methods = own_methods(trial.training.recipe.name, (str(path.parent),))
            require_trainable(trial.training, spec.shards.encoder, world_size, methods)
    except ConfigError as error:
        raise ConfigError(error.what, where=f"{where}{error.where}", advice=error.advice) from error
