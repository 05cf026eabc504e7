"""Which settings of training are tried out: a grid, draws that a seed decides, or what a sampler proposes. Pure.

A draw is a function of the seed, its number and the setting's name alone: ask for more draws, and the first ones stay
what they were.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError, plain_message
from headway.data_contracts.types.strict_yaml import keys_at, nearest, not_numbers
from headway.tasks.search.rungs import GeometricRungs, levels, planned_steps, require_past_warmup
from headway.training.config.training_spec import DECIDES_NO_BIT, TrainingSpec
from headway.training.data.splitmix import hash_text

WHERE = "trials.vary"
LENGTHS = ("max_steps", "max_epochs", "recipe.model.iterations")
OF_EPOCHS = ("global_batch_sequences",)
"""What decides the length besides, where passes over rows are asked for."""
DIGITS = 4
"""That a drawn number has: more say nothing, and a person is to read and keep it."""
LEAST, MOST = 1e-100, 1e100
"""In size, of a range's ends: beyond, what lies between them is no number, or no sampler tells it apart."""
EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def _number(value: Any) -> Any:
    """YAML takes `1e-3` for a text, which a person means as a number."""
    return float(value) if isinstance(value, str) and EXPONENT.fullmatch(value) else value


Value = Annotated[bool | int | float | str | None, BeforeValidator(_number)]
Choices = Annotated[tuple[Value, ...], Field(min_length=1)]
Settings = dict[str, Value]
Method = Literal["grid", "random", "tpe", "gp"]
Settle = Callable[[TrainingSpec], TrainingSpec]
"""What training with a trial's settings is once rows are counted; raises `ConfigError` where that cannot be trained."""
LEARNING = ("tpe", "gp")
"""They propose settings by what earlier ones came to."""


class Range(Frozen):
    """Numbers between two, both included; one of the three."""

    uniform: tuple[float, float] | None = Field(None, description="Any number, each as likely.")
    log_uniform: tuple[float, float] | None = Field(None, description="The same of its logarithm: 0.001 to 0.1.")
    integer: tuple[int, int] | None = Field(None, description="A whole number.")

    @model_validator(mode="after")
    def _is_one_range(self) -> Self:
        given = [each for each in (self.uniform, self.log_uniform, self.integer) if each is not None]
        if len(given) != 1:
            raise ValueError("a range is one of uniform, log_uniform and integer: `{log_uniform: [0.001, 0.1]}`")
        low, high = given[0]
        if not low < high or (self.log_uniform is not None and low <= 0):
            raise ValueError(f"a range goes from less to more, and a logarithm's from more than 0; not {low} to {high}")
        if any(each and not LEAST <= abs(each) <= MOST for each in (low, high)):
            raise ValueError(f"the ends of a range are 0, or from {LEAST:g} to {MOST:g} in size; not {low} to {high}")
        if self.uniform is not None and high - low < max(abs(low), abs(high)) / 10**DIGITS:
            raise ValueError(
                f"from {low} to {high} there is no number of {DIGITS} digits, which is what draws have: name the values"
            )
        return self

    def at(self, share: float) -> Value:
        """The number at this share of the way, from 0 up to but not including 1."""
        if self.integer is not None:
            least, most = self.integer
            return least + int(share * (most - least + 1))
        if self.uniform is not None:
            low, high = self.uniform
            return self.rounded(low + share * (high - low))
        assert self.log_uniform is not None
        low, high = self.log_uniform
        return self.rounded(low * math.exp(share * math.log(high / low)))

    def rounded(self, number: float) -> Value:
        """The number as a person reads and keeps it."""
        if self.integer is not None:
            return int(number)
        low, high = self.uniform or self.log_uniform or (number, number)
        return _short(number, low, high)


def _short(number: float, low: float, high: float) -> float:
    # Rounding may leave the range, which includes both its ends.
    return min(max(float(f"{number:.{DIGITS}g}"), low), high)


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


def shown(value: Value) -> str:
    """As a pipeline file has it."""
    return value if isinstance(value, str) else json.dumps(value)


class TrialsSpec(Frozen):
    """Settings of `training` that vary between trials; all others are the pipeline file's."""

    vary: dict[str, Choices | Range] = Field(
        min_length=1,
        description="By dotted name below `training`: a list of values, or a range such as "
        "`{log_uniform: [0.0003, 0.03]}`, `{uniform: [0, 0.5]}` or `{integer: [2, 8]}`.",
    )
    search: Method | None = Field(
        None,
        description="`grid`: every combination of the lists. `random`: settings drawn by `seed`. `tpe`, `gp`: the "
        "first round is drawn, each later one proposed by what all before came to, with a tree-structured Parzen "
        "estimator or a Gaussian process. Empty: `random` where `draws` is given, else `grid`.",
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
        if self.method == "grid":
            if self.draws is not None or self.rounds > 1:
                raise ValueError("a grid tries every combination of its lists, once: no draws and no rounds")
        elif self.draws is None:
            raise ValueError(f"search {self.method} draws settings: say how many a round has, such as draws: 9")
        if self.is_learning and self.rounds == 1:
            raise ValueError(f"search {self.method} learns from earlier rounds: say how many, such as rounds: 6")
        if self.finalist_seeds > 1 and "seed" in self.vary:
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
        num = self.draws or math.prod(len(values) for values in self.vary.values() if not isinstance(values, Range))
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
        for name in self.vary:
            _require_setting(name)
            if self.rungs is not None and name in (*LENGTHS, *(() if training.max_epochs is None else OF_EPOCHS)):
                raise ConfigError(
                    f"trials that are compared at rungs are to be of one length, and `{name}` varies.",
                    where=f"{WHERE}.{name}",
                    advice="Leave it at one value, or leave out trials.rungs.",
                )
        trials = numbered(training, self._settings(), settle=settle)
        # Trees are counted without rows.
        length = training.for_rows(0) if training.grows_trees else training
        if length.max_epochs is None:
            steps = self.levels_of(length)
            self.require_affordable(length)
            for trial in trials:
                require_past_warmup(steps, trial.training)
        return trials

    def _settings(self) -> Iterator[Settings]:
        count = self.draws
        if count is None:
            for name, values in self.vary.items():
                if isinstance(values, Range):
                    raise ConfigError(
                        "a range has no end of values.",
                        where=f"{WHERE}.{name}",
                        advice="Say how many to draw, such as `draws: 16`, or give a list.",
                    )
            count = math.prod(len(values) for values in self.vary.values() if not isinstance(values, Range))
        if count * self.rounds > self.max_trials:
            what = "combinations" if self.draws is None else "draws"
            count *= self.rounds
            raise ConfigError(
                f"{count} {what} are more than max_trials, {self.max_trials}.",
                where="trials",
                advice="Draw fewer with `draws`, vary less, or raise max_trials.",
            )
        if self.draws is not None:
            # Of random draws a later round is what more draws would have been.
            rounds = 1 if self.is_learning else self.rounds
            return (self._drawn(number) for number in range(self.draws * rounds))
        lists = [values for values in self.vary.values() if not isinstance(values, Range)]
        return (dict(zip(self.vary, values, strict=True)) for values in itertools.product(*lists))

    def _drawn(self, number: int) -> Settings:
        drawn: Settings = {}
        for name, values in self.vary.items():
            # 53 bits, as many as a float holds exactly, so that the share stays below 1.
            share = (hash_text("trial", str(self.seed), str(number), name) >> 11) / 2**53
            drawn[name] = values.at(share) if isinstance(values, Range) else values[int(share * len(values))]
        return drawn


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


def _require_setting(name: str) -> None:
    """What a recipe calls its own fields is the recipe's business."""
    parts = tuple(name.split("."))
    if parts[0] in DECIDES_NO_BIT:
        raise ConfigError(
            f"`{parts[0]}` decides no bit of a model: trials that differ in it alone would be one run.",
            where=f"{WHERE}.{name}",
            advice="Leave it out; `headway tune` measures how often to save.",
        )
    for depth, part in enumerate(parts):
        known = keys_at(TrainingSpec, parts[:depth])
        if known and part not in known:
            raise ConfigError(
                f"`training` has no setting `{name}`.",
                where=WHERE,
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
            raise ConfigError(f"{name}: {problem}", where=WHERE, advice="Correct it there.")
    try:
        return TrainingSpec.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = plain_message(first)
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{f'{place}: ' if place else ''}{message}.",
            where=WHERE,
            advice=f"It is so with {', '.join(f'{name} {shown(value)}' for name, value in settings.items())}.",
        ) from error
