"""One step of a recipe on made-up rows, before anything is spent: what is wrong with it is told at once.

As a process: `python -m training.first_step`, with a `FirstStepRequest` as JSON on its standard input; it prints a
`FirstStep`. A user's code may end, hang or fill the memory of that process, and of no other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from data_contracts import errors
from data_contracts.documents import Frozen
from data_contracts.errors import ConfigError, HeadwayError
from data_contracts.leftovers import scratch_folder
from training.blame import definition
from training.config import TrainingSpec
from training.data.shapes import DataShape
from training.launch.process_tree import beside_headway, die_with_parent
from training.made_up_rows import made_up_batch
from training.parallel.spec import ParallelSpec

if TYPE_CHECKING:
    from training.recipes.protocol import Recipe

WITHIN_S: Final = 120.0
MOST_ROWS: Final = 8
"""Of the made-up micro-batch: enough for batch normalisation."""
OF_DEVICES: Final = ("CUDA", "NVIDIA", "Triton", "cuDNN", "flash_attn", "flash-attn")


class FirstStepRequest(Frozen):
    training: TrainingSpec
    shapes: tuple[DataShape, ...]
    """That the data may have: a recipe need not take all of them."""


class FirstStep(Frozen):
    """What came of it: refused, undecided, or neither, and then it went well."""

    refused: str = ""
    """The error's class in `data_contracts.errors`."""
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
    """
    environment = os.environ | beside_headway(search_path)
    command = (sys.executable, "-m", "training.first_step")
    process = subprocess.Popen(
        command,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,  # with all that the recipe starts
        preexec_fn=die_with_parent,
    )
    try:
        said, last_words = process.communicate(request.model_dump_json(), timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        return f"one step on made-up rows did not end within {WITHIN_S:g} s"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode == -signal.SIGKILL:
        return "one step on made-up rows was killed, most likely for want of memory"
    if process.returncode:
        raise _ended(request, process.returncode, last_words)
    found = FirstStep.model_validate_json(said.splitlines()[-1])
    if found.refused:
        kind: type[HeadwayError] = getattr(errors, found.refused)
        raise kind(found.what, where=found.where, advice=found.advice)
    return found.undecided


def _ended(request: FirstStepRequest, code: int, last_words: str) -> ConfigError:
    lines = last_words.strip().splitlines()
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return ConfigError(
        f"its first step on made-up rows ended {how}{f'; its last line was: {lines[-1]}' if lines else ''}.",
        where=f"recipe.name {request.training.recipe.name!r}",
        advice="Call build, losses and measures by hand on some rows.",
    )


def take_first_step(request: FirstStepRequest) -> FirstStep:
    """In this process. A recipe that takes one of the shapes is good: which one it is, the data will say."""
    found = FirstStep()
    for shape in request.shapes:
        tried = _tried(request.training, shape)
        if not tried.refused:
            return tried
        found = found if found.refused else tried
    return found


def _tried(training: TrainingSpec, shape: DataShape) -> FirstStep:
    import torch

    try:
        _step(training, shape)
    except (MemoryError, torch.OutOfMemoryError):
        return FirstStep(undecided="no memory is left here for one step")
    except Exception as error:  # whatever a recipe raises that was not blamed on a line of it
        text = " ".join(str(error).split())
        if not torch.cuda.is_available() and any(word in text for word in OF_DEVICES):
            return FirstStep(undecided=f"it wants a device that is not here ({text[:200]})")
        if isinstance(error, HeadwayError):
            return FirstStep(refused=type(error).__name__, what=error.what, where=error.where, advice=error.advice)
        what = f"one step on made-up rows raised {type(error).__name__}: {text[:300]}."
        return FirstStep(refused=ConfigError.__name__, what=what, where="recipe")
    return FirstStep()


def _step(training: TrainingSpec, shape: DataShape) -> None:
    import torch

    from training.distributed import Gang, be_deterministic, choose_device
    from training.learner import Learner
    from training.recipes.protocol import load_recipe

    rows = min(training.micro_batch_sequences, MOST_ROWS)
    alone = {
        "global_batch_sequences": rows,
        "micro_batch_sequences": rows,
        "parallel": ParallelSpec(mode=training.parallel.mode),
        "compile": False,
    }
    spec = training.model_copy(update=alone)
    be_deterministic(spec.num_threads)
    gang = Gang(rank=0, world_size=1, device=choose_device())
    recipe = load_recipe(spec.recipe.name, spec.recipe.model, shape)
    learner = Learner(recipe, spec, gang)
    batch = {name: values.to(gang.device) for name, values in made_up_batch(shape, rows).items()}
    sums = learner.exchange(learner.backward(0, [batch]), stop=False)
    norm = learner.gradient_norm(sums)
    if not learner.overflowed(sums, norm):
        learner.update(0, sums, norm)
    learner.model.eval()
    with torch.no_grad():
        recipe.measures(learner.model, batch)
    del learner  # two models of a size that just fits would not
    _export(recipe)


def _export(recipe: Recipe) -> None:
    """As is done with what training ends with: not for that to be refused hours later."""
    import torch

    from training.export import write_graph

    model, example = recipe.build().eval(), recipe.example_input()
    kind = type(getattr(recipe, "_recipe", recipe))
    try:
        with torch.no_grad():
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
    request = FirstStepRequest.model_validate_json(sys.stdin.read())
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a user's code prints is no answer
    print(take_first_step(request).model_dump_json(), file=answer, flush=True)
    os._exit(0)  # whatever threads the recipe has started


if __name__ == "__main__":
    main()
