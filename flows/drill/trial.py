"""One drill: what it may do to the sandbox, and what it has measured so far."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.flows.drill.alert_figures import read_alert
from headway.flows.drill.evidence import Metrics, RunEvidence
from headway.flows.drill.objectives import FailureMode
from headway.flows.drill.report import AlertFigure, Figure
from headway.flows.drill.sandbox import Ended, Sandbox


class NotHere(Exception):
    """This machine, or this launcher, does not allow the drill."""


class Undisturbed:
    """Runs that nobody disturbs: what the others are held against. Each is made when it is first asked for."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._made: dict[str, RunEvidence] = {}

    def of(self, name: str, changes: Mapping[str, Any]) -> RunEvidence:
        """Raises `EnvironmentProblem`: not even that one came to its end, so no drill can tell anything."""
        if name not in self._made:
            sandbox = self._sandbox
            sandbox.plan()
            sandbox.write_pipeline(name, changes)
            ended = sandbox.retrain(name)
            sandbox.exit_codes.clear()  # it is no drill's
            if ended.code:
                raise EnvironmentProblem(
                    f"the sandbox's undisturbed run ended with {ended.code}: {ended.message}",
                    where="headway drill",
                    advice="A drill needs a machine on which training works: `headway doctor` looks for what is wrong.",
                )
            self._made[name] = RunEvidence(sandbox.workspace, name)
        return self._made[name]


@dataclass
class DrillTrial:
    """
    Args:
        draw: of this drill alone, so that it is the same whichever others are made.
    """

    mode: FailureMode
    sandbox: Sandbox
    draw: random.Random
    undisturbed: Undisturbed
    planted: str = ""
    detected: bool = False
    cause: str = ""
    message: str = ""
    figures: dict[str, Figure] = field(default_factory=dict)
    alert: AlertFigure | None = None
    _before: Metrics | None = None

    @property
    def name(self) -> str:
        """Of its pipeline."""
        return f"drill-{self.mode.code.lower()}"

    def reference(self, changes: Mapping[str, Any] | None = None, name: str = "undisturbed") -> RunEvidence:
        """The undisturbed run of such changes; the alert's figure is held against what it is after that."""
        found = self.undisturbed.of(name, changes or {})
        self.start_alert()
        return found

    def start_alert(self) -> Metrics:
        """From now on a change of the alert's figure is the drill's. Returns the figures of now."""
        self._before = Metrics(self.sandbox.workspace)
        return self._before

    def retrain(
        self,
        changes: Mapping[str, Any] | None = None,
        *,
        part: str = "",
        fault: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> tuple[Ended, RunEvidence]:
        """The command on this drill's pipeline, and what it left.

        Args:
            changes: to the base pipeline; None: as it was written before.
            part: of the drill, where it has several pipelines.
            fault: what a rank suffers; none by default.
            how: of `Sandbox.retrain`.
        """
        name = f"{self.name}{part}"
        if changes is not None:
            self.sandbox.write_pipeline(name, changes)
        self.sandbox.plan(**(fault or {}))
        ended = self.sandbox.retrain(name, **how)
        left = self.figures.get("processes_left") or 0
        self.figures["processes_left"] = int(left) + ended.processes_left
        return ended, RunEvidence(self.sandbox.workspace, name)

    def look_at_alert(self, part: str = "") -> None:
        """Whether the figure of the alert has moved since the drill began; the first look that sees it counts."""
        if self.alert is None or not self.alert.raised:
            assert self._before is not None
            after = Metrics(self.sandbox.workspace)
            self.alert = read_alert(self.mode, self._before, after, f"{self.name}{part}")
            self.figures["alert_raised"] = self.alert.raised

    def compare_bits(self, reference: RunEvidence, *runs: RunEvidence) -> None:
        wanted = reference.tensors_sha256
        self.figures["equal_bits"] = wanted is not None and all(run.tensors_sha256 == wanted for run in runs)

    def planted_unix_s(self) -> float | None:
        planted = self.sandbox.planted()
        return None if planted is None else float(planted["unix_s"])


Drill = Callable[[DrillTrial], None]


def seconds_between(begin_unix_s: float | None, end_unix_s: float | None) -> float | None:
    """None: one of the two is not known."""
    return None if begin_unix_s is None or end_unix_s is None else round(end_unix_s - begin_unix_s, 3)
