"""What trials vary settings of: `training` and `shards` of a pipeline file, by dotted names. Pure.

A name stands below `training`, or begins with `shards`. Of `shards` varies what makes other inputs of the same
examples: what would hold out others, or name them otherwise, is refused, since trials are compared example by example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from headway.data_contracts.store.errors import ConfigError, plain_message
from headway.data_contracts.types.strict_yaml import keys_at, nearest, not_numbers
from headway.tasks.search.values import Value, plain, shown
from headway.training.config.encoder_specs import BytePairSpec, CustomEncoderSpec, EncoderSpec
from headway.training.config.shards import EXECUTION, ShardSpec
from headway.training.config.training_spec import DECIDES_NO_BIT, TrainingSpec
from headway.training.evaluation.measures import target_of

VARY: Final = "trials.vary"
SHARDS: Final = "shards"
OF_THE_SPLIT: Final = ("heldout_fraction", "validation_fraction", "split_by", "split", "split_key", "split_salt")
OF_THE_PLACES: Final = ("group_by", "num_groups", "seed")
"""They decide where a row lies in the shards. A document is known by its path, and any other example by its place."""
Spec = TypeVar("Spec", TrainingSpec, ShardSpec)
Part = str | int
"""Of a name; a number is a place in a list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """Of a pipeline file, or of a trial."""

    training: TrainingSpec
    shards: ShardSpec

    def values(self) -> dict[str, Any]:
        """By name, as a pipeline file has them."""
        return {**self.training.model_dump(mode="json"), SHARDS: self.shards.model_dump(mode="json")}

    def key(self) -> tuple[str, str]:
        """Equal of equal ones, however their numbers were written."""
        return self.training.model_dump_json(), self.shards.model_dump_json()

    def with_settings(self, settings: Mapping[str, Value]) -> Configuration:
        """Raises `ConfigError`: a value that is not taken, alone or with the others, or that cannot be compared."""
        by_section: dict[str, dict[str, Value]] = {"training": {}, SHARDS: {}}
        for name, value in settings.items():
            section = SHARDS if is_of_shards(name) else "training"
            by_section[section][name.removeprefix(f"{SHARDS}.") if section == SHARDS else name] = value
        training, shards = self.training, self.shards
        if by_section["training"]:
            training = _changed(training, by_section["training"], "training", settings)
        if by_section[SHARDS]:
            shards = _changed(shards, by_section[SHARDS], SHARDS, settings)
            _require_comparable(self.shards.encoder, shards.encoder, settings)
            start = training.start_from
            if start is not None and start.encoding != "any" and shards.encoder.fitting != self.shards.encoder.fitting:
                raise ConfigError(
                    "training starts from a model that reads rows of another fitted state.",
                    where="training.start_from",
                    advice=f"It is so with {_listed(settings)}. Start from none, or leave the encoder as it is.",
                )
        return Configuration(training=training, shards=shards)


def is_of_shards(name: str) -> bool:
    return name.partition(".")[0] == SHARDS


def parts_of(name: str) -> tuple[Part, ...]:
    return tuple(int(part) if part.isdecimal() else part for part in name.split("."))


def require_setting(name: str, where: str, of: Configuration) -> None:
    """Raises `ConfigError`: there is no such setting, or it cannot vary; the reason is told.

    What a recipe or an encoder of one's own calls its fields is their business.
    """
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
        raise ConfigError(
            "what `order.mix` mixes in is encoded already, and a trial's own rows have to be encoded like it.",
            where=f"{where}.{name}",
            advice="Leave the encoder at one value, or mix nothing in.",
        )


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


def _changed(spec: Spec, settings: Mapping[str, Value], section: str, together: Mapping[str, Value]) -> Spec:
    values: dict[str, Any] = spec.model_dump(mode="json")
    # So a name of `training` stands as it does in `vary`.
    model_type, before = type(spec), "" if section == "training" else f"{section}."
    for name, value in settings.items():
        *branches, leaf = parts_of(name)
        try:
            branch = value_at(values, branches)
        except KeyError:
            branch = None
        if not isinstance(branch, dict):
            raise ConfigError(
                f"`{'.'.join(map(str, branches))}` is not said in `{section}`.",
                where=f"{VARY}.{before}{name}",
                advice="Say that branch there; trials vary a setting of it.",
            )
        branch[leaf] = plain(value)
        for _, problem in not_numbers(model_type, branch[leaf], (*branches, leaf)):
            raise ConfigError(f"{before}{name}: {problem}", where="trials", advice="Correct it there.")
    try:
        return model_type.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{f'{before}{place}: ' if place else ''}{plain_message(first)}.",
            where="trials",
            advice=f"It is so with {_listed(together)}.",
        ) from error


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
