"""Whatever a test had recorded is declared: held against the ledgers that it leaves."""

from __future__ import annotations

from pathlib import Path

from headway.training.observe.events import undeclared
from headway.training.observe.ledger import SpoolTail


def require_declared(folder: Path) -> None:
    """Of every ledger below the folder."""
    found = {
        message
        for spool in folder.glob("**/*.jsonl")
        if not spool.is_symlink()
        for event in SpoolTail(spool).stream()
        if "event" in event and (message := undeclared(event))
    }
    assert found == set(), f"declare it in training/observe/events.py: {sorted(found)}"
