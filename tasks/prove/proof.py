"""What `headway verify` says of one link of the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ProofStatus = Literal["proved", "gone", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainProof:
    """One link of the chain."""

    what: str
    status: ProofStatus
    detail: str
