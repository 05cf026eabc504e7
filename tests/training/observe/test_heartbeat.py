"""Long work without steps grows the ledger, and seldom."""

from __future__ import annotations

from headway.training.observe.heartbeat import Heartbeat
from headway.training.observe.ledger import Ledger, read_events


def test_a_ledger_grows_once_a_second_however_many_pieces_are_done(tmp_path):
    now = iter([0.0, 0.3, 0.9, 1.2, 1.3, 5.0])
    heartbeat = Heartbeat(Ledger(tmp_path / "ledger"), "evaluate.model", clock=lambda: next(now))
    for _ in range(5):
        heartbeat()
    told = [(event["what"], event["num_done"]) for event in read_events(tmp_path / "ledger")]
    assert told == [("evaluate.model", 3), ("evaluate.model", 5)]
