"""What the next retrain of a pipeline would cost, by what its steps cost before, and which bound that would reach."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel

from headway.data_contracts.store import plain_text
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count
from headway.flows.accounts.cost import HOUR_S
from headway.flows.accounts.flow_account import FlowAccount
from headway.flows.accounts.goodput import OF_STEPS
from headway.flows.accounts.spending import STARTING, Bound, BoundSpending, expected_kind, newest_trained
from headway.flows.config.cost_bound import known_prices
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.profiles import PricesSpec
from headway.flows.console.environment import project_folder
from headway.tasks.core.outlook import Outlook
from headway.tasks.core.stage_records import STAGES


class BoundForecast(BaseModel):
    bound: str
    """`usd_per_run` or `usd_per_month`."""
    usd: float
    spent_usd: float
    """Of it so far."""
    is_reached: bool | None
    """By what the retrain would cost; None where that is not known."""
    at_step: int | None
    """About the last step before; None where it is not reached, or not in training."""


class CostForecast(BaseModel):
    usd: float | None
    """None: not known."""
    device_hours: float | None
    devices: int
    device: str
    """The kind whose price holds; empty: the dearest, since nothing tells."""
    usd_per_device_hour: float | None
    """None: no price is declared of the kind."""
    how: str
    """By what it is known, or why it is not."""
    bounds: list[BoundForecast]


class _Training(NamedTuple):
    """What would be trained, by what was."""

    from_step: int
    num_steps: int
    start_s: float
    """Device-seconds until the first step."""
    step_s: float
    """Device-seconds of one: the same on more devices, if they scale."""

    @property
    def device_s(self) -> float:
        return self.start_s + self.num_steps * self.step_s if self.num_steps else 0.0


def forecast(
    workspace: Workspace, pipeline: PipelineSpec, stages: Sequence[Outlook], max_steps: int | None, run: Link | None
) -> CostForecast | None:
    """None: no prices are known.

    Args:
        stages: what each would do, in order.
        run: what would be trained, where that is known.

    Raises:
        ConfigError: the profiles cannot be read.
    """
    if (prices := known_prices(project_folder())) is None:
        return None
    kind = expected_kind(workspace, pipeline.pipeline, is_here=pipeline.launch.launcher == "local")
    price = prices.price_of(kind) if kind else max(prices.device_hour_usd.values())
    devices, trained = pipeline.launch.world_size, newest_trained(workspace, pipeline.pipeline)
    training = _training(next(stage for stage in stages if stage.stage == "launch"), max_steps, trained)
    made = [stage for stage in stages if stage.state != "found" and stage.stage != "launch"]
    before = [stage for stage in made if STAGES.index(stage.stage) < STAGES.index("launch")]
    # Before and after training the same devices are paid for.
    usd_per_s = (price or 0.0) / HOUR_S
    before_usd, made_usd = (devices * usd_per_s * sum(each.expected_s or 0.0 for each in of) for of in (before, made))
    usd = None if training is None or price is None else made_usd + training.device_s * usd_per_s
    bounds = _bounds(workspace, pipeline, prices, kind, run)
    return CostForecast(
        usd=usd,
        device_hours=None if usd is None or not usd_per_s else usd / usd_per_s / HOUR_S,
        devices=devices,
        device=kind,
        usd_per_device_hour=price,
        how=_how(training, trained, devices, kind, price, made, max_steps),
        bounds=[_reached(bound, usd, before_usd, training, usd_per_s) for bound in bounds],
    )


def _training(launch: Outlook, max_steps: int | None, trained: FlowAccount | None) -> _Training | None:
    """None: not known."""
    if launch.state == "found":
        return _Training(0, 0, 0.0, 0.0)
    if max_steps is None or trained is None:
        return None
    goodput, from_step = trained.goodput, launch.from_step or 0
    parts_s = goodput.parts_device_s
    return _Training(
        from_step=from_step,
        num_steps=max(max_steps - from_step, 0),
        start_s=sum(max(parts_s.get(state, 0.0), 0.0) for state in STARTING) / max(goodput.num_attempts, 1),
        step_s=sum(max(parts_s.get(state, 0.0), 0.0) for state in OF_STEPS) / goodput.num_steps,
    )


def _bounds(
    workspace: Workspace, pipeline: PipelineSpec, prices: PricesSpec, kind: str, run: Link | None
) -> Sequence[Bound]:
    if pipeline.cost_bound is None:
        return ()
    spending = BoundSpending(
        workspace=workspace,
        pipeline=pipeline.pipeline,
        spec=pipeline.cost_bound,
        prices=prices,
        devices=pipeline.launch.world_size,
        kind=kind,
        continued_by="",
        started_unix_s=time.time(),
    )
    return spending.bounds("" if run is None else run.sha256[:16])


def _reached(
    bound: Bound, usd: float | None, before_usd: float, training: _Training | None, usd_per_s: float
) -> BoundForecast:
    is_reached = None if usd is None else bound.spent_usd + usd >= bound.usd
    at_step = None
    if is_reached and training is not None and training.num_steps and usd_per_s:
        left_s = (bound.usd - bound.spent_usd - before_usd) / usd_per_s - training.start_s
        # Steps may be said to have taken no time at all, and then any number is paid for.
        num_steps = max(left_s / training.step_s, 0.0) if training.step_s else math.inf
        # What training leaves may not pay for the evaluation.
        at_step = training.from_step + int(num_steps) if num_steps < training.num_steps else None
    return BoundForecast(
        bound=bound.name, usd=bound.usd, spent_usd=bound.spent_usd, is_reached=is_reached, at_step=at_step
    )


def _how(
    training: _Training | None,
    trained: FlowAccount | None,
    devices: int,
    kind: str,
    price: float | None,
    made: Sequence[Outlook],
    max_steps: int | None,
) -> str:
    if price is None:
        return f"no price of {plain_text.one_line(kind)} is declared"
    if training is None:
        return (
            "its steps are counted once its rows are"
            if max_steps is None
            else "no step of this pipeline is on record here"
        )
    words = []
    if training.num_steps and trained is not None:
        before = trained.goodput
        on = "" if before.devices == devices else f" on {count(before.devices, 'device')}"
        took = f"{training.step_s / max(before.devices, 1):.3g} s each"
        words.append(f"{count(training.num_steps, 'step')} as the last {before.num_steps:,}{on}, {took}")
    if unknown := [stage.stage for stage in made if stage.expected_s is None]:
        words.append(f"without {', '.join(unknown)}, which never ran here")
    return "; ".join(words) or "nothing is trained"


def cost_lines(cost: CostForecast) -> list[str]:
    """For a terminal."""
    if cost.usd is None:
        lines = [f"cost         not known: {cost.how}"]
    else:
        of = f"{cost.devices} {plain_text.one_line(cost.device) or 'of the dearest kind'}"
        lines = [f"cost         about {cost.usd:,.2f} USD: {of} at {cost.usd_per_device_hour:,.2f} an hour; {cost.how}"]
    for bound in cost.bounds:
        if bound.spent_usd >= bound.usd:
            what = "nothing more is paid for"
        elif bound.is_reached is None:
            what = "whether this would reach it is not known"
        elif not bound.is_reached:
            what = "this would not reach it"
        else:
            where = "after training" if bound.at_step is None else f"at about step {bound.at_step:,}"
            what = f"this would reach it {where}"
        lines.append(f"bound        {bound.bound} {bound.usd:,.2f}, of which {bound.spent_usd:,.2f} is spent: {what}")
    return lines
