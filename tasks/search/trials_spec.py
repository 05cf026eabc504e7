"""Which trials a pipeline file asks for: a grid, draws that a seed decides, or what a sampler proposes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError, plain_message
from headway.data_contracts.types.strict_yaml import keys_at, nearest, not_numbers
from headway.tasks.search.rungs import GeometricRungs, levels, planned_steps, require_past_warmup
from headway.tasks.search.space import Choices, Settings, Space, Value, Varied, shown
from headway.training.config.training_spec import DECIDES_NO_BIT, TrainingSpec

WHERE = "trials.vary"
LENGTHS = ("max_steps", "max_epochs", "recipe.model.iterations")
OF_EPOCHS = ("global_batch_sequences",)
"""What decides the length besides, where passes over rows are asked for."""
MAX_SETTINGS = 100
DECIDES_NOTHING = frozenset({"max_parallel", "min_starts", "budget_steps", "every"})
"""Of a search's settings: with others it is the same search, which goes on."""
Method = Literal["grid", "random", "tpe", "gp"]
Settle = Callable[[TrainingSpec], TrainingSpec]
"""What training with a trial's settings is once rows are counted; raises `ConfigError` where that cannot be trained."""
LEARNING = ("tpe", "gp")
"""They propose settings by what earlier ones came to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One setting of training, to be a run of its own."""

    number: int
    """From 1, in the order in which they are trained."""
    settings: Settings
    training: TrainingSpec
    seed: int | None = None
    """Of one that is trained once more; None: the pipeline file's."""

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
    """Settings of `training` that vary between trials; all others are the pipeline file's."""

    vary: dict[str, Choices | Varied] = Field(
        min_length=1,
        max_length=MAX_SETTINGS,
        description="By dotted name below `training`: a list of values, or a range such as "
        "`{log_uniform: [0.0003, 0.03]}`, `{uniform: [0, 0.5]}` or `{integer: [2, 8]}`. With `when` it varies beside "
        "some values of another setting alone: `{values: [0.9, 0.95], when: {optimizer.kind: muon}}`.",
    )
    derive: dict[str, Value] = Field(
        {},
        max_length=MAX_SETTINGS,
        exclude_if=lambda derive: not derive,
        description="Settings that follow from others, by dotted name below `training`: `recipe.model.hidden: 4 * "
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
        "estimator or a Gaussian process. Empty: `random` where `draws` is given, else `grid`.",
    )
    warm_start: str | None = Field(
        None,
        min_length=1,
        exclude_if=lambda file: file is None,
        description="A file with trials of an earlier search, relative to this file: its `trials.json`, or a study of "
        "Optuna's in a journal file. `tpe` and `gp` propose the first round by them, the best of them first.",
    )
    draws: int | None = Field(None, ge=1, description="How many settings a round draws; not of a grid.")
    rounds: int = Field(1, ge=1, description="How many rounds of draws; all of a round are ranked before the next.")
    rungs: tuple[Annotated[int, Field(gt=0)], ...] | GeometricRungs | None = Field(
        None,
        description="Steps at which the trials of a round are compared, such as `[60, 180, 540]` or `{first: 60, "
        "eta: 3}`: only the best go on to the next, from their checkpoints. The last step is the last rung, named or "
        "not. Empty: every trial is trained to its end.",
    )
    min_starts: int = Field(
        20,
        ge=0,
        description="A rung that takes less time than so many starts of an attempt is refused, where an earlier run "
        "tells what both take. 0: none is.",
    )
    budget_steps: int | None = Field(
        None,
        gt=0,
        description="Training steps of all trials together, other seeds of finalists apart: no round begins that would "
        "take more. A first round that would is refused.",
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

    def levels_of(self, training: TrainingSpec) -> tuple[int, ...]:
        """The steps at which trials are compared, the last of them the end of training.

        Args:
            training: of the pipeline file; its length in steps, unless that is still to be counted.

        Raises:
            ConfigError: a rung lies beyond the end.
        """
        return levels(self.rungs, training.max_steps)

    def require_affordable(self, training: TrainingSpec) -> None:
        """Raises `ConfigError`: the first round takes more steps than all may.

        Args:
            training: of the pipeline file, its length in steps.
        """
        if self.budget_steps is None:
            return
        num = self.draws or len(self.space.combinations(training))
        if (wanted := planned_steps(num, self.levels_of(training))) > self.budget_steps:
            raise ConfigError(
                f"the first round, {num} trials, takes {wanted:,} steps, more than budget_steps, "
                f"{self.budget_steps:,}.",
                where="trials.budget_steps",
                advice="Draw fewer, add an earlier rung, or raise it.",
            )

    def drawn(self, training: TrainingSpec, settle: Settle = lambda training: training) -> tuple[Trial, ...]:
        """Those that no score decides: all of a grid or of random draws, and the first round of a search that learns.

        Settings that were drawn twice are one trial.

        Args:
            training: of the pipeline file.
            settle: what is tried of it; what it counts, trials are compared by.

        Raises:
            ConfigError: a name or a value that `training` does not take, too many trials, a range without draws, or
                rungs that are none of a trial or lie within its warm-up.
        """
        for name in (*self.vary, *self.derive):
            _require_setting(name, "trials.derive" if name in self.derive else WHERE)
            if self.rungs is not None and decides_length(name, training):
                raise ConfigError(
                    f"trials that are compared at rungs are to be of one length, and `{name}` varies.",
                    where=f"{'trials.derive' if name in self.derive else WHERE}.{name}",
                    advice="Leave it at one value, or leave out trials.rungs.",
                )
        trials = numbered(training, self._settings(training), settle=settle)
        # Trees are counted without rows.
        length = training.for_rows(0) if training.grows_trees else training
        if length.max_epochs is None:
            steps = self.levels_of(length)
            self.require_affordable(length)
            for trial in trials:
                require_past_warmup(steps, trial.training)
        return trials

    def _settings(self, training: TrainingSpec) -> Iterable[Settings]:
        """Of a grid all; of draws as they are asked for."""
        grid = self.space.combinations(training) if self.draws is None else []
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
        return (space.draw(self.seed, number, training) for number in range(self.draws * rounds))


def numbered(
    training: TrainingSpec,
    drawn: Iterable[Settings],
    before: Sequence[Trial] = (),
    at_most: int | None = None,
    settle: Settle = lambda training: training,
) -> tuple[Trial, ...]:
    """The trials of settings that none before has, each once, in this order; no more is asked of `drawn` than needed.

    Args:
        before: settled in the same way.

    Raises:
        ConfigError: a value that `training` or `settle` does not take.
    """
    # By what `training` makes of them: 1 and 1.0 may be the same setting.
    known = {each.training.model_dump_json() for each in before}
    first, trials = max((each.number for each in before), default=0) + 1, list[Trial]()
    for settings in drawn:
        wanted = settle(with_settings(training, settings))
        if (key := wanted.model_dump_json()) not in known:
            known.add(key)
            trials.append(Trial(number=first + len(trials), settings=settings, training=wanted))
        if len(trials) == at_most:
            break
    return tuple(trials)


def decides_length(name: str, training: TrainingSpec) -> bool:
    """Whether trials in which a setting varies may have different numbers of steps."""
    is_of_epochs = name in OF_EPOCHS or name.split(".")[0] == "batch_ramp"
    return name in LENGTHS or (training.max_epochs is not None and is_of_epochs)


def _require_setting(name: str, where: str) -> None:
    """What a recipe calls its own fields is the recipe's business."""
    parts = tuple(name.split("."))
    if parts[0] in DECIDES_NO_BIT:
        raise ConfigError(
            f"`{parts[0]}` decides no bit of a model: trials that differ in it alone would be one run.",
            where=f"{where}.{name}",
            advice="Leave it out"
            + ("; `headway tune` measures how often to save." if parts[0] == "checkpoints" else "."),
        )
    for depth, part in enumerate(parts):
        known = keys_at(TrainingSpec, parts[:depth])
        if known and part not in known:
            raise ConfigError(
                f"`training` has no setting `{name}`.",
                where=where,
                advice=nearest(part, known).strip() or f"Known there: {', '.join(sorted(known))}.",
            )


def with_settings(training: TrainingSpec, settings: Mapping[str, Value]) -> TrainingSpec:
    """Raises `ConfigError`: a value that `training` does not take, alone or with the others."""
    values: dict[str, Any] = training.model_dump(mode="json")
    for name, value in settings.items():
        *branches, leaf = name.split(".")
        branch: Any = values
        for part in branches:
            branch = branch.get(part) if isinstance(branch, dict) else None
        if not isinstance(branch, dict):
            raise ConfigError(
                f"`{'.'.join(branches)}` is not said in `training`.",
                where=f"{WHERE}.{name}",
                advice="Say that branch there; trials vary a setting of it.",
            )
        branch[leaf] = value
        for _, problem in not_numbers(TrainingSpec, value, (*branches, leaf)):
            raise ConfigError(f"{name}: {problem}", where="trials", advice="Correct it there.")
    try:
        return TrainingSpec.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = plain_message(first)
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{f'{place}: ' if place else ''}{message}.",
            where="trials",
            advice=f"It is so with {', '.join(f'{name} {shown(value)}' for name, value in settings.items())}.",
        ) from error
