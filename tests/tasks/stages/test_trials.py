"""Which trials of a rung train at all; training is played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headway.data_contracts.store.documents import Link
from headway.tasks.stages import trials
from headway.tasks.stages.trial_scores import PlannedTrial, TrialResult


@pytest.mark.parametrize("way", ["in turn", "side by side", "as jobs"])
def test_a_trial_that_may_not_begin_has_no_result_and_what_is_on_record_is_not_asked(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = [_planned(number) for number in (1, 2, 3)]
    asked: list[str] = []

    def may_begin(each: PlannedTrial) -> bool:
        asked.append(each.trial.label)
        return False

    context: Any = SimpleNamespace(
        stop=trials.replace, workspace=None, at=SimpleNamespace(run=""), ledger=SimpleNamespace()
    )
    monkeypatch.setattr(trials, "replace", lambda of, **changes: of)
    monkeypatch.setattr(trials, "_is_trained", lambda context, each, pause: each.trial.number == 2)
    monkeypatch.setattr(trials, "_report_trial", lambda *_: None)
    monkeypatch.setattr(trials, "_trained", lambda context, result, *_: result)
    monkeypatch.setattr(trials, "observe_lease", lambda *_: None)
    monkeypatch.setattr(trials, "showing_slow_ranks", lambda context: trials.contextlib.nullcontext())
    monkeypatch.setattr(
        trials,
        "run_side_by_side",
        lambda context, room, num, begin, **_: [begin(number) for number in range(num)],
    )
    spec: Any = SimpleNamespace(is_detached=way == "as jobs")
    room: Any = SimpleNamespace(slots=[1, 2]) if way == "side by side" else None
    train: Any = trials.train_trials.__wrapped__ if hasattr(trials.train_trials, "__wrapped__") else trials.train_trials
    found: list[TrialResult] = train(context, planned, spec, "", 4, None, None, room, may_begin)
    assert [each.trial.label for each in found] == ["2"] and asked == ["1", "3"]


def _planned(number: int) -> PlannedTrial:
    trial: Any = SimpleNamespace(label=str(number), number=number, name=f"trial {number}")
    link = Link(kind="run", sha256=f"{number:064x}")
    settled: Any = SimpleNamespace(run=SimpleNamespace(link=link))
    return PlannedTrial(trial, settled, link)
