"""A pipeline file says everything about one model. Each layer owns its branch; here they are joined."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from headway.data_contracts.rules.contract import load_contract
from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store.credentials import credential_in_uri
from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.file_systems import CREDENTIALS
from headway.data_contracts.store.installation import HOME
from headway.data_contracts.store.places import real
from headway.data_contracts.types.strict_yaml import not_utf8, parse_yaml_model, read_text, refused_at, refused_values
from headway.flows.config.cost_bound import CostBoundSpec
from headway.flows.config.job_class import JobClass
from headway.flows.config.triggers import TriggersSpec
from headway.flows.config.windows import WindowsSpec
from headway.flows.console.pipeline_names import OF_A_PIPELINE, pipeline_files, pipeline_name
from headway.tasks.registry.promotion_spec import PromotionSpec
from headway.tasks.reports.figures import EvaluationSpec
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.trials_spec import TrialsSpec
from headway.tasks.stages.register import RegistrySpec
from headway.training.config.encoder_specs import CustomEncoderSpec, ImageEncoderSpec, TabularEncoderSpec
from headway.training.config.parallel import mesh_shape
from headway.training.config.shards import VALIDATION, ShardSpec
from headway.training.config.training_spec import TrainingSpec, splits_no_model
from headway.training.evaluation.measures import MetricSet, metric_set_of, validating_measure
from headway.training.frozen.mesh_check import require_trainable
from headway.training.frozen.recipe_check import own_methods
from headway.training.launch.base.gang import LaunchSpec

NAME_PATTERN = r"^[a-z0-9][a-z0-9-]*$"


class PipelineSpec(Frozen):
    pipeline: str = Field(pattern=NAME_PATTERN, description="Name of the pipeline: lower case and dashes.")
    source: SourceSpec = Field(description="Where the data lie.")
    contract: str = Field(description="The data contract's file, relative to this file.")
    shards: ShardSpec = Field(default_factory=ShardSpec, description="How files become shards.")
    training: TrainingSpec = Field(default_factory=TrainingSpec, description="What is trained, and how.")
    launch: LaunchSpec = Field(default_factory=LaunchSpec, description="Where it runs; changes no bit of the model.")
    evaluation: EvaluationSpec = Field(default_factory=EvaluationSpec, description="How it is evaluated.")
    promotion: PromotionSpec = Field(default_factory=PromotionSpec, description="What it takes to become champion.")
    registry: RegistrySpec = Field(description="Where it is registered.")
    trials: TrialsSpec | None = Field(default=None, description="What `headway trials` tries out; empty: nothing.")
    owner: str = Field(
        default="",
        max_length=100,
        pattern=r"^([A-Za-z0-9][A-Za-z0-9 ._@/-]*)?$",
        description="The team that hears of its alerts; empty: whoever hears of all of the workspace's.",
    )
    job_class: JobClass = Field(
        default="standard",
        description="How urgent its failures are, and which objectives it is held to; alerts are routed by it. Those "
        "of an `experiment` are tickets.",
    )
    occupies: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")], Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict,
        description="What its ranks occupy, such as `{gpus: 4}`, of the `limits` of the profile it is deployed by.",
    )
    cost_bound: CostBoundSpec | None = Field(
        default=None,
        description="What its retrains may cost. One that comes so far keeps a checkpoint and stops; empty: anything.",
    )
    windows: WindowsSpec | None = Field(default=None, description="When scheduled retrains may train; empty: always.")
    triggers: TriggersSpec | None = Field(default=None, description="What else makes a retrain due; empty: nothing.")

    @property
    def configuration(self) -> Configuration:
        """What trials vary settings of."""
        return Configuration(training=self.training, shards=self.shards)

    @property
    def priority(self) -> int:
        """Among those who wait for the same devices."""
        return 0 if self.windows is None else self.windows.priority

    @field_validator("source")
    @classmethod
    def _holds_no_secret(cls, source: SourceSpec) -> SourceSpec:
        # A task run in Prefect is named after the source before anybody looks there.
        if found := credential_in_uri(source.uri):
            raise ValueError(f"its uri must not hold credentials, and this one holds {found}. {CREDENTIALS}")
        return source

    @model_validator(mode="after")
    def _its_floors_are_of_its_figures(self) -> Self:
        if (metric_set := self._metric_set) is None:
            return self
        figures = [measure.name for measure in metric_set.measures]
        if foreign := sorted(set(self.promotion.floors) - set(figures)):
            raise refused_at(
                ("promotion", "floors", foreign[0]),
                f"promotion.floors names {', '.join(foreign)}, which no report of this pipeline has: its figures are "
                f"{', '.join(figures)}",
            )
        return self

    @property
    def _metric_set(self) -> MetricSet | None:
        """None where nobody knows yet: of a user's own encoder, until it is fitted, and without a label."""
        encoder = self.shards.encoder
        if isinstance(encoder, CustomEncoderSpec) or (isinstance(encoder, TabularEncoderSpec) and not encoder.label):
            return None
        return metric_set_of(encoder.model_dump(mode="json"))

    @model_validator(mode="after")
    def _is_validated_on_rows_apart(self) -> Self:
        validation, metric_set = self.training.validation, self._metric_set
        if (validation is not None) != (VALIDATION in self.shards.splits):
            if validation is not None:
                raise refused_at(
                    ("training", "validation"),
                    "training.validation needs rows: give shards.validation_fraction, or shards.split.validation",
                )
            raise refused_at(
                ("shards",),
                "shards keep rows from training for validation, and training.validation does not look at them: give "
                "it, such as {every_steps: 50}, or keep none",
            )
        if validation is not None and validation.has_two_paces:
            raise ValueError("training.validation: give every_s or every_steps; the one is settled as the other")
        if validation is not None and metric_set is not None:
            try:
                validating_measure(metric_set, validation.metric)
            except ConfigError as error:
                raise refused_at(("training", "validation", "metric"), error.what.rstrip(".")) from error
        return self

    @model_validator(mode="after")
    def _has_the_clients_of_a_round(self) -> Self:
        shards, sync = self.shards, self.training.sync
        if self.training.federated is None or sync is None or shards.group_by != "hash":
            return self  # files and folders are counted once they are listed
        if shards.num_groups < sync.islands:
            raise refused_at(
                ("training", "sync", "islands"),
                f"{sync.islands} clients are drawn for each round, and shards.num_groups makes {shards.num_groups} "
                "groups at most; raise it, or say shards.group_by: file or folder",
            )
        return self

    @model_validator(mode="after")
    def _folds_hold_rows_out(self) -> Self:
        if self.shards.fold is not None:
            raise refused_at(("shards", "fold"), "no pipeline file says which fold is held out: say evaluation.folds")
        if self.evaluation.folds is not None and (problem := self._against_folds):
            raise refused_at(("evaluation", "folds"), f"evaluation.folds cannot be: {problem}")
        return self

    @property
    def _against_folds(self) -> str:
        """Why there can be no cross-validation; empty: there can."""
        if not isinstance(self.shards.encoder, TabularEncoderSpec | ImageEncoderSpec):
            return "folds are of the rows of tables and pictures, and these data are others"
        if self.shards.split is not None:
            return "shards.split gives the rows that are held out. Take one of the two out"
        if self.training.start_from is not None:
            return "the model of training.start_from may have seen the rows of any fold. Take one of the two out"
        if self.trials is not None or self.evaluation.ranking_share:
            return "trials choose by rows that may evaluate no more, and folds have all rows evaluate. Search without"
        if self.training.order.mix:
            return "training.order.mix reads shards that hold no fold out. Take one of the two out"
        return ""

    @model_validator(mode="after")
    def _searches_in_its_windows(self) -> Self:
        if self.trials is not None and self.trials.every is not None and self.windows is None:
            raise refused_at(
                ("trials", "every"),
                "trials.every begins a search in the pipeline's windows, and it has none: say `windows`",
            )
        return self

    @model_validator(mode="after")
    def _cuts_out_its_shadow(self) -> Self:
        named = "" if self.promotion.shadow is None else self.promotion.shadow.slice
        if " = " in named and not any(named.startswith(by.prefix) for by in self.evaluation.slices):
            raise refused_at(
                ("promotion", "shadow", "slice"),
                f"promotion.shadow.slice names {named!r}, and evaluation.slices does not cut by "
                f"{named.partition(' = ')[0]!r}: no report would have it",
            )
        return self


SHIPPED = HOME / "headway"
"""Pipelines that come with Headway, which need no project."""


def find_pipeline_file(name: str, folder: Path) -> Path:
    """A path, or the bare name of a draft or of a file in `deployments/`; else of one that comes with Headway.

    Raises:
        ConfigError: no such file, two of that name, or it may not be looked at; names what there is.
    """
    deployments = folder / "deployments"
    drafted = folder / f"{name}{OF_A_PIPELINE}"
    deployed = (deployments / f"{name}.yaml", deployments / f"{name}{OF_A_PIPELINE}")
    for candidate in (folder / name, drafted, *deployed, SHIPPED / "deployments" / f"{name}.yaml"):
        try:
            if candidate.is_file():
                if candidate == drafted:
                    _require_only(drafted, deployed, name)
                return candidate.resolve()
        except OSError as error:  # no right to its folder, or a name that is too long
            raise _unreadable(candidate, error) from error
    drafts = sorted(folder.glob(f"*{OF_A_PIPELINE}"))
    known = [pipeline_name(path) for path in (*drafts, *pipeline_files(folder))]
    shipped = [pipeline_name(path) for path in pipeline_files(SHIPPED)]
    raise ConfigError(
        "no such pipeline file.",
        where=str(folder / name),
        advice=f"Give the path of one, or a name: {', '.join(known) or 'there is none here'}. "
        f"With Headway come {', '.join(shipped)}. Yours are looked for in HEADWAY_PROJECT, or the current folder.",
    )


def _require_only(drafted: Path, deployed: Sequence[Path], name: str) -> None:
    """A copy that stayed behind in the project's folder would be trained in place of what was deployed."""
    if (other := next((each for each in deployed if each.is_file()), None)) is not None:
        raise ConfigError(
            f"{other.parent.name}/{other.name} is called {name!r}, too.",
            where=str(drafted),
            advice="Remove the one that is not meant, or give the path of the other.",
        )


def in_file(error: ConfigError, path: Path) -> ConfigError:
    """The same of a pipeline file, by line where it is its recipe: `headway deploy` reads many files."""
    keys = error.where.split(".")
    if keys[0] != "recipe":
        return ConfigError(error.what, where=f"{path}: {error.where}", advice=error.advice)
    problem = " ".join(filter(None, (error.what, error.advice.strip())))
    return refused_values(path.read_text(encoding="utf-8"), [(("training", *keys), problem)], str(path))


def _refuse_contract(path: Path) -> None:
    try:
        load_contract(path)
    except ConfigError:
        return
    advice = "Give the pipeline file, whose `contract:` names it."
    raise ConfigError("is a contract, not a pipeline file.", where=str(path), advice=advice)


def load_pipeline(path: Path) -> PipelineSpec:
    """Read and check a pipeline file, before anything is spent.

    Raises:
        ConfigError: unreadable, malformed, an unknown key (the nearest one is named), or impossible arithmetic.
    """
    try:
        text = read_text(path)
    except UnicodeDecodeError as error:
        if b"\0" in error.object and not error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ConfigError("is not a text file.", where=str(path), advice="Give a pipeline file.") from error
        raise ConfigError(not_utf8(error), where=str(path), advice="Save it as UTF-8.") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        spec = parse_yaml_model(PipelineSpec, text, where=str(path))
    except ConfigError:
        # Both are YAML beside each other, and the errors of a contract read as a pipeline file help nobody.
        _refuse_contract(path)
        raise
    if spec.training.grows_trees and "nodes" not in spec.launch.model_fields_set:
        # The default is for networks, and who asks for trees should not have to know it.
        spec = spec.model_copy(update={"launch": spec.launch.model_copy(update={"nodes": 1})})
    world_size = spec.launch.world_size
    methods = own_methods(spec.training.recipe.name, (str(path.parent),))
    try:
        require_trainable(spec.training, spec.shards.encoder, world_size, methods)
        _refuse_unequal_shares(spec)
    except ConfigError as error:
        raise in_file(error, path) from error
    if not (path.parent / spec.contract).is_file():
        raise ConfigError(
            "the contract's file does not exist.",
            where=f"{path}: contract",
            advice=f"Looked for {real(path.parent / spec.contract)}.",
        )
    if spec.trials is not None:
        _check_trials(spec, spec.trials, path, world_size)
    return spec


def _refuse_unequal_shares(spec: PipelineSpec) -> None:
    """Where ranks run the passes of one model together, none can have more of a batch than another."""
    world_size = spec.launch.world_size
    asked = "stragglers" if spec.launch.stragglers == "rebalance" else "speeds" if spec.launch.speeds else None
    if asked is None or spec.training.grows_trees:
        return
    shape = mesh_shape(spec.training.parallel, world_size)
    if not splits_no_model(shape, world_size):
        raise ConfigError(
            f"ranks that split a model ({shape}) have equal shares of each batch.",
            where=f"launch.{asked}",
            advice="Leave it out, or say parallel: {shard: 1} without pipeline and tensor.",
        )


def _check_trials(spec: PipelineSpec, trials: TrialsSpec, path: Path, world_size: int) -> None:
    where = f"{path}: "
    try:
        if not spec.evaluation.ranking_share:
            raise ConfigError(
                "trials are ranked on held-out examples of their own, and none are reserved.",
                where="evaluation.ranking_share",
                advice="Say which share, such as `evaluation: {ranking_share: 0.5}`.",
            )
        for trial in trials.drawn(spec.configuration):
            where = f"{path}: {trial.name} ({trial}): "
            methods = own_methods(trial.training.recipe.name, (str(path.parent),))
            require_trainable(trial.training, trial.shards.encoder, world_size, methods)
    except ConfigError as error:
        raise ConfigError(error.what, where=f"{where}{error.where}", advice=error.advice) from error


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the pipeline file cannot be read ({error.strerror}).",
        where=str(path),
        advice="Give who runs this the right to read it and its folder.",
    )
