"""What is promised of each of the ten failure modes: figures of a drill and their limits, alerts and runbooks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from headway.flows.drill.report import EvaluatedObjective, Figure

OPERATIONS = "docs/operations"
CHECKPOINT_EVERY_STEPS = 20
"""In the sandbox: so many steps may be lost to a kill."""
NETWORK_DEADLINE_S = 6.0
"""`launch.progress_deadline_s` of the drill that cuts the network."""


@dataclass(frozen=True, slots=True)
class DrillObjective:
    figure: str
    """Of the drill; one that was not measured misses its objective."""
    text: str
    most: float | None = None
    """None: the figure is a yes or no, and has to be yes."""
    unit: str = ""
    remote_most: float | None = None
    """The limit where ranks are on other machines, which takes connections and a new interpreter; None: the same."""

    def limit(self, launcher: str) -> float | None:
        return self.most if launcher == "local" or self.remote_most is None else self.remote_most


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureMode:
    code: str
    title: str
    """Its heading in `docs/operations/failure-modes.md`."""
    alert: str
    """Whose figure is looked at; one of `monitoring/alerts.py`."""
    objectives: Sequence[DrillObjective]

    @property
    def runbooks(self) -> tuple[str, str]:
        heading = self.title.lower().replace(" ", "-")
        return f"{OPERATIONS}/failure-modes.md#{heading}", f"{OPERATIONS}/alerts.md#{self.alert.lower()}"


FINISHED = DrillObjective("finished", "the command comes to its end, with exit code 0")
SAME_BITS = DrillObjective("equal_bits", "final weights are those of the undisturbed run, bit for bit")
ALERT = DrillObjective("alert_raised", "the alert's figure is raised")
NONE_STARTED = DrillObjective("ranks_started", "ranks that were started", 0)
NOBODY_LEFT = DrillObjective("processes_left", "processes that outlived their command", 0)

MODES: Mapping[str, FailureMode] = MappingProxyType(
    {
        mode.code: mode
        for mode in (
            FailureMode(
                code="F1",
                title="Missing environment",
                alert="RetrainFailed",
                objectives=(
                    FINISHED,
                    DrillObjective("named", "the failure card names every variable that is missing"),
                    DrillObjective("detect_s", "from the attempt's beginning to its refusal", 2.0, "s", 30.0),
                    DrillObjective("attempts", "attempts that were spent", 1),
                    NONE_STARTED,
                    ALERT,
                    SAME_BITS,
                ),
            ),
            FailureMode(
                code="F2",
                title="Straggler",
                alert="StepsUneven",
                objectives=(
                    FINISHED,
                    DrillObjective("named", "the slow rank and its part of the step are named, and no other"),
                    # The detector looks every 20 steps, and names a rank that is behind twice in a row.
                    DrillObjective("detect_steps", "steps until it is named", 60),
                    SAME_BITS,
                ),
            ),
            FailureMode(
                code="F3",
                title="Network time-out",
                alert="ManyInterruptions",
                objectives=(
                    FINISHED,
                    DrillObjective("named", "the cause is `infrastructure`"),
                    DrillObjective("detect_s", "from the cut to the end of waiting", NETWORK_DEADLINE_S + 5.0, "s"),
                    DrillObjective("stacks_kept", "stacks of all ranks are kept"),
                    ALERT,
                    SAME_BITS,
                ),
            ),
            FailureMode(
                code="F4",
                title="Corrupt checkpoint",
                alert="CheckpointCorrupt",
                objectives=(
                    FINISHED,
                    DrillObjective("named", "the damaged checkpoint is quarantined, and no other"),
                    DrillObjective("fell_back", "training goes on from the one before"),
                    DrillObjective("lost_steps", "steps made again", 2 * CHECKPOINT_EVERY_STEPS),
                    ALERT,
                    SAME_BITS,
                ),
            ),
            FailureMode(
                code="F5",
                title="Divergence",
                alert="NonFiniteSteps",
                objectives=(
                    FINISHED,
                    DrillObjective("named", "the guard names a step that is not finite"),
                    DrillObjective("detect_steps", "steps until the guard acts", 1),
                    DrillObjective("attempts", "attempts: all ranks leave the batch out together", 1),
                    DrillObjective("loss_difference", "relative difference of the last losses", 0.05),
                    ALERT,
                ),
            ),
            FailureMode(
                code="F6",
                title="Memory",
                alert="ManyInterruptions",
                objectives=(
                    FINISHED,
                    DrillObjective("named", "the cause is `oom`, and the micro-batch is halved"),
                    DrillObjective("attempts", "attempts until it fits", 3),
                    DrillObjective("loss_difference", "relative difference of the first loss", 1e-6),
                    ALERT,
                ),
            ),
            FailureMode(
                code="F7",
                title="Pre-emption",
                alert="ManyInterruptions",
                objectives=(
                    FINISHED,
                    DrillObjective("named", "the cause is `infrastructure`, and the killed rank is named"),
                    DrillObjective("recover_s", "from the kill to the first new step", 5.0, "s", 30.0),
                    DrillObjective("lost_steps", "steps made again after the kill", CHECKPOINT_EVERY_STEPS),
                    DrillObjective("checkpoint_in_grace", "after SIGTERM a checkpoint of the last step is kept"),
                    DrillObjective("lost_steps_of_stop", "steps made again after SIGTERM", 0),
                    ALERT,
                    SAME_BITS,
                ),
            ),
            FailureMode(
                code="F8",
                title="Contention",
                alert="MachineContended",
                objectives=(
                    FINISHED,
                    DrillObjective("detect_s", "until the pressure of the processors shows", 30.0, "s"),
                    DrillObjective("ranks_blamed", "ranks that are called slow for it", 0),
                    SAME_BITS,
                ),
            ),
            FailureMode(
                code="F9",
                title="Wrong ranks or topology",
                alert="RetrainFailed",
                objectives=(
                    FINISHED,
                    DrillObjective("named", "a world that cannot share the batch is refused with its arithmetic"),
                    DrillObjective("detect_s", "from the command to its refusal", 5.0, "s"),
                    NONE_STARTED,
                    DrillObjective("stranger_refused", "a second rank without the run's key is turned away"),
                    SAME_BITS,
                ),
            ),
            FailureMode(
                code="F10",
                title="Skew",
                alert="RetrainFailed",
                objectives=(
                    DrillObjective("named", "the gate names the group of shards and its limit"),
                    DrillObjective("contract_named", "values out of range are refused by the contract"),
                    NONE_STARTED,
                    ALERT,
                ),
            ),
        )
    }
)
"""By code, in the order of the pages for people on call."""


def evaluate(
    objectives: Sequence[DrillObjective], figures: Mapping[str, Figure], launcher: str = "local"
) -> list[EvaluatedObjective]:
    """Hold figures against what is promised of them; that nothing is left running is promised of all."""
    return [
        EvaluatedObjective(
            figure=objective.figure,
            text=objective.text,
            limit=limit,
            unit=objective.unit,
            measured=figures.get(objective.figure),
            is_met=_is_met(limit, figures.get(objective.figure)),
        )
        for objective, limit in ((each, each.limit(launcher)) for each in (*objectives, NOBODY_LEFT))
    ]


def _is_met(limit: float | None, measured: Figure) -> bool:
    if measured is None:
        return False
    # A yes is no number of one, and a number no yes.
    if limit is None or isinstance(measured, bool):
        return limit is None and measured is True
    return 0 <= measured <= limit
