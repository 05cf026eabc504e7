"""Bytes of any length from every rank to every rank."""

from __future__ import annotations

import torch

from headway.training.ranks.distributed import ProcessGroup


def gathered(process_group: ProcessGroup, data: bytes) -> list[bytes]:
    """Every rank's bytes, in rank order. In tensors: torch's object collectives would pickle."""
    if process_group.world_size == 1:
        return [data]
    lengths = process_group.gather(torch.tensor([len(data)]))
    padded = torch.zeros((1, max(1, int(lengths.max()))), dtype=torch.uint8)
    if data:
        padded[0, : len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    rows = process_group.gather(padded)
    return [row[:length].numpy().tobytes() for row, length in zip(rows, lengths.tolist(), strict=True)]
