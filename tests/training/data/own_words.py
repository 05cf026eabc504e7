"""A user's project with an encoder of its own: words become counts of letters, kinds become labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from headway.data_contracts.store.documents import FittedState, Link, ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.training.config.encoder_specs import CustomEncoderSpec
from headway.training.config.shards import ShardSpec
from headway.training.data.shards.sharding import fit, write_shards
from headway.training.data.shards.splits import NO_ROWS, SourceRows
from headway.training.frozen.code_archive import encoder_code

SNAPSHOT, RECEIPT = Link(kind="snapshot", sha256="a" * 64), Link(kind="receipt", sha256="b" * 64)
GOOD = """\
import numpy as np

from headway.data_contracts.store.documents import Frozen, PayloadColumn
from headway.data_contracts.store.errors import DataError
from headway.training.data.encode.custom_encoder import EncoderState
from headway.training.config.shapes import CustomShape

from .places import kinds_of


class Options(Frozen):
    column: str = "word"
    buckets: int = 8


class Words:
    spec_type = Options

    @classmethod
    def fit(cls, spec, batches):
        found = set()
        for batch in batches:
            found.update(kinds_of(batch))
        return EncoderState(sorted(found), {"kinds.txt": " ".join(sorted(found)).encode()})

    def __init__(self, spec, learnt):
        self.spec, self.kinds = spec, learnt.files["kinds.txt"].decode().split()
        column = PayloadColumn(name="letters", dtype="uint8", shape=(spec.buckets,))
        self.shape = CustomShape(columns=(column,), num_classes=len(self.kinds), facts={"kinds": self.kinds})

    def encode(self, batch):
        letters = np.zeros((batch.num_rows, self.spec.buckets), dtype=np.uint8)
        for row, word in enumerate(batch.column(self.spec.column).to_pylist()):
            for letter in word:
                letters[row, ord(letter) % self.spec.buckets] += 1
        label = np.array([self.kinds.index(kind) for kind in kinds_of(batch)], dtype=np.int32)
        return {"letters": letters, "label": label[:, None]}
"""
PLACES = """\
def kinds_of(batch):
    return batch.column("kind").to_pylist()
"""
TOKENS = """\
import numpy as np

from headway.data_contracts.store.documents import Frozen
from headway.training.data.encode.custom_encoder import EncoderState
from headway.training.config.shapes import TokenShape


class Letters:
    spec_type = Frozen
    shape = TokenShape(vocab_size=128, context_tokens=8)
    token_sizes_bytes = (1,) * 128

    @classmethod
    def fit(cls, spec, batches):
        return EncoderState()

    def __init__(self, spec, learnt):
        pass

    def encode(self, batch):
        return [np.frombuffer(word.encode(), dtype=np.uint8) for word in batch.column("word").to_pylist()]
"""
WORDS = ["apple", "fig", "plum", "kiwi", "carrot", "leek", "beet", "bean"]


def rows(number: int, count: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, count, 7):
        places = range(first, min(first + 7, count))
        yield pa.RecordBatch.from_pydict(
            {
                "word": [WORDS[(number + 3 * place) % 8] for place in places],
                "kind": ["fruit" if (number + 3 * place) % 8 < 4 else "root" for place in places],
            }
        )


def documents(num_files: int = 12) -> list[SourceRows]:
    def made(number: int) -> SourceRows:
        count = 20 + number
        sha256 = hashlib.sha256(f"{number}".encode()).hexdigest()
        return SourceRows(f"part-{number:02d}", sha256, 100 + number, count, NO_ROWS, partial(rows, number, count))

    return [made(number) for number in range(num_files)]


class Own(NamedTuple):
    """A user's project and the workspace that it is sharded into."""

    root: Path
    workspace: Workspace

    def write(self, old: str = "", new: str = "", **files: str) -> None:
        assert old in GOOD
        package = self.root / "my_words"
        package.mkdir(exist_ok=True)
        texts = {"__init__": "", "encoder": GOOD.replace(old, new) if old else GOOD, "places": PLACES, **files}
        for name, text in texts.items():
            (package / f"{name}.py").write_text(text)

    def spec(self, name: str = "my_words.encoder:Words", **options: Any) -> ShardSpec:
        own = CustomEncoderSpec(name=name, options=options)
        return ShardSpec(encoder=own, num_groups=4, heldout_fraction=0.3, rows_per_shard=64, split_salt="words")

    def code(self, spec: ShardSpec) -> bytes:
        code = encoder_code(spec.encoder, (str(self.root),))
        assert code is not None
        return code

    def fit(self, spec: ShardSpec, num_files: int = 12) -> FittedState:
        sources, code = documents(num_files), self.code(spec)
        fitted = fit(spec, sources, self.workspace, snapshot=SNAPSHOT, receipt=RECEIPT, code=code)
        self.workspace.publish_document(fitted)
        return fitted

    def shards(self, spec: ShardSpec, fitted: FittedState, num_files: int = 12, num_threads: int = 2) -> ShardManifest:
        return write_shards(
            spec,
            fitted,
            documents(num_files),
            self.workspace,
            snapshot=SNAPSHOT,
            receipt=RECEIPT,
            num_threads=num_threads,
        )
