from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer

from headway.data_contracts.store.errors import IntegrityError
from headway.training.config.shards import BytePairSpec
from headway.training.data.encode import byte_pair
from headway.training.data.encode.byte_pair import BytePairEncoder, fit_byte_pair, token_bytes
from headway.training.data.encode.packing import EOT_ID, PAD_ID
from tests.training.data.plain_ways import decode_tokens

SPEC = BytePairSpec(vocab_size=600, sequence_tokens=64)
TEXT = Path(byte_pair.__file__).read_bytes()
FITTED = fit_byte_pair(SPEC, [TEXT])
ENCODER = BytePairEncoder(SPEC, FITTED)
LIBRARY = Tokenizer.from_str(FITTED.decode())
TABLE = token_bytes(FITTED)


def tokens_of(data: bytes) -> list[int]:
    tokens: list[int] = ENCODER.tokens([data])[0].tolist()
    return tokens


@given(st.text() | st.text("ab 1_.\n\t\r\x00\x7fé数\U0001f600'", max_size=60))
def test_text_is_encoded_as_the_tokenizers_library_does(text: str) -> None:
    assert tokens_of(text.encode()) == LIBRARY.encode(text).ids


@given(st.binary())
def test_any_bytes_come_back_as_they_were(data: bytes) -> None:
    assert decode_tokens(np.array(tokens_of(data), dtype=np.uint16), TABLE) == data


@pytest.mark.parametrize("marker", byte_pair.MARKERS)
def test_a_file_that_spells_a_marker_stays_text(marker: str) -> None:
    tokens = tokens_of(f"a{marker}{marker} b".encode())
    assert not {EOT_ID, PAD_ID} & set(tokens)
    assert not {EOT_ID, PAD_ID} & set(LIBRARY.encode(marker).ids)


def test_markers_are_the_first_two_tokens_and_stand_for_no_bytes() -> None:
    vocabulary = json.loads(FITTED)["model"]["vocab"]
    assert [vocabulary[marker] for marker in byte_pair.MARKERS] == [EOT_ID, PAD_ID] == [0, 1]
    assert TABLE[:2] == (b"", b"")
    assert len(TABLE) == SPEC.vocab_size == len(set(TABLE[1:])) + 1
    assert {bytes([byte]) for byte in range(256)} < set(TABLE)


def test_fitting_does_not_mind_the_order_of_documents() -> None:
    parts = TEXT.split(b"\n\n")
    assert fit_byte_pair(SPEC, parts) == fit_byte_pair(SPEC, parts[::-1])


def test_threads_may_share_an_encoder_that_is_still_learning_pieces() -> None:
    documents = [TEXT[first : first + 2000] for first in range(0, len(TEXT), 500)]
    with ThreadPoolExecutor(8) as pool:
        fresh = BytePairEncoder(SPEC, FITTED)
        found = list(pool.map(lambda data: fresh.tokens([data])[0].tobytes(), documents))
    assert found == [ENCODER.tokens([data])[0].tobytes() for data in documents]


def test_forgetting_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_pair, "MAX_PIECES", 3)
    forgetful = BytePairEncoder(SPEC, FITTED)
    for _ in range(3):
        assert np.array_equal(forgetful.tokens([TEXT])[0], ENCODER.tokens([TEXT])[0])


@pytest.mark.parametrize("vocab_size", [257, 65537])
def test_a_vocabulary_that_does_not_fit_is_refused_by_name(vocab_size: int) -> None:
    with pytest.raises(ValidationError, match="vocab_size"):
        BytePairSpec(vocab_size=vocab_size)


def test_a_file_that_is_no_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(IntegrityError, match=r"tokenizer\.json"):
        token_bytes(b"{}")
