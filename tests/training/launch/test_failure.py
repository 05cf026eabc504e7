from __future__ import annotations

import pytest

from data_contracts.errors import ContractViolation, HeadwayError, TrainingFailed
from training.launch.failure import cause_of, describe


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
    assert describe(ValueError("x"))["retryable"] is True
    assert describe(TrainingFailed("the loss is not finite."))["retryable"] is False
    assert describe(MemoryError())["retryable"] is False


def test_the_words_of_an_error_survive() -> None:
    error: HeadwayError = ContractViolation("no receipt.", where="manifest", advice="Validate first.")
    fields = describe(error)
    assert (fields["what"], fields["where"], fields["advice"]) == ("no receipt.", "manifest", "Validate first.")
    assert (fields["error"], fields["exit_code"]) == ("ContractViolation", 4)


def test_a_foreign_error_is_one_line_and_its_traceback_is_kept() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        fields = describe(error)
    assert fields["what"] == "ValueError: two lines"
    assert "raise ValueError" in fields["traceback"]
