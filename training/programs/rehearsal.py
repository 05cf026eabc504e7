"""Rehearsal: a few steps on made-up rows, to say what a step takes and holds before anything is spent.

As a process: `python -m headway.training.programs.rehearsal`, with a `RehearsalRequest` as JSON on its standard input;
it prints a `RehearsalResult`, or a `Refusal`. Ranks rehearse at the same time, since they share the machine's cores and
memory, but do not communicate.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Sequence

from pydantic import ValidationError

from headway.data_contracts.store import errors
from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import EnvironmentProblem, HeadwayError, TrainingFailed
from headway.data_contracts.store.places import keep_compiled_code_private
from headway.training.config.parallel import ParallelSpec
from headway.training.config.shapes import DataShape
from headway.training.config.training_spec import TrainingSpec, replicas_per_rank
from headway.training.launch.base.guest_process import GuestOutcome, GuestProcess, answer
from headway.training.launch.base.process_tree import beside_headway
from headway.training.programs.synthetic_rows import synthetic_batch

NUM_STEPS = 4
"""The first does not count: it allocates."""
WITHIN_S = 120.0
MODULE = "headway.training.programs.rehearsal"


class RehearsalRequest(Frozen):
    training: TrainingSpec
    shape: DataShape
    world_size: int


class RehearsalResult(Frozen):
    step_s: float
    """Of the slowest rank, without the exchange between ranks."""
    start_s: float = 0.0
    """From the first process's start to the last one's end, besides the measured steps."""
    peak_bytes: int
    """Resident memory of the largest rank, torch itself included."""
    num_parameters: int
    groups: tuple[str, ...]
    """Of parameters, by how they are updated; a line each."""


class Refusal(Frozen):
    """What a rank answers in place of figures, where the configuration does not fit the model."""

    refused: str
    """The error's class in `headway.data_contracts.store.errors`."""
    what: str
    where: str
    advice: str


def rehearse(request: RehearsalRequest, *, search_path: Sequence[str]) -> RehearsalResult:
    """Run all ranks of one machine side by side for a few steps.

    Args:
        search_path: folders where a user's recipe may lie.

    Raises:
        TrainingFailed: a rank failed; with the last line it wrote.
        ConfigError: the model cannot be trained as the configuration asks.
        EnvironmentProblem: no answer in time.
    """
    environment = os.environ | beside_headway(search_path)
    places = [environment | _place(number, request.world_size) for number in range(request.world_size)]
    # All at once: ranks that share cores and memory slow each other down, and that is to be measured.
    started_s = time.monotonic()
    question = request.model_dump_json()
    with contextlib.ExitStack() as stack:
        # Also when one failed: the others would otherwise hold memory until they are done.
        ranks = [stack.enter_context(GuestProcess(MODULE, question, place)) for place in places]
        found = [_result(rank.outcome(started_s + WITHIN_S)) for rank in ranks]
    step_s = max(each.step_s for each in found)
    return RehearsalResult(
        step_s=step_s,
        start_s=max(time.monotonic() - started_s - (NUM_STEPS - 1) * step_s, 0.0),
        peak_bytes=max(each.peak_bytes for each in found),
        num_parameters=found[0].num_parameters,
        groups=found[0].groups,
    )


def _place(rank: int, world_size: int) -> dict[str, str]:
    """As an agent would say, so that ranks take different devices."""
    return {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)}


def _result(outcome: GuestOutcome) -> RehearsalResult:
    if outcome.code is None:
        raise EnvironmentProblem(
            f"{NUM_STEPS} steps did not end within {WITHIN_S:g} s.",
            where="rehearsal",
            advice="Plan with --no-rehearse, or make the model or the micro-batch smaller.",
        )
    if outcome.code == -signal.SIGKILL:
        raise EnvironmentProblem(
            "a rank was killed, most likely for want of memory.",
            where="rehearsal",
            advice="Make the model or the micro-batch smaller, or start fewer ranks on this machine.",
        )
    try:
        return RehearsalResult.model_validate_json(outcome.answer)
    except ValidationError:
        pass
    try:
        found = Refusal.model_validate_json(outcome.answer)
    except ValidationError:
        last = outcome.last_words or f"it ended {outcome.how}"
        raise TrainingFailed(f"the model cannot be trained as it is ({last}).", where="rehearsal") from None
    kind: type[HeadwayError] = getattr(errors, found.refused)
    raise kind(found.what, where=found.where, advice=found.advice)


def measure(request: RehearsalRequest) -> RehearsalResult:
    """One rank's share of `NUM_STEPS` steps, in this process."""
    keep_compiled_code_private()
    from headway.training.engine.choose_learner import new_learner
    from headway.training.engine.turns import take_unguarded
    from headway.training.optimizers.groups import parameter_groups
    from headway.training.ranks.distributed import ProcessGroup, choose_device, enable_determinism
    from headway.training.recipes.load import load_recipe

    share = replicas_per_rank(request.training, request.world_size)
    rows = request.training.micro_batch_sequences
    # On a mesh this is the time and memory of a rank that holds the whole model alone.
    alone = {"parallel": ParallelSpec(mode=request.training.parallel.mode)}
    spec = request.training.for_one_of(request.world_size)
    spec = spec.model_copy(update={"global_batch_sequences": share * rows, **alone})
    enable_determinism(spec.num_threads)
    process_group = ProcessGroup(rank=0, world_size=1, device=choose_device())
    recipe = load_recipe(spec.recipe.name, spec.recipe.model, request.shape)
    learner = new_learner(recipe, spec, process_group)
    batch = {name: values.to(process_group.device) for name, values in synthetic_batch(request.shape, rows).items()}
    for step in range(NUM_STEPS):
        # The first step allocates and may compile.
        if step == 1:
            started_s = time.perf_counter()
        take_unguarded(learner, step, [batch] * share, share)
    return RehearsalResult(
        step_s=(time.perf_counter() - started_s) / (NUM_STEPS - 1),
        peak_bytes=_peak_bytes(process_group.device.type == "cuda"),
        num_parameters=sum(value.numel() for value in learner.model.parameters()),
        groups=tuple(str(group) for group in parameter_groups(learner.model, recipe, spec.optimizer)),
    )


def _peak_bytes(on_cuda: bool) -> int:
    import torch

    # Linux gives kilobytes.
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(torch.cuda.max_memory_allocated()) if on_cuda else host


def _answer_to(question: str) -> str:
    try:
        return measure(RehearsalRequest.model_validate_json(question)).model_dump_json()
    except HeadwayError as error:
        refusal = Refusal(refused=type(error).__name__, what=error.what, where=error.where, advice=error.advice)
        return refusal.model_dump_json()


if __name__ == "__main__":
    answer(_answer_to)
