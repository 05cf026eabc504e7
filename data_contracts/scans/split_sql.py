"""The contract's own SQL for a row's split, tried on no row at all before anything is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.tables.rows_files import FILE_COLUMN, PATH_COLUMN, ROW_COLUMN
from headway.data_contracts.types.column_types import arrow_type

if TYPE_CHECKING:
    from headway.data_contracts.rules.contract import Contract

OWN_COLUMNS = {FILE_COLUMN: "int64", ROW_COLUMN: "int64", PATH_COLUMN: "string"}


def check_split_sql(contract: Contract, *, where: str) -> None:
    """Raises `ConfigError`: `splits.sql` is not one value a row, or not over the contract's columns."""
    if contract.splits is None or not contract.splits.sql:
        return
    import duckdb
    import pyarrow as pa

    from headway.data_contracts.scans.leakage import PipelineSplit, register_split

    types = {name: column.type for name, column in contract.columns.items()} | OWN_COLUMNS
    shape = pa.schema([(name, arrow_type(kind)) for name, kind in types.items()]).empty_table()
    # Every column beside it, as the leakage rules select it: an aggregate over all rows is refused here too.
    statement = f"DESCRIBE SELECT *, ({contract.splits.sql})::VARCHAR FROM shape"
    with duckdb.connect(config={"enable_external_access": False}) as connection:
        connection.register("shape", shape)
        register_split(connection, PipelineSplit(of_text=str))
        try:
            # The contract's text is pasted into the statement, and a semicolon in it could start a second one.
            if len(connection.extract_statements(statement)) != 1:
                raise duckdb.ParserException("there is more than one statement")
            if len(connection.execute(statement).fetchall()) != len(types) + 1:
                raise duckdb.ParserException("it gives more than one value")
        except duckdb.Error as error:
            raise ConfigError(
                f"splits.sql gives no split for a row: {str(error).splitlines()[0]}.",
                where=where,
                advice=f"Give one DuckDB expression over {', '.join(contract.columns)}; `headway_split(text)` is the "
                "pipeline's own split of a key.",
            ) from error
