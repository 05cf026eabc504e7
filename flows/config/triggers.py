"""The `triggers:` branch of the pipeline file: what makes a retrain due besides windows. No input of any stage's key.

Shares are of what the last finished retrain was made of. A limit that is reached is not passed yet: 0 means any change.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, field_validator, model_validator

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError
from headway.flows.console.stop_options import duration

MIN_CHECK_S = 60.0
"""A look is a flow run of its own."""


class NewData(Frozen):
    """How much of the data is other than what was last trained on."""

    rows: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Rows more or fewer, as a share: 0.05 is a twentieth. Edits in place keep it.",
    )
    bytes: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Bytes of files that came, changed or went, as a share of all bytes.",
    )
    files: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Files that came, changed or went, as a share of all; 0: any at all.",
    )

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.rows is None and self.bytes is None and self.files is None:
            raise ValueError("it asks for nothing: give rows, bytes or files, each as a share such as 0.05")
        return self


class DriftLimit(Frozen):
    """How far a column that the contract's drift rules name may be from the last accepted data's."""

    psi: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Population stability index that is too far."
    )
    js: float | None = Field(default=None, gt=0, le=1, description="Jensen-Shannon divergence in bits, too far.")

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.psi is None and self.js is None:
            raise ValueError("it asks for nothing: give psi or js")
        return self


class TriggersSpec(Frozen):
    """What makes a retrain due; looked at every so often, and at once when the event comes."""

    new_data: NewData | None = Field(default=None, description="Due when any of its shares is passed.")
    drift: DriftLimit | None = Field(default=None, description="Due when a column is farther off than this.")
    event: str = Field(
        default="",
        pattern=r"^([a-z0-9][a-z0-9._-]*)?$",
        description="Name of a Prefect event of yours, such as shop.export-done: due when it comes.",
    )
    check_every: str = Field(default="15m", description="How often to look: 5m, 2h, 1d; a minute at least.")

    @field_validator("check_every")
    @classmethod
    def _a_length(cls, text: str) -> str:
        try:
            length = duration(text, "check_every")
        except ConfigError as error:
            raise ValueError(f"{error.what} {error.advice}") from error
        if length.total_seconds() < MIN_CHECK_S:
            raise ValueError(f"{text} is too often: a minute at least")
        return text

    @model_validator(mode="after")
    def _has_a_trigger(self) -> Self:
        if self.new_data is None and self.drift is None and not self.event:
            raise ValueError("nothing triggers: give new_data, drift or event, or leave the branch out")
        return self

    @property
    def check_every_s(self) -> float:
        return duration(self.check_every, "check_every").total_seconds()
