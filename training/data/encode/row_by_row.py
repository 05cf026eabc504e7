"""The stream of encoders that make one row of each row: ids are the source rows' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from headway.training.data.encode.blocks import EncodedBlock, SourceBlock


class RowByRow:
    def __init__(self, encode: Callable[[SourceBlock], Mapping[str, NDArray[Any]]]) -> None:
        self._encode = encode

    def push(self, block: SourceBlock) -> Iterator[EncodedBlock]:
        yield EncodedBlock(block.ids, dict(self._encode(block)))

    def finish(self) -> Iterator[EncodedBlock]:
        return iter(())
