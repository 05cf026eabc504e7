"""Ranks that train cases as they are told, one JSON line each: `python gang.py FOLDER`.

Importing torch costs more than a case does: it is imported once, and the ranks of a case are forks that end with it.
A rank that stayed would keep what its process groups leave behind: threads that look around a hundred times a second.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import json
import math
import os
import resource
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import ConfigError
from headway.training.checkpoint.file_image import FileImage
from headway.training.checkpoint.pieces import Content
from headway.training.checkpoint.proof import fingerprint
from headway.training.checkpoint.restore import restore_newest
from headway.training.checkpoint.save import Checkpointer
from headway.training.config.shapes import DataShape, ImageShape, TabularShape, TokenShape
from headway.training.config.training_spec import TrainingSpec
from headway.training.config.validation import ValidationSpec
from headway.training.engine.learner import Learner, Sums
from headway.training.evaluation.measures import TOKEN_IDS
from headway.training.evaluation.scorers import Measured
from headway.training.evaluation.validation import Validation
from headway.training.evaluation.validation_rows import Block, ValidationRows
from headway.training.frozen.result import tensors_sha256
from headway.training.launch.base.process_tree import die_with_parent
from headway.training.observe.ledger import Ledger
from headway.training.ranks.distributed import ProcessGroup, enable_determinism
from headway.training.recipes.load import load_recipe
from tests.waiting import DEADLINE_S

SHAPES: dict[str, DataShape] = {
    "language-model": TokenShape(vocab_size=64, context_tokens=16),
    "image-classifier": ImageShape(channels=1, height=8, width=8, num_classes=4),
    "tabular-classifier": TabularShape(num_numeric=3, cardinalities=(5, 4), num_classes=3),
}
STEPS = 3
RUN = Link(kind="run", sha256="0" * 64)


def rows(shape: DataShape, step: int, count: int) -> dict[str, torch.Tensor]:
    """The global batch of a step: rows of one source, some of them mostly padding."""
    generator = torch.Generator().manual_seed(step)

    def integers(high: int, *size: int) -> torch.Tensor:
        return torch.randint(0, high, (count, *size), generator=generator)

    if isinstance(shape, TokenShape):
        tokens = integers(shape.vocab_size, shape.context_tokens + 1)
        tokens = torch.where(tokens == 1, 2, tokens)
        lengths = integers(shape.context_tokens, 1)
        tokens[torch.arange(shape.context_tokens + 1) > 3 + lengths] = 1
        return {"tokens": tokens}
    if isinstance(shape, ImageShape):
        return {
            "image": integers(256, shape.channels, shape.height, shape.width),
            "label": integers(shape.num_classes, 1),
        }
    assert isinstance(shape, TabularShape)
    return {
        "numeric": torch.randn((count, shape.num_numeric), generator=generator),
        "categorical": torch.stack([integers(size) for size in shape.cardinalities], dim=1),
        "label": integers(shape.num_classes, 1),
    }


def save(folder: Path, step: int, learner: Learner, process_group: ProcessGroup, beside: Callable[[], object]) -> None:
    """Keep a checkpoint, whose moments are copied once `beside` is done: passes of another step."""
    folder.mkdir(exist_ok=True)
    is_done, real = threading.Event(), FileImage.copy

    def copy(image: FileImage, tensors: Mapping[str, torch.Tensor]) -> None:
        if threading.current_thread().name == "checkpoint-stage":
            assert is_done.wait(DEADLINE_S)
        real(image, tensors)

    FileImage.copy = copy  # type: ignore[method-assign]
    content = Content(
        run=RUN,
        step=step,
        num_samples=0,
        tensors=learner.weights(),
        moments=learner.moments(),
        scalars=learner.scalars(),
        proof_batch={"tokens": torch.zeros(1)},
        proof_loss=0.0,
        fingerprint=fingerprint(process_group.device),
    )
    with Checkpointer(folder / "checkpoints", process_group) as checkpointer:
        checkpointer.save(content)
        beside()
        is_done.set()


def restore(folder: Path, learner: Learner, process_group: ProcessGroup) -> int:
    verified = restore_newest(folder, RUN, process_group, state=learner.tensors())
    assert verified is not None
    learner.load(verified.tensors, verified.manifest.scalars)
    return verified.manifest.step


@contextlib.contextmanager
def at_most(more_bytes: int | None) -> Iterator[None]:
    """Let this process have so many more bytes of memory than it has now."""
    if more_bytes is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (int(line.split()[1]) * 1024 + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


class Counting(TorchDispatchMode):
    """Counts collectives; torch's CommDebugMode fails on modules that a hook runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls what it needs on plain tensors
        if func.namespace in ("c10d", "_c10d_functional") and not func.__name__.startswith(("wait", "_wrap")):
            self.calls[func.__name__.partition(".")[0].strip("_")] += 1
        return func(*args, **(kwargs or {}))


def collectives(step: Callable[[], object]) -> dict[str, int]:
    """How often a step calls each."""
    with Counting() as counting:
        step()
    return dict(sorted(counting.calls.items()))


def cost(
    step: Callable[[], object], learner: Learner, process_group: ProcessGroup, waited_in_passes_s: Sequence[float]
) -> dict[str, Any]:
    """What this rank's collectives cost in a step, and which parts of it were forward passes and waiting.

    Args:
        waited_in_passes_s: of each step, the one to be measured included when it is over.
    """
    process_group.traffic.take()
    step()
    return {
        "local_waited_in_passes_s": waited_in_passes_s[-1],
        "local_traffic": {kind: dataclasses.asdict(each) for kind, each in process_group.traffic.take().items()},
        "local_parts_s": learner.parts_s(),
    }


class MadeUpRows:
    """Two blocks of four rows and one of three, of which the last turn of several shares may be nobody's."""

    measure, num_rows, num_blocks, names = TOKEN_IDS.decisive, 11, 3, ("nats", "correct", "squared_error")

    def __init__(self, shape: DataShape) -> None:
        self._shape = shape

    def blocks(self, numbers: Sequence[int], device: torch.device) -> Iterator[Block]:
        for number in numbers:
            yield Block({}, rows(self._shape, 200 + number, 4 if number < 2 else 3))

    def sums(self, columns: Any, measured: Measured) -> tuple[float, float]:
        return float(measured["nats"].sum()), float(len(measured["nats"]))

    def value(self, sums: Sequence[tuple[float, float]]) -> float:
        numerators, denominators = zip(*sums, strict=True)
        return math.fsum(numerators) / math.fsum(denominators)


def validated(shape: DataShape, learner: Learner, process_group: ProcessGroup) -> float:
    """The figure of a validation."""
    with tempfile.TemporaryDirectory() as folder:
        made_up = cast(ValidationRows, MadeUpRows(shape))
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        spec = ValidationSpec(every_steps=1)
        validation = Validation(spec, learner, made_up, process_group, ledger, max_steps=1)
        validation.run(1)
        ledger.close()
    assert validation.state.best is not None
    return validation.state.best


def train(case: dict[str, Any], process_group: ProcessGroup) -> dict[str, Any]:
    spec = TrainingSpec.model_validate(case["training"])
    shape = SHAPES[spec.recipe.name]
    recipe = load_recipe(spec.recipe.name, spec.recipe.model, shape)
    learner = Learner(recipe, spec, process_group)
    first = tensors_sha256((name, value) for name, value in learner.full_tensors() if name.startswith("model."))
    share = learner.share
    losses, norms, waited_in_passes_s = [], [], []
    done = restore(Path(case["load_from"]), learner, process_group) if "load_from" in case else 0

    def passes(step: int) -> Sums:
        batch = rows(shape, step, spec.global_batch_sequences)
        own = {name: value.chunk(share.count)[share.index] for name, value in batch.items()}
        parts = {name: value.split(spec.micro_batch_sequences) for name, value in own.items()}
        count = spec.num_replicas // share.count
        micro_batches = [{name: part[index] for name, part in parts.items()} for index in range(count)]
        before_s = process_group.traffic.stood_still_s
        sums = learner.backward(step, micro_batches)
        waited_in_passes_s.append(process_group.traffic.stood_still_s - before_s)
        return learner.exchange(sums, stop=False)

    def one_step(step: int) -> None:
        sums = passes(step)
        losses.append(sums.nats / sums.num_tokens)
        norms.append(learner.gradient_norm(sums))
        learner.update(step, sums, norms[-1])

    for step in range(done, done + case.get("steps", STEPS)):
        one_step(step)
        if step == done:
            learner.proof_loss(rows(shape, 98, 3))  # as a checkpoint does, of fewer rows than a micro-batch
    proof = learner.proof_loss(rows(shape, 99, 4))
    figure = validated(shape, learner, process_group)
    state = tensors_sha256(learner.full_tensors())
    if "save_to" in case:
        save(Path(case["save_to"]), done + case.get("steps", STEPS), learner, process_group, beside=lambda: passes(97))
    return {
        "losses": losses,
        "norms": norms,
        "proof": proof,
        "validated": figure,
        "first": first,
        "state": state,
        "local_parameters": sum(value.numel() for value in learner._strategy.parameters.values()),
        "num_parameters": learner.num_parameters,
        **(cost(lambda: one_step(99), learner, process_group, waited_in_passes_s) if case.get("measure") else {}),
        **({"local_collectives": collectives(lambda: one_step(99))} if case.get("count_collectives") else {}),
    }


def answer(case: dict[str, Any], rank: int, store_file: str) -> dict[str, Any]:
    world_size = case["world_size"]
    if world_size > 1:
        store = dist.FileStore(store_file, world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    try:
        with at_most(case.get("more_bytes")):
            return train(case, ProcessGroup(rank=rank, world_size=world_size, device=torch.device("cpu")))
    except (MemoryError, RuntimeError) as error:
        if world_size > 1 or "memory" not in str(error):
            raise
        return {"out_of_memory": str(error)}
    except ConfigError as error:
        return {"refused": str(error)}  # on every rank alike, before anything was exchanged
    finally:
        if world_size > 1:
            dist.destroy_process_group()


def run_rank(case: dict[str, Any], rank: int, store_file: str, answers: int) -> None:
    code = 1
    try:
        die_with_parent()
        enable_determinism(1)
        message = answer(case, rank, store_file)
        with open(answers, "w") as out:
            json.dump(message, out)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def run(case: dict[str, Any], store_file: str) -> list[dict[str, Any] | None]:
    """The ranks' answers; None of one that failed, and said why on stderr."""
    ranks = []
    for rank in range(case["world_size"]):
        reading, answers = os.pipe()
        process = os.fork()
        if process == 0:
            run_rank(case, rank, store_file, answers)
        os.close(answers)
        ranks.append((process, os.fdopen(reading)))
    message = []
    for process, answers in ranks:
        with answers:
            text = answers.read()
        os.waitpid(process, 0)
        message.append(json.loads(text or "null"))
    return message


def main(folder: str) -> None:
    gc.disable()
    gc.freeze()
    for number, line in enumerate(sys.stdin):
        print(json.dumps(run(json.loads(line), f"{folder}/store-{number}")), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
