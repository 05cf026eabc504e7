"""No damaged checkpoint is ever loaded; the newest good one is."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headway.data_contracts.store.digests import file_digest
from headway.data_contracts.store.documents import CheckpointManifest, DeviceFingerprint, Link
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, IntegrityError
from headway.training.checkpoint import verified_files
from headway.training.checkpoint.layout import committed_steps
from headway.training.checkpoint.pieces import Content, pieces_of
from headway.training.checkpoint.read import read_checkpoint, verify_checkpoint
from headway.training.checkpoint.restore import restore_newest
from headway.training.checkpoint.verified_files import read_manifest
from headway.training.ranks.distributed import ProcessGroup
from tests.training.checkpoint.conftest import save_checkpoint

ALONE = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
RUN = Link(kind="run", sha256="a" * 64)
FINGERPRINT = DeviceFingerprint(device="cpu", machine="m", cpu_capability="c", torch="t", num_threads=1)


def content(step: int, **changes) -> Content:
    torch.manual_seed(step)
    fields = {
        "run": RUN,
        "step": step,
        "num_samples": 8 * step,
        "tensors": {
            "model.weight": torch.randn(5, 7),
            "model.scale": torch.randn(()),
            "optimizer.mean.weight": torch.randn(5, 7),
            "model.counts": torch.arange(3),
        },
        "scalars": {"optimizer_step": step, "tokens_seen": 100 * step, "inexact_resumes": 0},
        "proof_batch": {"tokens": torch.arange(6).view(2, 3)},
        "proof_loss": 1.25,
        "fingerprint": FINGERPRINT,
    }
    return Content(**{**fields, **changes})


@pytest.fixture
def checkpoints(tmp_path) -> Path:
    """Two good checkpoints, of steps 10 and 20."""
    for step in (10, 20):
        save_checkpoint(tmp_path / "checkpoints", content(step), ALONE)
    return tmp_path / "checkpoints"


def newest(checkpoints: Path) -> Path:
    return checkpoints / "step-00000020"


def test_what_was_saved_is_what_is_loaded(checkpoints):
    verified = read_checkpoint(newest(checkpoints))
    saved = content(20)
    assert verified.tensors.keys() == saved.tensors.keys()
    assert all(torch.equal(value, saved.tensors[name]) for name, value in verified.tensors.items())
    assert torch.equal(verified.proof_batch["tokens"], saved.proof_batch["tokens"])
    assert verified.manifest.scalars == saved.scalars
    assert float.fromhex(verified.manifest.proof.loss_hex) == 1.25


def test_each_file_is_proved_by_the_blake3_of_its_bytes(checkpoints):
    for file in read_checkpoint(newest(checkpoints)).manifest.files:
        assert file.blake3 == file_digest(newest(checkpoints) / file.name, "blake3")


def test_the_same_content_is_saved_as_the_same_bytes(checkpoints, tmp_path):
    save_checkpoint(tmp_path / "again", content(20), ALONE)
    files = {path.name: path.read_bytes() for path in newest(checkpoints).iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "again" / "step-00000020").iterdir()} == files
    assert sorted(files) == [
        "manifest.json",
        "manifest.sha256",
        "proof.safetensors",
        "tensors-00000-of-00001.safetensors",
    ]


def flip(name: str, place: float) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        path = directory / name
        data = bytearray(path.read_bytes())
        data[min(len(data) - 1, int(place * len(data)))] ^= 1
        path.write_bytes(data)

    return damage


def truncate(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes((directory / name).read_bytes()[:-1])


def swap_whole_step(directory: Path) -> None:
    shutil.rmtree(directory)
    shutil.copytree(directory.parent / "step-00000010", directory)


def swap_tensors(directory: Path) -> None:
    name = "tensors-00000-of-00001.safetensors"
    shutil.copy(directory.parent / "step-00000010" / name, directory / name)


FILES = ("manifest.json", "manifest.sha256", "proof.safetensors", "tensors-00000-of-00001.safetensors")
DAMAGES = {
    **{f"bit {place:g} of {name}": flip(name, place) for name in FILES for place in (0, 0.3, 0.6, 1)},
    **{f"{name} truncated": truncate(name) for name in FILES},
    **{f"{name} empty": (lambda directory, name=name: (directory / name).write_bytes(b"")) for name in FILES},
    **{
        f"{name} missing": (lambda directory, name=name: (directory / name).unlink())
        for name in FILES
        if name != "manifest.json"
    },
    "a stray file": lambda directory: (directory / "extra.safetensors").write_bytes(b""),
    "all of another step": swap_whole_step,
    "tensors of another step": swap_tensors,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_checkpoint_is_named_never_loaded_and_the_older_one_is_used(checkpoints, damage):
    damage(newest(checkpoints))
    reported = []

    with pytest.raises(IntegrityError, match="step-00000020"):
        verify_checkpoint(newest(checkpoints))
    restored = restore_newest(checkpoints.parent, RUN, ALONE, on_quarantine=lambda path, error: reported.append(error))

    assert restored is not None and restored.manifest.step == 10
    assert committed_steps(checkpoints) == [10]
    assert [path.name for path in (checkpoints.parent / "quarantine").iterdir()] == ["step-00000020.0"]
    assert len(reported) == 1


def test_every_single_bit_of_the_small_files_counts(checkpoints):
    for name in ("manifest.json", "manifest.sha256"):
        path = newest(checkpoints) / name
        whole = path.read_bytes()
        for place in range(0, len(whole), 13):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            with pytest.raises(IntegrityError):
                read_checkpoint(newest(checkpoints))
        path.write_bytes(whole)
    read_checkpoint(newest(checkpoints))


def test_without_its_manifest_a_checkpoint_does_not_exist(checkpoints):
    (newest(checkpoints) / "manifest.json").unlink()
    assert committed_steps(checkpoints) == [10]
    assert restore_newest(checkpoints.parent, RUN, ALONE).manifest.step == 10


def test_an_interrupted_saves_leavings_are_replaced_by_the_next_save_of_that_step(checkpoints):
    (newest(checkpoints) / "manifest.json").unlink()
    (newest(checkpoints) / "tensors-00003-of-00004.safetensors").write_bytes(b"from a larger gang")

    manifest = save_checkpoint(checkpoints, content(20), ALONE)

    assert verify_checkpoint(newest(checkpoints)) == manifest


def test_weights_that_are_not_finite_are_named(checkpoints):
    one_of_many = torch.zeros(5, 7)
    one_of_many[2, 3] = float("inf")
    bad = {**content(30).tensors, "model.weight": one_of_many}
    save_checkpoint(checkpoints, content(30, tensors=bad), ALONE)
    with pytest.raises(IntegrityError, match=r"step-00000030: tensor model.weight has values that are not finite"):
        verify_checkpoint(checkpoints / "step-00000030")
    with pytest.raises(IntegrityError, match="not finite"):
        read_checkpoint(checkpoints / "step-00000030")


def test_a_manifest_that_was_forged_with_its_seal_still_has_to_match_its_files(checkpoints):
    directory = newest(checkpoints)
    manifest = CheckpointManifest.from_bytes((directory / "manifest.json").read_bytes(), where="")
    other_type = tuple(piece.model_copy(update={"dtype": "float64"}) for piece in manifest.layout)
    in_proof = tuple(piece.model_copy(update={"file": manifest.proof.file}) for piece in manifest.layout)
    no_proof = manifest.proof.model_copy(update={"file": "other.safetensors"})
    for changes, message in (
        ({"layout": other_type}, "does not hold model"),
        ({"proof": no_proof}, "lists no proof batch"),
        ({"layout": in_proof}, "an unlisted file"),
    ):
        wrong = manifest.model_copy(update=changes)
        (directory / "manifest.json").write_bytes(wrong.to_bytes())
        (directory / "manifest.sha256").write_text(f"{wrong.sha256}\n")
        with pytest.raises(IntegrityError, match=message):
            verify_checkpoint(directory)


def test_tensors_of_another_shape_or_type_than_a_model_wants_are_named_and_no_checkpoint_is_put_aside(checkpoints):
    for name, wanted, message in (
        ("model.weight", torch.zeros(7, 5), r"float32 \[7, 5\], and the checkpoint has float32 \[5, 7\]"),
        ("model.weight", torch.zeros(5, 7).bfloat16(), "as bfloat16"),
        ("model.head", torch.zeros(3), "none of that name"),
    ):
        with pytest.raises(IntegrityError, match=message):
            restore_newest(checkpoints.parent, RUN, ALONE, state={name: wanted})
        piece = next(iter(pieces_of({name: wanted}).values())).slice(name)
        with pytest.raises(IntegrityError, match=message):
            read_checkpoint(newest(checkpoints), read_manifest(newest(checkpoints)), wanted=[piece])
    assert committed_steps(checkpoints) == [10, 20]
    assert not (checkpoints.parent / "quarantine").exists()


def test_with_no_good_checkpoint_a_run_starts_afresh_and_keeps_the_bad_ones_for_a_look(checkpoints):
    for path in checkpoints.iterdir():
        flip("manifest.json", 0.5)(path)
    assert restore_newest(checkpoints.parent, RUN, ALONE) is None
    kept = sorted(path.name for path in (checkpoints.parent / "quarantine").iterdir())
    assert kept == ["step-00000010.0", "step-00000020.0"]


@pytest.mark.parametrize("of", ["tensors", "manifest"])
def test_a_disk_that_gives_no_answer_is_told_and_no_checkpoint_is_put_aside(checkpoints, monkeypatch, of):
    def broken(*_arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(*((os, "preadv") if of == "tensors" else (verified_files, "read_regular")), broken)
    with pytest.raises(EnvironmentProblem, match=r"Input/output error.*left where it is"):
        restore_newest(checkpoints.parent, RUN, ALONE)
    assert committed_steps(checkpoints) == [10, 20]
    assert not (checkpoints.parent / "quarantine").exists()


def test_a_step_that_goes_bad_twice_is_kept_twice(checkpoints):
    for number in range(2):
        save_checkpoint(checkpoints, content(30), ALONE)
        flip("proof.safetensors", 0.9)(checkpoints / "step-00000030")
        restore_newest(checkpoints.parent, RUN, ALONE)
        assert (checkpoints.parent / "quarantine" / f"step-00000030.{number}").is_dir()


def test_another_runs_checkpoints_are_refused(checkpoints):
    with pytest.raises(ConfigError, match=r"belongs to run aaaaaaaaaaaa.*--run-dir"):
        restore_newest(checkpoints.parent, Link(kind="run", sha256="b" * 64), ALONE)


def test_a_full_disk_is_reported_as_such_and_older_checkpoints_stay_good(checkpoints, monkeypatch):
    def no_space(path, *_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headway.data_contracts.store.publication.fsync_path", no_space)
    with pytest.raises(EnvironmentProblem, match="no space left"):
        save_checkpoint(checkpoints, content(30), ALONE)
    monkeypatch.undo()

    assert restore_newest(checkpoints.parent, RUN, ALONE).manifest.step == 20
    assert committed_steps(checkpoints) == [10, 20]


def test_a_folder_that_is_not_there_holds_no_checkpoint(tmp_path):
    assert restore_newest(tmp_path / "none", RUN, ALONE) is None
