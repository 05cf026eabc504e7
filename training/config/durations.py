"""How long anything that a file says may take or wait."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

LONGEST_S = 365 * 86_400
"""Locks, processes and process groups take some 290 years and then overflow, each at a limit of its own."""
Seconds = Annotated[float, Field(le=LONGEST_S)]
"""Of a branch of a file: what is said as more is a slip of the pen."""
