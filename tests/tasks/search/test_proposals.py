"""What a search proposes: the same of the same records, in whatever process, and better than chance."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.tasks.search.configuration import Configuration
from headway.tasks.search.proposals import PastTrial, next_round
from headway.tasks.search.rungs import RungScore, num_promoted, promoted
from headway.tasks.search.trials_spec import Trial, TrialsSpec
from headway.tasks.search.values import Settings
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import RecipeSpec, TrainingSpec

TRAINING = TrainingSpec(recipe=RecipeSpec(model={"width": 16}), max_steps=540)
BASE = Configuration(training=TRAINING, shards=ShardSpec())
VARY = {"optimizer.lr": {"log_uniform": [1e-4, 1.0]}, "recipe.model.width": [16, 32, 64], "seed": {"integer": [0, 9]}}
STEPS = (60, 180, 540)


def spec(search: str, **fields: Any) -> TrialsSpec:
    return TrialsSpec.model_validate({"vary": VARY, "search": search, "draws": 9, "rounds": 3, **fields})


def loss(chosen: Settings, step: int) -> float:
    """Best at a rate of 0.01 and a width of 32; lower with each step."""
    off = abs(math.log10(float(chosen["optimizer.lr"] or 0)) + 2) + 0.3 * (chosen["recipe.model.width"] != 32)
    return off + 10 / step


def search(
    wanted: TrialsSpec, rounds: int = 3, before: list[PastTrial] | None = None, made_now: list[int] | None = None
) -> list[PastTrial]:
    """Halving over so many rounds; a repeat has the scores of all trials before it at hand, and asks for none twice.

    Args:
        made_now: gets the step of each score that was not at hand.
    """
    known = {record.trial.training.model_dump_json(): record for record in before or ()}
    records: list[PastTrial] = []
    for number in range(rounds):
        alive = next_round(wanted, BASE, number, records, STEPS[-1])
        values: dict[int, dict[int, float]] = {trial.number: {} for trial in alive}
        made = {trial.number: trial for trial in alive}
        on = list(made)
        for place, step in enumerate(STEPS):
            for each in on:
                of_before = known.get(made[each].training.model_dump_json())
                found = None if of_before is None else of_before.values.get(step)
                values[each][step] = loss(made[each].settings, step) if found is None else found
                if found is None and made_now is not None:
                    made_now.append(step)
            if place + 1 < len(STEPS):
                scores = [RungScore(number=each, value=values[each][step]) for each in on]
                on, _ = promoted(scores, num_promoted(len(on), step, STEPS[place + 1]))
        records += [PastTrial(trial=trial, values=values[trial.number]) for trial in alive]
    return records


def best(records: list[PastTrial]) -> float:
    return min(record.values[540] for record in records if 540 in record.values)


def test_a_search_that_learns_beats_draws_of_the_same_cost_and_begins_with_them() -> None:
    drawn, learned = search(spec("random")), search(spec("tpe"))
    assert [each.trial for each in learned[:9]] == [each.trial for each in drawn[:9]]
    assert len(learned) == len({each.trial.training.model_dump_json() for each in learned}) == 27
    assert [each.trial.number for each in learned] == list(range(1, 28))

    def off(records: list[PastTrial]) -> float:
        return sum(record.values[60] for record in records[9:]) / 18

    assert best(learned) <= best(drawn) and off(learned) < 0.9 * off(drawn)


@pytest.mark.process
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["random", "tpe"]), st.integers(0, 2**31), st.integers(0, 2))
def test_a_search_that_is_killed_after_any_round_proposes_the_same_when_it_is_repeated(
    method: str, seed: int, killed: int
) -> None:
    wanted = spec(method, seed=seed)
    whole, part = search(wanted), search(wanted, rounds=killed)
    assert part == whole[: len(part)]

    def num_scores(records: list[PastTrial]) -> int:
        return sum(len(record.values) for record in records)

    made_now: list[int] = []
    assert search(wanted, before=part, made_now=made_now) == whole
    assert len(made_now) == num_scores(whole) - num_scores(part), "what was scored is proposed, and found"
    # Killed within the round: some of its trials have scores already.
    torn = [PastTrial(trial=each.trial, values=dict(list(each.values.items())[:1])) for each in whole[::2]]
    made_now.clear()
    assert search(wanted, before=torn, made_now=made_now) == whole
    assert len(made_now) == num_scores(whole) - num_scores(torn)


PROCESS = """
import json
from tests.tasks.search.test_proposals import small_searches
print(json.dumps(small_searches()))
"""


def small_searches() -> list[list[Settings]]:
    return [[record.trial.settings for record in search(spec(method, draws=4), rounds=2)] for method in ("tpe", "gp")]


@pytest.mark.long
@pytest.mark.process
def test_another_process_proposes_the_same_whatever_its_hashes() -> None:
    here = small_searches()
    by_tree, by_process = here
    assert by_tree[:4] == by_process[:4] and by_tree[4:] != by_process[4:]
    there = subprocess.run(
        [sys.executable, "-c", PROCESS],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(there.stdout) == here


def test_trials_that_failed_are_kept_away_from() -> None:
    """Of rates above 0.01 none survives."""
    first = next_round(spec("tpe"), BASE, 0, [], 540)

    def record(trial: Trial) -> PastTrial:
        if float(trial.settings["optimizer.lr"] or 0) > 0.01:
            return PastTrial(trial=trial, has_failed=True)
        return PastTrial(trial=trial, values=dict.fromkeys(STEPS, 1.0 + 0.01 * trial.number))

    records = [record(trial) for trial in first]
    for number in (1, 2):
        records += [record(trial) for trial in next_round(spec("tpe"), BASE, number, records, 540)]
    failed = [each.has_failed for each in records]
    assert sum(failed[:9]) > 2 and sum(failed[18:]) / 9 < sum(failed[:9]) / 9


def test_a_space_that_is_tried_whole_ends_the_search() -> None:
    small = TrialsSpec.model_validate({"vary": {"seed": [1, 2, 3]}, "search": "tpe", "draws": 2, "rounds": 3})
    records: list[PastTrial] = []
    sizes = []
    for number in range(3):
        trials = next_round(small, BASE, number, records, 540)
        sizes.append(len(trials))
        records += [PastTrial(trial=trial, values={540: float(trial.number)}) for trial in trials]
    assert sum(sizes) == 3 and sizes[-1] == 0


def test_a_choice_that_training_does_not_take_beside_the_others_is_asked_for_no_more() -> None:
    vary = {"global_batch_sequences": [8, 16], "micro_batch_sequences": {"integer": [4, 6]}}
    wanted = TrialsSpec.model_validate({"vary": vary, "search": "tpe", "draws": 1, "rounds": 2})
    first = Trial(
        number=1,
        settings={"global_batch_sequences": 8, "micro_batch_sequences": 4},
        training=TRAINING,
        shards=ShardSpec(),
    )
    (second,) = next_round(wanted, BASE, 1, [PastTrial(trial=first, values={540: 1.0})], 540)
    assert second.settings["micro_batch_sequences"] == 4


@pytest.mark.process
def test_a_gaussian_process_proposes_from_a_range_of_more_whole_numbers_than_memory_has() -> None:
    vary = {"seed": {"integer": [0, 2**52]}, "optimizer.lr": {"log_uniform": [1e-4, 1.0]}}
    wanted = TrialsSpec.model_validate({"vary": vary, "search": "gp", "draws": 2, "rounds": 2})
    first = next_round(wanted, BASE, 0, [], 540)
    second = next_round(wanted, BASE, 1, [PastTrial(trial=each, values={540: 1.0}) for each in first], 540)
    seeds = [each.settings["seed"] for each in second]
    assert len(seeds) == 2 and all(type(seed) is int and 0 <= seed <= 2**52 for seed in seeds)


@pytest.mark.long
@pytest.mark.process
def test_who_asks_for_no_search_imports_no_optuna() -> None:
    code = (
        "import sys; import headway.flows.search, headway.flows.cli.trials, headway.tasks.search.proposals;"
        "from tests.tasks.search.test_proposals import search, spec; search(spec('random'));"
        "assert 'optuna' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
