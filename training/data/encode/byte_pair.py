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

from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.errors import IntegrityError
from headway.training.config.encoder_specs import BytePairSpec
from headway.training.data.encode.packing import Packer, Tokens
from headway.training.data.encode.token_stream import TokenStream, token_columns

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


def fit_byte_pair(spec: BytePairSpec, documents: Iterable[bytes]) -> bytes:
    """Learn merges from documents; the result depends on their bytes alone, not on order or threads.

    Returns:
        `tokenizer.json`, which opens in the `tokenizers` library as well.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # The same rule as on bytes below, so that fitting and encoding cut alike.
            pre_tokenizers.Split(Regex(PIECES_OF_TEXT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=list(MARKERS),
        # Every byte is in the vocabulary: no text can be unencodable.
        initial_alphabet=sorted(byte_alphabet()),
        show_progress=False,
    )
    # Bytes that are no UTF-8 are replaced for fitting alone; encoding keeps them as they are.
    tokenizer.train_from_iterator((document.decode(errors="replace") for document in documents), trainer)
    fitted = json.loads(tokenizer.to_str())
    fitted["added_tokens"] = []  # else the library would turn a marker's spelling inside a file into the marker
    # Canonical: the file's digest is part of keys, and the library's own text may vary.
    return canonical_json(fitted)


def token_bytes(tokenizer_json: bytes) -> tuple[bytes, ...]:
    """The bytes each token stands for, by token id; markers stand for none. Needs no library."""
    byte_of = {character: byte for byte, character in enumerate(byte_alphabet())}
    try:
        vocabulary: dict[str, int] = json.loads(tokenizer_json)["model"]["vocab"]
        by_id = sorted(vocabulary, key=vocabulary.__getitem__)
        return tuple(b"" if text in MARKERS else bytes(byte_of[letter] for letter in text) for text in by_id)
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError("not a byte-level tokenizer.", where=TOKENIZER_FILE) from error


class BytePairEncoder:
    """Rows of text to packed rows.

    Args:
        tokenizer_json: what `fit_byte_pair` made.
    """

    def __init__(self, spec: BytePairSpec, tokenizer_json: bytes) -> None:
        from tokenizers import Tokenizer

        self._spec = spec
        self._model = Tokenizer.from_str(tokenizer_json.decode()).model
        self._memory = _PieceMemory(self._model)
        self.columns = token_columns("uint16", spec.sequence_tokens)
        self.num_classes = 0

    def stream(self, seed: int) -> TokenStream:
        """Streams of several threads may be at work at once: they share what they know of pieces."""
        from headway.training.data.encode.source_columns import texts

        packer = Packer(self._spec.sequence_tokens, "uint16")
        return TokenStream(lambda block: texts(block, self._spec.column), self.tokens, packer, seed)

    def tokens(self, documents: list[bytes]) -> list[Tokens]:
        """Token ids of each document."""
        # Bounded: data without repetition would fill memory with pieces that never come again.
        if len(self._memory) > MAX_PIECES:
            self._memory = _PieceMemory(self._model)
        # A local: another thread may start a new memory, and numbers of one mean nothing in the other.
        memory = self._memory
        return memory.tokens([memory.pieces(document) for document in documents])


class _PieceMemory(dict[bytes, int]):
    """Numbers distinct pieces as they come and remembers each one's tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self._tokens: list[list[int]] = []
        self._flattened: tuple[NDArray[np.int64], Tokens] = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint16)
        self._adding = threading.Lock()
        self._alphabet = dict(enumerate(byte_alphabet()))

    def __missing__(self, piece: bytes) -> int:
        # Latin-1 maps bytes one to one to characters, which the alphabet then replaces.
        text = piece.decode("latin-1").translate(self._alphabet)
        tokens = [token.id for token in self._model.tokenize(text)]
        # Only the number is claimed under the lock; two threads may encode one piece twice, and agree.
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
        # As far as these documents need: other threads may be adding pieces meanwhile.
        starts, flat = self._flat(max((int(pieces.max()) + 1 for pieces in documents if pieces.size), default=0))
        return [flat[_ragged(starts[pieces], starts[pieces + 1] - starts[pieces])] for pieces in documents]

    def _flat(self, num_pieces: int) -> tuple[NDArray[np.int64], Tokens]:
        """All known tokens one after another and where each piece's start; made anew when pieces were learnt."""
        starts, flat = self._flattened
        if len(starts) <= num_pieces:
            # A copy of the list's beginning, which other threads only append to.
            known = self._tokens[: len(self._tokens)]
            lengths = np.fromiter(map(len, known), dtype=np.int64, count=len(known))
            starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
            flat = np.fromiter(itertools.chain.from_iterable(known), dtype=np.uint16, count=int(starts[-1]))
            self._flattened = starts, flat
        return starts, flat


def _ragged(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices start, start + 1, ... of each run, one run after another."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total, dtype=np.int64)
