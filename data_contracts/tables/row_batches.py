"""Batches in the columns that all files of a source share, whatever their own file holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.data_contracts.tables.source_errors import refused_column
from headway.data_contracts.types.column_types import arrow_type, type_name

if TYPE_CHECKING:
    import pyarrow as pa


class Conformer:
    """Casts a file's batches to the columns of its snapshot.

    Args:
        columns: name to type name, in the order wanted.
        constants: text of the columns that the file's folders' names hold; None is null.
        where: the file, for what is refused.
    """

    def __init__(self, columns: Mapping[str, str], constants: Mapping[str, str | None], where: str = "") -> None:
        import pyarrow as pa

        self._where = where

        # By name, so that the order does not depend on which file was listed first.
        self.schema = pa.schema([(name, arrow_type(kind)) for name, kind in sorted(columns.items())])
        self._constants = {
            name: pa.scalar(text, pa.string()).cast(self.schema.field(name).type) for name, text in constants.items()
        }

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the wanted columns; one that it lacks is null.

        Raises:
            DataError: a value that its column's type cannot hold.
        """
        import pyarrow as pa

        arrays = [self._array(batch, field) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        import pyarrow as pa

        if field.name in self._constants:
            return pa.repeat(self._constants[field.name], batch.num_rows)
        position = batch.schema.get_field_index(field.name)
        if position < 0:
            return pa.nulls(batch.num_rows, field.type)
        try:
            return decoded(batch.column(position), field.type)
        except pa.ArrowException as error:
            raise refused_column(
                self._where, field.name, f"holds a value that is no {type_name(field.type)}"
            ) from error


def decoded(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """An array in the type that stands for its own."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # An extension may be stored as a dictionary, so its storage is taken out first.
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    return array if array.type == wanted else array.cast(wanted)
