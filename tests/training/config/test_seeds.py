"""Random streams depend on what they are for, and on nothing else."""

from __future__ import annotations

import torch

from headway.training.config.seeds import derive, seed_everything


def test_streams_of_different_purpose_step_and_replica_never_meet():
    seeds = {
        derive(seed, purpose, step, replica)
        for seed in range(3)
        for purpose in ("weights", "order", "replica")
        for step in range(40)
        for replica in range(8)
    }
    assert len(seeds) == 3 * 3 * 40 * 8
    assert derive(0, "replica", 1, 11) != derive(0, "replica", 11, 1) != derive(0, "replica", 111, 0)


def test_a_derived_seed_is_the_same_in_every_version():
    """Saved runs resume with it: changing it breaks promise 5."""
    assert derive(7, "replica", 3, 1) == 6576182001536194854


def test_the_same_seed_gives_the_same_draws_whatever_was_drawn_before():
    seed_everything(5)
    first = torch.rand(3)
    torch.rand(11)
    seed_everything(5)
    assert torch.equal(torch.rand(3), first)


def test_a_generator_of_torch_is_seeded_as_torch_does_it():
    seed_everything(5)
    first = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), first)
