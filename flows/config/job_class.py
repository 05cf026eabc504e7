"""How much depends on a pipeline: its objectives, and how urgent its failures are, follow from it."""

from __future__ import annotations

from typing import Literal

JobClass = Literal["critical", "standard", "experiment"]
