"""From what a step came to, to its record in the ledger and the rank's marker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headway.training.config.parallel import mesh_shape
from headway.training.config.training_spec import TrainingSpec, splits_no_model
from headway.training.engine.batch_growth import BatchGrowth
from headway.training.engine.learner import Learner
from headway.training.engine.turns import Step
from headway.training.launch.node.rank_process import RankProcess
from headway.training.observe.telemetry import StepRecord, StepTimes, peak_memory_bytes
from headway.training.ranks.distributed import ProcessGroup
from headway.training.ranks.utilisation import flops_per_token, kind_of_device, peak_flops_per_s
from headway.training.recipes.protocol import Recipe

if TYPE_CHECKING:
    from headway.training.engine.boosted_learner import BoostedLearner

MARK_EVERY_S = 1.0
"""The ledger has every step; the marker's step only shows that the rank moves, and costs a rename."""


class StepRecorder:
    """Writes down the steps of one rank; an event `model` first, with what a step's figures stand on."""

    def __init__(
        self,
        rank: RankProcess,
        recipe: Recipe,
        spec: TrainingSpec,
        process_group: ProcessGroup,
        learner: Learner | BoostedLearner,
        growth: BatchGrowth | None = None,
    ) -> None:
        self._rank, self._process_group, self._learner = rank, process_group, learner
        # A size that never changes is the configuration's, and in no step's record.
        self._shares_batches = spec.asynchronous is None
        self._growth = growth if spec.batch_ramp is not None else None
        self.tokens_seen = 0
        self._marked_s = 0.0
        flops = flops_per_token(recipe, learner.num_parameters)
        peak = peak_flops_per_s(process_group.device, spec.precision)
        self._tokens_per_s_at_peak = None if peak is None else process_group.world_size * peak / flops
        facts = {"num_parameters": learner.num_parameters, "flops_per_token": flops, "peak_flops_per_s": peak}
        gang = {"world_size": process_group.world_size, "device": kind_of_device(process_group.device)}
        gang["has_whole_model"] = splits_no_model(
            mesh_shape(spec.parallel, process_group.world_size), process_group.world_size
        )
        rank.ledger.event("model", **gang, num_stages=spec.parallel.pipeline, **facts)

    def __call__(self, step: Step, times: StepTimes) -> None:
        record = self._record(step, times)
        # Tokens of a step that was not taken trained nothing.
        self.tokens_seen += record.tokens if record.outcome == "taken" else 0
        name, fields = record.as_event()
        self._rank.ledger.event(name, **fields)
        # The marker costs a rename on shared storage, from every rank.
        if time.monotonic() - self._marked_s > MARK_EVERY_S:
            self._rank.mark("running", step=record.step)
            self._marked_s = time.monotonic()

    def _relative_share(self, num_replicas: int) -> float | None:
        if not self._shares_batches:
            return None
        share = self._learner.share
        ratio = len(share.replicas(num_replicas)) * share.count / num_replicas
        return None if ratio == 1 else ratio

    def _record(self, step: Step, times: StepTimes) -> StepRecord:
        laps, within_s = times.laps_s, self._learner.parts_s()
        # Clocks of device and host differ a little; no part may come out longer than the whole.
        waited_s = min(within_s["sync"], laps["compute"])
        forward_s = min(within_s["forward"], laps["compute"] - waited_s)
        duration_s = times.duration_s
        at_peak = self._tokens_per_s_at_peak
        return StepRecord(
            step=step.number,
            window=step.window,
            outcome=step.outcome,
            loss=step.sums.loss,
            lr=step.lr,
            grad_norm=step.grad_norm,
            gradient_noise_scale=self._learner.noise_scale,
            relative_share=self._relative_share(step.num_replicas),
            batch_rows=None if self._growth is None else self._growth.phases.at(step.window).rows,
            staleness=step.staleness,
            ends_round=None if step.ends_round else False,
            tokens=step.sums.num_tokens,
            unix_s=times.started_unix_s,
            duration_s=duration_s,
            data_s=laps["data"],
            forward_s=forward_s,
            backward_s=laps["compute"] - forward_s - waited_s,
            sync_s=laps["sync"] + waited_s,
            staging_s=laps["staging"],
            optimizer_s=laps["optimizer"],
            memory_bytes=peak_memory_bytes(self._process_group.device),
            # Islands that trained apart have exchanged nothing before the last step of their round.
            traffic=self._process_group.traffic.take() if step.ends_round else {},
            # Of the whole gang: all ranks' tokens over all devices' peak.
            mfu=None if at_peak is None else step.sums.num_tokens / duration_s / at_peak,
        )
