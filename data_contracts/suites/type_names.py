"""What the names of types in Great Expectations suites mean, of pandas, Spark and SQL: types of columns.

Written as their own system spells them: `int8` is NumPy's byte, `INT8` PostgreSQL's eight bytes. `object` is what
pandas holds, or held, as Python objects: texts, bytes, dates, times, decimals and lists. A name that is not here is
refused, and so is one with a length or a precision, such as `VARCHAR(10)`.
"""

from __future__ import annotations

from headway.data_contracts.suites.literals import UnsupportedExpectation
from headway.data_contracts.types.column_types import INTEGER_NAMES
from headway.data_contracts.types.type_families import Family, family, has_zone

ZONED, NAIVE = "timestamp with zone", "timestamp without zone"
_TIMESTAMPS = (ZONED, NAIVE)


def _same(names: str, *meanings: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(names.split(), meanings)


_MEANINGS: dict[str, tuple[str, ...]] = {
    # NumPy, pandas and Python
    **{name: (name,) for name in INTEGER_NAMES},
    **{f"{name.replace('uint', 'UInt').replace('int', 'Int')}{end}": (name,)
       for name in INTEGER_NAMES for end in ("", "Dtype")},
    **{name.replace("uint", "Uint"): (name,) for name in INTEGER_NAMES if name[0] == "u"},
    **_same("int long int_ longlong", "int64"),
    **_same("intc", "int32"),
    **_same("float64 double float float_ Float64 Float64Dtype", "double"),
    **_same("float32 single Float32 Float32Dtype", "float"),
    **_same("bool bool_ boolean BooleanDtype", "bool"),
    **_same("str str_ string StringDtype string_types", "string"),
    **_same("bytes bytes_", "binary"),
    **_same("list", "list"),
    **_same("date datetime.date", "date"),
    **_same("datetime64 datetime64[ns] datetime64[us] datetime64[ms] Timestamp", *_TIMESTAMPS),
    **_same("datetime datetime.datetime", *_TIMESTAMPS),
    **_same("DatetimeTZDtype", ZONED),
    **_same("object object_ O dtype('O')", "string", "binary", "date", "time", "decimal", "list"),
    # Spark
    **_same("ByteType", "int8"), **_same("ShortType", "int16"), **_same("IntegerType", "int32"),
    **_same("LongType", "int64"), **_same("FloatType", "float"), **_same("DoubleType", "double"),
    **_same("DecimalType", "decimal"), **_same("StringType VarcharType CharType", "string"),
    **_same("BinaryType", "binary"), **_same("BooleanType", "bool"), **_same("DateType", "date"),
    **_same("TimestampType", *_TIMESTAMPS), **_same("TimestampNTZType", NAIVE), **_same("ArrayType", "list"),
    # SQL
    **_same("TINYINT BYTEINT", "int8"), **_same("SMALLINT INT2", "int16"),
    **_same("INTEGER INT INT4 MEDIUMINT integer", "int32"), **_same("BIGINT INT8 INT64 _FIELD_TYPE_BIGINT", "int64"),
    **_same("REAL FLOAT4", "float"), **_same("DOUBLE DOUBLE_PRECISION FLOAT8 FLOAT64", "double"),
    **_same("FLOAT", "float", "double"), **_same("NUMERIC DECIMAL NUMBER BIGNUMERIC", "decimal"),
    **_same("CHAR NCHAR VARCHAR NVARCHAR TEXT NTEXT STRING CLOB CHARACTER TINYTEXT MEDIUMTEXT LONGTEXT", "string"),
    **_same("BINARY VARBINARY BLOB BYTEA BYTES", "binary"), **_same("BOOLEAN BOOL", "bool"),
    **_same("DATE", "date"), **_same("TIME", "time"),
    **_same("TIMESTAMP DATETIME DATETIME2 SMALLDATETIME", *_TIMESTAMPS),
    **_same("TIMESTAMPTZ TIMESTAMP_TZ TIMESTAMP_LTZ DATETIMEOFFSET", ZONED), **_same("TIMESTAMP_NTZ DATETIME64", NAIVE),
    **_same("BIT Bool", "bool"), **_same("binary varbinary IMAGE image", "binary"),
    **_same("Date Date32", "date"), **_same("DateTime DateTime64 <M8[ns]", *_TIMESTAMPS),
    "DOUBLE PRECISION": ("double",),
    "TIMESTAMP WITH TIME ZONE": (ZONED,),
    "TIMESTAMP WITHOUT TIME ZONE": (NAIVE,),
    # no column has them
    **_same("float16 Int128 Int256 Uint128 Uint256 timedelta timedelta64 timedelta[ns] number FixedString"),
    **_same("MONEY SMALLMONEY money smallmoney complex dict None"),
}  # fmt: skip
_FAMILIES: dict[str, Family] = {
    "decimal": "decimal",
    "date": "date",
    "time": "time",
    "list": "list",
    "binary": "binary",
}


def is_of_type(type_name: str, expectation: str) -> bool:
    """Whether a column's type is what a suite's name of a type means.

    Raises:
        UnsupportedExpectation: the name means nothing here.
    """
    # The list of names that Great Expectations itself puts into suites spells Spark's with parentheses.
    meanings = _MEANINGS.get(expectation.removesuffix("()") if expectation.endswith("Type()") else expectation)
    # Refused, not guessed: a name that means something else would pass silently.
    if meanings is None:
        raise UnsupportedExpectation(f"{expectation!r} is no name of a type that is known here")
    return any(_is(type_name, meaning) for meaning in meanings)


def _is(type_name: str, meaning: str) -> bool:
    if meaning in _TIMESTAMPS:
        # A zone is part of the meaning: the same digits with and without one are other moments.
        return family(type_name) == "timestamp" and has_zone(type_name) is (meaning == ZONED)
    if meaning in _FAMILIES:
        return family(type_name) == _FAMILIES[meaning]
    return type_name == meaning
