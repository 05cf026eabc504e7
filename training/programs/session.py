"""One rank's life: through the gate, to the gang, from the newest good checkpoint to the last step."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import IntegrityError, RunStopped
from headway.data_contracts.store.publication import Workspace, make_folder
from headway.training.checkpoint.inexactness import HALVED_MICRO_BATCH, INEXACT_RESUMES, inexactness
from headway.training.checkpoint.layout import directory_name
from headway.training.checkpoint.pieces import Content
from headway.training.checkpoint.proof import fingerprint, require_one_kind
from headway.training.checkpoint.read import VerifiedCheckpoint
from headway.training.checkpoint.restore import restore_newest
from headway.training.checkpoint.retention import abandon_after, discard_expired
from headway.training.checkpoint.save import Checkpointer, SavedCheckpoint
from headway.training.config.batch_ramp import BatchPhase
from headway.training.config.checkpoints import save_is_due
from headway.training.config.execution import as_launched
from headway.training.config.loader_spec import loader_spec
from headway.training.config.parallel import mesh_that_decides_bits
from headway.training.config.shards import TRAIN
from headway.training.config.training_spec import replicas_per_rank
from headway.training.data.load.shard_reader import ShardReader
from headway.training.engine.arrivals import script_of
from headway.training.engine.asynchronous_learner import AsynchronousLearner
from headway.training.engine.batch_growth import BatchGrowth
from headway.training.engine.batches import RankBatches, prefetched_by_phase, proof_batch
from headway.training.engine.choose_learner import new_learner
from headway.training.engine.federated_learner import FederatedLearner
from headway.training.engine.learner import Learner
from headway.training.engine.loop import train
from headway.training.engine.profiling import StepProfiler
from headway.training.engine.run_documents import (
    RunDocuments,
    load_receipt,
    load_run_documents,
    require_passing_receipt,
    training_spec,
)
from headway.training.engine.share_balance import ShareBalance
from headway.training.engine.step_recorder import StepRecorder
from headway.training.engine.turns import Step
from headway.training.evaluation.validation import Validation
from headway.training.evaluation.validation_rows import ValidationRows, validation_rows
from headway.training.frozen.result import is_finished, publish_result
from headway.training.guards.memory import explaining_out_of_memory, remember_allocations, with_noted_micro_batch
from headway.training.guards.step_guard import RollBack, StepGuard
from headway.training.guards.stop import StopConditions
from headway.training.launch.node.rank_process import RankProcess
from headway.training.observe.heartbeat import Heartbeat
from headway.training.observe.telemetry import StepTimes
from headway.training.observe.traffic import as_fields
from headway.training.optimizers.groups import all_names
from headway.training.parallel.strategy import Batch, BatchShare
from headway.training.ranks.distributed import ProcessGroup, enable_determinism, init_process_group
from headway.training.recipes.checked import require_finite_first_loss

if TYPE_CHECKING:
    from headway.training.engine.boosted_learner import BoostedLearner
    from headway.training.recipes.gradient_boosting import GradientBoosting


MAX_BEST_LOST = 2
"""A disk that damages what it is given would have the run begin anew for ever."""


def train_run(rank: RankProcess, workspace: Workspace, run: Link, run_dir: Path) -> None:
    """Train a run to its last step and publish its result; at once when that is done already.

    Raises:
        ContractViolation: the shards carry no passing receipt of their own.
        IntegrityError: a shard differs from its manifest.
        RunStopped: asked to stop; a checkpoint was kept.
    """
    ledger = rank.ledger
    with ledger.span("run.open"):
        documents = load_run_documents(workspace, run)
        # An attempt goes by its launch in what decides no bit.
        documents = dataclasses.replace(documents, training=as_launched(documents.training))
        # The gate comes first: without a receipt nothing of the data is read.
        require_passing_receipt(documents.run, documents.manifest, load_receipt(workspace, documents.run.receipt))
        replicas_per_rank(documents.training, rank.world_size)  # refuses an impossible world
        # Before the process group and the model, since kernels are chosen when they are first used.
        enable_determinism(documents.training.num_threads)
    with contextlib.ExitStack() as process_group_stack:
        with ledger.span("rendezvous"):
            process_group = process_group_stack.enter_context(
                init_process_group(rank=rank.rank, world_size=rank.world_size)
            )
            # After the rendezvous: all ranks must take the same micro-batch.
            training = with_noted_micro_batch(documents.training, run_dir, process_group)
            documents = dataclasses.replace(documents, training=training)
            if training.parallel.mode == "exact":
                require_one_kind(fingerprint(process_group.device), process_group.gather_bytes)
        with ledger.span("result.check"):
            # Before the data are opened: a run that is finished already needs none of them.
            finished = is_finished(run_dir, run, process_group, on_part=Heartbeat(ledger, "result.check"))
        if finished:
            ledger.event("run.already_finished")
        else:
            with ledger.span("data.open"):
                heartbeat = Heartbeat(ledger, "data.open")
                reader = ShardReader(workspace, documents.manifest, TRAIN, also=documents.mixed, on_shard=heartbeat)
                validates_on = validation_rows(workspace, documents.manifest, documents.training, heartbeat)
            remember_allocations(process_group.device)
            _Session(rank, documents, run, run_dir, reader, validates_on, process_group).run_to_the_end()
        # Timed apart, for collectives may wait here for slow peers.
        with ledger.span("teardown"):
            process_group_stack.close()


class _Session:
    def __init__(
        self,
        rank: RankProcess,
        documents: RunDocuments,
        run: Link,
        run_dir: Path,
        reader: ShardReader,
        validates_on: ValidationRows | None,
        process_group: ProcessGroup,
    ) -> None:
        self._rank, self._run, self._process_group, self._reader = rank, run, process_group, reader
        self._run_dir, self._checkpoints = run_dir, run_dir / "checkpoints"
        self._spec = documents.training
        self._recipe, self._start = documents.recipe(), documents.start
        self._growth = BatchGrowth(self._spec)
        self._balance = ShareBalance(self._spec, process_group, rank.ledger)
        self._guard = StepGuard(self._spec.guards, on_alarm=lambda fields: rank.ledger.event("guard", **fields))
        self._fingerprint = fingerprint(
            process_group.device,
            # Where ranks do not wait, an order of arrivals decides the bits, and not how many there are.
            mesh_that_decides_bits(self._spec.parallel, 1 if self._spec.asynchronous else process_group.world_size),
        )
        self._inexact_resumes = 0
        configured, rows = training_spec(documents.run).micro_batch_sequences, self._spec.micro_batch_sequences
        self._halved_micro_batch = rows if rows != configured else None
        self._known_good: set[int] = set()
        self._saved_s = 0.0
        self._round_heartbeat = Heartbeat(rank.ledger, "round")
        self._stop = StopConditions(lambda: rank.stop_requested, rank.stop_at, may_double=lambda: self._growth.may_grow)
        self._profiler = StepProfiler(rank, run_dir, self._spec.profile)
        self._validates_on, self._num_best_lost = validates_on, 0

    def run_to_the_end(self) -> None:
        at_most: int | None = None
        while (at_most := self._train(self._begin(at_most))) is not None or (at_most := self._take_best()) is not None:
            # Released before the next attempt to build it, which needs the memory.
            self._release_memory()
        with self._rank.ledger.span("result") as fields:
            # A generator that gathers tensor by tensor: never the whole state on one rank.
            full_tensors = Heartbeat(self._rank.ledger, "result").beside(self._learner.full_tensors())
            if self._process_group.leads and self._result is not None:
                publish_result(self._run_dir, self._run, self._result, full_tensors, self._rank.fence)
            collections.deque(full_tensors, maxlen=0)  # all ranks take part in making them up
            fields |= as_fields(self._process_group.traffic.take())

    def _take_best(self) -> int | None:
        """Of the checkpoints that validated best, take up the model, where that is the run's; else the last one is.

        Returns None; or to which step the run has to go back, at most, because that checkpoint is good no longer.

        Raises:
            IntegrityError: that was so again and again.
        """
        self._result, best = self._checkpointer.newest, self._validation.best_step  # the former is rank 0's alone
        if best in (None, self._checkpointer.saved_step):
            return None
        with self._rank.ledger.span("restore.best", step=best) as fields:
            verified = restore_newest(
                self._run_dir,
                self._run,
                self._process_group,
                state=self._learner.tensors(),
                step=best,
                on_quarantine=partial(self._report_quarantine, fields),
                on_part=Heartbeat(self._rank.ledger, "restore.best"),
                fence=self._rank.fence,
            )
            if verified is None:
                self._num_best_lost += 1
                if self._num_best_lost > MAX_BEST_LOST:
                    raise IntegrityError(
                        f"the checkpoint that validated best was no longer good {self._num_best_lost} times.",
                        where=str(self._checkpoints / directory_name(best)),
                        advice="Look at the disk; what was put aside lies in `quarantine`, beside the checkpoints.",
                    )
                return best - 1
            self._learner.load(verified.tensors, verified.manifest.scalars)
        self._result = verified.manifest
        return None

    def _train(self, first_step: int) -> int | None:
        """Train to the end, and return None; or to where the guard wants to go back, at most to the step returned."""
        self._left_unix_s = time.time()
        try:
            return self._train_steps(first_step)
        finally:
            # What is still written behind the steps, and threads that end: it is nobody else's time.
            self._rank.ledger.elapsed("wind_down", self._left_unix_s)

    def _train_steps(self, first_step: int) -> int | None:
        # Windows that may yet be excluded are prepared too, so that a skip does not empty the pipeline.
        windows = self._guard.windows(first_step, self._spec.max_steps)
        with (
            self._rank.worth_keeping(),
            self._checkpointer,
            self._profiler,
            self._batches(windows) as made,
        ):
            # Numbered here: the plan may change while batches are prefetched ahead.
            numbered = zip(windows, made, strict=False)
            self._profiler.at_boundary(first_step)
            try:
                with self._explaining_out_of_memory(of_batches=True):
                    train(
                        self._learner,
                        # Asked at each step, since the guard may exclude windows that are on their way.
                        (
                            (window, self._num_replicas(window), batch)
                            for window, batch in numbered
                            if not self._guard.plan.excludes(window)
                        ),
                        self._guard,
                        self._validation,
                        first_step=first_step,
                        max_steps=self._spec.max_steps,
                        stop_is_due=self._stop,
                        ends_with=self._stop.ends_with,
                        save_is_due=self._save_is_due,
                        on_step=self._record,
                        on_step_apart=self._report_step_apart,
                        save=self._save,
                        before_update=self._checkpointer.finish_staging,
                    )
            except RollBack as wanted:
                return wanted.step
            except RunStopped as stopped:
                raise RunStopped(stopped.what, reason=self._stop.reason) from None
            finally:
                self._guard.finish()
                self._left_unix_s = time.time()
                self._rank.ledger.event("wind_down.begin")  # so that nobody expects another step
        return None

    @contextlib.contextmanager
    def _batches(self, windows: range) -> Iterator[Iterator[Sequence[Batch]]]:
        if self._spec.grows_trees:
            # It has all rows: nothing is read beside its steps.
            yield itertools.repeat(())
            return
        device = self._process_group.device
        if self._spec.asynchronous is not None:
            batches = RankBatches(self._reader, self._spec, share=BatchShare(0, 1), device=device)
            # Nobody knows beforehand who trains on which.
            yield (cast("Sequence[Batch]", partial(batches, window)) for window in windows)
            return
        with prefetched_by_phase(
            windows,
            lambda: self._growth.phases,
            lambda phase: RankBatches(self._reader, self._spec, share=self._learner.share, device=device, phase=phase),
            loader_spec(),
            lambda: self._learner.share,
            self._report_growth,
        ) as made:
            yield made

    def _report_growth(self, window: int, before: BatchPhase, after: BatchPhase) -> None:
        step = self._guard.plan.steps_before(window) + 1
        num_before, num = (
            len(self._learner.share.replicas(rows // self._spec.micro_batch_sequences))
            for rows in (before.rows, after.rows)
        )
        what = (
            f"{before.rows} -> {after.rows} rows from step {step:,} on: {num} micro-batches a rank, "
            f"{num_before} before."
        )
        fields = {"window": window, "rows": after.rows, "num_micro_batches": num}
        self._rank.ledger.event("batch.grown", step=step, **fields, what=what)

    def _new_learner(self) -> Learner | BoostedLearner:
        """From fresh weights; of a recipe that grows trees, with the rows that they are grown of."""
        if not self._spec.grows_trees:
            learner = new_learner(self._recipe, self._spec, self._process_group, self._reader)
            if isinstance(learner, AsynchronousLearner):
                learner.script = script_of(self._run_dir)
            return learner
        # Here, for scikit-learn is no other recipe's business.
        from headway.training.engine.boosted_learner import BoostedLearner

        recipe, heartbeat = cast("GradientBoosting", self._recipe), Heartbeat(self._rank.ledger, "restore")
        return BoostedLearner(recipe, self._spec, self._process_group, self._reader, on_part=heartbeat)

    def _explaining_out_of_memory(self, *, of_batches: bool) -> contextlib.AbstractContextManager[None]:
        report, fence = self._rank.files.memory(self._rank.rank), self._rank.fence
        return explaining_out_of_memory(
            self._spec,
            self._run_dir,
            report=report,
            device=self._process_group.device,
            of_batches=of_batches and not self._spec.grows_trees,
            fence=fence,
        )

    def _release_memory(self) -> None:
        """Give up the model and all that belongs to it: the device need not hold two of them."""
        del self._learner, self._validation, self._recorder, self._checkpointer, self._proof_batch
        gc.collect()  # hooks and the parameters they lie on hold each other
        if self._process_group.device.type == "cuda":
            torch.cuda.empty_cache()

    def _begin(self, at_most: int | None = None) -> int:
        """Fresh weights, or those of the newest good checkpoint of at most so many steps. Returns how many are done."""
        with self._rank.ledger.span("restore") as fields, self._explaining_out_of_memory(of_batches=False):
            # Not even a restore for an attempt that was overtaken: it may quarantine checkpoints.
            self._rank.fence.require()
            # By rank 0 alone, before all look: else one rank might restore what another moves away.
            if at_most is not None and self._process_group.leads:
                abandon_after(self._run_dir, at_most, self._rank.fence)
            # Fresh weights first, always: a checkpoint is loaded into what was built, and must fit it.
            self._learner = self._new_learner()
            if not self._spec.grows_trees:
                self._balance.begin(cast("Learner", self._learner))
            self._recorder = StepRecorder(
                self._rank, self._recipe, self._spec, self._process_group, self._learner, self._growth
            )
            self._validation = Validation(
                self._spec.validation,
                cast("Learner", self._learner),  # no trees are validated
                self._validates_on,
                self._process_group,
                self._rank.ledger,
                max_steps=self._spec.max_steps,
                stop_is_due=self._stop.in_between,
            )
            self._proof_batch = proof_batch(self._reader, self._spec, self._process_group.device)
            step = fields["step"] = self._restore(fields)
            self._saved_s = time.monotonic()
            if inexact := inexactness(self._inexact()):
                self._rank.ledger.event("run.inexact", what=f"not to the bit an undisturbed run: {inexact}.")
            # The bound may be reached by the checkpoint already; then no step is trained beyond it.
            if step < self._spec.max_steps and not self._validation.has_converged and self._stop.is_reached(step):
                raise RunStopped(f"step {step} of {self._spec.max_steps} was done already.", reason="step reached")
            self._stop.begin()
            # So that a request to stop finds all ranks on the same side of the first step.
            self._process_group.barrier()
            fields |= as_fields(self._process_group.traffic.take())
        return step

    def _restore(self, fields: dict[str, Any]) -> int:
        """Take up the newest good checkpoint. Returns how many steps are done.

        Args:
            fields: of the event; `quarantine` is the number of checkpoints that were not good.
        """
        make_folder(self._checkpoints)
        heartbeat = Heartbeat(self._rank.ledger, "restore")
        verified = restore_newest(
            self._run_dir,
            self._run,
            self._process_group,
            # Only this rank's slices are read, whatever mesh saved them.
            state=self._learner.tensors(),
            on_quarantine=partial(self._report_quarantine, fields),
            on_part=heartbeat,
            fence=self._rank.fence,
        )
        self._checkpointer = Checkpointer(
            self._checkpoints,
            self._process_group,
            newest=None if verified is None else verified.manifest,
            retain=self._discard_expired,
            on_saved=self._report_saved,
            on_part=Heartbeat(self._rank.ledger, "checkpoint"),
            fence=self._rank.fence,
        )
        if verified is None:
            # A roll-back may lead back to the very beginning; nothing of the later steps may remain.
            self._guard.restart()
            self._growth.restart()
            self._inexact_resumes, self._known_good = 0, set()
            if self._start is not None:
                self._start.take_over(
                    self._learner.tensors(),
                    self._recipe.build,
                    names=all_names(self._learner.model),
                    # The other model's optimizer state is read by one rank for all.
                    rest=None if self._process_group.leads else (),
                    on_part=heartbeat,
                )
                self._learner.begin_from_model()
            # The first forward pass of a run: a loss that is not finite here is the recipe's or the data's.
            with self._explaining_out_of_memory(of_batches=True):
                first_loss = self._learner.proof_loss(self._proof_batch)
            require_finite_first_loss(self._recipe, self._proof_batch, first_loss)
            return 0
        manifest = verified.manifest
        self._learner.load(verified.tensors, manifest.scalars)
        self._guard.restore(str(manifest.scalars["guard"]))
        self._growth.load(manifest.scalars)
        self._validation.load(manifest.scalars)
        self._recorder.tokens_seen = int(manifest.scalars["tokens_seen"])
        self._inexact_resumes = int(manifest.scalars[INEXACT_RESUMES]) + self._is_inexact(verified)
        if self._halved_micro_batch is None and HALVED_MICRO_BATCH in manifest.scalars:
            self._halved_micro_batch = int(manifest.scalars[HALVED_MICRO_BATCH])
        # Later steps were quarantined or abandoned, and are good no longer.
        self._known_good = {step for step in self._known_good if step < manifest.step} | {manifest.step}
        return manifest.step

    def _is_inexact(self, verified: VerifiedCheckpoint) -> bool:
        """Whether this machine's bits may differ from those of the one that saved."""
        saved, here = verified.manifest.fingerprint.model_dump(), self._fingerprint.model_dump()
        changed = {name: [saved[name], here[name]] for name in saved if saved[name] != here[name]}
        if changed:
            what = f"another {', '.join(changed)} than the checkpoint's: bits may differ from here on."
            self._rank.ledger.event("restore.inexact", changed=changed, what=what)
        return bool(changed)

    def _report_quarantine(self, fields: dict[str, Any], directory: Path, error: IntegrityError) -> None:
        fields["quarantined"] = fields.get("quarantined", 0) + 1
        self._rank.ledger.event(
            "checkpoint.quarantined", checkpoint=directory.name, problem=str(error), what=str(error)
        )

    def _report_saved(self, saved: SavedCheckpoint) -> None:
        self._stop.saved(saved.durable_s)
        self._rank.ledger.event("checkpoint.durable", **dataclasses.asdict(saved))

    def _record(self, step: Step, times: StepTimes) -> None:
        self._recorder(step, times)
        is_measured = step.outcome == "taken" and step.sums.replica_square is not None
        self._growth.take(step.window, is_measured=is_measured, noise_scale=self._learner.noise_scale)
        if not self._spec.grows_trees:
            replicas = self._num_replicas(step.window)
            self._balance.take(cast("Learner", self._learner), step.number, replicas, step.sums.replica_s)
        if step.ends_round and isinstance(self._learner, FederatedLearner) and self._process_group.leads:
            self._rank.ledger.event("federated.round", step=step.number, **self._learner.round_fields())
        if step.ends_round and isinstance(self._learner, AsynchronousLearner) and self._process_group.leads:
            self._rank.ledger.event("asynchronous.round", step=step.number, arrivals=self._learner.arrivals)
        # In the midst of a round it was told at the time.
        if step.ends_round:
            self._profiler.at_boundary(step.number)

    def _report_step_apart(self, done: int) -> None:
        # Its record follows when ranks meet; until then this is what shows that the rank moves.
        self._round_heartbeat()
        self._profiler.at_boundary(done)

    def _num_replicas(self, window: int) -> int:
        """Of the global batch of a window."""
        return self._growth.phases.at(window).rows // self._spec.micro_batch_sequences

    def _save_is_due(self, step: int) -> bool:
        """Rank 0's answer is everybody's: clocks differ."""
        since_save_s = time.monotonic() - self._saved_s
        saved_step = self._checkpointer.saved_step
        return self._process_group.leads and save_is_due(
            self._spec.checkpoints, step=step, saved_step=saved_step, since_save_s=since_save_s
        )

    def _save(self, step: int) -> None:
        # The last step may have been saved already, because it was due or a stop was asked for.
        if self._checkpointer.saved_step != step:
            with self._rank.ledger.span("checkpoint", step=step) as fields:
                # The proof batch's loss is that of an average, which is put in the weights' place.
                self._checkpointer.finish_staging()
                fields["size_bytes"] = self._checkpointer.save(self._content(step))
                fields |= as_fields(self._process_group.traffic.take())
            self._saved_s = time.monotonic()

    def _discard_expired(self, step: int) -> None:
        self._known_good.add(step)
        spec, fence = self._spec.checkpoints, self._rank.fence
        has_best = self._spec.validation is not None and self._spec.validation.keep_best
        discard_expired(self._checkpoints, spec, known_good=self._known_good, has_best=has_best, fence=fence)

    def _position(self, window: int) -> int:
        return window * self._reader.num_rows if self._spec.grows_trees else self._growth.phases.row(window)

    def _inexact(self) -> dict[str, int]:
        halved = {} if self._halved_micro_batch is None else {HALVED_MICRO_BATCH: self._halved_micro_batch}
        return {INEXACT_RESUMES: self._inexact_resumes, **halved}

    def _content(self, step: int) -> Content:
        return Content(
            run=self._run,
            step=step,
            # A position in windows, with those excluded: it is where the sample order continues.
            num_samples=self._position(self._guard.plan.window(step)),
            tensors=self._learner.weights(),
            moments=self._learner.moments(),
            scalars={
                "optimizer_step": step,
                "tokens_seen": self._recorder.tokens_seen,
                **self._inexact(),
                "guard": self._guard.state(),
                **({} if (loss := self._guard.recent_loss) is None else {"loss": loss}),
                **self._validation.scalars(),
                **self._growth.scalars(),
                **self._learner.scalars(),
            },
            proof_batch=self._proof_batch,
            # Computed with the weights as they are saved; verification has to find the same loss.
            proof_loss=self._learner.proof_loss(self._proof_batch),
            fingerprint=self._fingerprint,
        )
