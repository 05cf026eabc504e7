"""What the ranks of `headway.training.programs.tuning` do, once torch is there."""

from __future__ import annotations

import collections
import contextlib
import gc
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.store.documents import DeviceFingerprint, Link
from headway.data_contracts.store.publication import Workspace
from headway.training.checkpoint.inexactness import INEXACT_RESUMES
from headway.training.checkpoint.pieces import Content
from headway.training.checkpoint.proof import fingerprint
from headway.training.checkpoint.retention import discard_expired
from headway.training.checkpoint.save import Checkpointer, SavedCheckpoint
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.parallel import mesh_that_decides_bits
from headway.training.config.shards import TRAIN
from headway.training.config.training_spec import TrainingSpec, replicas_per_rank
from headway.training.data.load.shard_reader import ShardReader
from headway.training.engine.batches import RankBatches, prefetched, proof_batch
from headway.training.engine.learner import Learner
from headway.training.engine.run_documents import (
    RunDocuments,
    load_receipt,
    load_run_documents,
    require_passing_receipt,
)
from headway.training.frozen.result import tensors_sha256
from headway.training.launch.node.rank_process import RankProcess
from headway.training.observe.heartbeat import Heartbeat
from headway.training.parallel.strategy import Batch
from headway.training.programs.tuning_request import TrialTimes, TuningAnswer, TuningRequest, TuningTrial
from headway.training.ranks.distributed import ProcessGroup, enable_determinism, init_process_group

NUM_WARM = 2
"""Steps of a trial that do not count: they allocate, and fill what is made ahead."""
MIN_STEPS, MAX_STEPS = 3, 200
MAX_STEPS_BESIDE_SAVE = 20
KEEP = CheckpointSpec(keep_last=2)


def measure(rank: RankProcess, workspace: Workspace, run: Link, run_dir: Path, request: TuningRequest) -> TuningAnswer:
    """All trials, one after another; every rank takes part.

    Raises: as training would.
    """
    with rank.ledger.span("run.open"):
        documents = load_run_documents(workspace, run)
        # The same gate as before training: these ranks read the data, too.
        require_passing_receipt(documents.run, documents.manifest, load_receipt(workspace, documents.run.receipt))
        replicas_per_rank(documents.training, rank.world_size)
        enable_determinism(documents.training.num_threads)
    with init_process_group(rank=rank.rank, world_size=rank.world_size) as process_group:
        heartbeat = Heartbeat(rank.ledger, "tune")
        begun_s = time.perf_counter()
        reader = ShardReader(workspace, documents.manifest, TRAIN, also=documents.mixed, on_shard=heartbeat)
        open_s = time.perf_counter() - begun_s
        return _Trials(documents, reader, process_group, heartbeat).answer(request, run_dir, open_s)


class _Step(NamedTuple):
    step_s: float
    data_s: float
    loss: float


class _Trained(NamedTuple):
    """What a trial came to."""

    steps: list[_Step]
    """Those that count."""
    warm_s: float
    tensors_sha256: str
    """Of rank 0's, where it was asked for."""
    losses_sha256: str


class _Trials:
    def __init__(
        self, documents: RunDocuments, reader: ShardReader, process_group: ProcessGroup, heartbeat: Heartbeat
    ) -> None:
        self._documents, self._reader, self._group, self._heartbeat = documents, reader, process_group, heartbeat
        self._training = documents.training
        self._num_parameters = 0

    def answer(self, request: TuningRequest, run_dir: Path, open_s: float) -> TuningAnswer:
        trials = request.trials
        steps = self._trial(trials[0], MIN_STEPS, with_digest=False).steps
        room = max(MIN_STEPS, self._training.max_steps - NUM_WARM)
        own = math.ceil(request.trial_s / max(statistics.median(each.step_s for each in steps), 1e-6))
        num_steps = self._agreed(request.num_steps or min(MAX_STEPS, room, max(MIN_STEPS, own)))
        made: list[list[_Trained]] = [[] for _ in trials]
        for number in range(request.rounds):
            # Another one begins each round: whoever comes first may find caches cold.
            for index in ((number + place) % len(trials) for place in range(len(trials))):
                made[index].append(self._trial(trials[index], num_steps, with_digest=not number))
        losses = self._range_test(trials[0], request.lr_factors)
        stall_s, durable_s = self._saves(trials[0], request.num_saves, run_dir / "checkpoints")
        return TuningAnswer(
            num_steps=num_steps,
            device=self._group.device.type,
            num_parameters=self._num_parameters,
            open_s=open_s,
            cached_bytes=self._reader.cached_bytes,
            trials=tuple(
                TrialTimes(
                    step_s=tuple(statistics.median(step.step_s for step in each.steps) for each in rounds),
                    data_s=tuple(statistics.median(step.data_s for step in each.steps) for each in rounds),
                    warm_s=tuple(each.warm_s for each in rounds),
                    tensors_sha256=rounds[0].tensors_sha256,
                    losses_sha256=rounds[0].losses_sha256,
                )
                for rounds in made
            ),
            stall_s=tuple(stall_s),
            durable_s=tuple(durable_s),
            losses=tuple(losses),
            peak_bytes=self._peak_bytes(),
        )

    def _peak_bytes(self) -> int:
        device = self._group.device
        if device.type == "cuda":
            return torch.cuda.max_memory_allocated(device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

    def _agreed(self, number: int) -> int:
        """Rank 0's: each has a clock of its own."""
        return int.from_bytes(self._group.from_leader(number.to_bytes(4, "big")), "big")

    def _spec(self, trial: TuningTrial) -> TrainingSpec:
        micro = trial.micro_batch_sequences or self._training.micro_batch_sequences
        return self._training.model_copy(
            update={
                "bucket_bytes": trial.bucket_bytes,
                "micro_batch_sequences": micro,
                "compile": trial.compile or self._training.compile,
                # What a step takes a rank is the same where islands train apart, and each has a loss of its own here.
                "sync": None,
            }
        )

    def _learner(self, trial: TuningTrial) -> Learner:
        learner = Learner(self._documents.recipe(), self._spec(trial), self._group)
        self._num_parameters = learner.num_parameters
        return learner

    def _trial(self, trial: TuningTrial, num_steps: int, *, with_digest: bool) -> _Trained:
        """Steps from fresh weights, and what they come to."""
        learner = self._learner(trial)
        with self._stepping(learner, trial, NUM_WARM + num_steps) as step:
            made = [step(None) for _ in range(NUM_WARM + num_steps)]
        digest = ""
        if with_digest:
            tensors = self._heartbeat.beside(learner.full_tensors())
            digest = tensors_sha256(tensors) if self._group.leads else ""
            collections.deque(tensors, maxlen=0)  # all ranks take part in making them up
        del learner
        gc.collect()  # hooks and the parameters they lie on hold each other; the next trial needs the memory
        warm_s = sum(each.step_s for each in made[:NUM_WARM])
        return _Trained(made[NUM_WARM:], warm_s, digest, sha256_of([each.loss.hex() for each in made]))

    @contextlib.contextmanager
    def _stepping(
        self, learner: Learner, trial: TuningTrial, stop: int
    ) -> Iterator[Callable[[Callable[[], None] | None], _Step]]:
        """In the body, a call is the next step; it is given what to do before the weights change."""
        spec = self._spec(trial)
        batches = RankBatches(self._reader, spec, share=learner.share, device=self._group.device)
        with prefetched(batches, trial.loader, start=0, stop=stop) as made:
            numbered = enumerate(made)

            def step(before_update: Callable[[], None] | None) -> _Step:
                begun_s = time.perf_counter()
                number, micro_batches = next(numbered)
                data_s = time.perf_counter() - begun_s
                own = learner.backward(number, micro_batches, spec.num_replicas)
                sums = learner.exchange(own, stop=False)
                norm = learner.gradient_norm(sums)
                if before_update is not None:
                    before_update()
                if learner.overflowed(sums, norm) or not math.isfinite(norm):
                    learner.discard()
                else:
                    # Trials of saves may be longer than the run, past whose end a schedule says nothing.
                    learner.update(min(number, self._training.max_steps - 1), sums, norm)
                self._heartbeat()
                return _Step(time.perf_counter() - begun_s, data_s, sums.loss)

            self._group.barrier()  # nobody's clock runs while another still builds its model
            yield step

    def _range_test(self, trial: TuningTrial, factors: Sequence[float]) -> list[float]:
        """Losses of steps from fresh weights, each at its learning rate (Smith, 2017, "Cyclical Learning Rates").

        Returns:
            Up to the first that is not finite.
        """
        if not factors:
            return []
        learner, losses = self._learner(trial), list[float]()
        # A run begins with its first batch, and so does a ramp's learning rate.
        first = self._training.batch_phases.phases[0]
        batches = RankBatches(self._reader, self._training, share=learner.share, device=self._group.device, phase=first)
        with prefetched(batches, trial.loader, start=0, stop=len(factors)) as made:
            for number, (micro_batches, factor) in enumerate(zip(made, factors, strict=True)):
                own = learner.backward(number, micro_batches, first.rows // self._training.micro_batch_sequences)
                sums = learner.exchange(own, stop=False)
                norm = learner.gradient_norm(sums)
                if learner.overflowed(sums, norm):
                    learner.discard()
                elif not math.isfinite(norm) or not math.isfinite(sums.loss):
                    break  # on all ranks alike: both are sums over all
                else:
                    learner.update(number, sums, norm, lr_factor=factor)
                losses.append(sums.loss)
                self._heartbeat()
        return losses

    def _saves(self, trial: TuningTrial, num_saves: int, folder: Path) -> tuple[list[float], list[float]]:
        """What each save costs the steps around it, and how long it takes until it is safe."""
        if not num_saves:
            return [], []
        folder.mkdir(parents=True, exist_ok=True)
        learner, known_good, saved, stall_s = self._learner(trial), set[int](), list[SavedCheckpoint](), list[float]()

        def retain(step: int) -> None:
            known_good.add(step)
            discard_expired(folder, KEEP, known_good=known_good)

        batch = proof_batch(self._reader, self._training, self._group.device)
        here = fingerprint(self._group.device, mesh_that_decides_bits(self._training.parallel, self._group.world_size))
        num_steps, done = MIN_STEPS, NUM_WARM
        stop = NUM_WARM + (num_saves + 1) * 2 * MAX_STEPS_BESIDE_SAVE
        with (
            Checkpointer(folder, self._group, retain=retain, on_saved=saved.append) as checkpointer,
            self._stepping(learner, trial, stop) as step,
        ):
            for _ in range(NUM_WARM):
                step(None)
            for number in range(num_saves + 1):
                plain_s = statistics.median(step(None).step_s for _ in range(num_steps))
                done += num_steps
                begun_s = time.perf_counter()
                checkpointer.save(self._content(learner, batch, here, done))
                blocked_s = time.perf_counter() - begun_s
                beside = [step(checkpointer.finish_staging).step_s for _ in range(num_steps)]
                done += num_steps
                checkpointer.finish()
                # The first one makes files and a plan that later ones find.
                if number:
                    stall_s.append(blocked_s + slowed_s(beside, plain_s))
                else:
                    until_safe = math.ceil(saved[0].durable_s / max(plain_s, 1e-6))
                    num_steps = self._agreed(min(MAX_STEPS_BESIDE_SAVE, max(MIN_STEPS, until_safe)))
        return stall_s, [each.durable_s for each in saved[1:]]

    def _content(self, learner: Learner, batch: Batch, here: DeviceFingerprint, step: int) -> Content:
        return Content(
            run=self._documents.run.link,
            step=step,
            num_samples=step * self._training.global_batch_sequences,
            tensors=learner.weights(),
            moments=learner.moments(),
            scalars={"optimizer_step": step, "tokens_seen": 0, INEXACT_RESUMES: 0, **learner.scalars()},
            proof_batch=batch,
            proof_loss=learner.proof_loss(batch),
            fingerprint=here,
        )


def slowed_s(beside_s: Sequence[float], plain_s: float) -> float:
    """By how much steps beside a save were slower than the plain ones before: the first waits for what is staged."""
    first, *rest = beside_s
    later_s = max(0.0, statistics.median(rest) - plain_s) * len(rest) if rest else 0.0
    return max(0.0, first - plain_s) + later_s
