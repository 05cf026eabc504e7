from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from headway.data_contracts.store.digests import sha256_bytes, sha256_file
from headway.data_contracts.store.documents import ShardGroup
from headway.data_contracts.store.errors import ConfigError, DataError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.training.config.shards import HELDOUT, SPLITS, TRAIN, ShardSpec
from headway.training.data.encode.byte_pair import token_bytes
from headway.training.data.encode.encoders import fitted_file
from headway.training.data.encode.packing import PAD_ID, unpack
from headway.training.data.load.shard_reader import ShardReader
from headway.training.data.shards.group_writer import row_seed
from headway.training.data.shards.sharding import fit, write_shards
from headway.training.data.shards.splits import SourceRows, group_of, split_of
from tests.training.data.plain_ways import decode_tokens, shuffled

DocumentsOf = Callable[[dict[str, bytes]], list[SourceRows]]

PROGRAM = """
import functools, hashlib, os, random, signal, sys
from pathlib import Path
import pyarrow as pa
from headway.data_contracts.store import publication
from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.publication import Workspace
from headway.training.data.shards.sharding import fit, write_shards
from headway.training.config.shards import ShardSpec
from headway.training.data.shards.splits import NO_ROWS, SourceRows

source, root, num_threads, order_seed, spec, fatal, fatal_count = sys.argv[1:]

if fatal:
    original, seen = publication.fsync_path, []

    def fsync_path(path):
        seen.append(fatal in path.name)
        if sum(seen) == int(fatal_count):
            os.kill(os.getpid(), signal.SIGKILL)
        original(path)

    publication.fsync_path = fsync_path

def read(path):
    yield pa.RecordBatch.from_pydict({"text": pa.array([path.read_bytes()], type=pa.binary())})

documents = []
for path in sorted(Path(source).iterdir()):
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    documents.append(SourceRows(path.name, sha256, len(data), 1, NO_ROWS, functools.partial(read, path)))
random.Random(int(order_seed)).shuffle(documents)
spec, workspace = ShardSpec.model_validate_json(spec), Workspace.create(root)
links = {"snapshot": Link(kind="snapshot", sha256="a" * 64), "receipt": Link(kind="receipt", sha256="b" * 64)}
fitted = fit(spec, documents, workspace, **links)
workspace.publish_document(write_shards(spec, fitted, documents, workspace, **links, num_threads=int(num_threads)))
"""


def run_program(
    source: Path, root: Path, spec: ShardSpec, *, threads: int = 2, order: int = 0, fatal: str = "", count: int = 0
) -> int:
    """Fit and shard in a fresh process, which kills itself at the given write to a file with `fatal` in its name."""
    arguments = [str(source), str(root), str(threads), str(order), spec.model_dump_json(), fatal, str(count)]
    environment = {**os.environ, "PYTHONHASHSEED": str(order), "RAYON_NUM_THREADS": str(threads)}
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], env=environment, timeout=300).returncode


def tree(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): sha256_file(path)
        for path in root.rglob("*")
        if path.is_file() and not path.name.endswith(".partial")
    }


def stats(root: Path) -> dict[str, tuple[int, int]]:
    return {path.as_posix(): (path.stat().st_mtime_ns, path.stat().st_ino) for path in root.rglob("shards/*/*")}


def groups_of(built: Any) -> dict[tuple[int, str], ShardGroup]:
    return {(group.group, group.split): group for group in built.manifest.groups}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for path, data in files.items():
        (folder / path.replace("/", "-")).write_bytes(data)
    return folder


def test_every_file_comes_back_byte_for_byte_from_its_group(shared: Any) -> None:
    table = token_bytes(fitted_file(shared.workspace, shared.fitted, "tokenizer.json"))
    found: dict[str, bytes] = {}
    for split in SPLITS:
        reader, first = ShardReader(shared.workspace, shared.manifest, split), 0
        for group in (group for group in shared.manifest.groups if group.split == split):
            written = reader.gather(np.arange(first, first + group.num_rows))["tokens"]
            packed = np.empty_like(written)
            packed[shuffled(group.num_rows, row_seed(shared.spec, group.group, split))] = written
            documents = [decode_tokens(tokens, table) for tokens in unpack(packed)]
            found.update(zip(group.documents, documents, strict=True))
            first += group.num_rows
    assert found == shared.files


def test_every_token_is_a_target_exactly_once(shared: Any) -> None:
    library = Tokenizer.from_str(fitted_file(shared.workspace, shared.fitted, "tokenizer.json").decode())
    texts = {path: data.decode() for path, data in shared.files.items() if path != "package/not_utf8.py"}
    for group in shared.manifest.groups:
        if "package/not_utf8.py" in group.documents:
            continue
        expected = sum(len(library.encode(texts[path]).ids) + 1 for path in group.documents) - 1
        reader = ShardReader(
            shared.workspace, shared.manifest.model_copy(update={"groups": (group,)}), group.split, ["tokens"]
        )
        targets = reader.gather(np.arange(reader.num_rows))["tokens"][:, 1:]
        assert int((targets != PAD_ID).sum()) == expected


def test_rows_are_shuffled_inside_their_group(shared: Any) -> None:
    group = max(shared.manifest.groups, key=lambda group: group.num_rows)
    reader = ShardReader(shared.workspace, shared.manifest.model_copy(update={"groups": (group,)}), group.split)
    owners = reader.gather(np.arange(reader.num_rows))["document"][:, 0]
    assert group.num_rows > 100
    assert 0.3 < np.mean(np.diff(owners) < 0) < 0.7


@pytest.mark.long
@pytest.mark.process
def test_bytes_do_not_depend_on_threads_listing_order_or_hash_seed(
    source: Path, tmp_path: Path, spec: ShardSpec
) -> None:
    trees = []
    for number, threads in enumerate((1, 2, 5)):
        assert run_program(source, tmp_path / str(number), spec, threads=threads, order=number) == 0
        trees.append(tree(tmp_path / str(number)))
    assert trees[0] == trees[1] == trees[2]
    assert any(path.startswith("documents/manifest/") for path in trees[0])


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize(
    ("fatal", "count"), [(".parquet", 3), ("group.json", 1), pytest.param("group.json", 4, marks=pytest.mark.soak)]
)
def test_a_killed_writer_vouches_for_nothing_unfinished_and_the_next_run_completes(
    source: Path, tmp_path: Path, spec: ShardSpec, fatal: str, count: int
) -> None:
    assert run_program(source, tmp_path / "killed", spec, fatal=fatal, count=count) == -signal.SIGKILL
    records = list(tmp_path.glob("killed/shards/*/group.json"))
    assert len(records) < len(list(tmp_path.glob("killed/shards/*")))
    kept = {path: path.stat().st_mtime_ns for path in records}
    assert run_program(source, tmp_path / "killed", spec) == 0
    assert run_program(source, tmp_path / "calm", spec) == 0
    assert tree(tmp_path / "killed") == tree(tmp_path / "calm")
    assert {path: path.stat().st_mtime_ns for path in records} == kept


def test_writing_again_reuses_every_group_untouched(built: Any, build: Callable[..., Any]) -> None:
    before = stats(Path(built.workspace.root))
    again = build(Path(built.workspace.root), built.files, built.spec, built.fitted)
    assert again.manifest == built.manifest
    assert stats(Path(built.workspace.root)) == before


@pytest.mark.parametrize("change", ["add", "edit", "remove"])
def test_a_changed_file_touches_its_own_group_alone(built: Any, build: Callable[..., Any], change: str) -> None:
    path = "package/new.py" if change == "add" else "package/module_07.py"
    changed = {**built.files, path: b"fresh = 1\n"}
    if change == "remove":
        del changed[path]
    before = stats(Path(built.workspace.root))
    after = build(Path(built.workspace.root), changed, built.spec, built.fitted)
    one, two = groups_of(built), groups_of(after)
    assert {name for name in one if one[name] != two[name]} == {
        (group_of(path, built.spec)[0], split_of(path, built.spec))
    }
    assert before.items() <= stats(Path(built.workspace.root)).items()
    assert after.manifest.content_sha256 != built.manifest.content_sha256


def test_no_file_changes_its_split_as_others_come_and_go(built: Any, build: Callable[..., Any], tmp_path: Path) -> None:
    def split_by_path(held: Any) -> dict[str, str]:
        return {path: group.split for group in held.manifest.groups for path in group.documents}

    grown = {**built.files, **{f"more/{number}.py": b"x = %d\n" % number for number in range(100)}}
    after = split_by_path(build(tmp_path / "grown", grown, built.spec))
    assert split_by_path(built).items() <= after.items()
    assert set(after.values()) == set(SPLITS)


def test_fitting_never_sees_a_held_out_file(built: Any, build: Callable[..., Any], tmp_path: Path) -> None:
    held_out = next(path for path in built.files if split_of(path, built.spec) == HELDOUT)
    changed = {**built.files, held_out: b"zebra zebra zebra " * 500}
    after = build(Path(built.workspace.root), changed, built.spec)
    assert after.fitted == built.fitted
    trained = next(path for path in built.files if split_of(path, built.spec) == TRAIN)
    assert build(tmp_path / "x", {**built.files, trained: b"zebra " * 500}, built.spec).fitted != built.fitted


@pytest.mark.parametrize("name", ["00000.parquet", "group.json"])
def test_a_damaged_or_lost_group_is_written_anew(built: Any, build: Callable[..., Any], name: str) -> None:
    root = Path(built.workspace.root)
    expected = tree(root)
    first, second = sorted(root.glob(f"shards/*/{name}"))[:2]
    first.write_bytes(bytes([first.read_bytes()[0] ^ 1]) + first.read_bytes()[1:])
    second.unlink()
    assert build(root, built.files, built.spec, built.fitted).manifest == built.manifest
    assert tree(root) == expected


def test_the_manifest_accounts_for_every_row_and_file(shared: Any) -> None:
    manifest = shared.manifest
    for group in manifest.groups:
        assert group.num_rows == sum(shard.num_rows for shard in group.shards)
        sizes = [shard.num_rows for shard in group.shards]
        assert max(sizes, default=0) <= 50 and max(sizes, default=0) - min(sizes, default=0) <= 1
        assert group.num_samples == len(group.documents)
        for shard in group.shards:
            shared.workspace.verify(shard.file)
            assert shard.num_rows == sum(row_group.num_rows for row_group in shard.row_groups)
    assert sorted(path for group in manifest.groups for path in group.documents) == sorted(shared.files)
    assert {"pyarrow", "tokenizers"} == set(manifest.libraries)


def test_the_content_digest_is_of_the_payload_alone(shared: Any, build: Callable[..., Any], tmp_path: Path) -> None:
    cold = build(tmp_path, shared.files, shared.spec.model_copy(update={"codec": "zstd"})).manifest
    assert {shard.codec for group in cold.groups for shard in group.shards} == {"zstd"}
    assert cold.groups != shared.manifest.groups
    assert cold.content_sha256 == shared.manifest.content_sha256
    other = build(tmp_path, shared.files, shared.spec.model_copy(update={"seed": 1})).manifest
    assert other.content_sha256 != cold.content_sha256


def test_groups_are_reported_once_each_in_manifest_order(shared: Any, documents_of: DocumentsOf) -> None:
    seen: list[ShardGroup] = []
    links = {"snapshot": shared.manifest.snapshot, "receipt": shared.manifest.receipt}
    documents = documents_of(shared.files)
    write_shards(shared.spec, shared.fitted, documents, shared.workspace, **links, on_group=seen.append)
    assert tuple(seen) == shared.manifest.groups


def test_a_file_that_changed_since_the_snapshot_is_refused_by_name(
    tmp_path: Path, documents_of: DocumentsOf, shared: Any
) -> None:
    documents = documents_of(shared.files)
    held = documents[3].read
    documents[3] = documents[3]._replace(read=lambda: itertools.chain(held(), held()))
    links = {"snapshot": shared.manifest.snapshot, "receipt": shared.manifest.receipt}
    workspace = Workspace.create(str(tmp_path))
    with pytest.raises(DataError, match=rf"{documents[3].path}: the file has 2 rows, its snapshot says 1"):
        fit(shared.spec, documents, workspace, **links)
    workspace = Workspace(shared.workspace.root)
    before = tree(Path(workspace.root))
    documents[3] = documents[3]._replace(sha256="0" * 64)
    with pytest.raises(DataError, match="has 2 rows"):
        write_shards(shared.spec, shared.fitted, documents, workspace, **links)
    assert tree(Path(workspace.root)) == before


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, documents_of: DocumentsOf, shared: Any) -> None:
    documents = documents_of(shared.files)
    place = next(number for number, held in enumerate(documents) if split_of(held.path, shared.spec) == TRAIN)

    def read() -> Iterator[Any]:
        yield (tmp_path / "gone.py").read_bytes()

    documents[place] = documents[place]._replace(read=read)
    with pytest.raises(DataError, match=rf"{documents[place].path}: cannot be read \(No such file"):
        fit(
            shared.spec,
            documents,
            Workspace.create(str(tmp_path)),
            snapshot=shared.manifest.snapshot,
            receipt=shared.manifest.receipt,
        )


def test_a_damaged_tokenizer_is_caught_before_anything_is_written(built: Any, documents_of: DocumentsOf) -> None:
    path = built.workspace.local_path(built.fitted.files[0].path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    links = {"snapshot": built.manifest.snapshot, "receipt": built.manifest.receipt}
    with pytest.raises(IntegrityError, match=r"tokenizer\.json: its bytes differ"):
        write_shards(built.spec, built.fitted, documents_of(built.files), built.workspace, **links)


def test_a_state_fitted_for_another_vocabulary_is_refused(shared: Any, documents_of: DocumentsOf) -> None:
    encoder = shared.spec.encoder.model_copy(update={"vocab_size": 500})
    spec = shared.spec.model_copy(update={"encoder": encoder})
    links = {"snapshot": shared.manifest.snapshot, "receipt": shared.manifest.receipt}
    with pytest.raises(ConfigError, match="vocab_size"):
        write_shards(spec, shared.fitted, documents_of(shared.files), shared.workspace, **links)


def test_the_fitted_files_are_named_by_their_content(shared: Any) -> None:
    (file,) = shared.fitted.files
    assert file.path.startswith("fitted/")
    assert file.path.endswith("/tokenizer.json")
    assert file.sha256 == sha256_bytes(shared.workspace.read(file.path))
    assert shared.fitted.spec == shared.spec.encoder.model_dump(mode="json")
