"""The expectations of a given suite, evaluated on the rows that remain after quarantine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb

from headway.data_contracts.rules.checks import Check
from headway.data_contracts.scans.figures import Figure
from headway.data_contracts.scans.tallies import Tallies
from headway.data_contracts.suites.kinds import UNFORESEEN, compile_expectation
from headway.data_contracts.suites.literals import UnsupportedExpectation
from headway.data_contracts.suites.results import CompiledExpectation, ExpectationResult, ResultContext, register


class SuiteEvaluator:
    """Compiles a suite's expectations for the columns there are, and answers them.

    Args:
        checks: of any kind; those of the kind `suite` are taken.
        types: of every column, by name and in order.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, tallies: Tallies, checks: Sequence[Check], types: Mapping[str, str]
    ) -> None:
        self._asker = ResultContext(connection=connection, tallies=tallies)
        self._questions: dict[str, CompiledExpectation | UnsupportedExpectation] = {}
        for check in checks:
            # Compiled before the scan, so that its figures are counted with all others.
            if check.kind == "suite":
                self._questions[check.rule_id] = _question(check, types)
        self._asked = [each for each in self._questions.values() if isinstance(each, CompiledExpectation)]
        # By name: two expectations may call the same function.
        self._functions = {fits.name: fits for each in self._asked for fits in each.functions}
        register(connection, self._functions.values())

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All that is asked of the tallies, so that one scan counts it."""
        return tuple(figure for each in self._asked for figure in each.figures)

    def answer(self, check: Check) -> ExpectationResult:
        """The verdict on one expectation.

        Raises:
            UnsupportedExpectation: it cannot be evaluated on the columns there are.
            duckdb.Error: the rows cannot be read, or not in this memory.
        """
        question = self._questions[check.rule_id]
        if isinstance(question, UnsupportedExpectation):
            raise question
        try:
            return question.answer(self._asker)
        # What nobody thought of has failed, and is never taken for holding.
        except UNFORESEEN as error:
            raise _unforeseen(error) from error
        except duckdb.Error:
            # DuckDB wraps errors of functions; the function itself knows whether its time was over.
            for fits in question.functions:
                if self._functions[fits.name].took_too_long:
                    raise UnsupportedExpectation(fits.refusal) from None
            raise


def _question(check: Check, types: Mapping[str, str]) -> CompiledExpectation | UnsupportedExpectation:
    try:
        return compile_expectation(check.arguments["type"], check.arguments["kwargs"], types)
    except UNFORESEEN as error:
        return _unforeseen(error)


def _unforeseen(error: Exception) -> UnsupportedExpectation:
    return (
        error
        if isinstance(error, UnsupportedExpectation)
        else UnsupportedExpectation(f"could not be evaluated ({type(error).__name__})")
    )
