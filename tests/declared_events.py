"""Whatever a test had recorded is declared and can be read again: held against the ledgers that it leaves."""

from __future__ import annotations

import json
from pathlib import Path

from headway.training.observe.events import undeclared
from headway.training.observe.ledger import SpoolTail
from headway.training.observe.ledger_lines import parse_event


def require_declared(folder: Path) -> None:
    """Of every ledger below the folder."""
    found = {
        message
        for spool in folder.glob("**/*.jsonl")
        if not spool.is_symlink()
        for event in SpoolTail(spool).stream()
        if "event" in event and (message := undeclared(event))
    }
    unread = [
        line
        for spool in folder.glob("**/*.jsonl")
        if not spool.is_symlink()
        for line in spool.read_bytes().splitlines()
        if is_event(line) and parse_event(line) is None
    ]
    assert unread == [], "a reader would leave out what a ledger of ours has written"
    assert found == set(), f"declare it in training/observe/events.py: {sorted(found)}"


def is_event(line: bytes) -> bool:
    """Whole, and with a name."""
    try:
        event = json.loads(line)
    except ValueError:
        return False
    return isinstance(event, dict) and "event" in event
