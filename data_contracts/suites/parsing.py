"""Great Expectations suites that somebody wrote elsewhere (JSON of version 1), held together with a contract."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.rules.contract import Contract
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.regular_files import read_regular
from headway.data_contracts.store.strict_json import parse_json
from headway.data_contracts.suites.kinds import KINDS, refusal

MAX_BYTES = 16 << 20
"""Of a suite; one of ten thousand expectations has three."""
SEVERITIES = ("critical", "warning", "info")
SUPPORTED = tuple(KINDS)
"""Expectation types whose verdicts are held against Great Expectations' own by tests; no other is taken."""


def read_suite(path: Path, contract: Contract) -> tuple[tuple[Check, ...], bytes]:
    """The expectations of the suite that a contract names, and the suite's exact text; nothing, if it names none.

    Args:
        path: the contract's file.

    Raises:
        ConfigError: missing, not a suite, or of expectations that cannot be evaluated here.
    """
    if contract.suite is None:
        return (), b""
    where = path.parent / contract.suite
    try:
        text = read_regular(where, MAX_BYTES)
    except OSError as error:
        raise ConfigError(
            f"the suite cannot be read ({error.strerror}).", where=str(where), advice=f"Check `suite:` in {path}."
        ) from error
    types = {name: column.type for name, column in contract.columns.items()}
    return parse_suite(text, where=str(where), types=types), text


def parse_suite(data: bytes, *, where: str, types: Mapping[str, str] | None = None) -> tuple[Check, ...]:
    """The suite's expectations as checks, in its order.

    Args:
        types: of the columns whose types are known, by name.

    Raises:
        ConfigError: not a suite, or expectations that cannot be evaluated here: all of them, by type.
    """
    try:
        value = parse_json(data)
        expectations = value["expectations"]
        # Written once more: text that cannot be encoded would fail when the receipt is made.
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "not a Great Expectations suite (JSON with `expectations`).", where=where, advice="Check `suite:`."
        ) from error
    # All problems at once, by number and type: a suite may be long, and written by others.
    problems = list(_problems(expectations, types or {}))
    if problems:
        raise ConfigError(
            f"{'; '.join(problems)}.", where=where, advice="Take them out of the suite, or say them in the contract."
        )
    return tuple(_check(number, each) for number, each in enumerate(expectations, start=1))


def _problems(expectations: Any, types: Mapping[str, str]) -> Iterator[str]:
    if not isinstance(expectations, list):
        yield "`expectations` is no list"
        return
    for number, each in enumerate(expectations, start=1):
        # Older versions call the type `expectation_type`.
        kind = each.get("type", each.get("expectation_type")) if isinstance(each, dict) else None
        if not isinstance(kind, str):
            yield f"expectation {number} has no type"
        elif kind not in SUPPORTED:
            yield f"expectation {number} is of the unknown type `{kind}`"
        elif not isinstance(each.get("kwargs", {}), dict):
            yield f"expectation {number} (`{kind}`) has no mapping of kwargs"
        elif each.get("severity", "critical") not in SEVERITIES:
            yield f"expectation {number} (`{kind}`) has an unknown severity"
        elif reason := refusal(kind, each.get("kwargs", {}), types):
            yield f"expectation {number} (`{kind}`) cannot be evaluated here: {reason}"


def _check(number: int, given: dict[str, Any]) -> Check:
    kind = given.get("type") or given["expectation_type"]
    # The batch of whoever wrote the suite; it names nothing here.
    kwargs = {name: value for name, value in given.get("kwargs", {}).items() if name != "batch_id"}
    about = kwargs.get("column") or ", ".join(kwargs.get("column_list", ()))
    words = kind.removeprefix("expect_").replace("_", " ")
    meta = given.get("meta")
    notes = meta.get("notes") if isinstance(meta, dict) else None
    return Check(
        # By its number: a suite has no names, and may hold an expectation twice.
        rule_id=f"suite.{number}",
        description=notes if isinstance(notes, str) else f"{about}: {words}" if about else words,
        severity=given.get("severity", "critical"),
        kind="suite",
        column=str(kwargs.get("column", "")),
        arguments={"type": kind, "kwargs": kwargs},
    )
