"""Ranks that train without waiting for each other: `python asynchronous_gang.py JOB.json`.

Forks as many ranks as the job says, which train a small model and write down what it came to. Rank 1 may halt in its
first batch: its worker until rank 0 has gone on as far as the bound allows, then the whole rank, until it is continued.
Or a rank fails there, or in an update of what it serves, or dies; the others write down what became of them.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headway.training.checkpoint.pieces import pieces_of
from headway.training.config.communication_spec import AsynchronousSpec
from headway.training.config.optimizer import OptimizerSpec
from headway.training.config.parallel import ParallelSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.engine.asynchronous_learner import AsynchronousLearner, WorkItem
from headway.training.launch.base.process_tree import die_with_parent
from headway.training.ranks.distributed import ProcessGroup, enable_determinism
from tests.training.exact.cases import batch, shipped

NUM_REPLICAS = 2


def case(job: dict[str, Any]) -> tuple[Any, TrainingSpec]:
    optimizer = OptimizerSpec(**job["optimizer"])
    return shipped(
        "language-model",
        max_steps=job["steps"],
        global_batch_sequences=8,
        micro_batch_sequences=4,
        parallel=ParallelSpec(mode="fast"),
        optimizer=optimizer,
        asynchronous=AsynchronousSpec(staleness=job["staleness"], meet_every_steps=job["every"]),
    )


def works(recipe: Any, spec: TrainingSpec, done: int, end: int, began: Any = lambda _window: None) -> list[WorkItem]:
    def batches(window: int) -> list[dict[str, torch.Tensor]]:
        began(window)
        return [batch(recipe, spec, window, replica) for replica in range(NUM_REPLICAS)]

    return [WorkItem(window, NUM_REPLICAS, partial(batches, window)) for window in range(done, end)]


def digest(learner: AsynchronousLearner) -> str:
    found = hashlib.sha256()
    for name, piece in sorted(pieces_of(learner.tensors()).items()):
        found.update(name.encode() + piece.local.numpy().tobytes())
    return found.hexdigest()


def planted(*_: Any) -> None:
    raise ValueError("planted")


def run_rank(folder: Path, job: dict[str, Any], rank: int) -> None:
    world_size = job["world_size"]
    enable_determinism(1)
    if world_size > 1:
        store = dist.FileStore(str(folder / "store"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    recipe, spec = case(job)
    gang = ProcessGroup(rank=rank, world_size=world_size, device=torch.device("cpu"))
    learner = AsynchronousLearner(recipe, spec, gang)
    fails = job.get("fails") if rank == job.get("failing_rank") else None
    if fails == "update":
        learner._move = planted  # type: ignore[method-assign]
    halted, begun = False, folder / "begun"

    def began(window: int) -> None:
        nonlocal halted
        if fails == "batch":
            planted()
        if fails == "freezes":
            os.kill(os.getpid(), signal.SIGSTOP)
        if fails == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            with begun.open("a") as file:
                file.write("x")
        if rank == 1 and job.get("halts") and not halted:
            halted = True
            # Rank 0 had begun as many batches, but for one that it may have had in hand.
            while not begun.exists() or begun.stat().st_size < window + job["staleness"]:
                os.sched_yield()
            os.kill(os.getpid(), signal.SIGSTOP)

    rounds, digests, losses, done, held = [], [], [], 0, 0
    size = sum(value.numel() for value in learner._own.values())

    def on_update(_number: int) -> None:
        nonlocal held
        if job.get("counts"):
            flat = [each for each in gc.get_objects() if isinstance(each, torch.Tensor) and each.shape == (size,)]
            held = max(held, len(flat))

    while done < job["steps"]:
        end = learner.round_end(done, lambda step: step == job.get("validated"))
        updates = learner.train_round(done, works(recipe, spec, done, end, began), on_update)
        rounds.append([[each.work, each.version, each.worker] for each in learner.arrivals])
        digests.append(digest(learner))
        losses += [[update.sums.nats.hex(), update.grad_norm.hex(), update.lr] for update in updates]
        done = end
    found = {"rounds": rounds, "digests": digests, "losses": losses, "held": held}
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def main(path: Path) -> None:
    job, ranks = json.loads(path.read_text()), []
    for rank in range(job["world_size"]):
        process = os.fork()
        if process == 0:
            die_with_parent()
            code = 1
            try:
                run_rank(path.parent, job, rank)
                code = 0
            except BaseException as error:
                traceback.print_exc()
                (path.parent / f"rank-{rank}.json").write_text(
                    json.dumps({"error": type(error).__name__, "what": str(error)})
                )
            finally:
                os._exit(code)
        ranks.append(process)
    if job.get("halts"):
        _, status = os.waitpid(ranks[1], os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(ranks[1], signal.SIGCONT)
    if job.get("fails") == "freezes":
        frozen = ranks.pop(job["failing_rank"])
        for process in ranks:
            os.waitpid(process, 0)
        os.kill(frozen, signal.SIGKILL)
        os.waitpid(frozen, 0)
        return
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
    if any(codes):
        sys.exit(f"failed: {codes}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
