"""The proving rank: a good checkpoint's loss is reproduced bit for bit, another one's is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import xxhash

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import CheckpointManifest
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def trained(shared_project, tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("trained")
    assert shared_project.train(shared_project.publish_run(), run_dir, world_size=2) == [0, 0]
    return run_dir / "checkpoints" / "step-00000006"


def prove(project, checkpoint: Path, folder: Path) -> int:
    arguments = [
        "--workspace",
        project.workspace.uri,
        "--checkpoint",
        str(checkpoint),
        "--out",
        str(folder / "out.json"),
    ]
    (rank,) = project.start_ranks("headway.training.programs.verify_worker", arguments, folder, world_size=1)
    return int(rank.wait(DEADLINE_S))


def test_a_good_checkpoint_is_proved_to_the_last_bit(project, trained, tmp_path):
    assert prove(project, trained, tmp_path) == 0, project.log(tmp_path)
    result = json.loads((tmp_path / "out.json").read_bytes())
    assert result["proof_holds"] and result["proof_is_exact"]
    assert result["proof_loss"] == result["recorded_loss"]
    assert result["manifest_sha256"] == json.loads((trained.parents[1] / "result.json").read_bytes())["manifest_sha256"]


def test_weights_changed_along_with_every_digest_fail_the_proof(project, trained, tmp_path):
    """What digests cannot see: the file, the manifest and the seal all forged to fit."""
    forged = tmp_path / "step-00000006"
    shutil.copytree(trained, forged)
    manifest = CheckpointManifest.from_bytes((forged / "manifest.json").read_bytes(), where="")
    path = next(forged / piece.file for piece in manifest.layout if piece.tensor == "model.head.weight")
    tensors = safetensors.torch.load(path.read_bytes())
    tensors["model.head.weight"][3] += 0.25
    data = safetensors.torch.save(tensors)
    path.write_bytes(data)
    files = tuple(
        file.model_copy(
            update={
                "sha256": sha256_bytes(data),
                "blake3": "",
                "size_bytes": len(data),
                "block_bytes": len(data),
                "blocks": (xxhash.xxh3_128_hexdigest(data),),
            }
        )
        if file.name == path.name
        else file
        for file in manifest.files
    )
    changed = manifest.model_copy(update={"files": files})
    (forged / "manifest.json").write_bytes(changed.to_bytes())
    (forged / "manifest.sha256").write_text(f"{changed.sha256}\n")

    assert prove(project, forged, tmp_path) == 5
    assert "proof batch" in project.log(tmp_path)
    assert not (tmp_path / "out.json").exists()


def test_a_flipped_bit_fails_before_anything_is_computed(project, trained, tmp_path):
    damaged = tmp_path / "step-00000006"
    shutil.copytree(trained, damaged)
    path = damaged / "tensors-00001-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)

    assert prove(project, damaged, tmp_path) == 5
    assert "tensors-00001-of-00002.safetensors" in project.log(tmp_path)
