"""The trials of one pipeline, setting after setting: each with what was best of those before."""

from __future__ import annotations

import contextlib
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headway.data_contracts.store.documents import Link, RunSpec
from headway.data_contracts.store.errors import ConfigError, RunBusy, TrainingFailed
from headway.data_contracts.store.plain_text import one_line
from headway.data_contracts.types.report_text import count
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.tuned import is_explicit, says_when_to_save, shown, why_ranks_stay, with_settings
from headway.tasks.core.context import RunContext
from headway.tasks.core.gangs import gang_for
from headway.tasks.stages.launch import describe_run, num_training_rows
from headway.tasks.tuning import advice, record
from headway.tasks.tuning.advice import Advice, Compiled, LearningRates, MicroBatch
from headway.tasks.tuning.choice import DAY_S, FailureRecord, Measured, Settings, choose, choose_interval
from headway.tasks.tuning.machine import machine_here
from headway.tasks.tuning.record import TunedSetting, Tuning
from headway.tasks.tuning.taken import INTERVAL_KEYS
from headway.training.config.execution import ExecutionSpec
from headway.training.config.training_spec import TrainingSpec, can_share
from headway.training.frozen.code_archive import freeze_code
from headway.training.launch.base.gang import for_stepless_work
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.launch.base.run_lock import locked
from headway.training.launch.supervise.supervisor import supervise
from headway.training.programs.tuning_request import (
    ANSWER_NAME,
    MODULE,
    REQUEST_NAME,
    TrialTimes,
    TuningAnswer,
    TuningRequest,
    TuningTrial,
)

BUCKETS_BYTES = (512 << 10, 2 << 20, 8 << 20, 32 << 20)
PREFETCH_THREADS = (1, 2, 4)
PREFETCH_BYTES = (64 << 20, 256 << 20, 1 << 30)
LEAST_WAIT = 0.02
"""Of a step, for its batch: a loader that keeps nobody waiting longer cannot win as much as is asked of a setting."""
NUM_SAVES = 6
MICRO_BATCHES = 6
MAX_FAILURE_CHARS = 200
EXPLICIT = "the pipeline file says it"


def require_tunable(pipeline: PipelineSpec) -> None:
    """Raises `ConfigError`: nothing can be measured here that the pipeline's retrains would meet."""
    if pipeline.launch.launcher != "local":
        raise ConfigError(
            f"ranks are launched by {pipeline.launch.launcher}, and what this machine measures says nothing of theirs.",
            where="launch.launcher",
            advice="Tune where retrains run, with `launcher: local`.",
        )
    if pipeline.training.grows_trees:
        raise ConfigError(
            "trees are grown by one rank that has all rows: there is nothing to tune that moves no bit.",
            where="training.recipe.name",
        )


class Tuner:
    """Args:
    manifest: the shards of the pipeline's data, as a retrain would train on them.
    rounds: how often each setting takes its turn.
    """

    def __init__(self, context: RunContext, pipeline: PipelineSpec, manifest: Link, *, rounds: int) -> None:
        self._context, self._pipeline, self._rounds = context, pipeline, rounds
        self._training = pipeline.training.for_rows(num_training_rows(context, manifest))
        workspace, recipe = context.workspace, self._training.recipe.name
        # Trials have an archive of their own: an edit to them is to change no run's key.
        code = freeze_code(workspace, recipe, (str(context.base),), also=(MODULE,))
        self._run: RunSpec = describe_run(context, self._training, manifest).run.model_copy(update={"code": code})
        workspace.publish_document(self._run)  # by whose digest ranks find what they train on
        self._best, self._digest, self._num_steps, self._num_gangs = pipeline, "", 0, 0
        self._step_s = self._data_s = 0.0
        self._num_parameters = self._cached_bytes = 0
        self._opens_s: list[float] = []
        self._folder = workspace.local_path(f"{record.FOLDER}/work-{pipeline.pipeline}")

    def tune(self) -> Tuning:
        """Measure, choose, and write it down in the workspace.

        Raises: as training would; or RunStopped, and nothing is written then.
        """
        started_s = time.monotonic()
        with working_folder(self._folder):
            settings = [self._ranks(), *self._exchange(), *self._loader()]
            interval, stalls_s, durable_s, failures = self._checkpoints()
            settings.append(TunedSetting(name="loader cache", why=why_no_cache(self._cached_bytes, self._opens_s)))
        tuning = Tuning(
            pipeline=self._pipeline.pipeline,
            workload=record.workload(self._pipeline.training, self._pipeline.shards.encoder),
            machine=machine_here(),
            measured_unix_s=time.time(),
            took_s=time.monotonic() - started_s,
            num_steps=self._num_steps,
            num_rounds=self._rounds,
            settings=(*settings, interval),
            stall_s=stalls_s,
            durable_s=durable_s,
            failures=failures,
            tensors_sha256=self._digest,
        )
        record.keep(self._context.workspace, tuning)
        return tuning

    def advise(self) -> Advice:
        """Measure what moves bits, and take none of it. After `tune`, with the best of what moves none."""
        spec, now = self._training, self._pipeline.training
        with working_folder(self._folder):
            scale = advice.factors()
            rates = self._range_test(scale)
            sizes = self._micro_batch_sizes()
            batches = tuple(self._micro_batches(sizes[:MICRO_BATCHES]))
            compiled = self._compiled()
        return Advice(
            pipeline=self._pipeline.pipeline,
            machine=machine_here(),
            measured_unix_s=time.time(),
            global_batch_sequences=spec.global_batch_sequences,
            learning_rate=now.optimizer.lr,
            matrix_lr=now.optimizer.matrix_lr if now.optimizer.kind == "muon" else None,
            learning_rates=rates,
            micro_batches=batches,
            is_cut_short=len(sizes) > MICRO_BATCHES and not batches[-1].failure,
            compiled=compiled,
        )

    def _range_test(self, scale: Sequence[float]) -> LearningRates:
        rates = tuple(self._pipeline.training.optimizer.lr * each for each in scale)
        try:
            losses = self._gang(self._best, (self._trial(),), rounds=1, lr_factors=tuple(scale)).losses
        except TrainingFailed as error:
            # A model's own code may refuse what so high a rate makes of its weights.
            return LearningRates(rates=rates, losses=(), failure=self._failure("the range test", error))
        found = LearningRates(rates=rates, losses=losses)
        self._report(f"learning rates: {len(losses)} of {len(rates)} steps, {_range_of(found)}")
        return found

    def _micro_batch_sizes(self) -> list[int]:
        """That of now, and larger ones that the file may say: one more than are tried, where there is one."""
        spec = self._training
        sizes = advice.larger(spec.micro_batch_sequences, spec.global_batch_sequences, MICRO_BATCHES + 1)
        # A batch that grows begins with whole micro-batches.
        return list(takewhile(lambda each: self._can_be_set(micro_batch_sequences=each), sizes))

    def _can_be_set(self, **settings: int) -> bool:
        try:
            wanted = TrainingSpec.model_validate({**self._pipeline.training.model_dump(mode="json"), **settings})
        except ValidationError:
            return False
        return can_share(wanted, self._best.launch.world_size)

    def _compiled(self) -> Compiled:
        """Never taken: a trial compares bits for some steps, and a run's key promises them for all."""
        if is_explicit(self._pipeline, "training.compile"):
            return Compiled(why=EXPLICIT)
        if not self._can_be_set(compile=True):
            return Compiled(why="mode `exact` with `shard` takes none")
        trials = self._trial(), self._trial().model_copy(update={"compile": True})
        try:
            answer = self._gang(self._best, trials, rounds=self._rounds)
        except TrainingFailed as error:
            return Compiled(why=self._failure("compile", error))
        plain, compiled = answer.trials
        found = advice.evaluate_compiled(
            [
                Measured(shown="as it is", settings={}, rounds_s=plain.step_s),
                Measured(shown="compiled", settings={"training.compile": True}, rounds_s=compiled.step_s),
            ],
            [each.tensors_sha256 for each in answer.trials],
            [each.losses_sha256 for each in answer.trials],
            num_steps=answer.num_steps,
            compiling_s=max(0.0, max(compiled.warm_s) - statistics.median(plain.warm_s)),
            run_steps=self._training.max_steps,
        )
        self._report(f"compile: {found.why}")
        return found

    def _micro_batches(self, sizes: Sequence[int]) -> Iterator[MicroBatch]:
        """Up to the first that cannot run: larger ones need more."""
        for each in sizes:
            trial = self._trial().model_copy(update={"micro_batch_sequences": each})
            try:
                answer = self._gang(self._best, (trial,), rounds=self._rounds)
            except TrainingFailed as error:
                if each == self._training.micro_batch_sequences:
                    raise
                failure = self._failure(f"micro-batch {each}", error)
                yield MicroBatch(sequences=each, failure=failure)
                return
            step_s = statistics.median(answer.trials[0].step_s)
            self._report(f"micro-batch {each}: {1000 * step_s:.2f} ms a step")
            yield MicroBatch(sequences=each, step_s=step_s, peak_bytes=answer.peak_bytes)

    def _ranks(self) -> TunedSetting:
        """How many ranks of this machine; a gang for each in each round."""
        worlds, why = self._worlds()
        names = [self._world_settings(world) for world in worlds]
        rounds: list[list[TuningAnswer]] = [[] for _ in worlds]
        failed: dict[int, str] = {}
        for number in range(self._rounds if len(worlds) > 1 else 1):
            for index in ((number + place) % len(worlds) for place in range(len(worlds))):
                if index in failed:
                    continue
                try:
                    answer = self._gang(self._with(names[index]), (self._trial(),), rounds=1)
                except TrainingFailed as error:
                    if not index:  # what retrains have now fails as they would
                        raise
                    failed[index] = self._failure(count(worlds[index], "rank"), error)
                    continue
                rounds[index].append(answer)
                step_ms = 1000 * answer.trials[0].step_s[0]
                self._report(f"ranks {worlds[index]}, round {number + 1} of {self._rounds}: {step_ms:.2f} ms a step")
        self._num_parameters = rounds[0][0].num_parameters
        ran = [index for index in range(len(worlds)) if index not in failed]
        worlds, names = [worlds[index] for index in ran], [names[index] for index in ran]
        rounds = [rounds[index] for index in ran]
        measured = [
            Measured(
                shown=count(world, "rank"),
                settings=settings,
                rounds_s=tuple(answer.trials[0].step_s[0] for answer in answers),
            )
            for world, settings, answers in zip(worlds, names, rounds, strict=True)
        ]
        chosen = self._chosen(
            "ranks",
            measured,
            [answers[0].trials[0] for answers in rounds],
            why,
            failed=tuple(failed.values()),
            doublings=[math.log2(world / worlds[0]) for world in worlds],
        )
        taken = next((index for index, each in enumerate(names) if each == chosen.taken), 0)
        self._step_s = measured[taken].median_s
        self._data_s = statistics.median(answer.trials[0].data_s[0] for answer in rounds[taken])
        return chosen

    def _worlds(self) -> tuple[list[int], str]:
        """The number of ranks that there is, then others to try; and why there are none."""
        now, machine = self._pipeline.launch.world_size, machine_here()
        if why := why_ranks_stay(self._pipeline):
            return [now], why
        most = machine.num_gpus or max(1, machine.num_cores // self._training.num_threads)
        worlds = [
            world
            for world in (1 << power for power in range(most.bit_length()))
            if world <= most and world != now and can_share(self._training, world) and self._world_settings(world)
        ]
        return [now, *worlds], ""

    def _world_settings(self, world: int) -> Settings:
        """Keys that give so many ranks, none of which the file says; empty: there are none."""
        launch = self._pipeline.launch
        if world == launch.world_size:
            return {}
        if is_explicit(self._pipeline, "launch.nodes"):
            each, rest = divmod(world, launch.nodes)
            return {} if rest else {"launch.ranks_per_node": each}
        if is_explicit(self._pipeline, "launch.ranks_per_node"):
            nodes, rest = divmod(world, launch.ranks_per_node)
            return {} if rest else {"launch.nodes": nodes}
        return {"launch.nodes": 1, "launch.ranks_per_node": world}

    def _exchange(self) -> Iterator[TunedSetting]:
        name = "training.bucket_bytes"
        now = self._training.bucket_bytes
        if why := self._why_no_bucket(name):
            yield TunedSetting(name="bucket size", why=why)
            return
        # Of those that cut the gradients into one piece, one is enough.
        size_bytes = 4 * self._num_parameters
        values = {-(-size_bytes // each): each for each in (*reversed(BUCKETS_BYTES), now)}.values()
        others = [each for each in sorted(values) if each != now]
        if not others:
            yield TunedSetting(name="bucket size", why=f"{size_bytes / 1e6:.2f} MB of gradients are one bucket")
            return
        yield self._compared("bucket size", name, now, others, lambda each: f"{each / (1 << 20):g} MiB")

    def _why_no_bucket(self, name: str) -> str:
        if is_explicit(self._pipeline, name):
            return EXPLICIT
        if self._training.parallel.mode != "exact":
            return "the size decides bits here"
        return "one rank sends nothing" if self._best.launch.world_size == 1 else ""

    def _loader(self) -> Iterator[TunedSetting]:
        waits = self._data_s / max(self._step_s, 1e-9)
        cores = machine_here().num_cores
        knobs = (
            ("loader threads", "prefetch_threads", [each for each in PREFETCH_THREADS if each <= cores], str),
            ("loader depth", "prefetch_bytes", list(PREFETCH_BYTES), lambda each: f"{each >> 20} MiB"),
        )
        for title, field, values, words in knobs:
            name, now = f"launch.loader.{field}", int(getattr(self._pipeline.launch.loader, field))
            if is_explicit(self._pipeline, name):
                yield TunedSetting(name=title, why=EXPLICIT)
            elif waits < LEAST_WAIT:
                yield TunedSetting(name=title, why=f"a step waits {100 * waits:.1f} % of its time for its batch")
            else:
                yield self._compared(title, name, now, [each for each in values if each != now], words)

    def _compared(
        self, title: str, name: str, now: int, others: Sequence[int], words: Callable[[int], str]
    ) -> TunedSetting:
        """One key's values, in turn in one gang."""
        failed: tuple[str, ...] = ()
        try:
            answer = self._in_turn(name, others, rounds=self._rounds)
        except TrainingFailed:
            # Which it was shows one by one; if it was none of them, the last trials fail in the same way.
            others, failed = self._that_run(name, others, words)
            answer = self._in_turn(name, others, rounds=self._rounds)
        changed: list[Settings] = [{name: each} for each in others]
        settings: list[Settings] = [{}, *changed]
        measured = [
            Measured(shown=words(value), settings=each, rounds_s=times.step_s)
            for value, each, times in zip((now, *others), settings, answer.trials, strict=True)
        ]
        for each in measured:
            self._report(f"{title} {each.shown}: {1000 * each.median_s:.2f} ms a step, {self._rounds} rounds")
        return self._chosen(title, measured, answer.trials, "", failed=failed)

    def _in_turn(self, name: str, others: Sequence[int], *, rounds: int) -> TuningAnswer:
        changed: list[Settings] = [{name: each} for each in others]
        settings: list[Settings] = [{}, *changed]
        trials = tuple(self._trial(self._with(each)) for each in settings)
        return self._gang(self._best, trials, rounds=rounds)

    def _that_run(
        self, name: str, others: Sequence[int], words: Callable[[int], str]
    ) -> tuple[list[int], tuple[str, ...]]:
        """Those of the values that steps can be made with, and what there is to say of the rest."""
        running, failed = list[int](), list[str]()
        for each in others:
            try:
                self._in_turn(name, [each], rounds=1)
            except TrainingFailed as error:
                failed.append(self._failure(words(each), error))
            else:
                running.append(each)
        return running, tuple(failed)

    def _failure(self, value: str, error: TrainingFailed) -> str:
        message = f"{value} could not run: {one_line(error.what, MAX_FAILURE_CHARS)}"
        self._report(message)
        return message

    def _chosen(
        self,
        title: str,
        measured: Sequence[Measured],
        times: Sequence[TrialTimes],
        why: str,
        *,
        failed: tuple[str, ...] = (),
        doublings: Sequence[float] = (),
    ) -> TunedSetting:
        self._digest = self._digest or times[0].tensors_sha256
        # What moves a bit is out, whatever it wins, and whatever ought to be.
        same = [place for place, made in enumerate(times) if made.tensors_sha256 == self._digest]
        kept = [measured[place] for place in same]
        moved = tuple(each.shown for each in measured if each not in kept)
        common: dict[str, Any] = {"name": title, "measured": tuple(measured), "moved_bits": moved, "failed": failed}
        if measured[0] not in kept:
            return TunedSetting(**common, why="it came to other bits than the trials before")
        choice = choose(kept, [doublings[place] for place in same] if doublings else ())
        taken = kept[choice.place].settings
        self._best = self._with(taken)
        return TunedSetting(**common, taken=taken, why=why or choice.why)

    def _checkpoints(self) -> tuple[TunedSetting, tuple[float, ...], float | None, FailureRecord]:
        title, names = "save interval", INTERVAL_KEYS
        failures = failures_seen(self._context.workspace.local_root)
        if says_when_to_save(self._pipeline):
            return TunedSetting(name=title, why=EXPLICIT), (), None, failures
        answer = self._gang(self._best, (self._trial(self._best),), rounds=1, num_saves=NUM_SAVES)
        step_s, durable_s = answer.trials[0].step_s[0], statistics.median(answer.durable_s)
        spec = self._training.checkpoints
        now_s = min(
            *([spec.every_steps * step_s] if spec.every_steps is not None else []),
            *([spec.every_s] if spec.every_s is not None else []),
            float("inf"),
        )
        between_s = failures.mean_s(num_nodes=1)
        best_s, why = choose_interval(answer.stall_s, durable_s, now_s, between_s)
        taken: Settings = {} if best_s is None else {names[0]: None, names[1]: best_s}
        self._report(f"{title}: {why}")
        whole = f"{why}; now every {now_s:.3g} s, a failure in {between_s / DAY_S:,.0f} days"
        return TunedSetting(name=title, taken=taken, why=whole), answer.stall_s, durable_s, failures

    def _with(self, settings: Settings) -> PipelineSpec:
        changed = with_settings(self._best, settings)
        assert changed is not None, f"offered, and refused: {shown(settings)}"
        return changed

    def _trial(self, pipeline: PipelineSpec | None = None) -> TuningTrial:
        of = pipeline or self._best
        return TuningTrial(bucket_bytes=of.training.bucket_bytes, loader=of.launch.loader)

    def _gang(
        self,
        pipeline: PipelineSpec,
        trials: tuple[TuningTrial, ...],
        *,
        rounds: int,
        num_saves: int = 0,
        lr_factors: tuple[float, ...] = (),
    ) -> TuningAnswer:
        self._num_gangs += 1
        folder: Path = self._folder / f"{self._num_gangs:03d}"
        folder.mkdir()
        request = TuningRequest(
            trials=trials,
            rounds=rounds,
            num_steps=self._num_steps or None,
            num_saves=num_saves,
            lr_factors=lr_factors,
        )
        (folder / REQUEST_NAME).write_text(request.model_dump_json())
        # On this machine a node is no more than an agent: one has all ranks.
        # One attempt: what fails once is no setting to take, and is not worth the wait before another.
        launch = pipeline.launch.model_copy(
            update={"nodes": 1, "ranks_per_node": pipeline.launch.world_size, "min_nodes": None, "max_attempts": 1}
        )
        execution = ExecutionSpec.of(pipeline.training)
        gang = gang_for(
            self._context,
            launch,
            self._run,
            MODULE,
            folder,
            ranks_per_node=launch.ranks_per_node,
            execution=execution,
        )
        supervise(
            for_stepless_work(launch),
            gang,
            ledger=self._context.ledger,
            budget_scope=self._context.budget_scope,
            poll=lambda: None,
        )
        answer = TuningAnswer.model_validate_json((folder / ANSWER_NAME).read_bytes())
        self._num_steps, self._cached_bytes = answer.num_steps, answer.cached_bytes
        self._opens_s.append(answer.open_s)
        return answer

    def _report(self, message: str) -> None:
        self._context.ledger.event("tune.measured", message=message)


def why_no_cache(cached_bytes: int, opens_s: Sequence[float]) -> str:
    """Why neither the size nor the place of the node's cache is tried.

    Args:
        opens_s: until the shards were open, in one gang after another.
    """
    if not cached_bytes:
        return "ranks map the shards where they lie, so nothing goes through it"
    first_s, *later_s = opens_s
    since = f", {statistics.median(later_s):.2f} s since" if later_s else ""
    return (
        f"all {cached_bytes / 1e6:,.1f} MB of shards are in it before the first step, whatever its size; "
        f"opening them took {first_s:.2f} s{since}"
    )


def _range_of(found: LearningRates) -> str:
    wanted = found.wanted
    return "the loss does not fall" if wanted is None else f"the loss falls from {wanted[0]:g} to {wanted[1]:g}"


@contextlib.contextmanager
def working_folder(folder: Path) -> Iterator[None]:
    """An empty folder, this process's alone, which goes with the body.

    Raises:
        RunBusy: another process tunes the pipeline here.
    """

    def busy(owner: str) -> RunBusy:
        return RunBusy(
            f"another process tunes this pipeline already ({owner}).",
            where=str(folder),
            advice="Wait until it has ended, and ask again.",
        )

    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder: whoever is refused, and whoever tidies up, leaves it to its holder.
    with locked(folder.with_name(f"{folder.name}.lock"), busy):
        shutil.rmtree(folder, ignore_errors=True)  # what a killed one left
        folder.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def failures_seen(local_root: Path) -> FailureRecord:
    """Of all attempts of runs on this machine that lost a rank or a machine, or their owner."""
    num_failures, took_s = 0, 0.0
    for path in local_root.glob("runs/*/attempts.jsonl"):
        for each in AttemptRecords(path.parent).all():
            num_failures += each.state == "failed" and each.failure.cause == "infrastructure"
            took_s += max(0.0, each.end_unix_s - each.start_unix_s) if each.end_unix_s is not None else 0.0
    return FailureRecord(num_failures=num_failures, node_days=took_s / DAY_S)
