"""The settings that trials have: which vary and over what, which follow from others, and which go together. Pure.

A draw is a function of the seed, its number and the setting's name alone: ask for more draws, and the first ones stay
what they were.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import nearest
from headway.tasks.search.branches import has_place_for, parts_of
from headway.tasks.search.configuration import SHARDS, Configuration, is_of_shards, value_at
from headway.tasks.search.expressions import Expression, Operand, parse
from headway.tasks.search.values import Branch, Choices, Scalar, Settings, Value, shown, written
from headway.training.data.splitmix import hash_text

DIGITS = 4
"""That a drawn number has: more say nothing, and a person is to read and keep it."""
LEAST, MOST = 1e-100, 1e100
"""In size, of a range's ends: beyond, what lies between them is no number, or no sampler tells it apart."""
MAX_COMBINATIONS = 100_000
"""Of a grid's lists, before conditions and requirements leave some out."""
REDRAWN = 1000
"""Times that a draw is drawn again where it does not meet what is required, before the space is called empty."""


class Varied(Frozen):
    """What a setting may be: one of `values`, `uniform`, `log_uniform` and `integer`."""

    values: Choices | None = Field(None, exclude_if=lambda values: values is None, description="One of a list.")
    uniform: tuple[float, float] | None = Field(None, description="Any number, each as likely.")
    log_uniform: tuple[float, float] | None = Field(None, description="The same of its logarithm: 0.001 to 0.1.")
    integer: tuple[int, int] | None = Field(None, description="A whole number.")
    when: dict[str, Scalar | Branch | Choices] | None = Field(
        None,
        min_length=1,
        exclude_if=lambda when: when is None,
        description="Varied only where others that vary have these values, such as `{optimizer.kind: muon}`; else the "
        "pipeline file's.",
    )

    @model_validator(mode="before")
    @classmethod
    def _is_no_branch(cls, given: Any) -> Any:
        if isinstance(given, dict) and given and not given.keys() & cls.model_fields.keys():
            raise ValueError(
                "a branch is a choice of a list, such as `[null, {decay: 0.99}]`, and a range is one of uniform, "
                "log_uniform, integer and values"
            )
        return given

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        ranges = [each for each in (self.uniform, self.log_uniform, self.integer) if each is not None]
        if len(ranges) + (self.values is not None) != 1:
            raise ValueError(
                "a range is one of uniform, log_uniform, integer and values: `{log_uniform: [0.001, 0.1]}`"
            )
        if ranges:
            self._require_range(*ranges[0])
        return self

    def _require_range(self, low: float, high: float) -> None:
        if not low < high or (self.log_uniform is not None and low <= 0):
            raise ValueError(f"a range goes from less to more, and a logarithm's from more than 0; not {low} to {high}")
        if any(each and not LEAST <= abs(each) <= MOST for each in (low, high)):
            raise ValueError(f"the ends of a range are 0, or from {LEAST:g} to {MOST:g} in size; not {low} to {high}")
        if self.uniform is not None and high - low < max(abs(low), abs(high)) / 10**DIGITS:
            raise ValueError(
                f"from {low} to {high} there is no number of {DIGITS} digits, which is what draws have: name the values"
            )

    def at(self, share: float) -> Value:
        """What lies at this share of the way, from 0 up to but not including 1."""
        if self.values is not None:
            return self.values[int(share * len(self.values))]
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
        """A range's number as a person reads and keeps it."""
        if self.integer is not None:
            return int(number)
        low, high = self.uniform or self.log_uniform or (number, number)
        # Rounding may leave the range, which includes both its ends.
        return min(max(float(f"{number:.{DIGITS}g}"), low), high)


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Which settings go together, of a pipeline file's `trials`.

    Raises:
        ValueError: a condition on what does not vary, or never holds; one that comes back to itself; no expression.
    """

    varied: Mapping[str, Varied]
    """A setting with a condition stands behind those that it depends on, and one below a branch behind that."""
    derived: Mapping[str, Expression]
    """One that names another stands behind it."""
    branches: Mapping[str, str]
    """Of a setting the nearest one above it that varies: where that puts no branch there, there is none of it."""
    required: tuple[Expression, ...]

    @classmethod
    def of(cls, vary: Mapping[str, Choices | Varied], derive: Mapping[str, Scalar], require: tuple[str, ...]) -> Space:
        varied = {
            name: each
            if isinstance(each, Varied)
            else Varied(values=each, uniform=None, log_uniform=None, integer=None)
            for name, each in vary.items()
        }
        for name in derive:
            if name in varied:
                raise ValueError(f"`{name}` is derived, so it does not vary: leave one of the two out")
        for name, each in varied.items():
            for other, wanted in (each.when or {}).items():
                _require_possible(varied, name, other, wanted)
        branches = {name: above for name in (*varied, *derive) if (above := _nearest_above(name, varied))}
        for name, above in branches.items():
            if not any(_has_place(name, above, choice) for choice in varied[above].values or ()):
                raise ValueError(f"`{above}` varies and never has a place for `{name}`: leave one of the two out")
        for name in (*varied, *derive):
            if above := _nearest_above(name, derive):
                raise ValueError(f"`{above}` is derived, so nothing below it is set: leave `{name}` out")
        conditions = {name: (*(each.when or ()), *filter(None, (branches.get(name),))) for name, each in varied.items()}
        derived = {name: parse(shown(text)) for name, text in derive.items()}
        # One that names itself means what the file says.
        needs = {name: each.names - {name} for name, each in derived.items()}
        return cls(
            varied={name: varied[name] for name in _in_order(conditions, "`when`")},
            derived={name: derived[name] for name in _in_order(needs, "the expression")},
            branches=branches,
            required=tuple(map(parse, require)),
        )

    @property
    def is_conditional(self) -> bool:
        return any(
            each.when or not all(self._has_place(name, {branch: choice}) for choice in self.varied[branch].values or ())
            for name, each in self.varied.items()
            if (branch := self.branches.get(name, name))
        )

    def is_active(self, name: str, chosen: Mapping[str, Value]) -> bool:
        """Whether a setting varies beside what was chosen for those before it."""
        conditions = self.varied[name].when or {}
        return self._has_place(name, chosen) and all(
            other in chosen and _is_among(chosen[other], wanted) for other, wanted in conditions.items()
        )

    def _has_place(self, name: str, chosen: Mapping[str, Value]) -> bool:
        if (branch := self.branches.get(name)) is None:
            return True
        return branch in chosen and _has_place(name, branch, chosen[branch])

    def completed(self, chosen: Mapping[str, Value], of: Configuration) -> Settings:
        """The settings of a trial: those that vary there, then what follows from them.

        Args:
            chosen: at least of all that vary there.
            of: the pipeline file's, whose other settings an expression may name.

        Raises:
            ConfigError: an expression that has no value there.
        """
        settings: Settings = {}
        for name in self.varied:
            if self.is_active(name, settings):
                settings[name] = chosen[name]
        if self.derived:
            names = _Names(settings, of)
            for name, expression in self.derived.items():
                if self._has_place(name, settings):
                    settings[name] = _value(expression, names, f"trials.derive.{name}")
        return settings

    def is_allowed(self, settings: Settings, of: Configuration) -> bool:
        """Whether they are what is required of settings together.

        Raises:
            ConfigError: as `completed`.
        """
        names = _Names(settings, of)
        return all(_holds(each, names) for each in self.required)

    def combinations(self, of: Configuration) -> list[Settings]:
        """Of a grid: each once.

        Raises:
            ConfigError: a range, which has no end of values; more than can be listed; none that is allowed.
        """
        for name, each in self.varied.items():
            if each.values is None:
                raise ConfigError(
                    "a range has no end of values.",
                    where=f"trials.vary.{name}",
                    advice="Say how many to draw, such as `draws: 16`, or give a list.",
                )
        lists = [each.values for each in self.varied.values() if each.values is not None]
        if (num := math.prod(map(len, lists))) > MAX_COMBINATIONS:
            raise ConfigError(
                f"the lists have {num:,} combinations, more than {MAX_COMBINATIONS:,}.",
                where="trials.vary",
                advice="Vary less, or draw some of them with `draws`.",
            )
        found: dict[str, Settings] = {}
        for values in itertools.product(*lists):
            settings = self.completed(dict(zip(self.varied, values, strict=True)), of)
            if self.is_allowed(settings, of):
                found.setdefault(written(settings), settings)
        if not found:
            raise _nothing_allowed(f"none of {num:,} combinations")
        return list(found.values())

    def draw(self, seed: int, number: int, of: Configuration) -> Settings:
        """The draw of a number.

        Raises:
            ConfigError: as `completed`; or none is found that is allowed.
        """
        for settings in self._draws(seed, number, of):
            if self.is_allowed(settings, of):
                return settings
        raise _nothing_allowed(f"none of {REDRAWN:,} draws")

    def _draws(self, seed: int, number: int, of: Configuration) -> Iterator[Settings]:
        for again in range(REDRAWN):
            place = str(number) if not again else f"{number}, again {again}"
            # 53 bits, as many as a float holds exactly, so that the share stays below 1.
            shares = {name: (hash_text("trial", str(seed), place, name) >> 11) / 2**53 for name in self.varied}
            yield self.completed({name: each.at(shares[name]) for name, each in self.varied.items()}, of)


def _in_order(needs: Mapping[str, Collection[str]], what: str) -> list[str]:
    """Names, each behind those that it needs, and else as they come.

    Args:
        what: needs another, for the error.

    Raises:
        ValueError: one that needs itself, by way of others.
    """
    ordered: dict[str, None] = {}

    def put(name: str, below: tuple[str, ...]) -> None:
        if name in below:
            raise ValueError(f"{what} of `{name}` comes back to itself: {' -> '.join((*below, name))}")
        if name in ordered:
            return
        for other in needs[name]:
            if other in needs:
                put(other, (*below, name))
        ordered[name] = None

    for name in needs:
        put(name, ())
    return list(ordered)


def _all_above(name: str) -> Iterator[str]:
    """The branches that a setting lies in, the nearest first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _nearest_above(name: str, among: Collection[str]) -> str | None:
    return next((each for each in _all_above(name) if each in among), None)


def _has_place(name: str, branch: str, choice: Value) -> bool:
    return has_place_for(choice, parts_of(name)[branch.count(".") + 1 :])


def _require_possible(varied: Mapping[str, Varied], name: str, other: str, wanted: Scalar | Branch | Choices) -> None:
    if other not in varied:
        advice = nearest(other, set(varied)).strip() or f"Varied: {', '.join(sorted(varied))}."
        raise ValueError(f"`when` of `{name}` names `{other}`, which does not vary. {advice}")
    values = varied[other].values
    if values is None:
        raise ValueError(f"`when` of `{name}` names `{other}`, which is a range: a condition asks for values of a list")
    for value in wanted if isinstance(wanted, tuple) else (wanted,):
        if not _is_among(value, values):
            raise ValueError(
                f"`when` of `{name}` wants `{other}` to be {shown(value)}, and it is one of "
                f"{', '.join(map(shown, values))}"
            )


def _is_among(value: Value, wanted: Scalar | Branch | Choices) -> bool:
    # As a file has them: `true` is no 1, and `"1"` neither.
    return written(value) in map(written, wanted if isinstance(wanted, tuple) else (wanted,))


class _Names:
    """What a name in an expression stands for: a trial's setting, else the pipeline file's."""

    def __init__(self, settings: Settings, of: Configuration) -> None:
        self._settings, self._of = settings, of
        self._values: dict[str, Any] | None = None

    def __call__(self, name: str) -> Operand:
        if name in self._settings:
            chosen = self._settings[name]
            if isinstance(chosen, tuple | dict):
                raise ValueError(f"`{name}` is no single value")
            return chosen
        if name == "max_steps" and self._of.training.max_epochs is not None:
            raise ValueError("`max_steps` follows from `max_epochs` and the rows, which are counted later")
        if self._values is None:
            self._values = self._of.values(self._settings)
        try:
            found = value_at(self._values, parts_of(name))
        except KeyError as error:
            if any(self._settings.get(above, "") is None for above in _all_above(name)):
                return None  # of a branch that this trial lacks
            section = SHARDS if is_of_shards(name) else "training"
            raise ValueError(
                f"`{name}` is not said in `{section}`, and no setting of this trial; words stand in quotes"
            ) from error
        if isinstance(found, dict | list):
            raise ValueError(f"`{name}` is no single value")
        return found  # type: ignore[no-any-return]  # JSON's values

    def __str__(self) -> str:
        return ", ".join(f"{name} {shown(value)}" for name, value in self._settings.items())


def _value(expression: Expression, names: _Names, where: str) -> Operand:
    try:
        return expression.value(names)
    except ValueError as error:
        raise ConfigError(
            f"{error}.", where=where, advice=f"It is so with {names}. Correct the expression, or what varies."
        ) from error


def _holds(expression: Expression, names: _Names) -> bool:
    holds = _value(expression, names, "trials.require")
    if not isinstance(holds, bool):
        raise ConfigError(
            f"`{expression}` is {shown(holds)}, which is neither true nor false.",
            where="trials.require",
            advice="Compare it with something: `recipe.model.width >= 16`.",
        )
    return holds


def _nothing_allowed(of: str) -> ConfigError:
    return ConfigError(
        f"{of} meets what trials.require says.", where="trials.require", advice="Require less, or vary more."
    )
