"""One change between two versions of a contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effect = Literal["breaking", "widening", "neutral"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ContractChange:
    effect: Effect
    where: str
    """The key of the contract, such as `columns.age.min`, or of an expectation of its suite, as `suite.2.min_value`."""
    sentence: str
