"""What an entry of a model's refs says besides its target: a record for each ref, read once, where the entry is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class RefDetail(BaseModel):
    """Strict, since a number in place of a text was written by nobody of ours; a later Headway may say more."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class VersionDetail(RefDetail):
    """Of `models/<name>/versions`."""

    version: str = Field(pattern=r"^[0-9]+$")
    tracking_uri: str = ""
    """The MLflow store that the number belongs to; empty for the workspace's own."""


class AliasDetail(RefDetail):
    """Of `models/<name>/challenger`."""

    version: str


class ChampionDetail(AliasDetail):
    """Of `models/<name>/champion`."""

    how: str = "retrain"
    """`retrain`, `promote` or `rollback`."""
    by: str = ""
    decision: str | None = None
    """Digest of the decision, if there was one."""
    before: str | None = Field(default="", alias="from")
    """Digest of the registration that was champion before; None where none was, empty where it is not said."""


class RetirementDetail(RefDetail):
    """Of `models/<name>/retired`."""

    by: str


class MlflowAliasDetail(RefDetail):
    """Of `models/<name>/projected-*`."""

    version: str
    """Empty: none has it, for the newest candidate is the champion."""
    tracking_uri: str = ""
    entry: int | None = None
    """The number of the entry that the alias was brought to."""


class DecisionDetail(RefDetail):
    """Of `models/<name>/decisions`."""

    registration: str
    version: str
    by: str


class StartDetail(RefDetail):
    """Of `starts/<pipeline>/<run>`."""

    message: str
    """For a person: which version a run began from, and why."""
