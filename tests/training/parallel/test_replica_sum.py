"""Gradients of micro-batches, added up in buckets that leave as they fill."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headway.training.config.parallel import MeshShape
from headway.training.parallel import replica_sum
from headway.training.parallel.mesh import make_mesh
from headway.training.parallel.replica_sum import ReplicaSum
from headway.training.parallel.slices import LocalParameter
from headway.training.ranks.communication import Collectives
from headway.training.ranks.distributed import ProcessGroup

ALONE = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))


def summing(*parameters: nn.Parameter) -> tuple[list[LocalParameter], ReplicaSum]:
    mesh = make_mesh(MeshShape(1, 1, 1, 1), ALONE)
    own = [LocalParameter(parameter, mesh) for parameter in parameters]
    return own, ReplicaSum(own, Collectives(ALONE))


@pytest.mark.parametrize("bucket_bytes", [1, 16, 1 << 20])
def test_parameters_that_some_micro_batch_or_none_uses_are_summed_right(monkeypatch, bucket_bytes):
    monkeypatch.setattr(replica_sum, "BUCKET_BYTES", bucket_bytes)
    always, once, never = (nn.Parameter(torch.ones(size)) for size in (3, 2, 4))
    own, replicas = summing(always, once, never)
    for _ in range(2):  # buffers are used again in the next step
        replicas.begin(2)
        for micro_batch in range(2):
            (always.sum() + (once.sum() if micro_batch else 0)).backward()
        replicas.finish()
        assert [value.local.grad.tolist() for value in own] == [[2, 2, 2], [1, 1], [0, 0, 0, 0]]
        for value in own:
            value.source.grad = None
