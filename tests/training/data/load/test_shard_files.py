"""A remote workspace is read through the node's cache, and nothing a storage or a disk does reaches a batch."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, IntegrityError
from headway.data_contracts.store.object_store import Patience
from headway.data_contracts.store.publication import Workspace
from headway.training.config.loader_spec import LoaderSpec
from headway.training.config.shards import TRAIN
from headway.training.data.load import shard_files
from headway.training.data.load.address_range import AddressRange
from headway.training.data.load.shard_reader import ShardReader
from tests.waiting import DEADLINE_S

REPOSITORY = Path(__file__).resolve().parents[4]
HASTY = Patience(deadline_s=0.3, first_wait_s=0.01, longest_wait_s=0.02)


@pytest.fixture
def remote(store: Any, built: Any) -> Workspace:
    return Workspace(f"faulty://{built.workspace.root}", HASTY)


@pytest.fixture
def caching(tmp_path: Path) -> LoaderSpec:
    return LoaderSpec(cache_folder=str(tmp_path / "cache"))


def entries(caching: LoaderSpec) -> list[Path]:
    return sorted((Path(str(caching.cache_folder)) / "files").iterdir())


def test_batches_are_those_of_the_local_workspace_and_each_shard_is_fetched_once(
    remote: Workspace, built: Any, caching: LoaderSpec, store: Any
) -> None:
    local = ShardReader(built.workspace, built.manifest, TRAIN)
    rows = np.random.default_rng(0).integers(0, local.num_rows, 200)
    num_shards = sum(len(group.shards) for group in built.manifest.groups if group.split == TRAIN)
    for _ in range(2):
        reader = ShardReader(remote, built.manifest, TRAIN, spec=caching)
        for name, values in reader.gather(rows).items():
            assert np.array_equal(values, local.gather(rows)[name])
    assert store.FaultyFileSystem.num_reads == num_shards == len(entries(caching))


def test_a_corrupted_entry_is_fetched_again(remote: Workspace, built: Any, caching: LoaderSpec, store: Any) -> None:
    expected = ShardReader(remote, built.manifest, TRAIN, spec=caching).gather(np.arange(20))
    entry = entries(caching)[1]
    data = bytearray(entry.read_bytes())
    data[len(data) // 2] ^= 4
    entry.chmod(0o644)
    entry.write_bytes(data)
    before = store.FaultyFileSystem.num_reads
    found = ShardReader(remote, built.manifest, TRAIN, spec=caching).gather(np.arange(20))
    assert store.FaultyFileSystem.num_reads == before + 1
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_file_that_is_replaced_between_its_fetching_and_its_mapping_is_proved_anew(
    remote: Workspace, built: Any, caching: LoaderSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ShardReader(built.workspace, built.manifest, TRAIN).gather(np.arange(20))
    real, other = AddressRange.__init__, tmp_path / "other"

    def replaced_before(mapped: AddressRange, files: Any, **options: Any) -> None:
        for path, _ in files:
            data = bytearray(path.read_bytes())
            for place in range(0, len(data), 8):
                data[place] ^= 4
            other.write_bytes(data)
            other.replace(path)
        real(mapped, files, **options)

    monkeypatch.setattr(AddressRange, "__init__", replaced_before)
    found = ShardReader(remote, built.manifest, TRAIN, spec=caching).gather(np.arange(20))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_rank_hashes_a_shard_once_whether_it_fetched_it_or_found_it(
    remote: Workspace, built: Any, caching: LoaderSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_hashed: dict[str, int] = {"fetched": 0, "mapped": 0}

    def counted(name: str, hashing: Any) -> Any:
        def count(*arguments: Any) -> Any:
            num_hashed[name] += 1
            return hashing(*arguments)

        return count

    monkeypatch.setattr(Workspace, "_read_once", counted("fetched", Workspace._read_once))
    monkeypatch.setattr(AddressRange, "sha256", counted("mapped", AddressRange.sha256))
    ShardReader(remote, built.manifest, TRAIN, spec=caching)
    num_shards = len(entries(caching))
    assert num_hashed == {"fetched": num_shards, "mapped": 0}
    entries(caching)[0].unlink()
    ShardReader(remote, built.manifest, TRAIN, spec=caching)
    assert num_hashed == {"fetched": num_shards + 1, "mapped": num_shards - 1}


def test_a_store_that_lies_never_gets_into_the_cache(
    remote: Workspace, built: Any, caching: LoaderSpec, store: Any
) -> None:
    store.FaultyFileSystem.faults.extend([store.flipped] * 99)
    with pytest.raises(IntegrityError, match=r"sha256 is .* Run the pipeline again"):
        ShardReader(remote, built.manifest, TRAIN, spec=caching)
    assert entries(caching) == []


def test_what_was_fetched_before_a_storage_failed_is_kept(
    remote: Workspace, built: Any, caching: LoaderSpec, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_files, "NUM_FETCHES", 1)
    store.FaultyFileSystem.faults.extend([lambda path, data: data, *[store.raising(OSError("500"))] * 999])
    with pytest.raises(EnvironmentProblem, match=r"reading failed .* times in .* s \(last: OSError\)"):
        ShardReader(remote, built.manifest, TRAIN, spec=caching)
    kept = entries(caching)
    assert kept and not [path for path in kept if path.suffix == ".part"]
    store.FaultyFileSystem.faults.clear()
    before = store.FaultyFileSystem.num_reads
    ShardReader(remote, built.manifest, TRAIN, spec=caching)
    assert store.FaultyFileSystem.num_reads - before == len(entries(caching)) - len(kept)


def test_shards_larger_than_the_cache_are_refused_before_any_is_fetched(
    remote: Workspace, built: Any, caching: LoaderSpec, store: Any
) -> None:
    with pytest.raises(ConfigError, match=r"may hold 1,000.*cache_bytes"):
        ShardReader(remote, built.manifest, TRAIN, spec=caching.model_copy(update={"cache_bytes": 1000}))
    assert store.FaultyFileSystem.num_reads == 0


def test_shards_stay_while_a_gather_could_still_need_them(remote: Workspace, built: Any, caching: LoaderSpec) -> None:
    sizes = [shard.file.size_bytes for group in built.manifest.groups for shard in group.shards]
    tight = caching.model_copy(update={"cache_bytes": sum(sizes) - min(sizes)})
    gather = ShardReader(remote, built.manifest, TRAIN, spec=tight).gather
    with pytest.raises(EnvironmentProblem, match="are in use"):
        ShardReader(remote, built.manifest, "heldout", spec=tight)
    del gather
    ShardReader(remote, built.manifest, "heldout", spec=tight)


def test_a_path_out_of_the_workspace_is_never_fetched(
    remote: Workspace, built: Any, caching: LoaderSpec, store: Any
) -> None:
    group = built.manifest.groups[0]
    file = group.shards[0].file.model_copy(update={"path": "../../etc/passwd"})
    shards = (group.shards[0].model_copy(update={"file": file}), *group.shards[1:])
    manifest = built.manifest.model_copy(
        update={"groups": (group.model_copy(update={"shards": shards}), *built.manifest.groups[1:])}
    )
    with pytest.raises(IntegrityError, match="leaves the workspace"):
        ShardReader(remote, manifest, group.split, spec=caching)
    assert store.FaultyFileSystem.num_reads == 0


def test_slow_opening_shows_that_it_moves(remote: Workspace, built: Any, caching: LoaderSpec) -> None:
    moved: list[int] = []
    ShardReader(remote, built.manifest, TRAIN, spec=caching, on_shard=lambda: moved.append(1))
    num_shards = len(entries(caching))
    assert len(moved) == 2 * num_shards  # a piece each, then the proof of each


RANK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import faulty_store
from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.training.config.loader_spec import LoaderSpec
from headway.training.data.load.shard_files import ShardFiles
faulty_store.register()
manifest = ShardManifest.from_bytes(Path(sys.argv[3]).read_bytes(), where="manifest")
def hold():
    if faulty_store.FaultyFileSystem.num_reads == int(sys.argv[5]):
        print("reading", flush=True)
        sys.stdin.readline()
faulty_store.FaultyFileSystem.on_read = staticmethod(hold)
shards = [shard for group in manifest.groups if group.split == "train" for shard in group.shards]
files = ShardFiles(Workspace(sys.argv[2]), shards, manifest.columns, LoaderSpec(cache_folder=sys.argv[4]))
print(faulty_store.FaultyFileSystem.num_reads, sum(path.stat().st_size for path in files.paths), flush=True)
"""


def rank(remote: Workspace, built: Any, caching: LoaderSpec, tmp_path: Path, hold_at: int) -> subprocess.Popen[str]:
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(built.manifest.to_bytes())
    arguments = [str(Path(__file__).parents[1]), remote.uri, str(manifest), str(caching.cache_folder), str(hold_at)]
    return subprocess.Popen(
        [sys.executable, "-c", RANK, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


@pytest.mark.process
def test_ranks_of_a_node_share_the_work_of_fetching(
    remote: Workspace, built: Any, caching: LoaderSpec, tmp_path: Path
) -> None:
    ranks = [rank(remote, built, caching, tmp_path, hold_at=0) for _ in range(2)]
    message = [process.communicate(timeout=DEADLINE_S)[0].split() for process in ranks]
    shards = [shard for group in built.manifest.groups if group.split == TRAIN for shard in group.shards]
    assert sum(int(num_reads) for num_reads, _ in message) == len(shards)
    assert {int(size) for _, size in message} == {sum(shard.file.size_bytes for shard in shards)}


@pytest.mark.process
def test_a_rank_killed_while_it_fetches_leaves_nothing_half_and_holds_up_nobody(
    remote: Workspace, built: Any, caching: LoaderSpec, tmp_path: Path
) -> None:
    process = rank(remote, built, caching, tmp_path, hold_at=2)
    assert process.stdout is not None and process.stdout.readline() == "reading\n"
    opened: list[ShardReader] = []
    other = threading.Thread(target=lambda: opened.append(ShardReader(remote, built.manifest, TRAIN, spec=caching)))
    other.start()
    process.send_signal(signal.SIGKILL)
    process.wait()
    other.join(DEADLINE_S)
    assert opened[0].num_rows == built.manifest.num_rows(TRAIN)
    assert not [path for path in entries(caching) if path.suffix == ".part"]


@pytest.fixture(params=["lz4", "zstd"])
def cold(request: pytest.FixtureRequest, built: Any, build: Any, tmp_path: Path) -> Any:
    return build(tmp_path / "cold", built.files, built.spec.model_copy(update={"codec": request.param}))


@pytest.mark.parametrize("place", ["local", "remote"])
def test_cold_shards_are_decoded_once_into_the_same_batches(
    built: Any, cold: Any, caching: LoaderSpec, store: Any, place: str
) -> None:
    hot = ShardReader(built.workspace, built.manifest, TRAIN)
    rows = np.random.default_rng(0).integers(0, hot.num_rows, 200)
    workspace = cold.workspace if place == "local" else Workspace(f"faulty://{cold.workspace.root}")
    for _ in range(2):
        reader = ShardReader(workspace, cold.manifest, TRAIN, spec=caching)
        for name, values in reader.gather(rows).items():
            assert np.array_equal(values, hot.gather(rows)[name])
    assert (hot.cached_bytes, reader.cached_bytes) == (0, sum(path.stat().st_size for path in entries(caching)))
    assert {path.suffix for path in entries(caching)} == {".decoded"}
    assert store.FaultyFileSystem.num_reads == (0 if place == "local" else len(entries(caching)))


def test_a_corrupted_decoded_entry_is_decoded_again(cold: Any, caching: LoaderSpec) -> None:
    expected = ShardReader(cold.workspace, cold.manifest, TRAIN, spec=caching).gather(np.arange(20))
    for entry in entries(caching):
        data = bytearray(entry.read_bytes())
        data[7] ^= 4
        entry.chmod(0o644)
        entry.write_bytes(data)
    found = ShardReader(cold.workspace, cold.manifest, TRAIN, spec=caching).gather(np.arange(20))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_disk_that_fills_up_while_shards_are_fetched_is_told_and_a_second_run_completes(
    remote: Workspace, built: Any, new_disk: Callable[[int], Path]
) -> None:
    sizes = [shard.file.size_bytes for group in built.manifest.groups for shard in group.shards]
    folder = new_disk(4 * sum(sizes) // 4096 * 4096)
    caching, filler = LoaderSpec(cache_folder=str(folder / "cache")), folder / "filler"
    filler.write_bytes(bytes(4 * sum(sizes) - 20 * 4096))
    with pytest.raises(EnvironmentProblem, match="no space left for the node's cache"):
        ShardReader(remote, built.manifest, TRAIN, spec=caching)
    kept = entries(caching)
    assert kept and all(path.suffix == "" for path in kept)
    filler.unlink()
    reader = ShardReader(remote, built.manifest, TRAIN, spec=caching)
    local = ShardReader(built.workspace, built.manifest, TRAIN)
    rows = np.arange(local.num_rows)
    assert all(np.array_equal(values, local.gather(rows)[name]) for name, values in reader.gather(rows).items())


def test_every_flipped_bit_of_a_cold_shard_is_caught_before_it_is_decoded(
    cold: Any, tmp_path: Path, caching: LoaderSpec
) -> None:
    group = cold.manifest.groups[0]
    path = cold.workspace.local_path(group.shards[0].file.path)
    good = path.read_bytes()
    for position in np.random.default_rng(0).integers(0, len(good), 100).tolist():
        path.write_bytes(good[:position] + bytes([good[position] ^ 1 << position % 8]) + good[position + 1 :])
        with pytest.raises(IntegrityError, match="the shard is corrupt"):
            ShardReader(cold.workspace, cold.manifest, group.split, spec=caching)
    path.write_bytes(good)
    ShardReader(cold.workspace, cold.manifest, group.split, spec=caching)
