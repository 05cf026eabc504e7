"""What trials vary settings of: `training` and `shards` of a pipeline file, by dotted names. Pure.

A name stands below `training`, or begins with `shards`. A branch that the file lacks is made by what is set below it.
Of `shards` varies what makes other inputs of the same examples: what would hold out others, or name them otherwise, is
refused, since trials are compared example by example.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from headway.data_contracts.store.errors import ConfigError, plain_message
from headway.data_contracts.types.strict_yaml import keys_at, nearest, not_numbers
from headway.tasks.search.branches import Part, Parts, outermost_first, parts_of, put, require_choices
from headway.tasks.search.values import Value, plain, shown
from headway.training.config.encoder_specs import BytePairSpec, CustomEncoderSpec, EncoderSpec
from headway.training.config.shards import EXECUTION, VALIDATION, ShardSpec
from headway.training.config.training_spec import DECIDES_NO_BIT, TrainingSpec
from headway.training.evaluation.measures import target_of

VARY: Final = "trials.vary"
SHARDS: Final = "shards"
ENCODER: Final = "shards.encoder"
OF_THE_SPLIT: Final = ("heldout_fraction", "validation_fraction", "split_by", "split", "split_key", "split_salt")
OF_THE_PLACES: Final = ("group_by", "num_groups", "seed")
"""They decide where a row lies in the shards. A document is known by its path, and any other example by its place."""
MIXED: Final = "what `order.mix` mixes in is encoded already, and a trial's own rows have to be encoded like it."
Spec = TypeVar("Spec", TrainingSpec, ShardSpec)


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """Of a pipeline file, or of a trial."""

    training: TrainingSpec
    shards: ShardSpec

    def values(self, settings: Mapping[str, Value] | None = None) -> dict[str, Any]:
        """By name, as a pipeline file has them.

        Args:
            settings: of a trial, which take the place of these; together they may be none that can be trained.
        """
        values = {**self.training.model_dump(mode="json"), SHARDS: self.shards.model_dump(mode="json")}
        for name, value in outermost_first(settings or {}):
            section, model_type, parts = _section_of(name)
            with contextlib.suppress(KeyError):  # whoever makes a trial of them says so
                put(values[SHARDS] if section == SHARDS else values, model_type, parts, value)
        return values

    def key(self) -> tuple[str, str]:
        """Equal of equal ones, however their numbers were written."""
        return self.training.model_dump_json(), self.shards.model_dump_json()

    def with_settings(self, settings: Mapping[str, Value]) -> Configuration:
        """Raises `ConfigError`: a value that is not taken, alone or with the others, or that cannot be compared."""
        of_shards = {name: value for name, value in settings.items() if is_of_shards(name)}
        of_training = {name: value for name, value in settings.items() if name not in of_shards}
        training, shards = self.training, self.shards
        if of_training:
            training = _changed(training, of_training, settings)
            self._require_validated(training, settings)
        if of_shards:
            shards = _changed(shards, of_shards, settings)
            if training.order.mix and shards.encoder != self.shards.encoder:
                raise ConfigError(MIXED, where="trials", advice=f"It is so with {_listed(settings)}.")
            _require_comparable(self.shards.encoder, shards.encoder, settings)
            start = training.start_from
            if start is not None and start.encoding != "any" and shards.encoder.fitting != self.shards.encoder.fitting:
                raise ConfigError(
                    "training starts from a model that reads rows of another fitted state.",
                    where="training.start_from",
                    advice=f"It is so with {_listed(settings)}. Start from none, or leave the encoder as it is.",
                )
        return Configuration(training=training, shards=shards)

    @property
    def _has_two_paces(self) -> bool:
        """As of a run that is under way, whose seconds were settled as steps; of a file it is refused."""
        return self.training.validation is not None and self.training.validation.has_two_paces

    def _require_validated(self, training: TrainingSpec, settings: Mapping[str, Value]) -> None:
        if training.validation is not None and training.validation.has_two_paces and not self._has_two_paces:
            what, advice = "a trial would validate by seconds and by steps", "Vary the one of the two that the file has"
        elif (training.validation is None) == (self.training.validation is None):
            return
        elif training.validation is None:
            what, advice = "shards keep rows for validation, which a trial would not look at", "Give each one"
        elif VALIDATION in self.shards.splits:
            return
        else:
            what, advice = "validation needs rows, and shards keep none for it", "Give shards.validation_fraction"
        raise ConfigError(f"{what}.", where="trials", advice=f"It is so with {_listed(settings)}. {advice}.")


def _section_of(name: str) -> tuple[str, type[TrainingSpec] | type[ShardSpec], Parts]:
    """Which one it is, its type, and the name's parts below it."""
    if is_of_shards(name):
        return SHARDS, ShardSpec, parts_of(name)[1:]
    return "training", TrainingSpec, parts_of(name)


def is_of_shards(name: str) -> bool:
    return name.partition(".")[0] == SHARDS


def require_setting(
    name: str, where: str, of: Configuration, choices: Sequence[Value] = (), *, is_whole: bool = True
) -> None:
    """Raises `ConfigError`: there is no such setting, it cannot vary, or not so; the reason is told.

    What a recipe or an encoder of one's own calls its fields is their business.

    Args:
        choices: what it may be, where a list says so.
        is_whole: whether nothing that lies below it varies or is derived.
    """
    _require_that_varies(name, where, of)
    _, model_type, parts = _section_of(name)
    kind = of.shards.encoder.kind
    for place, each in enumerate(choices if name == ENCODER else ()):
        if isinstance(each, dict) and each.get("kind") != kind:
            why = _why_fixed("encoder", ("kind",), of.shards.encoder) if "kind" in each else "`kind` is missing"
            raise ConfigError(f"{why}.", where=f"{where}.{name}[{place}]", advice=f"Give `kind: {kind}`, the file's.")
    require_choices(name, choices, model_type, parts, is_whole=is_whole, where=where)


def _require_that_varies(name: str, where: str, of: Configuration) -> None:
    if not is_of_shards(name):
        first = name.partition(".")[0]
        if first in DECIDES_NO_BIT:
            raise ConfigError(
                f"`{first}` decides no bit of a model: trials that differ in it alone would be one run.",
                where=f"{where}.{name}",
                advice="Leave it out"
                + ("; `headway tune` measures how often to save." if first == "checkpoints" else "."),
            )
        _require_known(TrainingSpec, parts_of(name), name, "training", where)
        return
    parts = parts_of(name.partition(".")[2])
    _require_known(ShardSpec, parts, name, "shards", where)
    if (why := _why_fixed(str(parts[0]), parts[1:], of.shards.encoder)) is not None:
        raise ConfigError(f"{why}.", where=f"{where}.{name}", advice="Leave it at one value.")
    if parts[0] == "encoder" and of.training.order.mix:
        raise ConfigError(MIXED, where=f"{where}.{name}", advice="Leave the encoder at one value, or mix nothing in.")


def _why_fixed(field: str, rest: tuple[Part, ...], encoder: EncoderSpec) -> str | None:
    if field in OF_THE_SPLIT:
        return f"`shards.{field}` decides which examples are held out, and trials are compared on the same ones"
    if field in OF_THE_PLACES and not isinstance(encoder, BytePairSpec):
        return (
            f"`shards.{field}` decides where rows lie in the shards, and the examples of two trials are matched by that"
        )
    if field in (*EXECUTION, "codec", "skew"):
        return f"`shards.{field}` decides no bit of a model"
    if field == "fit":
        return "`shards.fit` has the encoder fitted anew, which is no setting of a model"
    if field == "encoder" and rest[:1] == ("kind",):
        return "an encoder of another kind has other settings"
    return None


def _require_known(model_type: type[BaseModel], parts: tuple[Part, ...], name: str, section: str, where: str) -> None:
    for depth, part in enumerate(parts):
        known = keys_at(model_type, parts[:depth])
        if known and part not in known:
            raise ConfigError(
                f"`{section}` has no setting `{name}`.",
                where=where,
                advice=nearest(str(part), known).strip() or f"Known there: {', '.join(sorted(known))}.",
            )


def _changed(spec: Spec, settings: Mapping[str, Value], together: Mapping[str, Value]) -> Spec:
    values: dict[str, Any] = spec.model_dump(mode="json")
    made: dict[str, None] = {}
    for name, value in outermost_first(settings):
        section, model_type, parts = _section_of(name)
        # So a name of `training` stands as it does in `vary`.
        before = "" if section == "training" else f"{section}."
        try:
            if (branch := put(values, model_type, parts, value)) is not None:
                made[before + ".".join(map(str, branch))] = None
        except KeyError as error:
            (branch,) = error.args
            raise ConfigError(
                f"`{'.'.join(map(str, branch))}` {_why_no_branch(values, branch) or f'is not said in `{section}`'}.",
                where=f"{VARY}.{name}",
                advice="Say a branch there; trials vary a setting of it.",
            ) from error
        for location, problem in not_numbers(model_type, plain(value), parts):
            where = f"{before}{'.'.join(map(str, location))}"
            raise ConfigError(f"{where}: {problem}", where="trials", advice="Correct it there.")
    try:
        return type(spec).model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        unsaid = "".join(f" The file has no `{name}`: say it there, or vary it whole." for name in made)
        raise ConfigError(
            f"{f'{before}{place}: ' if place else ''}{plain_message(first)}.",
            where="trials",
            advice=f"It is so with {_listed(together)}.{unsaid}",
        ) from error


def _why_no_branch(values: dict[str, Any], parts: Parts) -> str:
    """As `put` found a section's values; empty: nothing stands there."""
    with contextlib.suppress(KeyError):
        value = value_at(values, parts)
        if isinstance(value, list):
            return "is a list, which varies as a whole, or by a setting of one of its parts"
        return "" if value is None else "is a single value, with no settings below it"
    return ""


def value_at(values: Any, parts: Sequence[Part]) -> Any:
    """Raises `KeyError`: nothing stands there."""
    for part in parts:
        places = values if isinstance(values, dict) else range(len(values) if isinstance(values, list) else 0)
        if part not in places:
            raise KeyError(part)
        values = values[part]
    return values


def require_same_examples(ours: ShardSpec, theirs: ShardSpec) -> None:
    """Raises `ConfigError`: their models could not be compared example by example."""
    for name in (*OF_THE_SPLIT, *OF_THE_PLACES):
        if getattr(ours, name) == getattr(theirs, name):
            continue
        if (why := _why_fixed(name, (), ours.encoder) or _why_fixed(name, (), theirs.encoder)) is not None:
            raise ConfigError(f"{why}.", where=f"{SHARDS}.{name}", advice="Compare under the same one.")
    _require_comparable(ours.encoder, theirs.encoder, {})


def examples_rule(shards: Mapping[str, Any]) -> dict[str, Any]:
    """Of a manifest's settings: what tells held-out examples apart, and names them."""
    is_by_path = shards["encoder"]["kind"] == BytePairSpec.model_fields["kind"].default
    return {name: shards.get(name) for name in (*OF_THE_SPLIT, *(() if is_by_path else OF_THE_PLACES))}


def _require_comparable(ours: EncoderSpec, theirs: EncoderSpec, settings: Mapping[str, Value]) -> None:
    """An encoder of one's own says what is predicted once it is fitted."""
    if isinstance(ours, CustomEncoderSpec) or isinstance(theirs, CustomEncoderSpec):
        return
    require_same_target(
        target_of(ours.model_dump(mode="json")), target_of(theirs.model_dump(mode="json")), _listed(settings)
    )


def require_same_target(ours: str, theirs: str, settings: str) -> None:
    """Raises `ConfigError`: figures of two different things cannot be compared."""
    if ours != theirs:
        raise ConfigError(
            f"a trial would predict {theirs}, and the pipeline file's model {ours}: they cannot be compared.",
            where="trials",
            advice=f"It is so with {settings}." if settings else "Compare models of one thing.",
        )


def _listed(settings: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in settings.items())
