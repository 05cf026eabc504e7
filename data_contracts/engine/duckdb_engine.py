"""Great Expectations on DuckDB, out of core over a view. Importing this imports Great Expectations (2 s, 200 MB).

Great Expectations 1.24 has no DuckDB engine, and its SQL engine closes a connection before it fetches, whereupon
DuckDB's cursor is empty. This engine keeps one cursor of a connection that it is given, and supplies the metrics that
need DuckDB's own words.
Figures that add up over files are not queried here but taken from `Tallies`, which counts each of them once, in a scan
that all share. The classes it builds on are internal: the version is pinned, and the tests plant faults through every
expectation in use.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import duckdb
import duckdb_engine
import sqlalchemy as sa

from headway.data_contracts.engine.quick_imports import quick_imports
from headway.data_contracts.engine.suite import METRICS, Metric, metric_named, metric_of
from headway.data_contracts.rules.checks import Check
from headway.data_contracts.scans.column_figures import column_metric
from headway.data_contracts.scans.exact_checks import num_broken_sql
from headway.data_contracts.scans.figures import Scalar
from headway.data_contracts.scans.rows_database import ROWS, identifier
from headway.data_contracts.scans.tallies import Tallies
from headway.data_contracts.types.type_families import family

# Charts and tests of distributions, a quarter of the whole, are for expectations that no contract compiles to.
with quick_imports("altair", "scipy.stats"):
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig
    from great_expectations.datasource.fluent import SQLDatasource
    from great_expectations.execution_engine import SqlAlchemyExecutionEngine
    from great_expectations.expectations.metrics.column_map_metrics.column_values_match_regex import (
        ColumnValuesMatchRegex,
    )
    from great_expectations.expectations.metrics.column_map_metrics.column_values_not_match_regex import (
        ColumnValuesNotMatchRegex,
    )
    from great_expectations.expectations.metrics.map_metric_provider import column_condition_partial
    from great_expectations.expectations.metrics.metric_provider import metric_value
    from great_expectations.expectations.metrics.table_metrics.table_column_types import ColumnTypes

GX = "great_expectations"
"""The name of its first logger."""
# Great Expectations makes its engine from a connection string, which cannot carry an open connection.
_connection: contextvars.ContextVar[duckdb.DuckDBPyConnection] = contextvars.ContextVar("connection")
"""What a new datasource reads. Great Expectations makes its engine itself, out of text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectationOutcome:
    passed: bool
    raised: bool = False
    """Whether the expectation could not be evaluated. Its message is not kept: it may quote the data."""


class DuckDBExecutionEngine(SqlAlchemyExecutionEngine):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dialect_module = duckdb_engine
        # One connection for all queries: the base class closes its own before it fetches.
        self._connection: sa.Connection | None = None
        self.tallies: Tallies | None = None
        self.columns: Mapping[str, str] = {}
        self.counted: dict[Metric, Check] = {}
        """The check that says the same as a metric, exactly."""

    def _setup_engine(self, *_: Any, **__: Any) -> None:
        self.engine = _sql_engine()

    @contextlib.contextmanager
    def get_connection(self) -> Iterator[sa.Connection]:
        if self._connection is None:
            self._connection = self.engine.connect()
        yield self._connection

    def close(self) -> None:
        """Give the kept connection back first: an open one would keep the database open."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        super().close()

    def execute_query(self, query: Any) -> Any:
        try:
            return super().execute_query(query)
        except Exception:
            # DuckDB refuses every later statement of a failed transaction.
            if self._connection is not None:
                self._connection.rollback()
            raise

    def resolve_metric_bundle(self, metric_fn_bundle: Iterable[Any]) -> dict[Any, Any]:
        requested, found = list(metric_fn_bundle), {}
        if self.tallies is not None:
            found = {each.metric_configuration.id: value for each in requested for value in self._tallied(each)}
        rest = [each for each in requested if each.metric_configuration.id not in found]
        return {**found, **(super().resolve_metric_bundle(rest) if rest else {})}

    def _tallied(self, requested: Any) -> list[Any]:
        """The metric's value, in a list of one; none when it does not add up over files."""
        assert self.tallies is not None
        name, column, _ = metric = metric_named(requested.metric_configuration)
        # A condition asks of other rows than the tallies counted.
        if requested.compute_domain_kwargs.get("row_condition") is not None:
            return []
        if name == "table.row_count":
            values = self.tallies.total([Scalar("count(*)")])
        elif (check := self.counted.get(metric)) is not None:
            # Our own exact count in place of the expectation's expression, where both say the same.
            values = self.tallies.total([Scalar(num_broken_sql(check))])
        elif name.endswith(".unexpected_count"):
            # Great Expectations' own expression as one more figure of the same scan.
            values = self.tallies.total([Scalar(self._sql(requested.metric_fn)), *self._escaping_nan(requested)])
            values = [value for value in values if isinstance(value, Exception)] or [sum(values)]
        else:
            values = column_metric(self.tallies, name, column, self.columns.get(column, ""))
        for value in values:
            if isinstance(value, Exception):
                raise value
        return values

    def _escaping_nan(self, requested: Any) -> list[Scalar]:
        """DuckDB holds NaN to be above every number, so that a lower bound alone would let it pass."""
        name, column, _ = metric_named(requested.metric_configuration)
        has_upper = requested.metric_configuration.metric_value_kwargs.get("max_value") is not None
        is_float = column in self.columns and family(self.columns[column]) == "float"
        if name != METRICS["between"] + ".unexpected_count" or has_upper or not is_float:
            return []
        return [Scalar(f"count(*) FILTER (isnan({identifier(column)}))")]

    def _sql(self, expression: Any) -> str:
        # As text with its values in it, since the tallies count SQL and know no parameters.
        compiled = expression.compile(dialect=self.engine.dialect, compile_kwargs={"literal_binds": True})
        return str(compiled)


class DuckDBDatasource(SQLDatasource):  # type: ignore[misc]
    """Its existence registers `context.data_sources.add_duckdb`."""

    type: Literal["duckdb"] = "duckdb"

    @property
    def execution_engine_type(self) -> Any:
        return DuckDBExecutionEngine

    def _create_engine(self) -> sa.Engine:
        return _sql_engine()


def _sql_engine() -> sa.Engine:
    connection = _connection.get()
    engine = sa.create_engine("duckdb://", creator=lambda: duckdb_engine.ConnectionWrapper(connection.cursor()))
    # The dialect descends from PostgreSQL's, which doubles backslashes until a server says that it takes them as they
    # are.
    engine.dialect._backslash_escapes = False  # type: ignore[attr-defined]
    return engine


class DuckDBColumnTypes(ColumnTypes):  # type: ignore[misc]
    @metric_value(engine=DuckDBExecutionEngine)  # type: ignore[untyped-decorator,unused-ignore]
    def _duckdb(cls, execution_engine: DuckDBExecutionEngine, **_: Any) -> list[dict[str, str]]:
        # The inspector that is asked otherwise queries a catalogue table DuckDB lacks.
        rows = execution_engine.execute_query(sa.text(f"DESCRIBE {ROWS}")).fetchall()
        return [{"name": row[0], "type": row[1]} for row in rows]


class DuckDBNotMatchRegex(ColumnValuesNotMatchRegex):  # type: ignore[misc]
    @column_condition_partial(engine=DuckDBExecutionEngine)  # type: ignore[untyped-decorator,unused-ignore]
    def _duckdb(cls, column: Any, regex: str, **_: Any) -> Any:
        return sa.not_(sa.func.regexp_matches(column, sa.literal(regex)))


class DuckDBMatchRegex(ColumnValuesMatchRegex):  # type: ignore[misc]
    @column_condition_partial(engine=DuckDBExecutionEngine)  # type: ignore[untyped-decorator,unused-ignore]
    def _duckdb(cls, column: Any, regex: str, **_: Any) -> Any:
        return sa.func.regexp_matches(column, sa.literal(regex))


def evaluate_suite(
    suite: Any,
    connection: duckdb.DuckDBPyConnection,
    *,
    columns: Mapping[str, str],
    tallies: Tallies | None = None,
    checks: Iterable[Check] = (),
) -> dict[str, ExpectationOutcome]:
    """Run a suite on the view of rows.

    Args:
        columns: every column's type by name.
        tallies: where figures that add up over files come from; None queries them here.
        checks: what the suite was made from, for their exact counts.

    Returns:
        Outcome by the `rule_id` in each expectation's meta. An expectation that raised has failed.
    """
    counted = {metric: check for check in checks if (metric := metric_of(check)) is not None}
    with _silencing_gx(), _batch(connection) as (engine, batch):
        engine.tallies, engine.counted, engine.columns = tallies, counted, columns
        # Verdicts alone: samples of unexpected values would bring data into messages.
        result = batch.validate(suite, result_format="BOOLEAN_ONLY")
    return {each.expectation_config.meta["rule_id"]: _outcome(each) for each in result.results}


def _outcome(result: Any) -> ExpectationOutcome:
    info = result.exception_info or {}
    # One flat record, or one record for each metric that raised.
    records = [info, *(value for value in info.values() if isinstance(value, dict))]
    raised = any(record.get("raised_exception") for record in records)
    # Some expectations answer with numpy's bool, which JSON cannot say.
    return ExpectationOutcome(passed=bool(result.success) and not raised, raised=raised)


@contextlib.contextmanager
def _batch(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[DuckDBExecutionEngine, Any]]:
    context = gx.get_context(mode="ephemeral")
    # They write to stderr, and to whoever reads the flow's output.
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    token = _connection.set(connection)
    engine: DuckDBExecutionEngine | None = None
    try:
        # The view is read as it is: a temporary copy would hold all rows.
        source = context.data_sources.add_duckdb(
            name="contract", connection_string="duckdb://", create_temp_table=False
        )
        engine = source.get_execution_engine()
        asset = source.add_table_asset(ROWS, table_name=ROWS)
        yield engine, asset.add_batch_definition_whole_table("all").get_batch()
    finally:
        if engine is not None:
            engine.close()
        # Reset, so that a later validation in this thread cannot reach this connection.
        _connection.reset(token)


@contextlib.contextmanager
def _silencing_gx() -> Iterator[None]:
    """No log lines, whose tracebacks may quote the data, and none of the environment variables it leaves behind."""
    # All others take the level of the first. To set one has every logger of the process forget what it knows.
    known = logging.root.manager.loggerDict
    loggers = [logging.getLogger(GX), *(known[name] for name in [*known] if name.startswith(f"{GX}."))]
    levels = {
        each: each.level for each in loggers if isinstance(each, logging.Logger) and (each.level or each.name == GX)
    }
    partner = os.environ.get("SF_PARTNER")
    for logger in levels:
        # Its tracebacks quote values of the data.
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        # The engine sets it for its own sake, and child processes would inherit it.
        if partner is None:
            os.environ.pop("SF_PARTNER", None)
