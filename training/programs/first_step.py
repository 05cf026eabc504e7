"""One step of a recipe on made-up rows, before anything is spent: what is wrong with it is reported at once.

As a process: `python -m headway.training.programs.first_step`, with a `FirstStepRequest` as JSON on its standard
input; it prints a `FirstStep`. A user's code may end, hang or fill the memory of that process, and of no other.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from headway.data_contracts.store import errors
from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, HeadwayError
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.places import keep_compiled_code_private
from headway.data_contracts.store.plain_text import one_line
from headway.training.config.communication_spec import SyncSpec
from headway.training.config.parallel import ParallelSpec
from headway.training.config.shapes import DataShape
from headway.training.config.training_spec import TrainingSpec
from headway.training.launch.base.guest_process import GuestOutcome, GuestProcess, answer
from headway.training.launch.base.process_tree import beside_headway
from headway.training.programs.synthetic_rows import synthetic_batch
from headway.training.recipes.blame import definition

if TYPE_CHECKING:
    from headway.training.recipes.protocol import Recipe

WITHIN_S: Final = 120.0
MAX_ROWS: Final = 8
"""Of the made-up micro-batch: enough for batch normalisation."""
OF_DEVICES: Final = ("CUDA", "NVIDIA", "Triton", "cuDNN", "flash_attn", "flash-attn")


class FirstStepRequest(Frozen):
    training: TrainingSpec
    shapes: tuple[DataShape, ...]
    """That the data may have: a recipe need not take all of them."""
    trains_here: bool = False
    """Whether ranks run on this machine: what it lacks, they would lack."""


class FirstStep(Frozen):
    """What came of it: refused, undecided, or neither, and then it went well."""

    refused: str = ""
    """The error's class in `headway.data_contracts.store.errors`."""
    what: str = ""
    where: str = ""
    advice: str = ""
    undecided: str = ""
    """Why this machine cannot say."""


def require_first_step(request: FirstStepRequest, *, search_path: Sequence[str]) -> str:
    """Build the recipe's model, take one step, measure, and export the model by its example.

    Args:
        search_path: folders where the user's recipe may lie.

    Returns:
        why it could not be tried here; empty where it went well.

    Raises:
        ConfigError: the recipe, or the optimizer's groups; names the recipe's line.
        EnvironmentProblem: ranks would run here, and the recipe wants a device that is not here.
    """
    # A process of its own: a user's code may crash, hang or print, and the command has to survive it.
    environment = os.environ | beside_headway(search_path)
    with GuestProcess("headway.training.programs.first_step", request.model_dump_json(), environment) as guest:
        outcome = guest.outcome(time.monotonic() + WITHIN_S)
    if outcome.code is None:
        return f"one step on made-up rows did not end within {WITHIN_S:g} s"
    if outcome.code == -signal.SIGKILL:
        return "one step on made-up rows was killed, most likely for want of memory"
    try:
        found = FirstStep.model_validate_json(outcome.answer)
    except ValidationError:
        # Without an answer it ended too early, such as by `os._exit`.
        raise _ended(request, outcome) from None
    if found.refused:
        kind: type[HeadwayError] = getattr(errors, found.refused)
        raise kind(found.what, where=found.where, advice=found.advice)
    return found.undecided


def _ended(request: FirstStepRequest, outcome: GuestOutcome) -> ConfigError:
    last = f"; its last line was: {outcome.last_words}" if outcome.last_words else ""
    return ConfigError(
        f"its first step on made-up rows ended {outcome.how}{last}.",
        where=f"recipe.name {request.training.recipe.name!r}",
        advice="Call build, losses and measures by hand on some rows.",
    )


def take_first_step(request: FirstStepRequest) -> FirstStep:
    """In this process. A recipe that takes one of the shapes is good: which one it is, the data will say."""
    found = FirstStep()
    # The data will say which shape it is, so a recipe that accepts any of them is good.
    for shape in request.shapes:
        tried = _attempt(request.training, shape, trains_here=request.trains_here)
        # No other shape brings the device.
        if tried.refused in ("", EnvironmentProblem.__name__):
            return tried
        found = found if found.refused else tried
    return found


def _attempt(training: TrainingSpec, shape: DataShape, *, trains_here: bool) -> FirstStep:
    import torch

    try:
        nats = _step(training, shape)
    except (MemoryError, torch.OutOfMemoryError):
        return FirstStep(undecided="no memory is left here for one step")
    except Exception as error:  # whatever a recipe raises that was not blamed on a line of it
        text = " ".join(str(error).split())
        # A recipe for a GPU cannot be tested on a machine without one.
        if not torch.cuda.is_available() and any(word in text for word in OF_DEVICES):
            return _no_device(error, text, trains_here=trains_here)
        if isinstance(error, HeadwayError):
            return FirstStep(refused=type(error).__name__, what=error.what, where=error.where, advice=error.advice)
        what = f"one step on made-up rows raised {type(error).__name__}: {text[:300]}."
        return FirstStep(refused=ConfigError.__name__, what=what, where="recipe")
    if not math.isfinite(nats):
        # Made-up values may be none that the recipe is made for: a person has to look, and nothing is refused.
        return FirstStep(undecided=f"the loss of its first step on made-up rows is {nats:g}")
    return FirstStep()


def _no_device(error: Exception, text: str, *, trains_here: bool) -> FirstStep:
    if not trains_here:
        return FirstStep(undecided=f"it wants a device that is not here ({text[:200]})")
    return FirstStep(
        refused=EnvironmentProblem.__name__,
        what=f"the recipe wants a device that this machine does not have ({text[:200].rstrip('.')}).",
        where=error.where if isinstance(error, HeadwayError) and error.where else "training.recipe",
        advice="Let it go by its batch's device, or train where there is one: there, or by `launch.launcher`.",
    )


def _step(training: TrainingSpec, shape: DataShape) -> float:
    """Returns the loss, in nats."""
    import torch

    from headway.training.engine.choose_learner import new_learner
    from headway.training.engine.turns import take_unguarded
    from headway.training.ranks.distributed import ProcessGroup, choose_device, enable_determinism
    from headway.training.recipes.load import load_recipe

    rows = min(training.micro_batch_sequences, MAX_ROWS)
    # One rank and small: what is tested is whether it works, not what it costs.
    alone = {
        "global_batch_sequences": rows,
        "micro_batch_sequences": rows,
        "parallel": ParallelSpec(mode=training.parallel.mode),
        "compile": False,
        **({} if (sync := training.sync) is None else {"sync": _alone(sync)}),
        **({} if training.integers is None else {"gradient_compression": "none"}),
    }
    spec = training.model_copy(update=alone)
    enable_determinism(spec.num_threads)
    process_group = ProcessGroup(rank=0, world_size=1, device=choose_device())
    recipe = load_recipe(spec.recipe.name, spec.recipe.model, shape)
    learner = new_learner(recipe, spec, process_group)
    batch = {name: values.to(process_group.device) for name, values in synthetic_batch(shape, rows).items()}
    sums = take_unguarded(learner, 0, [batch], 1)
    learner.model.eval()
    with torch.no_grad():
        recipe.measures(learner.model, batch)
    del learner  # two models of a size that just fits would not
    _export(recipe)
    return sums.nats


def _alone(sync: SyncSpec) -> SyncSpec:
    """One island, of a batch of one micro-batch. The model has to have as many tensors as there are fragments, and
    those that are personal."""
    client = None if sync.federated is None else sync.federated.model_copy(update={"quorum": 1, "lost_fraction": 0.0})
    return SyncSpec(every_steps=sync.fragments, islands=1, fragments=sync.fragments, federated=client)


def _export(recipe: Recipe) -> None:
    """As is done with what training ends with: not for that to be refused hours later."""
    import torch

    from headway.training.programs.export import write_graph

    model, example = recipe.build().eval(), recipe.example_input()
    kind = type(getattr(recipe, "_recipe", recipe))
    try:
        with torch.no_grad():
            # Called first without tracing: an error of the model itself then has its own message.
            model(example)
    except Exception as error:
        raise ConfigError(
            f"the model cannot be called with example_input ({type(error).__name__}: {str(error)[:200]}).",
            where=definition(vars(kind).get("example_input", kind)) or "recipe",
            advice="It is exported as it is called with that.",
        ) from error
    with scratch_folder("headway-first-step-") as folder:
        write_graph(model, example, folder)


def main() -> None:
    keep_compiled_code_private()
    answer(_answer_to)


def _answer_to(question: str) -> str:
    found = take_first_step(FirstStepRequest.model_validate_json(question))
    # An exception's text may be what no JSON can hold.
    return FirstStep(**{name: one_line(text) for name, text in found}).model_dump_json()


if __name__ == "__main__":
    main()
