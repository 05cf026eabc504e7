"""Documents have one form in bytes, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headway.data_contracts.store.documents import CheckpointFile, Document, Snapshot, SourceFile, StoredFile
from headway.data_contracts.store.errors import IntegrityError

SHA256 = "0123456789abcdef" * 4
SNAPSHOT = Snapshot(
    format="text-files",
    columns={"path": "string", "text": "string"},
    num_rows=2,
    files=(
        SourceFile(path="a.py", size_bytes=3, sha256=SHA256),
        SourceFile(path="é/b.py", size_bytes=4, sha256=SHA256),
    ),
)


def test_a_document_survives_its_bytes() -> None:
    again = Snapshot.from_bytes(SNAPSHOT.to_bytes(), where="here")
    assert again == SNAPSHOT
    assert again.sha256 == SNAPSHOT.sha256


def test_equal_documents_have_equal_bytes_whatever_order_they_were_made_in() -> None:
    other = SNAPSHOT.model_copy(update={"columns": {"text": "string", "path": "string"}})
    assert other.to_bytes() == SNAPSHOT.to_bytes()


def test_a_snapshot_says_how_large_it_is() -> None:
    assert SNAPSHOT.size_bytes == 7


def test_a_document_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        SNAPSHOT.num_rows = 3  # type: ignore[misc]


def test_a_newer_format_is_refused_with_advice() -> None:
    value = json.loads(SNAPSHOT.to_bytes()) | {"format_version": 2, "an": "addition"}
    with pytest.raises(IntegrityError, match=r"format_version 2 is newer .* Upgrade Headway"):
        Snapshot.from_bytes(json.dumps(value).encode(), where="here")


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b"\xff", b'{"format_version": "x"}', b"[" * 100_000])
def test_what_is_no_document_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"^here: "):
        Snapshot.from_bytes(data, where="here")


def test_an_unknown_field_is_refused() -> None:
    value = json.loads(SNAPSHOT.to_bytes()) | {"host": "node-1"}
    with pytest.raises(IntegrityError, match="not a readable snapshot"):
        Snapshot.from_bytes(json.dumps(value).encode(), where="here")


@given(st.integers(min_value=0, max_value=len(SNAPSHOT.to_bytes()) * 8 - 1))
def test_a_flipped_bit_never_reads_as_the_same_document(bit: int) -> None:
    data = bytearray(SNAPSHOT.to_bytes())
    data[bit // 8] ^= 1 << bit % 8
    try:
        again = Snapshot.from_bytes(bytes(data), where="here")
    except IntegrityError:
        return
    # White space and the case of an exponent say the same; everything else must be another document.
    assert again == SNAPSHOT or again.sha256 != SNAPSHOT.sha256


@pytest.mark.parametrize("kind", [{"path": "a"}, {"name": "a", "block_bytes": 4, "blocks": ()}])
def test_one_digest_proves_a_file_and_its_bytes_say_which(kind: dict[str, Any]) -> None:
    model = StoredFile if "path" in kind else CheckpointFile
    for algorithm in ("sha256", "blake3"):
        value = {**kind, "size_bytes": 3, algorithm: SHA256}
        file = model.model_validate(value)
        assert (file.algorithm, file.digest, file.model_dump()) == (algorithm, SHA256, value)
    for digests in ({}, {"sha256": SHA256, "blake3": SHA256}, {"sha256": SHA256, "blake3": ""}):
        with pytest.raises(ValidationError):
            model.model_validate({**kind, "size_bytes": 3, **digests})


def test_every_document_has_a_kind_of_its_own() -> None:
    kinds = [kind.kind for kind in Document.__subclasses__()]
    assert len(kinds) == len(set(kinds))
