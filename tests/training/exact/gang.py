"""Gangs of real processes that train small models, for tests of exact elasticity: `python gang.py ROUNDS.json`.

A round is a gang of some size that takes cases from one step to another, from the state that an earlier round left
and to one of its own. torch is imported once, with what FSDP2 would import at its first use, which costs more than a
round does; ranks are forks. What became of each case is written beside the rounds.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import safetensors.torch
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.fsdp

from headway.training.checkpoint.pieces import Piece, pieces_of
from headway.training.engine.choose_learner import new_learner
from headway.training.engine.island_learner import IslandLearner
from headway.training.parallel import gradients
from headway.training.ranks.distributed import ProcessGroup, enable_determinism
from headway.training.ranks.levels import make_levels
from tests.training.exact.cases import CASES, batch

VALIDATED_STEP = 6
"""Islands that train apart meet for a validation, wherever in their round it is due."""
NUM_BUCKETS = 5
"""About so many, however small the model: a tensor that a bucket's end cuts is among them."""
CLIENTS = {"a": 40, "b": 7, "none": 0, "c": 19, "d": 300, "e": 1, "f": 64}
"""Training rows of each."""
gradients.MEASURED_EVERY_STEPS = 1


def run_case(
    name: str,
    process_group: ProcessGroup,
    first: int,
    last: int,
    loaded: Path,
    kept: Path,
    speeds: dict[str, list[float]],
) -> dict[str, object]:
    recipe, spec = CASES[name]()
    num_parameters = sum(value.numel() for value in recipe.build().parameters())
    bucket_bytes = 4 * num_parameters // NUM_BUCKETS
    of_clients = SimpleNamespace(datasets=[SimpleNamespace(group_rows=CLIENTS)])
    learner = new_learner(recipe, spec.model_copy(update={"bucket_bytes": bucket_bytes}), process_group, of_clients)
    if first:
        scalars = json.loads(loaded.with_suffix(".json").read_text())
        full_tensors = safetensors.torch.load_file(loaded)
        learner.load(
            {name: own_part(piece, full_tensors[name]) for name, piece in pieces_of(learner.tensors()).items()}, scalars
        )
    losses, norms, noise_scales, num_own, num_skipped, traffic = [], [], [], [], 0, {}

    def own_batches(step: int) -> tuple[list[dict[str, torch.Tensor]], int]:
        num_replicas = spec.batch_phases.at(step).rows // spec.micro_batch_sequences
        replicas = learner.share.replicas(num_replicas)
        num_own.append(len(replicas))
        return [batch(recipe, spec, step, replica) for replica in replicas], num_replicas

    step = first
    while step < last:
        if str(step) in speeds:
            learner.share_by(speeds[str(step)])
        if isinstance(learner, IslandLearner) and learner.is_apart(step):
            end = learner.round_end(step, lambda done: done == VALIDATED_STEP)
            assert end <= last, "a round is whole"
            process_group.traffic.take()
            learner.begin_round(step)
            for apart in range(step, end):
                learner.train_apart(apart, *own_batches(apart))
            for sums, norm in learner.meet(stop=False, save=False):
                losses.append(sums.nats.hex())
                norms.append(norm.hex())
            learner.move_together(end)
            taken = process_group.traffic.take()
            traffic = {kind: (each.num_calls, each.sent_bytes, each.busy_s) for kind, each in taken.items()}
            step = end
            continue
        own = learner.backward(step, *own_batches(step))
        sums = learner.exchange(own, stop=False)
        taken = process_group.traffic.take()
        traffic = {kind: (each.num_calls, each.sent_bytes, each.busy_s) for kind, each in taken.items()}
        norm = learner.gradient_norm(sums)
        losses.append(sums.nats.hex())
        norms.append(norm.hex())
        if learner.overflowed(sums, norm):
            learner.discard()
            num_skipped += 1
        else:
            learner.update(step, sums, norm)
        noise_scales.append(learner.noise_scale)
        step += 1
    tensors = {key: value.detach().clone() for key, value in learner.full_tensors()}
    taken = process_group.traffic.take()
    broadcast_bytes = taken["broadcast"].sent_bytes if "broadcast" in taken else 0
    if process_group.leads:
        safetensors.torch.save_file(tensors, kept)
        kept.with_suffix(".json").write_text(json.dumps(learner.scalars()))
    return {
        "digest": digest(tensors),
        "scalars": learner.scalars(),
        "losses": losses,
        "norms": norms,
        "noise_scales": noise_scales,
        "num_own": num_own,
        "num_skipped": num_skipped,
        "traffic": traffic,
        "broadcast_bytes": broadcast_bytes,
        "state_bytes": sum(value.numel() * value.element_size() for value in tensors.values()),
        "buffers": {name: value.tolist() for name, value in learner.model.named_buffers() if value.numel() < 64},
    }


def own_part(piece: Piece, whole: torch.Tensor) -> torch.Tensor:
    return whole[tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.local.shape, strict=True))]


def digest(tensors: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].numpy().tobytes())
    return found.hexdigest()


def run_rank(folder: Path, number: int, rank: int, job: dict[str, object]) -> None:
    world_size = int(job["world_size"])
    enable_determinism(1)
    if world_size > 1:
        store = dist.FileStore(str(folder / f"store-{number}"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    new_group = functools.partial(dist.new_group, use_local_synchronization=True)
    levels = make_levels(job.get("levels", {}), rank, new_group)
    process_group = ProcessGroup(rank=rank, world_size=world_size, device=torch.device("cpu"), levels=levels)
    found = {}
    for name, (first, last) in job["cases"].items():
        try:
            # What is trained whole and in slices has the same state.
            kind = name.removeprefix("whole ").removeprefix("sharded ")
            state = folder / f"{kind}-{job.get('chain', number)}.safetensors"
            found[name] = run_case(name, process_group, first, last, state, state, job.get("speeds", {}))
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
            if world_size > 1:
                raise
    (folder / f"round-{number}-rank-{rank}.json").write_text(json.dumps(found))
    process_group.barrier()


def main(rounds_path: Path) -> None:
    for number, job in enumerate(json.loads(rounds_path.read_text())):
        ranks = []
        for rank in range(job["world_size"]):
            process = os.fork()
            if process == 0:
                code = 1
                try:
                    run_rank(rounds_path.parent, number, rank, job)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            ranks.append(process)
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
        if any(codes):
            sys.exit(f"round {number} failed: {job}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
