"""The proof batch: equal bits on an equal machine, close values elsewhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.errors import IntegrityError
from headway.training.checkpoint.pieces import Content
from headway.training.checkpoint.proof import check_proof, fingerprint, proof_loss, use_training_mode
from headway.training.ranks.distributed import ProcessGroup
from headway.training.recipes.protocol import Losses
from tests.training.checkpoint.conftest import save_checkpoint

HERE = fingerprint(torch.device("cpu"))
ELSEWHERE = HERE.model_copy(update={"num_threads": HERE.num_threads + 1})


@pytest.fixture
def manifest(tmp_path):
    return save_checkpoint(
        tmp_path,
        Content(
            run=Link(kind="run", sha256="a" * 64),
            step=1,
            num_samples=1,
            tensors={},
            scalars={},
            proof_batch={},
            proof_loss=2.5,
            fingerprint=HERE,
        ),
        ProcessGroup(rank=0, world_size=1, device=torch.device("cpu")),
    )


def test_on_the_same_machine_the_loss_must_agree_to_the_last_bit(manifest):
    assert check_proof(manifest, 2.5, HERE).same_fingerprint
    with pytest.raises(IntegrityError, match=r"recorded was 2\.5"):
        check_proof(manifest, math.nextafter(2.5, 3), HERE)


def test_on_another_machine_it_must_be_close(manifest):
    assert not check_proof(manifest, 2.5001, ELSEWHERE).same_fingerprint
    with pytest.raises(IntegrityError, match="another kind of machine"):
        check_proof(manifest, 2.51, ELSEWHERE)


def test_what_was_recorded_in_half_precision_need_not_be_as_close(manifest):
    assert not check_proof(manifest, 2.6, ELSEWHERE, recorded_in_half=True).same_fingerprint
    with pytest.raises(IntegrityError, match=r"recorded was 2\.5"):
        check_proof(manifest, 2.7, ELSEWHERE, recorded_in_half=True)


def test_a_loss_that_is_not_a_number_never_passes(manifest):
    for here in (HERE, ELSEWHERE):
        with pytest.raises(IntegrityError):
            check_proof(manifest, float("nan"), here)


def test_the_loss_is_measured_in_evaluation_mode_and_leaves_the_mode_as_it_was():
    seen = []

    class Modes:
        def losses(self, model, batch):
            seen.append(model.training)
            return Losses(nats=torch.ones(1, 4), valid=torch.tensor([[True, True, False, False]]))

    model = nn.Linear(1, 1).train()
    assert proof_loss(Modes(), model, {}) == 2.0
    assert seen == [False]
    assert model.training


def test_a_part_that_was_left_in_evaluation_mode_trains_again():
    model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Dropout(0.5)))
    model[1][0].eval()
    use_training_mode(model)
    assert all(module.training for module in model.modules())
