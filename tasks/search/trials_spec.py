"""Which trials a pipeline file asks for: a grid, draws that a seed decides, or what a sampler proposes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.tasks.search.branches import paths_in
from headway.tasks.search.budget import BudgetSpec
from headway.tasks.search.configuration import VARY as WHERE
from headway.tasks.search.configuration import Configuration, is_of_shards, require_setting
from headway.tasks.search.rungs import GeometricRungs, levels, planned_steps, require_at_rungs
from headway.tasks.search.space import Space, Varied
from headway.tasks.search.values import Choices, Scalar, Settings, shown
from headway.training.config.encoder_specs import ImageEncoderSpec, TabularEncoderSpec
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import TrainingSpec

LENGTHS = ("max_steps", "max_epochs", "recipe.model.iterations")
OF_EPOCHS = ("global_batch_sequences",)
"""What decides the length besides, where passes over rows are asked for."""
MAX_SETTINGS = 100
DECIDES_NOTHING = frozenset({"max_parallel", "min_starts", "budget", "every"})
"""Of a search's settings: with others it is the same search, which goes on."""
Method = Literal["grid", "random", "tpe", "gp"]
Settle = Callable[[Configuration], Configuration]
"""What is tried of a trial's settings once rows are counted; raises `ConfigError` where that cannot be trained."""


def as_it_is(configuration: Configuration) -> Configuration:
    """A `Settle` for those who count no rows."""
    return configuration


LEARNING = ("tpe", "gp")
"""They propose settings by what earlier ones came to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Settings of training and of shards, to be a run of its own."""

    number: int
    """From 1, in the order in which they are trained."""
    settings: Settings
    training: TrainingSpec
    shards: ShardSpec
    seed: int | None = None
    """Of one that is trained once more; None: the pipeline file's."""

    @property
    def configuration(self) -> Configuration:
        return Configuration(training=self.training, shards=self.shards)

    @property
    def label(self) -> str:
        return str(self.number) if self.seed is None else f"{self.number}, seed {self.seed}"

    @property
    def name(self) -> str:
        return f"trial {self.label}"

    def with_other_seed(self, number: int) -> Trial:
        """The same settings with the next seed but so many."""
        seed = self.training.seed + number
        return replace(self, seed=seed, training=self.training.model_copy(update={"seed": seed}))

    def __str__(self) -> str:
        return "   ".join(f"{name} {shown(value)}" for name, value in self.settings.items())


class TrialsSpec(Frozen):
    """Settings of `training` and `shards` that vary between trials; all others are the pipeline file's."""

    vary: dict[str, Choices | Varied] = Field(
        min_length=1,
        max_length=MAX_SETTINGS,
        description="By dotted name below `training`, or from `shards` on, such as `shards.encoder.vocab_size`: a list "
        "of values, or a range such as `{log_uniform: [0.0003, 0.03]}`, `{uniform: [0, 0.5]}` or `{integer: [2, 8]}`. "
        "A value may be a list or a whole branch, as in `ema: [null, {decay: 0.99}]`. "
        "With `when` it varies beside some values of another setting alone: `{values: [0.9, 0.95], when: "
        "{optimizer.kind: muon}}`.",
    )
    derive: dict[str, Scalar] = Field(
        {},
        max_length=MAX_SETTINGS,
        exclude_if=lambda derive: not derive,
        description="Settings that follow from others, by dotted name as in `vary`: `recipe.model.hidden: 4 * "
        "recipe.model.width`. The quotient of whole numbers that leaves no rest is whole.",
    )
    require: tuple[str, ...] = Field(
        (),
        max_length=MAX_SETTINGS,
        exclude_if=lambda require: not require,
        description="What holds for the settings of each trial: `recipe.model.width % recipe.model.heads == 0`. A "
        "grid leaves out what does not meet it, and a draw is drawn again.",
    )
    search: Method | None = Field(
        None,
        description="`grid`: every combination of the lists. `random`: settings drawn by `seed`. `tpe`, `gp`: the "
        "first round is drawn, each later one proposed by what all before came to, with a tree-structured Parzen "
        "estimator or a Gaussian process; at rungs they choose by what trials are expected to come to. Empty: `random` "
        "where `draws` is given, else `grid`.",
    )
    warm_start: str | None = Field(
        None,
        min_length=1,
        exclude_if=lambda file: file is None,
        description="A file with trials of an earlier search, relative to this file: its `trials.json`, or a study of "
        "Optuna's in a journal file or SQLite. `tpe` and `gp` propose the first round by them, the best of them first.",
    )
    draws: int | None = Field(None, ge=1, description="How many settings a round draws; not of a grid.")
    rounds: int = Field(1, ge=1, description="How many rounds of draws; all of a round are ranked before the next.")
    rungs: tuple[Annotated[int, Field(gt=0)], ...] | GeometricRungs | None = Field(
        None,
        description="Steps at which the trials of a round are compared, such as `[60, 180, 540]` or `{first: 60, "
        "eta: 3}`: only the most promising go on to the next, from their checkpoints. The last step is the last rung, "
        "named or not. Empty: every trial is trained to its end.",
    )
    min_starts: int = Field(
        20,
        ge=0,
        description="A rung that takes less time than so many starts of an attempt is refused, where an earlier run "
        "tells what both take. 0: none is.",
    )
    budget: BudgetSpec | None = Field(
        None,
        description="What all trials together may spend: `{steps: 20000}`, `{hours: 8}`, `{usd: 40}`, or several of "
        "them. The same command, run again, goes on with what is left.",
    )
    seed: int = Field(0, ge=0, description="Seed of draws and proposals.")
    every: Literal["week", "month", "quarter"] | None = Field(
        None,
        exclude_if=lambda every: every is None,
        description="How often a search begins by itself: in the first of the pipeline's windows of a week, month or "
        "quarter, once its retrain is done. Later windows continue it. Empty: by `headway trials` alone.",
    )
    finalist_seeds: int = Field(
        1,
        ge=1,
        le=10,
        description="How many seeds of training the best two are compared by, that of the pipeline file included: they "
        "are trained to their ends with each. Which one stays is decided over all; its run is that of the file's seed.",
    )
    max_trials: int = Field(64, ge=1, le=1000, description="More are refused, before anything is spent.")
    max_parallel: int | None = Field(
        None,
        ge=1,
        description="Trials that train at the same time. Empty: 4 on `slurm` and `kubernetes`, as many as there are "
        "hosts for on `ssh`, and on this machine as many as processors or GPUs and memory are there for.",
    )

    @model_validator(mode="after")
    def _is_one_search(self) -> Self:
        space = self.space  # which refuses what is none
        if self.method == "grid":
            if self.draws is not None or self.rounds > 1:
                raise ValueError("a grid tries every combination of its lists, once: no draws and no rounds")
        elif self.draws is None:
            raise ValueError(f"search {self.method} draws settings: say how many a round has, such as draws: 9")
        if self.warm_start is not None and not self.is_learning:
            raise ValueError(f"search {self.method} learns from no trials: leave warm_start out, or search with tpe")
        if self.is_learning and self.rounds == 1:
            raise ValueError(f"search {self.method} learns from earlier rounds: say how many, such as rounds: 6")
        if self.method == "gp" and space.is_conditional:
            raise ValueError("a Gaussian process takes no settings with `when`: search with tpe")
        if self.finalist_seeds > 1 and "seed" in (*self.vary, *self.derive):
            raise ValueError("finalist_seeds compares settings over seeds: a seed that varies is no setting then")
        if isinstance(self.rungs, tuple):
            if not self.rungs:
                raise ValueError("rungs: name a step at least, or leave them out")
            for step, following in pairwise(self.rungs):
                if following <= step:
                    raise ValueError(
                        f"rungs: {following:,} follows {step:,}, and each is to be more than the one before"
                    )
        return self

    @property
    def space(self) -> Space:
        return Space.of(self.vary, self.derive, self.require)

    @property
    def method(self) -> Method:
        return self.search or ("grid" if self.draws is None else "random")

    @property
    def is_learning(self) -> bool:
        return self.method in LEARNING

    @property
    def is_bound_in_usd(self) -> bool:
        return self.budget is not None and self.budget.usd is not None

    def levels_of(self, training: TrainingSpec) -> tuple[int, ...]:
        """The steps at which trials are compared, the last of them the end of training.

        Args:
            training: of the pipeline file; its length in steps, unless that is still to be counted.

        Raises:
            ConfigError: a rung lies beyond the end.
        """
        return levels(self.rungs, training.max_steps)

    def require_affordable(self, configuration: Configuration) -> None:
        """Raises `ConfigError`: the first round takes more steps than all may.

        Args:
            configuration: of the pipeline file, its length in steps.
        """
        if self.budget is None or self.budget.steps is None:
            return
        num = self.draws or len(self.space.combinations(configuration))
        if (wanted := planned_steps(num, self.levels_of(configuration.training))) > self.budget.steps:
            raise ConfigError(
                f"the first round, {num} trials, takes {wanted:,} steps, more than its budget, {self.budget.steps:,}.",
                where="trials.budget.steps",
                advice="Draw fewer, add an earlier rung, or raise it.",
            )

    def drawn(self, configuration: Configuration, settle: Settle = as_it_is) -> tuple[Trial, ...]:
        """Those that no score decides: all of a grid or of random draws, and the first round of a search that learns.

        Settings that were drawn twice are one trial.

        Args:
            configuration: of the pipeline file.
            settle: what is tried of it; what it counts, trials are compared by.

        Raises:
            ConfigError: a name or a value that the file does not take or that cannot be compared, too many trials, a
                range without draws, or rungs that are none of a trial or lie within its warm-up.
        """
        training = configuration.training
        names = (*self.vary, *self.derive)
        for name in names:
            where = "trials.derive" if name in self.derive else WHERE
            choices = () if name in self.derive else choices_of(self.vary[name])
            is_whole = not any(other.startswith(f"{name}.") for other in names)
            require_setting(name, where, configuration, choices, is_whole=is_whole)
            inner = (".".join((name, *map(str, path))) for each in choices for path in paths_in(each))
            if self.rungs is not None and any(decides_length(each, configuration) for each in (name, *inner)):
                raise ConfigError(
                    f"trials that are compared at rungs are to be of one length, and `{name}` varies.",
                    where=f"{where}.{name}",
                    advice="Leave it at one value, or leave out trials.rungs.",
                )
        trials = numbered(configuration, self._settings(configuration), settle=settle)
        length = counted(training)
        if length.max_epochs is None:
            steps = self.levels_of(length)
            self.require_affordable(replace(configuration, training=length))
            for trial in trials:
                require_at_rungs(steps, counted(trial.training))
        return trials

    def _settings(self, configuration: Configuration) -> Iterable[Settings]:
        """Of a grid all; of draws as they are asked for."""
        grid = self.space.combinations(configuration) if self.draws is None else []
        if (num := (self.draws or len(grid)) * self.rounds) > self.max_trials:
            what = "combinations" if self.draws is None else "draws"
            raise ConfigError(
                f"{num} {what} are more than max_trials, {self.max_trials}.",
                where="trials",
                advice="Draw fewer with `draws`, vary less, or raise max_trials.",
            )
        if self.draws is None:
            return grid
        # Of random draws a later round is what more draws would have been.
        rounds, space = 1 if self.is_learning else self.rounds, self.space
        return (space.draw(self.seed, number, configuration) for number in range(self.draws * rounds))


def counted(training: TrainingSpec) -> TrainingSpec:
    """Its length in steps, where no rows are needed for that: trees are counted without."""
    return training.for_rows(0) if training.grows_trees else training


def choices_of(varied: Choices | Varied) -> Choices:
    """None of a range."""
    return (varied.values or ()) if isinstance(varied, Varied) else varied


def decides_length(name: str, configuration: Configuration) -> bool:
    """Whether trials that differ in a setting may take other numbers of steps."""
    if name in LENGTHS:
        return True
    # Passes over rows: what is a row, an encoder of tokens decides, and one of a user's own may.
    rows_are_examples = isinstance(configuration.shards.encoder, TabularEncoderSpec | ImageEncoderSpec)
    is_of_batch = name in OF_EPOCHS or name.split(".")[0] == "batch_ramp"
    is_of_passes = is_of_batch or (is_of_shards(name) and not rows_are_examples)
    return configuration.training.max_epochs is not None and is_of_passes


def numbered(
    configuration: Configuration,
    drawn: Iterable[Settings],
    before: Sequence[Trial] = (),
    at_most: int | None = None,
    settle: Settle = as_it_is,
) -> tuple[Trial, ...]:
    """The trials of settings that none before has, each once, in this order; no more is asked of `drawn` than needed.

    Args:
        before: settled in the same way.

    Raises:
        ConfigError: a value that the file or `settle` does not take.
    """
    # By what the file makes of them: 1 and 1.0 may be the same setting.
    known = {each.configuration.key() for each in before}
    first, trials = max((each.number for each in before), default=0) + 1, list[Trial]()
    for settings in drawn:
        wanted = settle(configuration.with_settings(settings))
        if (key := wanted.key()) not in known:
            known.add(key)
            number = first + len(trials)
            trials.append(Trial(number=number, settings=settings, training=wanted.training, shards=wanted.shards))
        if len(trials) == at_most:
            break
    return tuple(trials)
