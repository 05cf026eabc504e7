"""A line of a ledger as an event, or as none: whoever reads one need not ask again what its common fields are.

A ledger lies where others may write, and a disk may have flipped a bit. What no writer of ours writes is no event, as a
line that a kill has torn is none. Standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

LATEST_UNIX_S = 253402300800.0
"""The year 10000, which no calendar here knows."""
LONGEST_S = 1e10
LARGEST = 1 << 63
TEXTS = frozenset(
    {
        *("event", "outcome", "process", "flow_run", "job", "run", "trial", "task", "stage", "pipeline", "scope"),
        *("message", "what", "why", "reason", "error", "cause", "state", "part", "shown", "split", "command"),
        *("path", "folder", "host", "continued_by", "excluded", "checkpoint", "traceparent", "metric"),
    }
)
INTEGERS = frozenset(
    {
        *("step", "attempt", "rank", "node", "pid", "num_done", "max_steps", "max_attempts", "window", "num_steps"),
        *("num_stages", "num_parameters", "source_rows", "best_step", "stale", "patience"),
    }
)
COUNTS = frozenset({"tokens", "num_tokens", "world_size", "num_calls", "size_bytes", "memory_bytes", "sent_bytes"})
"""Of these none is below 0."""
NUMBERS = frozenset({"loss", "lr", "grad_norm", "gradient_noise_scale", "mfu", "flops_per_token"})
"""Besides all that is named after its unit, seconds: `duration_s`."""
LONGEST_NUMBER_CHARS = 32
"""Of a number as text, as a guard writes a loss: JSON has none for what is not finite."""
MAPPINGS = frozenset({"failure", "parts_s"})
MOST_KINDS = 64
"""Of collectives that a step is said to have; torch has some twenty."""
NEEDED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "step": frozenset({"step"}),
        "attempt": frozenset({"attempt"}),
        "attempt.begin": frozenset({"attempt"}),
        "run.folder": frozenset({"path"}),
        "model": frozenset({"world_size"}),
        "task": frozenset({"task"}),
        "validation": frozenset({"step", "metric"}),
    }
)
"""What an event is read for by name."""
VALIDATED = frozenset({"value", "best_step", "stale"})
"""Besides, of a validation that was not broken off."""
SUMMARY, QUANTILES = "steps", frozenset({"grad_norm"})
"""The event that sums many steps up, and what it has quantiles of where a step has a figure."""


def parse_event(line: bytes) -> dict[str, Any] | None:
    """None: it is no event that a ledger has recorded."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(name := event.get("event"), str):
        return None
    needed = NEEDED.get(name, frozenset()) | {"unix_s"} | ({"duration_s"} if "outcome" in event else set())
    if name == "validation" and "value" in event:
        needed |= VALIDATED
    quantiles = QUANTILES if name == SUMMARY else ()
    is_whole = all(event.get(field) is not None for field in needed)
    if not is_whole or not all(
        _is_of_its_kind(field, value) or (field in quantiles and _is_mapping(value)) for field, value in event.items()
    ):
        return None
    # What ends has a moment of its end, too.
    return event if event["unix_s"] + (event.get("duration_s") or 0.0) < LATEST_UNIX_S else None


def _is_of_its_kind(field: str, value: Any) -> bool:
    if value is None:
        return True
    # By one look-up: a long run's ledgers have millions of fields.
    is_kind = _KINDS.get(field)
    if is_kind is not None:
        return is_kind(value)
    if not field.endswith("_s"):
        return True
    return _is_moment(value) if field.endswith("_unix_s") else _is_number(value) and abs(value) < math.inf


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) < LARGEST


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _are_ranks(value: Any) -> bool:
    return isinstance(value, list) and all(type(rank) is int for rank in value)


def _is_moment(value: Any) -> bool:
    return _is_number(value) and 0 <= value < LATEST_UNIX_S


def _is_duration(value: Any) -> bool:
    return _is_number(value) and abs(value) < LONGEST_S


def _is_figure(value: Any) -> bool:
    return _is_number(value) or _is_number_in_words(value)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _is_traffic(value: Any) -> bool:
    """Costs by kind of collectives, which are labels of metrics."""
    return (
        isinstance(value, dict)
        and len(value) <= MOST_KINDS
        and all(kind.isascii() and isinstance(cost, dict) for kind, cost in value.items())
        and all(_is_of_its_kind(field, figure) for cost in value.values() for field, figure in cost.items())
    )


def _is_number_in_words(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > LONGEST_NUMBER_CHARS:
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < LARGEST)


_KINDS: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        **dict.fromkeys(TEXTS, _is_text),
        **dict.fromkeys(INTEGERS, _is_integer),
        **dict.fromkeys(COUNTS, _is_count),
        **dict.fromkeys(NUMBERS, _is_figure),
        **dict.fromkeys(MAPPINGS, _is_mapping),
        **{
            "traffic": _is_traffic,
            "ranks": _are_ranks,
            "unix_s": _is_moment,
            "duration_s": _is_duration,
            "value": _is_finite,
        },
    }
)
