"""Personal data are found by kind, and what only looks like them is not."""

from __future__ import annotations

import duckdb
import pytest

from headway.data_contracts.rules.pii import PATTERNS, PiiKind, holds_pii_sql

FOUND: dict[PiiKind, tuple[str, ...]] = {
    "email": ("ada@example.org", "mail ada.b-c+x@mail.example.co.uk now", "<a@b.io>"),
    "phone": ("+49 170 1234567", "call 0044 20 7946 0958", "(555) 123-4567", "555-123-4567"),
    "credit-card": ("4111111111111111", "5500-0000-0000-0004", "no 1234 but 4111 1111 1111 1111", "3782 822463 10005"),
    "iban": ("DE89370400440532013000", "GB29 NWBK 6016 1331 9268 19"),
    "us-ssn": ("078-05-1120",),
    "ipv4": ("from 192.168.0.1:80", "255.255.255.255"),
    "private-key": ("-----BEGIN PRIVATE KEY-----", "x\\n-----BEGIN OPENSSH PRIVATE KEY-----\\ny"),
    "access-key": ("AKIAIOSFODNN7EXAMPLE", "ghp_" + "a" * 36),
}
SPARED: dict[PiiKind, tuple[str, ...]] = {
    "email": ("a @ b", "@decorator", "user@host", "a@b."),
    "phone": ("12345", "1.5e-10", "2026-01-31"),
    "credit-card": ("4111111111111112", "1234567890123456", "41111111111111111"),
    "iban": ("DE89", "AB12CD"),
    "us-ssn": ("000-12-3456", "666-12-3456", "123-45-67890"),
    "ipv4": ("256.1.1.1", "1.2.3"),
    "private-key": ("-----BEGIN PUBLIC KEY-----", "PRIVATE KEY"),
    "access-key": ("AKIA", "ghp_short"),
}


def holds(text: str, kind: PiiKind) -> bool:
    with duckdb.connect() as connection:
        row = connection.execute(f"SELECT {holds_pii_sql('text', kind)} FROM (SELECT ? AS text)", [text]).fetchone()
    assert row is not None
    return bool(row[0])


def test_every_kind_has_examples() -> None:
    assert set(FOUND) == set(SPARED) == set(PATTERNS)


@pytest.mark.parametrize("kind", list(PATTERNS))
def test_a_kind_is_found_and_what_looks_like_it_is_spared(kind: PiiKind) -> None:
    assert [text for text in FOUND[kind] if not holds(text, kind)] == []
    assert [text for text in SPARED[kind] if holds(text, kind)] == []
