"""The recipes that come with Headway, by name, and their fields, without importing torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError, plain_message
from headway.training.config.encoder_specs import EncoderSpec, ImageEncoderSpec, TokenSpec
from headway.training.config.encoder_specs import TabularEncoderSpec as Table
from headway.training.config.recipe_specs import (
    GRADIENT_BOOSTING,
    GradientBoostingSpec,
    ImageClassifierSpec,
    LanguageModelSpec,
    TabularModelSpec,
)

S = TypeVar("S", bound=Frozen)


class BuiltIn(NamedTuple):
    place: str
    """`package.module:Class`."""
    spec_type: type[Frozen]
    reads: Callable[[EncoderSpec], bool]
    """Whether it can be trained on what this encoder makes."""


def _reads_tokens(encoder: EncoderSpec) -> bool:
    return isinstance(encoder, TokenSpec)


def _reads_classes(encoder: EncoderSpec) -> bool:
    return isinstance(encoder, Table) and not encoder.predicts_number


def _reads_numbers(encoder: EncoderSpec) -> bool:
    return isinstance(encoder, Table) and encoder.predicts_number


def _reads_labelled_records(encoder: EncoderSpec) -> bool:
    return isinstance(encoder, Table) and encoder.label is not None


def _reads_images(encoder: EncoderSpec) -> bool:
    return isinstance(encoder, ImageEncoderSpec)


BUILT_IN = {
    GRADIENT_BOOSTING: BuiltIn(
        "headway.training.recipes.gradient_boosting:GradientBoosting", GradientBoostingSpec, _reads_labelled_records
    ),
    "image-classifier": BuiltIn(
        "headway.training.recipes.image_classifier:ImageClassifier", ImageClassifierSpec, _reads_images
    ),
    "language-model": BuiltIn(
        "headway.training.recipes.language_model:LanguageModel", LanguageModelSpec, _reads_tokens
    ),
    "tabular-classifier": BuiltIn(
        "headway.training.recipes.tabular:TabularClassifier", TabularModelSpec, _reads_classes
    ),
    "tabular-regressor": BuiltIn("headway.training.recipes.tabular:TabularRegressor", TabularModelSpec, _reads_numbers),
}
CHOICE = f"Use one of {', '.join(sorted(BUILT_IN))}, or package.module:Class."


def model_fields(spec_type: type[S], model: Mapping[str, Any], within: tuple[str, ...] = ("recipe", "model")) -> S:
    """A recipe's spec, or an encoder's, from its fields in the pipeline file.

    Args:
        within: the keys that the fields lie under.

    Raises:
        ConfigError: names the first field that is unknown or refused.
    """
    try:
        return spec_type.model_validate(dict(model))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in (*within, *first["loc"]))
        known = spec_type.model_fields
        is_unknown = first["type"] == "extra_forbidden"
        hint = nearest(str(first["loc"][-1]), known) if is_unknown else ""
        what = "no such field" if is_unknown else plain_message(first)
        raise ConfigError(
            f"{what}.", where=field, advice=f"{hint}Its fields are {', '.join(known) or 'none'}."
        ) from error


def nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(known), n=1)
    return f"Did you mean {found[0]}? " if found else ""
