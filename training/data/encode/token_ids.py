"""Tokens that the source holds already. Ids are stored 2 higher, so that none is mistaken for a marker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.types as types

from headway.data_contracts.store.errors import DataError
from headway.training.config.encoder_specs import TokenIdsSpec
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.packing import NUM_MARKERS, Packer, Tokens
from headway.training.data.encode.source_columns import QUARANTINE, column_of, plain, refuse_rows, whole_numbers
from headway.training.data.encode.token_stream import TokenStream, token_columns


class TokenIdsEncoder:
    """Lists of ids to packed rows of uint16, or of uint32 where the vocabulary asks for it."""

    def __init__(self, spec: TokenIdsSpec) -> None:
        self._spec = spec
        # The narrowest type that holds the ids and the markers.
        self._dtype = "uint16" if spec.vocab_size + NUM_MARKERS <= 1 << 16 else "uint32"
        self.columns = token_columns(self._dtype, spec.sequence_tokens)
        self.num_classes = 0

    def stream(self, seed: int) -> TokenStream:
        return TokenStream(self._documents, list, Packer(self._spec.sequence_tokens, self._dtype), seed)

    def _documents(self, block: SourceBlock) -> list[Tokens]:
        """Each row's tokens.

        Raises:
            DataError: not lists of whole numbers, a null, or an id outside the vocabulary.
        """
        name = self._spec.column
        column = column_of(block.batch, name, block.path)
        if not is_list(column.type):
            raise DataError(f"column {name!r} is {column.type}, not a list of tokens.", where=block.path)
        if column.null_count:
            refuse_rows(block, pc.is_null(column).to_numpy(zero_copy_only=False), name, "is null")
        values = plain(column.flatten())
        ends = np.cumsum(pc.list_value_length(column).to_numpy())
        if values.null_count:
            raise DataError(f"a list in column {name!r} holds a null.", where=block.path, advice=QUARANTINE)
        ids = whole_numbers(block, name, values)
        if ids.size and (ids.min() < 0 or ids.max() >= self._spec.vocab_size):
            outside = (ids < 0) | (ids >= self._spec.vocab_size)
            broken = np.zeros(len(ends), dtype=bool)
            # From places in the flat array back to the rows that hold them.
            broken[np.unique(ends.searchsorted(np.flatnonzero(outside), side="right"))] = True
            refuse_rows(block, broken, name, f"holds an id outside [0, {self._spec.vocab_size})")
        # All lists are one array in Arrow; it is converted once and cut.
        return np.split((ids + NUM_MARKERS).astype(self._dtype), ends[:-1])


def is_list(kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
