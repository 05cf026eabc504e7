from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.training.data.load.device_copy import DeviceCopy, to_tensors

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64", "uint32"])
def test_integers_widen_and_keep_their_values(dtype: str) -> None:
    values = np.array([[0, 1], [np.iinfo(dtype).max, 5]], dtype=dtype)
    made = to_tensors({"x": values}, CPU)["x"]
    assert made.dtype == torch.int64
    assert np.array_equal(made.numpy(), values.astype(np.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bool])
def test_other_values_travel_as_they_are(dtype: torch.dtype) -> None:
    values = torch.tensor([[0.0, 1.0]]).to(dtype)
    arrival = DeviceCopy(CPU).send({"x": values})
    assert torch.equal(arrival.take()["x"], values)
    assert arrival.size_bytes == values.nbytes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_copies_from_pinned_memory_behind_its_work() -> None:
    device = torch.device("cuda", 0)
    copy = DeviceCopy(device)
    assert copy.wants_pinned
    sent = torch.arange(1 << 20, dtype=torch.int32).to(torch.uint16).pin_memory()
    arrivals = [copy.send({"x": sent}) for _ in range(20)]
    for arrival in arrivals:
        found = arrival.take()["x"]
        assert found.dtype == torch.int64 and found.device == device
        assert torch.equal(found.cpu(), sent.to(torch.int64))


def test_without_a_gpu_nothing_is_pinned() -> None:
    assert not DeviceCopy(CPU).wants_pinned
