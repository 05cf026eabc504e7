"""A user's own encoder as one of Headway's: fitted and run in processes of its own, and tried on a sample first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import ConfigError, DataError, HeadwayError, IntegrityError
from headway.training.config.encoder_specs import CustomEncoderSpec
from headway.training.config.shapes import TokenShape
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.custom_encoder import ADVICE, TOKENS, CustomEncoderFacts, columns_of, num_classes_of
from headway.training.data.encode.messages import batch_bytes
from headway.training.data.encode.packing import NUM_MARKERS, Packer, Tokens
from headway.training.data.encode.process import CODE_FILE, EncoderProcess, EncoderProcesses, PossiblyBadRows
from headway.training.data.encode.protocol import EncoderStream, Fitted, RowByRow
from headway.training.data.encode.token_stream import TokenStream, token_columns

SAMPLE_ROWS = 256
WITHIN_S = 120.0
HASH_SEEDS = (1, 2)


def check_custom_encoder(spec: CustomEncoderSpec, code: bytes) -> None:
    """Refuse what needs no data to be seen.

    Raises:
        ConfigError: cannot be imported, is no encoder, or does not accept its options; names the line.
        NoAnswerInTime: its import does not end.
    """
    with EncoderProcesses(code, spec, within_s=WITHIN_S) as processes, processes.one():
        pass


def try_custom_encoder(spec: CustomEncoderSpec, code: bytes, synthetic: Any) -> CustomEncoderFacts | None:
    """Fit and encode made-up rows, before any are read.

    Args:
        synthetic: an Arrow record batch of the source's columns.

    Returns:
        what the encoder says of rows like these; None where it may want other values than made-up ones.

    Raises:
        ConfigError: its code is wrong whatever the rows; names the line.
        NoAnswerInTime: it takes too long over them.
    """
    numbers = np.arange(synthetic.num_rows)
    block = SourceBlock("made-up rows", numbers, numbers.astype(np.uint64), synthetic)
    with EncoderProcesses(code, spec, within_s=WITHIN_S) as processes:
        try:
            return _try_on(processes, spec, [block])
        except (PossiblyBadRows, DataError):
            return None


def fit_custom_encoder(spec: CustomEncoderSpec, code: bytes, groups: Sequence[Iterable[SourceBlock]]) -> Fitted:
    """What the encoder learns from the training split, its code included.

    Args:
        code: the archive that the encoder is imported from.
        groups: blocks of training rows, in an order that the files alone decide.

    Raises:
        DataError: no row to learn from, or what the encoder says of the rows.
        ConfigError: the encoder is wrong, or is no function of the rows; names the line.
    """
    sample, blocks = _sample(chain.from_iterable(groups))
    if not sample:
        raise DataError("the training split has no row for the encoder to learn from.")
    with EncoderProcesses(code, spec) as processes:
        # Two processes with different hash seeds: the order of a set is the commonest reason why bytes differ.
        does_repeat = _try_on(processes, spec, sample) is not None
        with processes.one() as process:
            answer = process.ask({"ask": "fit"}, batches=(block.batch for block in blocks))
            # A sample may be too small to learn from; the whole split decides then.
            if not does_repeat:
                # The sample alone could not be learnt from: encoding is tried with what all rows taught.
                _require_function_of_rows(spec, sample, process, None)
    facts = CustomEncoderFacts.model_validate(answer.header["facts"]).with_markers()
    files = {name: bytes(part) for name, part in zip(answer.header["files"], answer.parts, strict=True)}
    # The name is taken by the archive, without which the fitted state could not be used again.
    if CODE_FILE in files:
        raise ConfigError(
            f"fit returned a file called {CODE_FILE!r}, which is the encoder's own code.",
            where=f"shards.encoder {spec.name!r}",
            advice="Call it something else.",
        )
    return Fitted({**files, CODE_FILE: code}, facts.model_dump(mode="json"))


def _sample(blocks: Iterator[SourceBlock]) -> tuple[list[SourceBlock], Iterator[SourceBlock]]:
    """The first rows, and all of them."""
    held: list[SourceBlock] = []
    sample: list[SourceBlock] = []
    lacking = SAMPLE_ROWS
    for block in blocks:
        held.append(block)
        sample.append(_rows(block, 0, lacking))
        lacking -= len(sample[-1].ids)
        if not lacking:
            break
    # The rows of the sample are put in front again: `fit` sees all of them, once.
    return sample, chain(held, blocks)


def _rows(block: SourceBlock, first: int, last: int) -> SourceBlock:
    batch = block.batch.slice(first, last - first)
    return SourceBlock(block.path, block.row_numbers[first:last], block.ids[first:last], batch)


def _try_on(
    processes: EncoderProcesses, spec: CustomEncoderSpec, sample: Sequence[SourceBlock]
) -> CustomEncoderFacts | None:
    """Fit twice on a sample and encode it twice, in two processes whose sets have another order.

    Returns:
        what the encoder says of its rows; None where the sample could not be learnt from.
    """
    with contextlib.ExitStack() as stack:
        # Both are alive at once, so that one's files or caches cannot help the other.
        pair = [processes.start(hash_seed=seed) for seed in HASH_SEEDS]
        for process in pair:
            stack.callback(process.close)
        try:
            fitted = [process.ask({"ask": "fit"}, batches=[block.batch for block in sample]) for process in pair]
        except DataError:
            return None
        first, second = ((answer.header, [bytes(part) for part in answer.parts]) for answer in fitted)
        if first != second:
            raise _not_repeated(spec, "`fit` answered something else for the same rows the second time.")
        _require_function_of_rows(spec, sample, *pair)
        return CustomEncoderFacts.model_validate(first[0]["facts"]).with_markers()


def _require_function_of_rows(
    spec: CustomEncoderSpec, sample: Sequence[SourceBlock], process: EncoderProcess, other: EncoderProcess | None
) -> None:
    for block in sample:
        whole = _encoded(process, block)
        if _encoded(other or process, block) != whole:
            raise _not_repeated(spec, "encode made other bytes of the same rows the second time.")
        middle = len(block.ids) // 2
        halves = [_rows(block, 0, middle), _rows(block, middle, len(block.ids))] if middle else [block]
        # Halves: a figure of the whole batch would make a row's bytes depend on its neighbours.
        parts = [_encoded(process, half) for half in halves]
        if [b"".join(each) for each in zip(*parts, strict=True)] != whole:
            raise _not_repeated(spec, "encode made other bytes of rows when other rows were beside them.")


def _encoded(process: EncoderProcess, block: SourceBlock) -> list[bytes]:
    with _naming_rows(block):
        answer = process.ask({"ask": "encode"}, [batch_bytes(block.batch)])
    return [bytes(part) for part in answer.parts]


def _not_repeated(spec: CustomEncoderSpec, problem: str) -> ConfigError:
    return ConfigError(
        problem,
        where=f"shards.encoder {spec.name!r}",
        advice=f"Look for the order of a set, an unseeded draw, a clock, or a figure of the whole batch. {ADVICE}",
    )


class HostedEncoder:
    """Rows to rows by a user's code.

    Args:
        files: what `fit` left, by name, the archive of the code among them.
        statistics: `FittedState.statistics`.

    Raises:
        IntegrityError: the code is not among the files.
    """

    def __init__(self, spec: CustomEncoderSpec, files: dict[str, bytes], statistics: Json) -> None:
        if CODE_FILE not in files:
            raise IntegrityError(f"the fitted state holds no {CODE_FILE}, the code of its encoder.", where=spec.name)
        self._facts = CustomEncoderFacts.model_validate(statistics)
        own = {name: data for name, data in sorted(files.items()) if name != CODE_FILE}
        question = {"ask": "open", "state": self._facts.fitted, "files": list(own)}
        self._processes = EncoderProcesses(files[CODE_FILE], spec, (question, list(own.values())))
        shape = self._facts.shape
        self.num_classes = num_classes_of(shape)
        if isinstance(shape, TokenShape):
            # The narrowest type that holds the ids: tokens are most of the shards' bytes.
            self._dtype = "uint16" if shape.vocab_size <= 1 << 16 else "uint32"
            self.columns = token_columns(self._dtype, shape.context_tokens)
        else:
            self.columns = columns_of(shape)

    def stream(self, seed: int) -> EncoderStream:
        shape = self._facts.shape
        if isinstance(shape, TokenShape):
            return TokenStream(self._documents, list, Packer(shape.context_tokens, self._dtype), seed)
        return RowByRow(self._encode)

    def close(self) -> None:
        """End its processes."""
        self._processes.close()

    def _encode(self, block: SourceBlock) -> dict[str, NDArray[Any]]:
        made = self._ask(block)
        return {
            column.name: np.frombuffer(made[column.name], dtype=column.dtype).reshape(-1, *column.shape)
            for column in self.columns
        }

    def _documents(self, block: SourceBlock) -> list[Tokens]:
        made = self._ask(block)
        ends = np.cumsum(np.frombuffer(made["lengths"], dtype=np.int64))
        # Headway's markers have the lowest ids.
        ids = np.frombuffer(made[TOKENS], dtype=np.int64) + NUM_MARKERS
        return np.split(ids.astype(self._dtype), ends[:-1])

    def _ask(self, block: SourceBlock) -> dict[str, memoryview]:
        # A process for each thread that asks, kept for the next call.
        with _naming_rows(block), self._processes.one() as process:
            answer = process.ask({"ask": "encode"}, [batch_bytes(block.batch)])
        return dict(zip(answer.header["columns"], answer.parts, strict=True))


@contextlib.contextmanager
def _naming_rows(block: SourceBlock) -> Iterator[None]:
    """Say which rows it was that an encoder stumbled over."""
    try:
        yield
    except HeadwayError as error:
        rows = f"rows {block.row_numbers[0]} to {block.row_numbers[-1]} of {block.path}"
        raise type(error)(
            f"{error.what.removesuffix('.')}, in {rows}.", where=error.where, advice=error.advice
        ) from error
