"""What every encoder does, shipped or not: it is fitted, kept, and turns rows of the source into rows of the shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from numpy.typing import NDArray

from headway.data_contracts.store.documents import Json, PayloadColumn
from headway.training.data.encode.blocks import EncodedBlock, SourceBlock


class EncoderStream(Protocol):
    """The rows of one group and split, in order; what is yielded depends on all that came before."""

    def push(self, block: SourceBlock) -> Iterator[EncodedBlock]: ...

    def finish(self) -> Iterator[EncodedBlock]: ...


class Encoder(Protocol):
    """Rows to rows, a pure function of their values, the spec and the fitted state."""

    columns: tuple[PayloadColumn, ...]
    num_classes: int
    """Classes in the column `label`; 0 where there are none to predict."""

    def stream(self, seed: int) -> EncoderStream:
        """A new stream; several may be at work in as many threads.

        Args:
            seed: for encoders that name their rows themselves, 64 bits.
        """
        ...


@runtime_checkable
class ExternalResource(Protocol):
    """What an encoder is besides when it holds something outside this process."""

    def close(self) -> None: ...


class Fitted(NamedTuple):
    files: dict[str, bytes]
    statistics: Json


class Fit(Protocol):
    """Sums over rows that are the same in any order."""

    def add(self, block: SourceBlock) -> None: ...

    def merge(self, other: Any) -> None: ...

    def statistics(self) -> Json: ...


class RowByRow:
    def __init__(self, encode: Callable[[SourceBlock], Mapping[str, NDArray[Any]]]) -> None:
        self._encode = encode

    def push(self, block: SourceBlock) -> Iterator[EncodedBlock]:
        yield EncodedBlock(block.ids, dict(self._encode(block)))

    def finish(self) -> Iterator[EncodedBlock]:
        return iter(())
