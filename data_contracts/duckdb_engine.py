"""Great Expectations on DuckDB, out of core over a view. Importing this imports Great Expectations (3 s, 270 MB).

Great Expectations 1.24 has no DuckDB engine, and its SQL engine closes a connection before it fetches, whereupon
DuckDB's cursor is empty. This engine keeps one connection, and supplies the metrics that need DuckDB's own words. The
classes it builds on are internal: the version is pinned, and the tests plant faults through every expectation in use.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import duckdb_engine
import great_expectations as gx
import sqlalchemy as sa
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.datasource.fluent import SQLDatasource
from great_expectations.execution_engine import SqlAlchemyExecutionEngine
from great_expectations.expectations.metrics.column_map_metrics.column_values_match_regex import ColumnValuesMatchRegex
from great_expectations.expectations.metrics.map_metric_provider import column_condition_partial
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.table_metrics.table_column_types import ColumnTypes

from data_contracts.rows_database import ROWS, RowsDatabase


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    passed: bool
    raised: bool = False
    """Whether the expectation could not be judged. Its message is not kept: it may quote the data."""


class DuckDBExecutionEngine(SqlAlchemyExecutionEngine):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dialect_module = duckdb_engine
        self._connection: sa.Connection | None = None

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


class DuckDBDatasource(SQLDatasource):  # type: ignore[misc]
    """Its existence registers `context.data_sources.add_duckdb`."""

    type: Literal["duckdb"] = "duckdb"

    @property
    def execution_engine_type(self) -> Any:
        return DuckDBExecutionEngine


class DuckDBColumnTypes(ColumnTypes):  # type: ignore[misc]
    @metric_value(engine=DuckDBExecutionEngine)  # type: ignore[untyped-decorator,unused-ignore]
    def _duckdb(cls, execution_engine: DuckDBExecutionEngine, **_: Any) -> list[dict[str, str]]:
        # The inspector that is asked otherwise queries a catalogue table DuckDB lacks.
        rows = execution_engine.execute_query(sa.text(f"DESCRIBE {ROWS}")).fetchall()
        return [{"name": row[0], "type": row[1]} for row in rows]


class DuckDBMatchRegex(ColumnValuesMatchRegex):  # type: ignore[misc]
    @column_condition_partial(engine=DuckDBExecutionEngine)  # type: ignore[untyped-decorator,unused-ignore]
    def _duckdb(cls, column: Any, regex: str, **_: Any) -> Any:
        return sa.func.regexp_matches(column, sa.literal(regex))


def judge(suite: Any, database: RowsDatabase) -> dict[str, Outcome]:
    """Run a suite on the view of rows.

    Returns:
        Outcome by the `rule_id` in each expectation's meta. An expectation that raised has failed.
    """
    with _quiet(), _batch(database) as batch:
        result = batch.validate(suite, result_format="BOOLEAN_ONLY")
    return {each.expectation_config.meta["rule_id"]: _outcome(each) for each in result.results}


def _outcome(result: Any) -> Outcome:
    info = result.exception_info or {}
    # One flat record, or one record for each metric that raised.
    records = [info, *(value for value in info.values() if isinstance(value, dict))]
    raised = any(record.get("raised_exception") for record in records)
    # Some expectations answer with numpy's bool, which JSON cannot say.
    return Outcome(passed=bool(result.success) and not raised, raised=raised)


@contextlib.contextmanager
def _batch(database: RowsDatabase) -> Iterator[Any]:
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    source = context.data_sources.add_duckdb(
        name="contract",
        connection_string=f"duckdb:///{database.path}",
        kwargs={"connect_args": {"config": database.config}},
        create_temp_table=False,
    )
    engine = source.get_engine()
    try:
        _apply_settings(engine, database)
        asset = source.add_table_asset(ROWS, table_name=ROWS)
        yield asset.add_batch_definition_whole_table("all").get_batch()
    finally:
        source.get_execution_engine().close()
        engine.dispose()


def _apply_settings(engine: sa.Engine, database: RowsDatabase) -> None:
    """They hold for every connection to the database, as long as the engine keeps one."""
    with engine.connect() as connection:
        for statement in database.settings:
            connection.execute(sa.text(statement))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No log lines, whose tracebacks may quote the data, and none of the environment variables it leaves behind."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "great_expectations"]
    levels = {name: logging.getLogger(name).level for name in names}
    partner = os.environ.get("SF_PARTNER")
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if partner is None:
            os.environ.pop("SF_PARTNER", None)
