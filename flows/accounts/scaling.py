"""How well a pipeline's steps scale: tokens a device-second at each number of devices, over that at the smallest.

Of the newest run at each number, for a pipeline's model may change. Only steps that count, and only their own time: a
start or a recovery is no part of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel

from headway.flows.accounts.flow_account import FlowAccount
from headway.flows.accounts.goodput import FORWARD


class ScalingLine(BaseModel):
    """At one number of devices."""

    devices: int
    run: str
    """The newest that trained on so many."""
    num_steps: int
    tokens_per_s: float
    tokens_per_device_s: float
    efficiency: float
    """Tokens a device-second over those at the smallest number of devices, which is 1 by itself."""


@dataclass(kw_only=True, slots=True)
class _Steps:
    """Of one run at one number of devices."""

    begin_unix_s: float = 0.0
    """Of its newest flow run."""
    num_steps: int = 0
    num_tokens: int = 0
    device_s: float = 0.0


class Scaling:
    """Of all pipelines, one account at a time and in any order."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str], dict[int, dict[str, _Steps]]] = {}
        """By pipeline and kind of device, number of devices, and run."""
        self._newest: dict[str, tuple[float, str]] = {}
        """Of each pipeline, when its newest flow run that trained began, and on which kind."""

    def take(self, account: FlowAccount) -> None:
        goodput = account.goodput
        wall_s = sum(goodput.parts_s.get(state, 0.0) for state in FORWARD)
        device_s = sum(goodput.parts_device_s.get(state, 0.0) for state in FORWARD)
        # One whose number of devices changed has steps of several, which its sums do not tell apart.
        is_one_size = math.isclose(device_s, wall_s * goodput.devices, rel_tol=0.001)
        if not (account.run and goodput.num_steps and goodput.num_tokens and wall_s and is_one_size):
            return
        key = account.pipeline, account.device
        of_runs = self._steps.setdefault(key, {}).setdefault(goodput.devices, {})
        steps = of_runs.setdefault(account.run, _Steps())
        steps.begin_unix_s = max(steps.begin_unix_s, account.begin_unix_s)
        steps.num_steps += goodput.num_steps
        steps.num_tokens += goodput.num_tokens
        steps.device_s += device_s
        self._newest[account.pipeline] = max(
            self._newest.get(account.pipeline, (0.0, "")), (account.begin_unix_s, account.device)
        )

    @property
    def pipelines(self) -> list[str]:
        """Those that trained, in order."""
        return sorted(self._newest)

    def lines(self, pipeline: str) -> list[ScalingLine]:
        """On the kind of device that it trained on last, the fewest devices first; none before it trained."""
        _, device = self._newest.get(pipeline, (0.0, ""))
        found: list[ScalingLine] = []
        for devices, of_runs in sorted(self._steps.get((pipeline, device), {}).items()):
            run, steps = max(of_runs.items(), key=lambda each: each[1].begin_unix_s)
            rate = steps.num_tokens / steps.device_s
            found.append(
                ScalingLine(
                    devices=devices,
                    run=run,
                    num_steps=steps.num_steps,
                    tokens_per_s=rate * devices,
                    tokens_per_device_s=rate,
                    efficiency=rate / found[0].tokens_per_device_s if found else 1.0,
                )
            )
        return found


def scaling_of(accounts: Iterable[FlowAccount], pipeline: str) -> list[ScalingLine]:
    """The lines of one pipeline."""
    scaling = Scaling()
    for account in accounts:
        if account.pipeline == pipeline:
            scaling.take(account)
    return scaling.lines(pipeline)
