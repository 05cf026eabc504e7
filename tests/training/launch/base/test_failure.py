from __future__ import annotations

from dataclasses import asdict

import pytest

from headway.data_contracts.store.errors import ContractViolation, HeadwayError, TrainingFailed
from headway.training.launch.base.failure import Failure, cause_of, traceback_of


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


class DistStoreError(RuntimeError):
    """Named as torch names its own."""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OutOfMemoryError("CUDA out of memory"), "oom"),
        (MemoryError(), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "oom"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"), "infrastructure"),
        (RuntimeError("Timed out waiting 60000ms for send operation to complete"), "infrastructure"),
        (RuntimeError("Gloo connectFullMesh failed"), "infrastructure"),
        (DistStoreError("any words"), "infrastructure"),
        (ConnectionResetError(), "infrastructure"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "training"),
        (ValueError("Connection closed by peer"), "training"),
        (ContractViolation("x"), "contract"),
        (TrainingFailed("x"), "training"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_cause_of_an_error(error: BaseException, cause: str) -> None:
    assert cause_of(error) == cause


def test_a_crash_may_be_retried_and_a_verdict_may_not() -> None:
    assert Failure.of(ValueError("x")).retryable is True
    assert Failure.of(TrainingFailed("the loss is not finite.")).retryable is False
    assert Failure.of(MemoryError()).retryable is False


def test_the_words_of_an_error_survive() -> None:
    error: HeadwayError = ContractViolation("no receipt.", where="manifest", advice="Validate first.")
    failure = Failure.of(error)
    assert (failure.what, failure.where, failure.advice) == ("no receipt.", "manifest", "Validate first.")
    assert (failure.error, failure.exit_code) == ("ContractViolation", 4)
    assert Failure.from_json({**asdict(failure), "of_a_newer_worker": 1}) == failure


def test_a_foreign_error_is_one_line_and_its_traceback_is_kept() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        failure, written = Failure.of(error), traceback_of(error)
    assert failure.what == "ValueError: two lines"
    assert "raise ValueError" in written
