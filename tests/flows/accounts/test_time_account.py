"""Every second of a run stands under one name, and the names sum to wall time."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.flows.accounts.time_account import UNNAMED, account


def span(name: str, begin: float, duration: float, **fields: float | str) -> dict[str, object]:
    return {"event": name, "unix_s": begin, "duration_s": duration, **fields}


times = st.floats(0, 100, allow_nan=False)
spans = st.lists(st.builds(span, st.sampled_from(["a", "b", "stage.c", "step"]), times, times), max_size=12)


@given(spans)
def test_parts_sum_to_wall_time_whatever_overlaps(events: list[dict[str, object]]) -> None:
    spent = account(events, 10.0, 90.0)
    assert sum(spent.parts_s.values()) == pytest.approx(spent.wall_s)
    assert all(seconds >= 0 for seconds in spent.parts_s.values())


def test_a_second_belongs_to_the_innermost_span() -> None:
    spent = account([span("stage.launch", 0, 10), span("restore", 2, 3)], 0, 10)
    assert spent.parts_s == pytest.approx({"launch": 7, "restore": 3})


def test_what_a_task_does_beside_its_document_belongs_to_its_stage() -> None:
    spent = account([span("task", 0, 10, task="validate"), span("stage.validate", 2, 3), span("read", 4, 1)], 0, 10)
    assert spent.parts_s == pytest.approx({"validate": 9, "read": 1})


def test_a_step_is_broken_up_into_its_parts() -> None:
    step = span("step", 0, 10, data_s=1, forward_s=2, backward_s=3, sync_s=2, optimizer_s=1)
    expected = {"train.data": 1, "train.forward": 2, "train.backward": 3} | {
        "train.sync": 2,
        "train.optimizer": 1,
        "train.other": 1,
    }
    assert account([step], 0, 10).parts_s == pytest.approx(expected)


def test_what_nothing_covers_is_called_unattributed() -> None:
    spent = account([span("stage.shard", 0, 4)], 0, 5)
    assert spent.parts_s[UNNAMED] == pytest.approx(1)
    assert spent.unattributed_ratio == pytest.approx(0.2)


def test_an_injected_loss_appears_under_its_own_name() -> None:
    quiet = [span("stage.launch", 0, 20), span("checkpoint", 5, 1)]
    slow = [span("stage.launch", 0, 25), span("checkpoint", 5, 6)]
    before, after = account(quiet, 0, 20).parts_s, account(slow, 0, 25).parts_s
    assert after["checkpoint"] - before["checkpoint"] == pytest.approx(5)
    assert after["launch"] == pytest.approx(before["launch"])


@pytest.mark.process
def test_of_a_million_steps_none_is_kept_as_an_object() -> None:
    num_steps = 20_000
    parts = dict.fromkeys(("data_s", "forward_s", "backward_s", "sync_s", "optimizer_s"), 0.1)
    tracemalloc.start()
    spent = account((span("step", float(at), 0.9, **parts) for at in range(num_steps)), 0, num_steps)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spent.parts_s["train.forward"] == pytest.approx(0.1 * num_steps)
    assert peak_bytes < 1000 * num_steps
