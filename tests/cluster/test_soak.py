"""One round of what the soak does on hosts and on Slurm, so that it works on the night when it is wanted."""

from __future__ import annotations

import pytest

from tests.cluster.prerequisites import why_no_hosts, why_no_slurm
from tests.soak.orphans import Soak

ENOUGH_STEPS = 300
"""For three endings while it trains."""
NEEDS = {"hosts": why_no_hosts, "slurm": why_no_slurm}


@pytest.mark.parametrize("kind", ["hosts", pytest.param("slurm", marks=pytest.mark.soak)])
def test_a_round_of_the_soak_is_made_and_nobody_is_left(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    if reason := NEEDS[kind]():
        pytest.skip(reason)
    # Munge's socket has a name of some hundred characters at the most.
    evidence = Soak(tmp_path_factory.mktemp("soak"), num_steps=ENOUGH_STEPS).run([kind], 1)
    assert [trial.problem for trial in evidence.trials] == [""] * 4
    assert all(trial.held for trial in evidence.trials), evidence.trials
    assert {trial.num_left for trial in evidence.trials} == {0}
    assert {trial.connected for trial in evidence.trials if trial.next_step_s} == {True}
