"""Checkpoints of every version of the format are read, and keep the digests that others know."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from headway.data_contracts.store.digests import file_digest
from headway.data_contracts.store.documents import CheckpointManifest
from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint.layout import seal, stored_files
from headway.training.checkpoint.pieces import Piece
from headway.training.checkpoint.read import read_checkpoint
from headway.training.checkpoint.restore import restore_newest
from headway.training.checkpoint.verified_files import read_manifest
from headway.training.frozen.result import tensors_sha256
from headway.training.ranks.distributed import ProcessGroup

ALONE = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
RELEASED = Path(__file__).parent / "released"
VERSIONS = {
    1: "a34827ae18091a834b0f932c2a408ff4a8438296e121642e778ae99c21f27052",
}
"""Digest of all tensors of the fixture of each version."""


def digest(tensors: dict[str, torch.Tensor]) -> str:
    return tensors_sha256(sorted(tensors.items()))


def directory(version: int) -> Path:
    return RELEASED / f"version-{version}" / "step-00000010"


def test_there_is_a_fixture_of_every_version():
    newest = CheckpointManifest.model_fields["format_version"].default
    assert sorted(VERSIONS) == list(range(1, newest + 1))


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_read_whole_and_in_part(version):
    found = read_checkpoint(directory(version))
    assert found.manifest.format_version == version
    assert digest(found.tensors) == VERSIONS[version]
    assert found.proof_batch["tokens"].tolist() == [[0, 1, 2], [3, 4, 5]]
    weight = found.tensors["model.weight"]
    part = Piece(local=weight[1:3], global_shape=(5, 7), offsets=(1, 0))
    restored = restore_newest_copy(version, {"model.weight": part})
    assert torch.equal(restored.tensors["model.weight"], weight[1:3])


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def restore_newest_copy(version: int, state):
    shutil.copytree(directory(version).parent, Path("run", "checkpoints"))
    return restore_newest(Path("run"), read_manifest(directory(version)).run, ALONE, state=state)


@pytest.mark.parametrize("version", VERSIONS)
def test_its_manifest_keeps_its_bytes_and_so_its_name_and_its_seal(version):
    data = (directory(version) / "manifest.json").read_bytes()
    manifest = CheckpointManifest.from_bytes(data, where="")
    assert manifest.to_bytes() == data
    assert seal(manifest) == (directory(version) / "manifest.sha256").read_bytes()
    for file in stored_files(str(directory(version)), manifest):
        assert file_digest(Path(file.path), file.algorithm) == file.digest, "what the chain of proof goes by"
    assert {file.algorithm for file in manifest.files} == {"blake3"}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_flipped_bit_anywhere_in_its_files_shows(version, tmp_path):
    copy = tmp_path / directory(version).name
    shutil.copytree(directory(version), copy)
    for path in copy.iterdir():
        whole = path.read_bytes()
        for place in range(0, len(whole), 11):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.raises(IntegrityError):
                read_checkpoint(copy)
        path.write_bytes(whole)
    read_checkpoint(copy)


def test_a_newer_version_is_refused_with_what_to_do(tmp_path):
    copy = tmp_path / "step-00000010"
    shutil.copytree(directory(1), copy)
    value = json.loads((copy / "manifest.json").read_bytes()) | {"format_version": 99}
    with pytest.raises(IntegrityError, match="Upgrade Headway"):
        CheckpointManifest.from_bytes(json.dumps(value).encode(), where="")
