"""Every error says what, where and what next, and ends the command with its own code."""

from __future__ import annotations

import pickle

import pytest

from headway.data_contracts.store import errors
from headway.data_contracts.store.errors import HeadwayError, shortened

SUBCLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HeadwayError)]
DOCUMENTED_CODES = {
    "ConfigError": 2,
    "DataError": 3,
    "EncodingRefused": 3,
    "ContractViolation": 4,
    "IntegrityError": 5,
    "TrainingFailed": 6,
    "RanksLost": 6,
    "EnvironmentProblem": 8,
    "PeerFailed": 8,
    "RunBusy": 8,
    "Superseded": 8,
    "PromotionRefused": 7,
    "RegistryError": 9,
    "RefConflict": 9,
    "NotReproduced": 10,
    "RunStopped": 75,
    "CostBoundReached": 79,
    "OutsideWindow": 77,
    "PipelineHeld": 77,
    "HeadwayError": 70,
}


def test_the_exit_codes_are_the_documented_ones() -> None:
    assert {kind.__name__: kind.exit_code for kind in SUBCLASSES} == DOCUMENTED_CODES


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_an_error_says_where_then_what_then_advice(kind: type[HeadwayError]) -> None:
    assert str(kind("it broke.", where="a.yaml", advice="Mend it.")) == "a.yaml: it broke. Mend it."


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_an_error_crosses_process_borders_whole(kind: type[HeadwayError]) -> None:
    again = pickle.loads(pickle.dumps(kind("it broke.", where="a.yaml", advice="Mend it.")))
    assert type(again) is kind
    assert again.what == "it broke."


def test_faults_of_data_contract_and_configuration_are_never_retried() -> None:
    never = (errors.ConfigError, errors.DataError, errors.ContractViolation, errors.IntegrityError)
    assert not any(kind.retryable for kind in never)


def test_long_words_are_cut_between_two_of_them_and_say_so() -> None:
    assert shortened("whole", 10) == "whole"
    assert shortened("one two\nthree four", 12) == "one two…"
    assert shortened("unbroken" * 10, 12) == "unbrokenunb…"
