"""The ends of log files, for messages a person reads."""

from __future__ import annotations

from pathlib import Path

TAIL_BYTES = 8192


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a log that are not blank; none when it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
