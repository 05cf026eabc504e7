"""What `headway ci` found: one named result for each check, and the exit code that follows from them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from data_contracts.documents import Frozen
from data_contracts.errors import EXIT_DEFECT, HeadwayError

CheckName = Literal["contract", "config", "recipe", "encoder", "stages", "smoke", "verify", "full", "quality"]
CHECKS: tuple[CheckName, ...] = get_args(CheckName)
"""In the order in which they are made and reported."""
Outcome = Literal["passed", "failed", "skipped"]


class Result(Frozen):
    check: CheckName
    outcome: Outcome
    reason: str
    """What was found, or why nothing was judged; may have several lines where it failed."""
    details: tuple[str, ...] = ()
    duration_s: float = 0.0
    cause: str = ""
    """Of a failure, as the errors have it."""
    exit_code: int = 0
    """Of a failure."""


class Report(Frozen):
    pipeline: str
    base: str
    """The git ref that was asked for; empty: none was."""
    base_commit: str = ""
    """What it was compared with; empty where that is not known."""
    results: tuple[Result, ...]

    @property
    def failed(self) -> tuple[Result, ...]:
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
class Said:
    """What a check that was made has to say."""

    reason: str
    details: tuple[str, ...] = ()
    error: HeadwayError | None = None
    """What makes it a failure, where there are details to tell; else it is raised."""


class NotJudged(Exception):
    """A check cannot be made, or need not be, and nobody is to blame; says why."""


class Ended(BaseException):
    """A signal asked the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Checklist:
    """Runs checks one after another and keeps what they said; an interrupted one is kept as well.

    Args:
        tell: hears every result as it comes.
    """

    def __init__(self, tell: Callable[[Result], object]) -> None:
        self._tell, self._results = tell, dict[CheckName, Result]()

    @property
    def results(self) -> tuple[Result, ...]:
        return tuple(self._results[name] for name in CHECKS if name in self._results)

    def run(self, name: CheckName, check: Callable[[], Said], *, needs: tuple[CheckName, ...] = ()) -> bool:
        """Whether it passed. One whose needs did not pass is skipped."""
        if missing := [each for each in needs if self._results[each].outcome != "passed"]:
            outcome = self._results[missing[0]].outcome
            self.skip(name, f"{missing[0]} {'failed' if outcome == 'failed' else 'was skipped'}")
            return False
        began_s = time.perf_counter()
        try:
            result = self._judged(name, check)
        except (Ended, KeyboardInterrupt):
            self._keep(Result(check=name, outcome="skipped", reason="interrupted"), began_s)
            raise
        self._keep(result, began_s)
        return result.outcome == "passed"

    def skip(self, name: CheckName, reason: str) -> None:
        self._keep(Result(check=name, outcome="skipped", reason=reason), time.perf_counter())

    def skip_rest(self, reason: str) -> None:
        for name in CHECKS:
            if name not in self._results:
                self.skip(name, reason)

    def _judged(self, name: CheckName, check: Callable[[], Said]) -> Result:
        try:
            said = check()
        except NotJudged as nobody:
            return Result(check=name, outcome="skipped", reason=str(nobody))
        except HeadwayError as error:
            return _failure(name, error, str(error), ())
        except Exception as error:
            reason = f"a defect of Headway's own ({type(error).__name__}: {error})"
            lines = tuple(traceback.format_exc().splitlines())
            return Result(
                check=name, outcome="failed", reason=reason, details=lines, cause="defect", exit_code=EXIT_DEFECT
            )
        if said.error is not None:
            return _failure(name, said.error, said.reason, said.details)
        return Result(check=name, outcome="passed", reason=said.reason, details=said.details)

    def _keep(self, result: Result, began_s: float) -> None:
        kept = result.model_copy(update={"duration_s": round(time.perf_counter() - began_s, 3)})
        self._results[result.check] = kept
        self._tell(kept)


def _failure(name: CheckName, error: HeadwayError, reason: str, details: tuple[str, ...]) -> Result:
    return Result(
        check=name, outcome="failed", reason=reason, details=details, cause=error.cause, exit_code=error.exit_code
    )
