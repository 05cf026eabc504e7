"""Random streams named by what they are for, so that they depend on no worker, order or history."""

from __future__ import annotations

import functools
import hashlib
import random

import numpy as np
import torch


def derive(seed: int, purpose: str, step: int = 0, replica: int = 0) -> int:
    """A 63-bit seed. Hashed, since sums such as `step * 1000 + replica` meet each other."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{step}/{replica}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@functools.cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def seed_everything(seed: int) -> None:
    """Seed the global generators that a recipe may draw from."""
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        # For each kind of device that was never used `torch.manual_seed` writes down who asks, in case it is one day:
        # once a replica and step, that was a sixth of a small model's training.
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
