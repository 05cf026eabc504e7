"""What a tokenizer learns from is bounded, drawn by hash, and on record."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headway.training.config.encoder_specs import BytePairSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.encoders import fit_encoder
from headway.training.data.encode.fit_sample import FitSample, sample_line

DOCUMENTS = {f"{number}.txt": f"document {number} ".encode() * (1 + number % 7) for number in range(200)}
ALL_BYTES = sum(map(len, DOCUMENTS.values()))


def blocks(names: list[str]) -> Iterator[SourceBlock]:
    for name in names:
        batch = pa.record_batch({"text": [DOCUMENTS[name].decode()]})
        yield SourceBlock(name, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint64), batch)


def sampled(limit_bytes: int, names: list[str] | None = None) -> FitSample:
    return FitSample(blocks(names or list(DOCUMENTS)), "text", limit_bytes)


def test_below_the_bound_every_document_is_read_and_nothing_is_said() -> None:
    sample = sampled(ALL_BYTES)
    assert sorted(sample.documents()) == sorted(DOCUMENTS.values())
    assert sample.account is None and sample_line(None) == ""


def test_above_it_as_many_bytes_are_as_asked_and_it_is_on_record() -> None:
    sample = sampled(1000)
    documents = list(sample.documents())
    assert sum(map(len, documents)) == 1000
    assert sample.account == {
        "documents": len(documents),
        "bytes": 1000,
        "of_documents": 200,
        "of_bytes": ALL_BYTES,
    }
    cut = [document for document in documents if document not in DOCUMENTS.values()]
    assert len(cut) <= 1, "the last one alone is cut"
    message = sample_line({"sample": sample.account})
    assert message.startswith(f"fitted on {len(documents)} of 200 documents")


@pytest.mark.parametrize("limit_bytes", [1, 137, 1000, 5000])
def test_the_order_in_which_documents_come_does_not_matter(limit_bytes: int) -> None:
    expected = list(sampled(limit_bytes).documents())
    for seed in range(5):
        names = list(DOCUMENTS)
        random.Random(seed).shuffle(names)
        assert list(sampled(limit_bytes, names).documents()) == expected


def test_a_larger_bound_reads_the_same_documents_and_more() -> None:
    less, more = (set(sampled(limit).documents()) for limit in (1000, 3000))
    assert len(less - more) <= 1, "but for the one that was cut"


def test_no_more_is_held_than_the_bound_and_one_document() -> None:
    for number in range(1, len(DOCUMENTS)):
        sample = FitSample(itertools.islice(blocks(list(DOCUMENTS)), number), "text", 500)
        assert sample._held_bytes < 500 + max(map(len, DOCUMENTS.values()))


def test_the_shipped_text_is_read_whole_and_a_tokenizer_is_what_it_was() -> None:
    spec = BytePairSpec(vocab_size=300)
    assert spec.fit_mb * 10**6 > 4 * 31_500_000, "the standard library's sources"
    whole = fit_encoder(spec, [blocks(list(DOCUMENTS))], 1)
    assert whole.statistics is None
    tight = FitSample(blocks(list(DOCUMENTS)), "text", 10**6)
    assert tight.account is None
