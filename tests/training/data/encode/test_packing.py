from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headway.training.data.encode.packing import EOT_ID, PAD_ID, Packed, Packer, Tokens, document_of_positions, unpack

DOCUMENTS = st.lists(st.lists(st.integers(2, 65535), max_size=40), min_size=1, max_size=12)


def arrays(documents: list[list[int]]) -> list[Tokens]:
    return [np.array(tokens, dtype=np.uint16) for tokens in documents]


def pack(documents: list[Tokens], sequence_tokens: int, cuts: tuple[int, ...] = ()) -> Packed:
    """Pushed in parts that end at the cuts."""
    packer = Packer(sequence_tokens, "uint16")
    edges = [0, *sorted(cuts), len(documents)]
    parts = [packer.push(documents[first:last]) for first, last in pairwise(edges)]
    parts.append(packer.finish())
    return Packed(np.concatenate([part.tokens for part in parts]), np.concatenate([part.document for part in parts]))


@given(DOCUMENTS, st.integers(1, 17), st.data())
def test_where_the_stream_is_cut_into_pushes_does_not_show(
    documents: list[list[int]], sequence_tokens: int, data: st.DataObject
) -> None:
    cuts = tuple(data.draw(st.lists(st.integers(0, len(documents)), max_size=4)))
    whole, cut = pack(arrays(documents), sequence_tokens), pack(arrays(documents), sequence_tokens, cuts)
    assert np.array_equal(whole.tokens, cut.tokens)
    assert np.array_equal(whole.document, cut.document)


@given(DOCUMENTS, st.integers(1, 17))
def test_predicting_each_row_predicts_every_token_but_the_first_exactly_once(
    documents: list[list[int]], sequence_tokens: int
) -> None:
    rows, _ = pack(arrays(documents), sequence_tokens)
    stream = [token for tokens in documents for token in (EOT_ID, *tokens)]
    targets = rows[:, 1:].reshape(-1).tolist()
    assert targets[: len(stream) - 1] == stream[1:]
    assert set(targets[len(stream) - 1 :]) <= {PAD_ID}
    assert len(targets) - (len(stream) - 1) < sequence_tokens


@given(DOCUMENTS, st.integers(1, 17))
def test_each_row_starts_with_the_last_token_of_the_row_before(documents: list[list[int]], size: int) -> None:
    rows, _ = pack(arrays(documents), size)
    assert rows.shape[1:] == (size + 1,)
    assert np.array_equal(rows[1:, 0], rows[:-1, -1])


@given(DOCUMENTS.filter(any), st.integers(1, 17))
def test_unpacking_gives_the_documents_back(documents: list[list[int]], sequence_tokens: int) -> None:
    rows, _ = pack(arrays(documents), sequence_tokens)
    assert [tokens.tolist() for tokens in unpack(rows)] == documents


@given(DOCUMENTS, st.integers(1, 17))
def test_every_position_knows_its_document(documents: list[list[int]], sequence_tokens: int) -> None:
    rows, first_document = pack(arrays(documents), sequence_tokens)
    owners = [number for number, tokens in enumerate(documents) for _ in range(len(tokens) + 1)]
    found = document_of_positions(rows, first_document)
    assert found.shape == rows.shape
    for row, held in enumerate(found):
        expected = owners[row * sequence_tokens : row * sequence_tokens + sequence_tokens + 1]
        assert held[: len(expected)].tolist() == expected
        assert set(held[len(expected) :].tolist()) <= {len(documents) - 1}


def test_nothing_to_predict_makes_no_row() -> None:
    rows, first_document = pack(arrays([[]]), 8)
    assert rows.shape == (0, 9)
    assert first_document.shape == (0, 1)
    assert unpack(rows) == []
