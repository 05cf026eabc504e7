"""The `cost_bound:` branch of the pipeline file: what its retrains may cost. No input of any stage's key.

Not `budget`, which is what is there to be spent: by failures, of attempts and of the objective that `promotion.budget`
freezes by, and by a search (`trials.budget`), which it ends in order.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import parse_yaml_model, read_text
from headway.flows.config.profiles import PROFILES, PricesSpec, Profiles, load_profile

PROFILE = "HEADWAY_PROFILE"
"""Whose prices hold; `headway deploy` sets it."""


class CostBoundSpec(Frozen):
    """US dollars, by the prices of the profile; a bound that is left out bounds nothing."""

    usd_per_run: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Of one run's whole life, up to its registration."
    )
    usd_per_month: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Of all flow runs of the pipeline that begin in the same month, in UTC; of trials too.",
    )

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.usd_per_run is None and self.usd_per_month is None:
            raise ValueError("give usd_per_run, usd_per_month, or both; without one leave `cost_bound` out")
        return self


def known_prices(folder: Path) -> PricesSpec | None:
    """Of the profile that HEADWAY_PROFILE names, or of the only one with prices; None where none is meant.

    Args:
        folder: the project's, the one with `deployments/`.

    Raises:
        ConfigError: the profiles cannot be read, or none has that name.
    """
    if name := os.environ.get(PROFILE):
        prices = load_profile(folder, name)[1].prices
        return prices if prices.device_hour_usd else None
    path = folder / "deployments" / PROFILES
    if not path.is_file():
        return None
    found = parse_yaml_model(Profiles, read_text(path), where=str(path)).profiles.values()
    priced = [profile.prices for profile in found if profile.prices.device_hour_usd]
    return priced[0] if len(priced) == 1 else None


def bound_prices(folder: Path, where: str = "cost_bound") -> PricesSpec:
    """The same for a pipeline with a bound, which would hold nothing without them.

    Args:
        where: the key that bounds the cost.

    Raises:
        ConfigError: also where no prices are meant.
    """
    if (prices := known_prices(folder)) is not None:
        return prices
    name = os.environ.get(PROFILE)
    whose = f"the profile {name}" if name else "one profile"
    besides = "" if name else f" Where several have prices, {PROFILE} names the one that holds."
    raise ConfigError(
        f"a bound on the cost needs prices, and {'it has none' if name else 'which hold is not known'}.",
        where=where,
        advice=f"Give {whose} of {folder / 'deployments' / PROFILES} `prices: {{device_hour_usd: {{any: 2.50}}}}`."
        f"{besides}",
    )
