"""What a page shows beside its document: what the model said of each example, and how its training went."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from headway.data_contracts.store.digests import canonical_json, sha256_bytes
from headway.data_contracts.store.documents import EvaluationReport, Frozen, Link, StoredFile
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.candidate import Candidate
from headway.tasks.rows.label_unit import number_shape
from headway.training.checkpoint.layout import run_folder
from headway.training.config.shapes import TabularNumberShape
from headway.training.evaluation.outputs import Outputs
from headway.training.launch.base.gang import leader_spools
from headway.training.observe.ledger import SpoolTail

MAX_POINTS = 500
"""Of a curve; each stands for as many steps as it takes."""
MAX_CURVE_BYTES = 1 << 20


class TrainingCurve(Frozen):
    """Losses as a run's first rank recorded them on this machine; no document, for other machines have other parts."""

    format_version: int = 1
    first_step: int
    num_steps: int
    """Up to the checkpoint that was evaluated; of a run that was validated, up to its end."""
    num_excluded: int
    """Batches that a guard left out."""
    started_unix_s: float
    ended_unix_s: float
    step: tuple[int, ...]
    """The last one of each point."""
    loss: tuple[float, ...]
    """The mean over the steps of each point, in nats a target."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    lr: tuple[float, ...]
    validated: tuple[tuple[int, float], ...] = ()
    """Step and figure of each validation, to the end of the run."""
    metric: str = ""
    """What the figure is."""
    model_step: int = 0
    """Whose checkpoint was evaluated."""
    noise_scale: float | None = None
    """Of the gradient, in rows, after the last step that has it."""
    noise: tuple[tuple[int, float], ...] = ()
    """Step and noise scale, in rows, of the last step of each point that has it."""
    batch: tuple[tuple[int, int], ...] = ()
    """Step and rows of the global batch, of each point; empty: it was the same throughout."""
    shape: TabularNumberShape | None = None
    """Of a number that a built-in recipe predicts: its loss is shown as `rmse`, in the number's unit."""

    @property
    def in_label_unit(self) -> Self:
        """The same losses as rmse, where that can be said."""
        if self.shape is None:
            return self
        made = {name: tuple(map(self.shape.rmse, getattr(self, name))) for name in ("loss", "low", "high")}
        return self.model_copy(update=made)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    outputs: Outputs | None = None
    curve: TrainingCurve | None = None


NO_EVIDENCE = Evidence()


def curve_path(checkpoint: Link) -> str:
    return f"reports/curve-{checkpoint.sha256[:16]}.json"


def publish_outputs(workspace: Workspace, outputs: Outputs) -> StoredFile:
    data = outputs.to_bytes()
    return workspace.publish(f"reports/outputs-{sha256_bytes(data)[:16]}.safetensors", data)


def publish_curve(workspace: Workspace, candidate: Candidate) -> StoredFile | None:
    """None: this machine has no record of the run's steps."""
    steps, validations, num_excluded = _recorded(workspace, candidate)
    if not steps:
        return None
    besides = {
        "shape": number_shape(workspace, candidate.run),
        "validated": tuple((number, float(each["value"])) for number, each in sorted(validations.items())),
        "metric": next((str(each["metric"]) for each in validations.values()), ""),
        "model_step": candidate.manifest.step,
        "noise_scale": _noise_scale(steps),
    }
    curve = _thinned([steps[number] for number in sorted(steps)], num_excluded).model_copy(update=besides)
    return workspace.publish(curve_path(candidate.checkpoint), canonical_json(curve.model_dump(mode="json")))


def read_evidence(workspace: Workspace, report: EvaluationReport) -> Evidence:
    """As much as is there and whole: a page without a picture is better than none."""
    outputs = None
    if report.outputs is not None and (data := workspace.read_if_there(report.outputs.path)) is not None:
        try:
            outputs = Outputs.from_bytes(data) if sha256_bytes(data) == report.outputs.sha256 else None
        except ValueError as error:
            raise IntegrityError("not readable outputs of a model.", where=report.outputs.path) from error
    return Evidence(outputs=outputs, curve=read_curve(workspace, report.checkpoint))


def read_curve(workspace: Workspace, checkpoint: Link) -> TrainingCurve | None:
    """None: there is none that can be read."""
    try:
        data = workspace.read_if_there(curve_path(checkpoint), MAX_CURVE_BYTES)
        return None if data is None else TrainingCurve.model_validate_json(data)
    except (ValidationError, IntegrityError):  # no digest proves it, and nothing stands on it
        return None


_ByStep = dict[int, dict[str, Any]]


def _recorded(workspace: Workspace, candidate: Candidate) -> tuple[_ByStep, _ByStep, int]:
    """By number, the last record of each step and each validation: they are done again after a restart.

    Of a run that was not validated up to the checkpoint alone; of others to their end, which shows why it is the model.
    """
    steps: _ByStep = {}
    validations: _ByStep = {}
    num_excluded = 0
    for event in _events(workspace, candidate.manifest.run):
        if event["event"] == "step.excluded":
            num_excluded += 1
        elif event["event"] == "step" and _is_finite(event.get("loss")) and _is_finite(event.get("lr")):
            steps[event["step"]] = {
                **{name: event[name] for name in ("step", "loss", "lr", "unix_s")},
                "noise_scale": event.get("gradient_noise_scale"),
                "batch_rows": event.get("batch_rows"),
            }
        elif event["event"] == "validation" and "value" in event:
            validations[event["step"]] = {name: event[name] for name in ("metric", "value")}
    if not validations:
        steps = {number: step for number, step in steps.items() if number <= candidate.manifest.step}
    return steps, validations, num_excluded


def _noise_scale(steps: _ByStep) -> float | None:
    scale = steps[max(steps)]["noise_scale"] if steps else None
    return scale if _is_finite(scale) else None


def _is_finite(value: Any) -> bool:
    # JSON, in which a curve is kept, has no word for what is not.
    return isinstance(value, float) and math.isfinite(value)


def _events(workspace: Workspace, run: Link) -> Iterator[dict[str, Any]]:
    for spool in leader_spools(workspace.local_path(run_folder(run))):
        yield from SpoolTail(spool).stream()


def _thinned(steps: list[dict[str, Any]], num_excluded: int) -> TrainingCurve:
    a_point = -(-len(steps) // MAX_POINTS)
    parts = [steps[start : start + a_point] for start in range(0, len(steps), a_point)]
    losses = [[step["loss"] for step in part] for part in parts]
    return TrainingCurve(
        first_step=steps[0]["step"],
        num_steps=len(steps),
        num_excluded=num_excluded,
        started_unix_s=steps[0]["unix_s"],
        ended_unix_s=steps[-1]["unix_s"],
        step=tuple(part[-1]["step"] for part in parts),
        loss=tuple(sum(each) / len(each) for each in losses),
        low=tuple(min(each) for each in losses),
        high=tuple(max(each) for each in losses),
        lr=tuple(part[-1]["lr"] for part in parts),
        noise=tuple(
            (part[-1]["step"], scale) for part in parts if _is_finite(scale := part[-1]["noise_scale"]) and scale > 0
        ),
        batch=tuple((part[-1]["step"], rows) for part in parts if isinstance(rows := part[-1]["batch_rows"], int)),
    )
