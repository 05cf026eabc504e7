"""A small corpus and its shards, for the tests of this folder."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pyarrow as pa
import pytest

from headway.data_contracts.store.documents import FittedState, Link, ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.training.config.shards import BytePairSpec, ShardSpec
from headway.training.data.shards.sharding import fit, write_shards
from headway.training.data.shards.splits import NO_ROWS, SourceRows
from tests.training.data.own_words import Own

SNAPSHOT = Link(kind="snapshot", sha256="a" * 64)
RECEIPT = Link(kind="receipt", sha256="b" * 64)


class Built(NamedTuple):
    workspace: Workspace
    spec: ShardSpec
    files: dict[str, bytes]
    fitted: FittedState
    manifest: ShardManifest


def text_rows(data: bytes) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"text": pa.array([data], type=pa.binary())})


def make_documents(files: dict[str, bytes]) -> list[SourceRows]:
    return [
        SourceRows(path, hashlib.sha256(data).hexdigest(), len(data), 1, NO_ROWS, partial(text_rows, data))
        for path, data in files.items()
    ]


def make_shards(root: Path, files: dict[str, bytes], spec: ShardSpec, fitted: FittedState | None = None) -> Built:
    workspace = Workspace.create(str(root))
    documents = make_documents(files)
    state = fitted or fit(spec, documents, workspace, snapshot=SNAPSHOT, receipt=RECEIPT)
    manifest = write_shards(spec, state, documents, workspace, snapshot=SNAPSHOT, receipt=RECEIPT)
    return Built(workspace, spec, files, state, manifest)


@pytest.fixture(scope="session")
def files() -> dict[str, bytes]:
    words = ["def", "return", "value", "self", "naïve", "数据", "0x7f", "==", "\t", "  ", "\n\n", "'quoted'"]
    made = {
        f"package/module_{number:02d}.py": "".join(
            f"{words[(number * step) % len(words)]} {words[step % 7]}_{number}\n" for step in range(30 + number * 7)
        ).encode()
        for number in range(40)
    }
    made["package/empty.py"] = b""
    made["package/marker.py"] = b"text = '<|endoftext|><|pad|>'\n<|endoftext|>"
    made["package/crlf.py"] = b"a\r\nb\r\n\x00\x7f\xef\xbb\xbf"
    made["package/not_utf8.py"] = b"caf\xe9 \xff\xfe\x80"
    return made


@pytest.fixture(scope="session")
def spec() -> ShardSpec:
    return ShardSpec(
        encoder=BytePairSpec(vocab_size=400, sequence_tokens=16),
        num_groups=3,
        heldout_fraction=0.25,
        rows_per_row_group=20,
        rows_per_shard=50,
    )


@pytest.fixture(scope="session")
def documents_of() -> Callable[[dict[str, bytes]], list[SourceRows]]:
    return make_documents


@pytest.fixture(scope="session")
def build() -> Callable[..., Built]:
    return make_shards


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], spec: ShardSpec) -> Built:
    """Shards that no test may change."""
    return make_shards(tmp_path_factory.mktemp("shared"), files, spec)


@pytest.fixture
def built(tmp_path: Path, files: dict[str, bytes], spec: ShardSpec) -> Built:
    """Shards of the test's own."""
    return make_shards(tmp_path / "workspace", files, spec)


@pytest.fixture
def own(tmp_path: Path) -> Own:
    """A project whose encoder has no mistake, and an empty workspace."""
    made = Own(tmp_path, Workspace.create(str(tmp_path / "workspace")))
    made.write()
    return made


@pytest.fixture
def store() -> Iterator[ModuleType]:
    """A remote store of the test's own making: `faulty://` before a folder's path."""
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    import faulty_store

    faulty_store.register()
    yield faulty_store
    faulty_store.register()
    sys.path.remove(folder)
