"""The expectations of a given suite, judged of the rows that remain after quarantine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb

from data_contracts.checks import Check
from data_contracts.figures import Figure
from data_contracts.suite_answers import Answer, Asker, Question, register
from data_contracts.suite_kinds import UNFORESEEN, compile_expectation
from data_contracts.suite_values import Unsuitable
from data_contracts.tallies import Tallies


class SuiteJudge:
    """Compiles a suite's expectations for the columns there are, and answers them.

    Args:
        checks: of any kind; those of the kind `suite` are taken.
        types: of every column, by name and in order.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, tallies: Tallies, checks: Sequence[Check], types: Mapping[str, str]
    ) -> None:
        self._asker = Asker(connection=connection, tallies=tallies)
        self._questions: dict[str, Question | Unsuitable] = {}
        for check in checks:
            if check.kind == "suite":
                self._questions[check.rule_id] = _question(check, types)
        self._asked = [each for each in self._questions.values() if isinstance(each, Question)]
        register(connection, {name: fits for each in self._asked for name, fits in each.functions.items()})

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All that is asked of the tallies, so that one scan counts it."""
        return tuple(figure for each in self._asked for figure in each.figures)

    def answer(self, check: Check) -> Answer:
        """The verdict on one expectation.

        Raises:
            Unsuitable: it cannot be judged of the columns there are.
            duckdb.Error: the rows cannot be read, or not in this memory.
        """
        question = self._questions[check.rule_id]
        if isinstance(question, Unsuitable):
            raise question
        try:
            return question.answer(self._asker)
        except UNFORESEEN as error:
            raise _unforeseen(error) from error


def _question(check: Check, types: Mapping[str, str]) -> Question | Unsuitable:
    try:
        return compile_expectation(check.arguments["type"], check.arguments["kwargs"], types)
    except UNFORESEEN as error:
        return _unforeseen(error)


def _unforeseen(error: Exception) -> Unsuitable:
    return error if isinstance(error, Unsuitable) else Unsuitable(f"could not be judged ({type(error).__name__})")
