"""Any cutting of the tensors is saved, and any other is read back, of which no more is read than is wanted."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint import blocks
from headway.training.checkpoint.layout import DTYPES, directory_name
from headway.training.checkpoint.pieces import Piece, pieces_of
from headway.training.checkpoint.read import read_checkpoint
from headway.training.checkpoint.restore import restore_newest
from headway.training.frozen.result import tensors_sha256
from tests.training.checkpoint.conftest import save_checkpoint


def digest_of(tensors) -> str:
    return tensors_sha256(sorted(tensors.items()))


TYPES = ["float32", "bfloat16", "int64", "bool", "float64"]


@st.composite
def tensors(draw) -> dict[str, torch.Tensor]:
    found = {}
    for number in range(draw(st.integers(1, 4))):
        shape = draw(st.lists(st.integers(0, 7), max_size=3))
        values = torch.randint(0, 2 if draw(st.booleans()) else 200, shape)
        found[f"t{number}"] = values.to(getattr(torch, draw(st.sampled_from(TYPES))))
    return found


@st.composite
def cuttings(draw, whole: dict[str, torch.Tensor]) -> list[dict[str, Piece]]:
    """What each rank of some gang holds: every tensor cut along some dimensions, or replicated."""
    mesh = draw(st.lists(st.integers(1, 3), min_size=2, max_size=2))
    held: list[dict[str, Piece]] = [{} for _ in range(mesh[0] * mesh[1])]
    for name, value in whole.items():
        dims = [draw(st.none() | st.integers(0, value.dim() - 1)) if value.dim() else None for _ in mesh]
        dims[1] = None if dims[1] == dims[0] else dims[1]
        for rank in range(len(held)):
            region = [(0, length) for length in value.shape]
            for dim, parts, part in zip(dims, mesh, divmod(rank, mesh[1]), strict=True):
                if dim is not None:
                    edges = [-(-value.shape[dim] // parts) * edge for edge in range(parts + 1)]
                    region[dim] = [(min(value.shape[dim], a), min(value.shape[dim], b)) for a, b in pairwise(edges)][
                        part
                    ]
            held[rank][name] = Piece(
                local=value[tuple(slice(a, b) for a, b in region)],
                global_shape=tuple(value.shape),
                offsets=tuple(a for a, _ in region),
            )
    return held


@settings(max_examples=40)
@given(st.data())
def test_what_any_mesh_saved_any_other_mesh_and_a_single_process_read_back(in_gang, content, run, data):
    whole = data.draw(tensors())
    saved, wanted = data.draw(cuttings(whole)), data.draw(cuttings(whole))
    block_bytes = data.draw(st.sampled_from([16, 100, 1 << 20]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        checkpoints = Path(folder) / "checkpoints"
        answers = in_gang(
            len(saved),
            lambda process_group: save_checkpoint(checkpoints, content(5, saved[process_group.rank]), process_group),
        )
        assert answers[0].world_size == len(saved), answers

        alone = read_checkpoint(checkpoints / directory_name(5))
        read = in_gang(
            len(wanted),
            lambda process_group: restore_newest(Path(folder), run, process_group, state=wanted[process_group.rank]),
        )

        assert digest_of(alone.tensors) == digest_of(whole)
        for rank, found in enumerate(read):
            assert digest_of(found.tensors) == digest_of({n: p.local for n, p in wanted[rank].items()})


def test_every_type_survives_and_plain_safetensors_reads_the_files(in_gang, content, tmp_path):
    state = {name: torch.arange(6).view(2, 3).to(getattr(torch, name)) for name in DTYPES}
    in_gang(1, lambda process_group: save_checkpoint(tmp_path, content(1, state), process_group))

    assert digest_of(read_checkpoint(tmp_path / directory_name(1)).tensors) == digest_of(state)
    (file,) = (tmp_path / directory_name(1)).glob("tensors-*")
    with safetensors.safe_open(file, "pt") as stored:
        assert all(torch.equal(stored.get_tensor(n).double(), value.double()) for n, value in state.items())


@pytest.mark.parametrize("parts", [2, 8])
def test_a_rank_reads_the_rows_it_wants_and_not_the_rest(
    in_gang, content, run, tmp_path, monkeypatch, bytes_read, parts
):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1024)
    state = {"model.w": torch.randn(512, 64), "optimizer.m": torch.randn(512, 64)}
    (manifest,) = in_gang(
        1, lambda process_group: save_checkpoint(tmp_path / "checkpoints", content(1, state), process_group)
    )
    size_bytes = sum(file.size_bytes for file in manifest.files)
    rows = 512 // parts
    wanted = {
        name: Piece(local=value[rows : 2 * rows], global_shape=(512, 64), offsets=(rows, 0))
        for name, value in state.items()
    }

    (found,) = in_gang(1, lambda process_group: restore_newest(tmp_path, run, process_group, state=wanted))

    assert torch.equal(found.tensors["model.w"], wanted["model.w"].local)
    assert sum(bytes_read) <= size_bytes / parts + 6 * 1024

    bytes_read.clear()
    assert read_checkpoint(tmp_path / "checkpoints" / directory_name(1)).tensors.keys() == state.keys()
    assert size_bytes <= sum(bytes_read) <= size_bytes + 2 * 1024, "each block once"

    bytes_read.clear()
    read_checkpoint(tmp_path / "checkpoints" / directory_name(1), prefix="model.", rest=())
    assert sum(bytes_read) <= size_bytes / 2 + 4 * 1024


def test_a_tensor_of_another_shape_or_type_is_named_and_nothing_is_put_aside(in_gang, content, run, tmp_path):
    in_gang(
        1,
        lambda process_group: save_checkpoint(
            tmp_path / "checkpoints", content(1, {"w": torch.zeros(4, 2)}), process_group
        ),
    )
    for wrong in ({"w": torch.zeros(2, 4)}, {"w": torch.zeros(4, 2).half()}, {"v": torch.zeros(1)}):
        (error,) = in_gang(
            1, lambda process_group, wrong=wrong: restore_newest(tmp_path, run, process_group, state=wrong)
        )
        assert isinstance(error, IntegrityError) and "is wanted as" in str(error)
    assert not (tmp_path / "quarantine").exists()


def test_a_plain_tensor_is_the_piece_that_covers_all():
    piece = pieces_of({"w": torch.zeros(3, 2, requires_grad=True)})["w"]
    assert (piece.global_shape, piece.offsets, piece.local.requires_grad) == ((3, 2), (0, 0), False)
