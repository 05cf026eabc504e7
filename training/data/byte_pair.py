"""Byte-level byte-pair encoding: fitted by the `tokenizers` library, applied piece by piece with a memory.

Text is first cut into pieces by ASCII classes, every other byte counting as a letter: a rule that Python's `re` on
bytes and the library's on text follow alike. Distinct pieces are few, so each is encoded once and looked up from then
on; the tokens equal the library's own for all UTF-8 text, and any other bytes are encoded without loss as well.
Markers are in the vocabulary, yet no piece can spell one: a file that contains "<|endoftext|>" stays a file.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from data_contracts.digests import canonical_json
from data_contracts.documents import PayloadColumn
from data_contracts.errors import IntegrityError
from training.data.packing import Tokens, pack
from training.data.spec import BytePairSpec

TOKENIZER_FILE: Final = "tokenizer.json"
MARKERS: Final = ("<|endoftext|>", "<|pad|>")
"""Tokens 0 and 1, `packing.EOT_ID` and `packing.PAD_ID`."""
MAX_PIECES: Final = 1 << 20
"""Distinct pieces remembered before the memory starts anew."""

_SPACE = r"\x00-\x20\x7f"
_PIECES = rf" ?[A-Za-z{{other}}]+| ?[0-9]+| ?[!-/:-@\[-`{{{{-~]+|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
PIECES_OF_TEXT: Final = _PIECES.format(other=r"\x{80}-\x{10ffff}")
PIECES_OF_BYTES: Final = re.compile(_PIECES.format(other=r"\x80-\xff").encode())


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2, Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def fit_byte_pair(spec: BytePairSpec, documents: Iterable[bytes]) -> dict[str, bytes]:
    """Learn merges from documents; the result depends on their bytes alone, not on order or threads.

    Returns:
        the fitted files by name. `tokenizer.json` opens in the `tokenizers` library as well.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES_OF_TEXT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=list(MARKERS),
        initial_alphabet=sorted(byte_alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((document.decode(errors="replace") for document in documents), trainer)
    fitted = json.loads(tokenizer.to_str())
    fitted["added_tokens"] = []  # else the library would turn a marker's spelling inside a file into the marker
    return {TOKENIZER_FILE: canonical_json(fitted)}


def token_bytes(tokenizer_json: bytes) -> tuple[bytes, ...]:
    """The bytes each token stands for, by token id; markers stand for none. Needs no library."""
    byte_of = {character: byte for byte, character in enumerate(byte_alphabet())}
    try:
        vocabulary: dict[str, int] = json.loads(tokenizer_json)["model"]["vocab"]
        by_id = sorted(vocabulary, key=vocabulary.__getitem__)
        return tuple(b"" if text in MARKERS else bytes(byte_of[letter] for letter in text) for text in by_id)
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError("not a byte-level tokenizer.", where=TOKENIZER_FILE) from error


def decode_tokens(tokens: NDArray[np.integer], table: tuple[bytes, ...]) -> bytes:
    """The bytes of any run of tokens, whole documents or not."""
    return b"".join([table[token] for token in tokens.tolist()])


class BytePairEncoder:
    """Documents to packed rows.

    Args:
        tokenizer_json: what `fit_byte_pair` made.
    """

    def __init__(self, spec: BytePairSpec, tokenizer_json: bytes) -> None:
        from tokenizers import Tokenizer

        self._sequence_tokens = spec.sequence_tokens
        self._model = Tokenizer.from_str(tokenizer_json.decode()).model
        self._memory = _PieceMemory(self._model)
        self.columns: tuple[PayloadColumn, ...] = (
            PayloadColumn(name="tokens", dtype="uint16", shape=(spec.sequence_tokens + 1,)),
            PayloadColumn(name="document", dtype="int32", shape=(1,)),
        )

    def encode(self, documents: Iterable[bytes]) -> dict[str, NDArray[Any]]:
        """Rows of one group's documents, by column, in packing order. Safe to call from several threads."""
        if len(self._memory) > MAX_PIECES:
            self._memory = _PieceMemory(self._model)
        memory = self._memory
        pieces = [memory.pieces(document) for document in documents]
        tokens, first_document = pack(memory.tokens(pieces), self._sequence_tokens)
        return {"tokens": tokens, "document": first_document}


class _PieceMemory(dict[bytes, int]):
    """Numbers distinct pieces as they come and remembers each one's tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self._tokens: list[list[int]] = []
        self._adding = threading.Lock()
        self._alphabet = dict(enumerate(byte_alphabet()))

    def __missing__(self, piece: bytes) -> int:
        text = piece.decode("latin-1").translate(self._alphabet)
        tokens = [token.id for token in self._model.tokenize(text)]
        with self._adding:
            number = len(self._tokens)
            self._tokens.append(tokens)
        self[piece] = number
        return number

    def pieces(self, document: bytes) -> NDArray[np.int32]:
        found = PIECES_OF_BYTES.findall(document)
        return np.fromiter(map(self.__getitem__, found), dtype=np.int32, count=len(found))

    def tokens(self, documents: list[NDArray[np.int32]]) -> list[Tokens]:
        """Tokens of each document from its pieces: a ragged gather, with no loop over pieces."""
        known = self._tokens[: max((int(pieces.max()) + 1 for pieces in documents if pieces.size), default=0)]
        lengths = np.array([len(tokens) for tokens in known], dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        flat = np.fromiter(itertools.chain.from_iterable(known), dtype=np.uint16, count=int(lengths.sum()))
        return [flat[_ragged(starts[pieces], lengths[pieces])] for pieces in documents]


def _ragged(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices start, start + 1, ... of each run, one run after another."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)
