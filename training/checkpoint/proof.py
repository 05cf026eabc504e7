"""The proof batch: a model put back together must reproduce the loss that was written down when it was saved."""

from __future__ import annotations

import contextlib
import math
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headway.data_contracts.store.documents import CheckpointManifest, DeviceFingerprint
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.training.recipes.protocol import Recipe

CLOSE_RELATIVE = 1e-3
"""How far apart the loss may be where bits may differ: other processor, library or number of threads."""
HALF_RELATIVE, HALF_ABSOLUTE = 0.05, 0.02
"""The same where one of the two was computed in half precision; the absolute one in nats, for losses near zero."""


class ProofResult(NamedTuple):
    recorded: float
    measured: float
    same_fingerprint: bool
    """Whether equal bits were asked for."""


def fingerprint(device: torch.device, mesh: str = "") -> DeviceFingerprint:
    """What decides the bits of this process's arithmetic, as one of a mesh or alone."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return DeviceFingerprint(
        device=device.type,
        # The kind of processor decides which kernels run, and with them the order of sums.
        machine=f"{platform.machine()} {name}",
        # torch chooses kernels by this capability, which an environment variable may lower.
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        torch=torch.__version__,
        # Another number of threads cuts sums in other places.
        num_threads=torch.get_num_threads(),
        mesh=mesh,
    )


def require_one_kind(here: DeviceFingerprint, gather_bytes: Callable[[bytes], list[bytes]]) -> None:
    """Raises:
        ConfigError: ranks of this gang compute with other bits than their peers, and so no number of them has the same.

    Args:
        gather_bytes: every rank's, in rank order; all call it.
    """
    found = [DeviceFingerprint.model_validate_json(each) for each in gather_bytes(here.model_dump_json().encode())]
    rank, other = next(((rank, each) for rank, each in enumerate(found) if each != found[0]), (0, found[0]))
    if other != found[0]:
        first, second = found[0].model_dump(), other.model_dump()
        unlike = "; ".join(f"{name} {first[name]} and {second[name]}" for name in first if first[name] != second[name])
        raise ConfigError(
            f"ranks 0 and {rank} compute with other bits ({unlike}), and which replica a rank has would show in the "
            "weights.",
            where="training.parallel.mode exact",
            advice="Start ranks on machines of one kind, or say parallel: {mode: fast}.",
        )


def proof_loss(recipe: Recipe, model: nn.Module, batch: Mapping[str, Tensor]) -> float:
    """Mean loss a token in nats, in evaluation mode, whatever mode the model is in."""
    with evaluation_mode(model):
        losses = recipe.losses(model, batch)
        # In float64, so that the sum over a large batch adds no error of its own; at least 1, for an empty batch.
        return float(losses.nats.double().sum()) / max(1, int(losses.valid.sum()))


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Without gradients, and as the model is used: dropout would draw, and batch normalisation would use the batch."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def use_training_mode(model: nn.Module) -> None:
    """As `model.train()`. It is so already at nearly every step, which is found out in a third of the time."""
    if not all(module.training for module in model.modules()):
        model.train()


def check_proof(
    manifest: CheckpointManifest, measured: float, here: DeviceFingerprint, *, recorded_in_half: bool = False
) -> ProofResult:
    """Compare the loss just measured with the recorded one: equal bits on an equal machine, close ones elsewhere.

    Args:
        recorded_in_half: whether the recorded loss was computed in bf16 or fp16, as FSDP2 then does.

    Raises:
        IntegrityError: it differs.
    """
    # Hexadecimal: the exact bits, whichever program wrote them.
    recorded = float.fromhex(manifest.proof.loss_hex)
    # On an equal machine the bits must be equal: closeness would hide a swapped or slightly damaged tensor.
    same = manifest.fingerprint == here
    relative, absolute = (HALF_RELATIVE, HALF_ABSOLUTE) if recorded_in_half else (CLOSE_RELATIVE, 0.0)
    close = math.isclose(measured, recorded, rel_tol=relative, abs_tol=absolute)
    agrees = measured == recorded if same else close
    if not agrees:
        raise IntegrityError(
            f"on its proof batch the model's loss is {measured!r}, recorded was {recorded!r}"
            f"{'' if same else ' (on another kind of machine)'}.",
            where=f"checkpoint of step {manifest.step}",
            advice="Recipe or libraries changed since it was saved, or the checkpoint is not this run's.",
        )
    return ProofResult(recorded=recorded, measured=measured, same_fingerprint=same)


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
