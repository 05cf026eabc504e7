"""A thousand kinds of damage: none is loaded, no code of it runs, the newest good checkpoint is used.

The damage is drawn anew at each run; a failure names its seed, and `HEADWAY_TEST_SEED` draws the same again.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headway.data_contracts.store.documents import CheckpointManifest
from headway.training.checkpoint import blocks
from headway.training.checkpoint.layout import MANIFEST_NAME, SEAL_NAME, committed_steps, directory_name, seal
from headway.training.checkpoint.restore import restore_newest
from headway.training.frozen.result import tensors_sha256
from headway.training.ranks.distributed import ProcessGroup
from tests.training.checkpoint.conftest import save_checkpoint


def digest_of(tensors) -> str:
    return tensors_sha256(sorted(tensors.items()))


ALONE = ProcessGroup(rank=0, world_size=1, device=torch.device("cpu"))
NUM_MUTATIONS = [300, pytest.param(1200, marks=pytest.mark.soak)]
OLD, GOOD, NEWEST, OTHER = 10, 20, 30, 40
"""Steps; the last one is of a twin run, which lies elsewhere."""


class Bomb:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def state(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        "model.weight": torch.randn(6, 8, generator=generator),
        "model.scale": torch.randn((), generator=generator),
        "model.half": torch.randn(9, generator=generator).bfloat16(),
        "optimizer.mean.weight": torch.randn(6, 8, generator=generator),
    }


@pytest.fixture(scope="module")
def pristine(tmp_path_factory, in_gang, content) -> Path:
    """A run of two ranks with three good checkpoints, beside one of a twin run with the same steps."""
    folder: Path = tmp_path_factory.mktemp("pristine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 256)
        for step in (OLD, GOOD, NEWEST):
            in_gang(
                2,
                lambda process_group, step=step: save_checkpoint(
                    folder / "checkpoints", content(step, state(step)), process_group
                ),
            )
        changed = content(NEWEST, state(OTHER))
        in_gang(2, lambda process_group: save_checkpoint(folder / "twin", changed, process_group))
    return folder


def flip_a_bit(draw: random.Random, newest: Path, _good: Path, _twin: Path, _mark: Path) -> str:
    path = _some_file(draw, newest)
    data = bytearray(path.read_bytes())
    bit = draw.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"bit {bit} of {path.name}"


def truncate(draw: random.Random, newest: Path, *_: Path) -> str:
    path = _some_file(draw, newest)
    length = draw.randrange(path.stat().st_size)
    os.truncate(path, length)
    return f"{path.name} cut to {length} bytes"


def lengthen(draw: random.Random, newest: Path, *_: Path) -> str:
    path = _some_file(draw, newest)
    with path.open("ab") as file:
        file.write(draw.randbytes(draw.randrange(1, 300)))
    return f"{path.name} grew"


def zero_a_stretch(draw: random.Random, newest: Path, *_: Path) -> str:
    path = _some_file(draw, newest)
    data = bytearray(path.read_bytes())
    start = draw.randrange(len(data))
    stop = draw.randrange(start + 1, len(data) + 1)
    if not any(data[start:stop]):
        start = next(place for place, value in enumerate(data) if value)
        stop = start + 1
    data[start:stop] = bytes(stop - start)
    path.write_bytes(data)
    return f"bytes {start}-{stop} of {path.name} zeroed"


def remove(draw: random.Random, newest: Path, *_: Path) -> str:
    path = _some_file(draw, newest)
    path.unlink()
    return f"{path.name} missing"


def add(draw: random.Random, newest: Path, good: Path, *_: Path) -> str:
    name = draw.choice(["extra", "tensors-00002-of-00003.safetensors", ".hidden", "part-00001.json", "manifest.json~"])
    shutil.copy(_some_file(draw, good), newest / name)
    return f"{name} added"


def swap_between_steps(draw: random.Random, newest: Path, good: Path, *_: Path) -> str:
    path = _some_file(draw, newest, but=(good,))
    shutil.copy(good / path.name, path)
    return f"{path.name} of another step"


def swap_between_runs(draw: random.Random, newest: Path, _good: Path, twin: Path, _mark: Path) -> str:
    path = _some_file(draw, newest, but=(twin,))
    shutil.copy(twin / path.name, path)
    return f"{path.name} of another run"


def swap_ranks(_draw: random.Random, newest: Path, *_: Path) -> str:
    first, second = sorted(newest.glob("tensors-*"))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    return "ranks swapped"


def stale_manifest(draw: random.Random, newest: Path, good: Path, *_: Path) -> str:
    for name in (MANIFEST_NAME, SEAL_NAME):
        shutil.copy(good / name, newest / name)
    if draw.random() < 0.5:  # with the step made to fit, so that only the files give it away
        manifest = CheckpointManifest.from_bytes((newest / MANIFEST_NAME).read_bytes(), where="")
        manifest = manifest.model_copy(update={"step": NEWEST})
        (newest / MANIFEST_NAME).write_bytes(manifest.to_bytes())
        (newest / SEAL_NAME).write_bytes(seal(manifest))
    return "stale manifest"


def forge_the_layout(draw: random.Random, newest: Path, *_: Path) -> str:
    """A sealed manifest whose layout says something else than its files hold."""
    manifest = CheckpointManifest.from_bytes((newest / MANIFEST_NAME).read_bytes(), where="")
    at = draw.randrange(len(manifest.layout))
    piece = manifest.layout[at]
    change = draw.choice(
        [
            {"dtype": "int32" if piece.dtype == "float32" else "float32"},
            {"file": "tensors-00009-of-00002.safetensors"},
            {"tensor": "model.other"},
            {"global_shape": (*piece.global_shape, 2)},
            {"shape": (*piece.shape[:-1], 10**12) if piece.shape else (3,)},
            {"offsets": (*piece.offsets[:-1], 1) if piece.offsets else (1,)},
        ]
    )
    changed = [*manifest.layout]
    changed[at] = piece.model_copy(update=change)
    manifest = manifest.model_copy(update={"layout": tuple(changed)})
    (newest / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    (newest / SEAL_NAME).write_bytes(seal(manifest))
    return f"layout forged: {piece.tensor} {change}"


def plant_a_pickle(draw: random.Random, newest: Path, _good: Path, _twin: Path, mark: Path) -> str:
    path = draw.choice([_some_file(draw, newest), newest / "data.pkl", newest / ".metadata"])
    payload = pickle.dumps(Bomb(mark))
    if draw.random() < 0.5 and path.exists():
        payload += path.read_bytes()[len(payload) :]
    path.write_bytes(payload)
    return f"pickle as {path.name}"


def plant_a_folder_or_link(draw: random.Random, newest: Path, good: Path, *_: Path) -> str:
    path = _some_file(draw, newest, but=(good,))
    path.unlink()
    if draw.random() < 0.5:
        path.mkdir()
        return f"{path.name} is a folder"
    path.symlink_to(good / path.name)
    return f"{path.name} is a link to another step"


DAMAGES: list[Callable[..., str]] = [
    *[flip_a_bit] * 5,
    *[truncate] * 2,
    lengthen,
    zero_a_stretch,
    remove,
    add,
    swap_between_steps,
    swap_between_runs,
    swap_ranks,
    stale_manifest,
    forge_the_layout,
    plant_a_pickle,
    plant_a_folder_or_link,
]


def _some_file(draw: random.Random, directory: Path, but: tuple[Path, ...] = ()) -> Path:
    """Any of its files, each kind equally often; none that is equal to the file of that name in the folders `but`."""
    paths = sorted(directory.iterdir())
    return draw.choice(
        [path for path in paths if not any((other / path.name).read_bytes() == path.read_bytes() for other in but)]
    )


@pytest.mark.parametrize("num_mutations", NUM_MUTATIONS)
def test_no_damage_is_loaded_or_run_and_the_newest_good_checkpoint_is_used(pristine, run, tmp_path, num_mutations):
    seed = int(os.environ.get("HEADWAY_TEST_SEED") or random.SystemRandom().randrange(2**32))
    draw, mark, kinds = random.Random(seed), tmp_path / "code-ran", Counter()
    expected = digest_of(state(GOOD))
    run_dir, twin = tmp_path / "run", pristine / "twin" / directory_name(NEWEST)
    checkpoints = run_dir / "checkpoints"
    shutil.copytree(pristine / "checkpoints", checkpoints)
    newest = checkpoints / directory_name(NEWEST)
    whole = {path.name: path.read_bytes() for path in newest.iterdir()}
    for number in range(num_mutations):
        newest.mkdir(exist_ok=True)
        for name, data in whole.items():
            (newest / name).write_bytes(data)
        damage = draw.choice(DAMAGES)
        described = damage(draw, newest, checkpoints / directory_name(GOOD), twin, mark)
        told = []

        found = restore_newest(run_dir, run, ALONE, on_quarantine=lambda *what, told=told: told.append(what))

        where = f"HEADWAY_TEST_SEED={seed}, damage {number}: {described}"
        assert found is not None and found.manifest.step == GOOD, where
        assert digest_of(found.tensors) == expected, where
        assert committed_steps(checkpoints) == [OLD, GOOD], where
        assert not mark.exists(), where
        has_manifest = described != f"{MANIFEST_NAME} missing"  # then it is no checkpoint, and swept
        assert len(told) == has_manifest and all(str(directory_name(NEWEST)) in str(error) for _, error in told), where
        assert not newest.exists(), where
        quarantined = list((run_dir / "quarantine").iterdir()) if has_manifest else []
        assert [path.name for path in quarantined] == [f"{directory_name(NEWEST)}.0"] * has_manifest, where
        for path in quarantined:
            shutil.rmtree(path)
        kinds[damage] += 1
    assert kinds.total() == num_mutations and set(kinds) == set(DAMAGES), "every kind was drawn"


def test_damage_that_one_rank_sees_is_everybodys_and_put_aside_once(pristine, run, tmp_path, in_gang):
    shutil.copytree(pristine / "checkpoints", tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / directory_name(NEWEST) / "tensors-00001-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 64
    path.write_bytes(data)
    manifest = CheckpointManifest.from_bytes((path.parent / MANIFEST_NAME).read_bytes(), where="")
    told = []

    def restore(process_group):
        # Each wants what it wrote: only rank 1 meets the damage.
        own = {piece.tensor for piece in manifest.layout if piece.file == manifest.files[process_group.rank].name}
        wanted = {name: value for name, value in state(NEWEST).items() if name in own}
        return restore_newest(tmp_path, run, process_group, state=wanted, on_quarantine=lambda *what: told.append(what))

    found = in_gang(2, restore)

    assert [each.manifest.step for each in found] == [GOOD, GOOD]
    assert len(told) == 1 and "rank 1 cannot use it" in str(told[0][1])
