"""Which registered model a run starts from, and what may differ. Costs no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from headway.data_contracts.store.documents import Frozen

MODEL_URI = r"^models:/(?P<name>[^/@]+)(?:@(?P<alias>[a-z]+)|/(?P<version>\d+))$"


class StartSpec(Frozen):
    """Weights are taken over by name; the optimizer, the schedule and the order of samples begin anew."""

    model: str = Field(
        pattern=r"^models:/[^/@]+(@[a-z]+|/\d+)$", description="`models:/NAME@champion` or `models:/NAME/VERSION`."
    )
    fresh: tuple[str, ...] = Field(
        default=(), description="Patterns of weights that begin anew, such as a new `head.*`, whatever the model has."
    )
    missing: Literal["refuse", "fresh"] = Field(
        default="refuse", description="What to do about weights that the registered model lacks."
    )
    extra: Literal["refuse", "ignore"] = Field(
        default="refuse", description="What to do about weights that the registered model has beyond this one's."
    )
    encoding: Literal["same", "any"] = Field(
        default="same",
        description="`same`: both models read rows encoded by the same fitted state. `any`: token ids, classes or "
        "scaled numbers may mean something else than they did.",
    )


def _spelt_out(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


StartFrom = Annotated[StartSpec, BeforeValidator(_spelt_out, json_schema_input_type=StartSpec | str)]
"""A model's URI alone stands for the strictest policy."""
