"""`deployments/profiles.yaml`: where `headway deploy PROFILE` deploys to, and in what manner. It holds no secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from headway.data_contracts.store.credentials import credential_in_value, is_secret_name
from headway.data_contracts.store.documents import Frozen, Json
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import parse_yaml_model, read_text
from headway.training.launch.base.gang import LaunchSpec
from headway.training.observe.ledger_lines import LARGEST

PROFILES = "profiles.yaml"
MIN_HEARTBEAT_S = 30
"""Prefect sends none more often."""
HEARTBEATS_MISSED = 3
"""A run that is silent for so many is a zombie: one lost on the way, or a late one, is not enough."""

PLAIN = r"^[^/%&<>?#\[\]\\\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+$"
"""Names that Prefect takes, and that a place of its API and a line in a terminal or a file can hold as they are."""
NOBODY = "none"
"""As `notify`: it is meant that alerts reach nobody."""
ANY = "any"
Price = Annotated[float, Field(ge=0, le=1e9)]
"""Whatever is multiplied by it has a finite sum."""
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class PoolSpec(Frozen):
    """The work pool that workers serve. One that exists and that Headway did not make is used as it is."""

    name: str = Field(pattern=PLAIN, description="Workers start with `prefect worker start --pool NAME`.")
    limit: int | None = Field(default=None, ge=1, description="Flow runs at once in the whole pool; empty: any number.")


class HousekeepingSpec(Frozen):
    """A deployment that tidies the workspace once a day, or says what it would do, and reads again what is needed."""

    at: str = Field(default="06:30", pattern=r"^([01]\d|2[0-3]):[0-5]\d$", description="When, in UTC.")
    apply: bool = Field(default=False, description="Take away what nothing needs; off: only say what would go.")
    keep_last: int = Field(default=3, ge=0, description="Finished runs of each pipeline that stay however old.")
    older_than_days: int = Field(default=30, ge=1, description="What was written or used since stays.")
    scrub_gb: float = Field(
        default=100.0,
        ge=0.0,
        allow_inf_nan=False,
        description="About so much of what champions and unfinished runs need is read again each day; 0: nothing is.",
    )


DrillName = Literal["F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9", "F10"]


class GameDaySpec(Frozen):
    """A deployment that plants failures in a sandbox on the worker that takes it, and judges the recovery."""

    every: Literal["week", "month"] = Field(default="month", description="Each Tuesday, or the first of each month.")
    at: str = Field(
        default="10:00", pattern=r"^([01]\d|2[0-3]):[0-5]\d$", description="When, in UTC: while somebody is there."
    )
    drills: tuple[DrillName, ...] = Field(default=(), description="Failure modes; empty: all but F8.")
    launch: LaunchSpec | None = Field(
        default=None,
        description="How ranks of the sandbox are started, as a pipeline file's `launch` says it; there are two. "
        "Empty: on the worker's machine.",
    )


PROBE_WITHIN_S = 1800.0
"""Waiting in a scheduler's queue included."""


class ProbeSpec(Frozen):
    """A deployment that makes a small retrain of made-up data, through every stage, to see whether one still can be."""

    every: Literal["hour", "day"] = Field(default="hour", description="Each full hour, or each midnight in UTC.")
    launch: LaunchSpec | None = Field(
        default=None,
        description="Where its ranks run, as a pipeline file's `launch` says it. Empty: one deployment for each "
        "launcher that a pipeline of the project takes, with the first such pipeline's launch and two ranks at most.",
    )
    within_s: float = Field(
        default=PROBE_WITHIN_S, gt=0, lt=LARGEST, description="Seconds after which it is ended, and has failed."
    )

    @property
    def interval_s(self) -> float:
        return {"hour": 3600.0, "day": 86400.0}[self.every]


class PricesSpec(Frozen):
    """What devices cost and draw, by their kind as `headway cost` names it; `any` is of all others."""

    device_hour_usd: dict[str, Price] = Field(
        default_factory=dict, description="US dollars an hour of one device, such as `{cpu: 0.05, any: 2.5}`."
    )
    device_watts: dict[str, Price] = Field(
        default_factory=dict, description="Watts of one device with its share of the machine: a model, no measurement."
    )
    grams_co2_per_kwh: Price | None = Field(default=None, description="Of the electricity there.")

    def price_of(self, kind: str) -> float | None:
        """US dollars an hour; None: nobody says."""
        return _of_kind(self.device_hour_usd, kind)

    def usd_per_device_s(self, kind: str) -> float:
        return (self.price_of(kind) or 0.0) / 3600.0

    def watts(self, kind: str) -> float | None:
        """None: nobody says."""
        return _of_kind(self.device_watts, kind)


def _of_kind(values: Mapping[str, float], kind: str) -> float | None:
    return values.get(kind, values.get(ANY))


class DeploymentProfile(Frozen):
    """One place and manner of deploying."""

    pool: PoolSpec = Field(description="The process work pool.")
    suffix: str = Field(
        default="",
        pattern=r"^(-[a-z0-9-]+)?$",
        description="Behind each deployment's name, such as `-dev`: profiles that share a server differ in it.",
    )
    tags: tuple[str, ...] = Field(default=(), description="Of every deployment, besides Headway's own.")
    schedules_active: bool = Field(default=True, description="Do schedules start runs? Off: they are there, and rest.")
    env: dict[str, str | None] = Field(
        default_factory=dict,
        description="Environment of every run. HEADWAY_PROJECT is the folder you deploy from unless it stands here; "
        "null leaves a variable to the worker's own environment.",
    )
    heartbeat_s: int = Field(
        default=180,
        ge=MIN_HEARTBEAT_S,
        description="Seconds between a run's signs of life. One that gives none for three times as long is Crashed.",
    )
    limits: dict[Name, int] = Field(default_factory=dict, description="Global concurrency limits: name to slots.")
    variables: dict[str, Json] = Field(default_factory=dict, description="Prefect variables: name to JSON value.")
    housekeeping: HousekeepingSpec | None = Field(
        default=None, description="What is tidied every day; empty: nothing is."
    )
    reports: tuple[Literal["week", "month", "quarter"], ...] = Field(
        default=(), description="Periods that are reported on, the morning after each is over, at 06:00 UTC."
    )
    game_day: GameDaySpec | None = Field(default=None, description="When drills are made; empty: never by itself.")
    probe: ProbeSpec | None = Field(default=None, description="When probes are made; empty: never by itself.")
    prices: PricesSpec = Field(default=PricesSpec(), description="What devices cost there; `headway cost` adds up.")
    notify: str = Field(
        default="",
        pattern=rf"^({NOBODY}|[a-z0-9-]+/[a-z0-9-]+)?$",
        description="A notification block of the server, type/name, such as slack-webhook/ops. `none`: nobody is told, "
        "and `deploy` does not warn of it; empty: nobody is, and it does.",
    )
    notify_tickets: str = Field(
        default="",
        pattern=r"^([a-z0-9-]+/[a-z0-9-]+)?$",
        description="Another such block for what waits for a working day; empty: `notify` has it, too.",
    )

    @property
    def blocks(self) -> dict[Literal["page", "ticket"], str]:
        """Whom each severity goes to; empty: nobody is told."""
        if self.notify in ("", NOBODY):
            return {}
        return {"page": self.notify, "ticket": self.notify_tickets or self.notify}

    @model_validator(mode="after")
    def _tickets_follow_pages(self) -> Self:
        if self.notify_tickets and self.notify in ("", NOBODY):
            raise ValueError("notify_tickets goes with `notify`, which names who hears of the rest")
        return self

    @field_validator("limits")
    @classmethod
    def _some_slots(cls, limits: dict[str, int]) -> dict[str, int]:
        if none := [name for name, slots in limits.items() if slots < 1]:
            raise ValueError(f"{', '.join(none)} would let nobody through; give at least 1")
        return limits

    @field_validator("variables")
    @classmethod
    def _prefect_names(cls, variables: dict[str, Json]) -> dict[str, Json]:
        if odd := [name for name in variables if not re.fullmatch(r"[a-z0-9_]+", name)]:
            raise ValueError(f"{', '.join(odd)}: Prefect's names are of lower case, digits and underscores")
        for name, value in variables.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                # YAML has dates and .nan besides.
                raise ValueError(f"{name} is no JSON value; put it in quotes: {error}") from error
        return variables

    @field_validator("env")
    @classmethod
    def _names_of_an_environment(cls, env: dict[str, str | None]) -> dict[str, str | None]:
        if odd := [name for name in env if not _ENV_NAME.fullmatch(name)]:
            raise ValueError(f"{', '.join(map(repr, odd))}: a variable's name is of letters, digits and underscores")
        return env

    @field_validator("tags")
    @classmethod
    def _no_secret_tags(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        if held := next(filter(None, map(credential_in_value, tags)), ""):
            raise ValueError(f"one holds {held}, and everybody who sees the server's pages reads tags")
        return tags

    @field_validator("env", "variables")
    @classmethod
    def _no_secrets(cls, values: dict[str, Json]) -> dict[str, Json]:
        # Anybody who sees the server's pages reads these.
        found = [(name, *each) for name, value in values.items() for each in _within(name, value)]
        if named := dict.fromkeys(name for name, inner, value in found if value is not None and is_secret_name(inner)):
            raise ValueError(f"{', '.join(named)} reads like a secret; set it in the workers' environment instead")
        for name, _, value in found:
            if held := credential_in_value(str(value)):
                what = "a URL with credentials" if "://" in str(value) else held
                raise ValueError(f"{name} holds {what}; set it in the workers' environment")
        return values


def _within(name: str, value: Json) -> Iterator[tuple[str, Json]]:
    """A value and all that lies in it, by the nearest name; the names of a mapping are values too."""
    if isinstance(value, dict):
        for inner, each in value.items():
            yield "", inner
            yield from _within(inner, each)
    elif isinstance(value, list):
        for each in value:
            yield from _within(name, each)
    yield name, "" if isinstance(value, dict | list) else value


class Profiles(Frozen):
    project: Name = Field(description="Marks what is made on a server; no two projects on one server share it.")
    profiles: dict[Name, DeploymentProfile] = Field(
        min_length=1, description="By name, such as dev, staging, production."
    )


def load_profile(folder: Path, name: str) -> tuple[str, DeploymentProfile]:
    """The project's name and one of its profiles.

    Args:
        folder: the project's, the one with `deployments/`.

    Raises:
        ConfigError: no such file, not readable, malformed, or no such profile in it; names those there are.
    """
    path = folder / "deployments" / PROFILES
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the profiles cannot be read.",
            where=str(path),
            advice=f"{error}. It is looked for in HEADWAY_PROJECT, or the current folder; a short one reads "
            "`project: my-team` and `profiles: {production: {pool: {name: headway}}}`.",
        ) from error
    found = parse_yaml_model(Profiles, text, where=str(path))
    if name not in found.profiles:
        raise ConfigError(f"no profile is called {name!r}.", where=str(path), advice=f"There are: {_names(found)}.")
    return found.project, found.profiles[name]


def _names(found: Profiles) -> str:
    return ", ".join(sorted(found.profiles))
