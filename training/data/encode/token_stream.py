"""What encoders of tokens share: documents are collected until they are worth encoding together, then packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from headway.data_contracts.store.documents import PayloadColumn
from headway.training.data.encode.blocks import EncodedBlock, SourceBlock
from headway.training.data.encode.packing import Packed, Packer, Tokens

WORTH_ENCODING = 1 << 22
"""Bytes of text, or tokens, that are encoded together."""


def token_columns(dtype: str, sequence_tokens: int) -> tuple[PayloadColumn, ...]:
    return (
        PayloadColumn(name="tokens", dtype=dtype, shape=(sequence_tokens + 1,)),
        PayloadColumn(name="document", dtype="int32", shape=(1,)),
    )


class TokenStream:
    """The rows of one group and split: row r of the packed stream has the id r XOR seed.

    Args:
        documents: a block's documents, as the encoder takes them.
        encode: tokens of each of several documents.
    """

    def __init__(
        self,
        documents: Callable[[SourceBlock], Sequence[Sized]],
        encode: Callable[[list[Any]], list[Tokens]],
        packer: Packer,
        seed: int,
    ) -> None:
        self._documents, self._encode, self._packer, self._seed = documents, encode, packer, np.uint64(seed)
        self._held: list[Sized] = []
        self._held_size = 0
        self._num_rows = 0

    def push(self, block: SourceBlock) -> Iterator[EncodedBlock]:
        for document in self._documents(block):
            self._held.append(document)
            self._held_size += len(document) + 1
            # Enough for the vectorised gather to pay; single documents would spend their time in Python.
            if self._held_size >= WORTH_ENCODING:
                # Rows that are complete leave at once, so memory is bounded by what is collected.
                yield self._encoded(self._packed())

    def finish(self) -> Iterator[EncodedBlock]:
        yield self._encoded(self._packed())
        yield self._encoded(self._packer.finish())

    def _packed(self) -> Packed:
        packed = self._packer.push(self._encode(self._held))
        self._held, self._held_size = [], 0
        return packed

    def _encoded(self, packed: Packed) -> EncodedBlock:
        numbers = np.arange(self._num_rows, self._num_rows + len(packed.tokens), dtype=np.uint64)
        self._num_rows += len(numbers)
        return EncodedBlock(numbers ^ self._seed, {"tokens": packed.tokens, "document": packed.document})
