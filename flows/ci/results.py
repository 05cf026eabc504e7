"""What `headway ci` found: one named result for each check, and the exit code that follows from them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import EXIT_DEFECT, HeadwayError

CheckName = Literal["contract", "config", "recipe", "encoder", "stages", "smoke", "verify", "trials", "full", "quality"]
CHECKS: tuple[CheckName, ...] = get_args(CheckName)
"""In the order in which they are made and reported."""
Outcome = Literal["passed", "failed", "skipped"]


class CiCheckResult(Frozen):
    check: CheckName
    outcome: Outcome
    reason: str
    """What was found, or why nothing was evaluated; may have several lines where it failed."""
    details: tuple[str, ...] = ()
    duration_s: float = 0.0
    cause: str = ""
    """Of a failure, as the errors have it."""
    exit_code: int = 0
    """Of a failure."""


class CiReport(Frozen):
    pipeline: str
    base: str
    """The git ref that was asked for; empty: none was."""
    base_commit: str = ""
    """What it was compared with; empty where that is not known."""
    results: tuple[CiCheckResult, ...]

    @property
    def failed(self) -> tuple[CiCheckResult, ...]:
        return tuple(result for result in self.results if result.outcome == "failed")

    @property
    def exit_code(self) -> int:
        """0 unless a check failed; the first one that did decides."""
        return next((result.exit_code for result in self.failed), 0)

    @property
    def verdict(self) -> str:
        """One line."""
        if self.failed:
            return f"{', '.join(result.check for result in self.failed)} failed (exit {self.exit_code})"
        count = {outcome: sum(result.outcome == outcome for result in self.results) for outcome in get_args(Outcome)}
        return f"{count['passed']} checks passed" + (f", {count['skipped']} skipped" if count["skipped"] else "")


@dataclass(frozen=True, slots=True)
class CheckMessage:
    """What a check that was made has to say."""

    reason: str
    details: tuple[str, ...] = ()
    error: HeadwayError | None = None
    """What makes it a failure, where there are details to tell; else it is raised."""


class NotEvaluated(Exception):
    """A check cannot be made, or need not be, and nobody is to blame; says why."""


class CommandEnded(BaseException):
    """A signal asked the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Checklist:
    """Runs checks one after another and keeps what they said; an interrupted one is kept as well.

    Args:
        on_result: hears every result as it comes.
    """

    def __init__(self, on_result: Callable[[CiCheckResult], object]) -> None:
        self._on_result, self._results = on_result, dict[CheckName, CiCheckResult]()

    @property
    def results(self) -> tuple[CiCheckResult, ...]:
        return tuple(self._results[name] for name in CHECKS if name in self._results)

    def run(self, name: CheckName, check: Callable[[], CheckMessage], *, needs: tuple[CheckName, ...] = ()) -> bool:
        """Whether it passed. One whose needs did not pass is skipped."""
        if missing := [each for each in needs if self._results[each].outcome != "passed"]:
            outcome = self._results[missing[0]].outcome
            self.skip(name, f"{missing[0]} {'failed' if outcome == 'failed' else 'was skipped'}")
            return False
        started_s = time.perf_counter()
        try:
            result = self._evaluated(name, check)
        # The report of an interrupted command says how far it came.
        except (CommandEnded, KeyboardInterrupt):
            self._keep(CiCheckResult(check=name, outcome="skipped", reason="interrupted"), started_s)
            raise
        self._keep(result, started_s)
        return result.outcome == "passed"

    def skip(self, name: CheckName, reason: str) -> None:
        self._keep(CiCheckResult(check=name, outcome="skipped", reason=reason), time.perf_counter())

    def skip_rest(self, reason: str) -> None:
        for name in CHECKS:
            if name not in self._results:
                self.skip(name, reason)

    def _evaluated(self, name: CheckName, check: Callable[[], CheckMessage]) -> CiCheckResult:
        try:
            message = check()
        except NotEvaluated as nobody:
            return CiCheckResult(check=name, outcome="skipped", reason=str(nobody))
        except HeadwayError as error:
            return _failure(name, error, str(error), ())
        # A defect in one check must not cost the report of the others.
        except Exception as error:
            reason = f"a defect of Headway's own ({type(error).__name__}: {error})"
            lines = tuple(traceback.format_exc().splitlines())
            return CiCheckResult(
                check=name, outcome="failed", reason=reason, details=lines, cause="defect", exit_code=EXIT_DEFECT
            )
        if message.error is not None:
            return _failure(name, message.error, message.reason, message.details)
        return CiCheckResult(check=name, outcome="passed", reason=message.reason, details=message.details)

    def _keep(self, result: CiCheckResult, started_s: float) -> None:
        kept = result.model_copy(update={"duration_s": round(time.perf_counter() - started_s, 3)})
        self._results[result.check] = kept
        self._on_result(kept)


def _failure(name: CheckName, error: HeadwayError, reason: str, details: tuple[str, ...]) -> CiCheckResult:
    return CiCheckResult(
        check=name, outcome="failed", reason=reason, details=details, cause=error.cause, exit_code=error.exit_code
    )
