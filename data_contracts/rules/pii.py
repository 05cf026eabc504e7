"""Personal data in text: patterns (RE2) that find it. Only counts leave the database, never what was found.

A pattern says "looks like"; `credit-card` also checks the digits by Luhn's formula (ISO/IEC 7812-1).
"""

from __future__ import annotations

from typing import Literal

PiiKind = Literal["email", "phone", "credit-card", "iban", "us-ssn", "ipv4", "private-key", "access-key"]

PATTERNS: dict[PiiKind, str] = {
    "email": r"[A-Za-z0-9._%+\-]+@(?:[A-Za-z0-9\-]+\.)+[A-Za-z]{2,24}\b",
    "phone": r"(?:\+|\b00)[1-9]\d{0,2}[ .\-]?(?:\(\d{1,4}\)[ .\-]?)?\d{2,4}(?:[ .\-]?\d{2,4}){2,4}\b"
    r"|\(\d{3}\) ?\d{3}-\d{4}\b|\b\d{3}-\d{3}-\d{4}\b",
    "credit-card": r"\b(?:4\d{3}|5[1-5]\d{2}|2[2-7]\d{2}|6011|65\d{2})(?:[ \-]?\d{4}){3}\b"
    r"|\b3[47]\d{2}[ \-]?\d{6}[ \-]?\d{5}\b",
    "iban": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b",
    "us-ssn": r"\b(?:00[1-9]|0[1-9]\d|[1-578]\d{2}|6[0-57-9]\d|66[0-57-9])-(?:0[1-9]|[1-9]\d)-"
    r"(?:000[1-9]|00[1-9]\d|0[1-9]\d{2}|[1-9]\d{3})\b",
    "ipv4": r"\b(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b",
    "private-key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "access-key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36,}\b",
}
CHEAP_SIGNS: dict[PiiKind, str] = {
    "email": "@",
    "private-key": "-----BEGIN ",
}
"""A text that a match must hold: looking for it first spares most rows the regular expression."""


def holds_pii_sql(column: str, kind: PiiKind) -> str:
    """The SQL condition under which a text, never null, holds this kind of personal data.

    Args:
        column: the quoted column.
    """
    pattern = f"'{PATTERNS[kind]}'"
    if kind == "credit-card":
        found = f"regexp_extract_all({column}, {pattern})"
        # CASE, so that only rows that hold such digits pay for the sum.
        return (
            f"CASE WHEN regexp_matches({column}, {pattern}) "
            f"THEN len(list_filter({found}, lambda found: {_luhn_sql('found')})) > 0 ELSE FALSE END"
        )
    matches = f"regexp_matches({column}, {pattern})"
    sign = CHEAP_SIGNS.get(kind)
    return f"(contains({column}, '{sign}') AND {matches})" if sign else matches


def _luhn_sql(text: str) -> str:
    """Whether the digits of a text add up: from the right, every second one doubled, less 9 if above 9."""
    digits = f"list_transform(string_split(reverse(regexp_replace({text}, '[^0-9]', '', 'g')), ''), lambda d: d::INT)"
    doubled = "CASE WHEN i % 2 = 1 THEN d WHEN d > 4 THEN 2 * d - 9 ELSE 2 * d END"
    return f"list_sum(list_transform({digits}, lambda d, i: {doubled})) % 10 = 0"
