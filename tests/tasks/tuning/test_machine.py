"""A machine is what a process of it may use, as the rest of Headway counts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.tasks.tuning import machine as module
from headway.tasks.tuning.machine import machine_here


@pytest.mark.process
def test_processors_are_those_of_the_control_group_and_gpus_those_that_are_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "nvidia-smi"
    asked.write_text("#!/bin/sh\necho 'NVIDIA H100'\necho 'NVIDIA H100'\n")
    asked.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(module, "usable_processors", lambda: 1.5)
    here = machine_here()
    assert (here.num_cores, here.num_gpus, here.gpu) == (1, 1, "NVIDIA H100")
    other = here.model_copy(update={"gpu": "NVIDIA A100"})
    assert here.differences(other) == ["gpu NVIDIA H100, there NVIDIA A100"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(module, "usable_processors", lambda: 0.5)
    there = machine_here()
    assert (there.num_cores, there.num_gpus, there.gpu) == (1, 0, "")
    assert there.differences(here) == ["gpus none, there 1", "gpu none, there NVIDIA H100"]
