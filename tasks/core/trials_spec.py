"""Which settings of training are tried out: a grid, or draws that a seed decides. Pure.

A draw is a function of the seed, its number and the setting's name alone: ask for more draws, and the first ones stay
what they were.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError, plain_message
from headway.data_contracts.types.strict_yaml import keys_at, nearest
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.splitmix import hash_text

WHERE = "trials.vary"
DIGITS = 4
"""That a drawn number has: more say nothing, and a person is to read and keep it."""
EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def _number(value: Any) -> Any:
    """YAML takes `1e-3` for a text, which a person means as a number."""
    return float(value) if isinstance(value, str) and EXPONENT.fullmatch(value) else value


Value = Annotated[bool | int | float | str | None, BeforeValidator(_number)]
Choices = Annotated[tuple[Value, ...], Field(min_length=1)]
Settings = dict[str, Value]


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
        return self

    def at(self, share: float) -> Value:
        """The number at this share of the way, from 0 up to but not including 1."""
        if self.integer is not None:
            least, most = self.integer
            return least + int(share * (most - least + 1))
        if self.uniform is not None:
            low, high = self.uniform
            return _short(low + share * (high - low), low, high)
        assert self.log_uniform is not None
        low, high = self.log_uniform
        return _short(low * math.exp(share * math.log(high / low)), low, high)


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

    @property
    def name(self) -> str:
        return f"trial {self.number}"

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
    draws: int | None = Field(
        None, ge=1, description="How many settings are drawn at random; empty: every combination of the lists is tried."
    )
    seed: int = Field(0, ge=0, description="Seed of the draws.")
    max_trials: int = Field(64, ge=1, le=1000, description="More are refused, before anything is spent.")
    max_parallel: int = Field(
        4,
        ge=1,
        description="Trials that train at the same time on `slurm` and `kubernetes`; elsewhere they take turns.",
    )

    def trials(self, training: TrainingSpec) -> tuple[Trial, ...]:
        """All of them. Settings that were drawn twice are one trial.

        Raises:
            ConfigError: a name or a value that `training` does not take, too many trials, or a range without draws.
        """
        for name in self.vary:
            _require_setting(name)
        distinct: dict[str, tuple[Settings, TrainingSpec]] = {}
        for settings in self._settings():
            wanted = with_settings(training, settings)
            # By what `training` makes of them: 1 and 1.0 may be the same setting.
            distinct.setdefault(wanted.model_dump_json(), (settings, wanted))
        return tuple(
            Trial(number=number, settings=settings, training=wanted)
            for number, (settings, wanted) in enumerate(distinct.values(), start=1)
        )

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
        if count > self.max_trials:
            what = "combinations" if self.draws is None else "draws"
            raise ConfigError(
                f"{count} {what} are more than max_trials, {self.max_trials}.",
                where="trials",
                advice="Draw fewer with `draws`, vary less, or raise max_trials.",
            )
        if self.draws is not None:
            return (self._drawn(number) for number in range(self.draws))
        lists = [values for values in self.vary.values() if not isinstance(values, Range)]
        return (dict(zip(self.vary, values, strict=True)) for values in itertools.product(*lists))

    def _drawn(self, number: int) -> Settings:
        drawn: Settings = {}
        for name, values in self.vary.items():
            # 53 bits, as many as a float holds exactly, so that the share stays below 1.
            share = (hash_text("trial", str(self.seed), str(number), name) >> 11) / 2**53
            drawn[name] = values.at(share) if isinstance(values, Range) else values[int(share * len(values))]
        return drawn


def _require_setting(name: str) -> None:
    """What a recipe calls its own fields is the recipe's business."""
    parts = tuple(name.split("."))
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
