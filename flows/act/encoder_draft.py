"""Which columns a drafted model reads and predicts, and why it reads no others."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headway.data_contracts.drafting.leaking_inputs import NO_LEAKS, LeakingInputs
from headway.data_contracts.drafting.profile import ColumnProfile, TableProfile
from headway.data_contracts.scans.label_leaks import Label
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.tables.source_spec import Format
from headway.data_contracts.types.report_text import count

RECIPES = {
    "byte-pair": "language-model",
    "token-ids": "language-model",
    "tabular": "tabular-classifier",
}
"""Kind of encoder to the recipe that comes with Headway, where it is no number that is predicted."""
LABEL_NAMES = (
    re.compile(r"(.*[ _.-])?(labels?|targets?|class|outcome|response)([ _.-]label)?|y"),
    # Of these one may be an input as well, so that a column of the names above comes first.
    re.compile(r"(.*[ _.-])?(default(ed)?|survived|diagnosis|species|fraud(ulent)?|converted|result)"),
    re.compile(r"default[ _.-].*"),
)
"""What a column to predict is mostly called, the surest first."""
LONG_TEXT_CHARS = 200
"""Longer texts are something to read, shorter ones are names and codes."""
MOST_CATEGORIES, LEAST_ROWS_OF_ONE = 1000, 20
"""A text of no more values, of as many rows each on average, is a category; a value unknown to training is no error."""
MOST_CODES = 4
"""Whole numbers of no more values may be codes without an order; of more, they are counts, ranks or years."""
MOST_CLASSES_OF_INTEGERS = 10
"""Of no more whole numbers to predict nobody can tell classes from amounts: it is said which was taken."""
NUMBERS = ("integer", "float", "decimal")
TIMES = ("date", "timestamp")


class ExcludedColumn(NamedTuple):
    column: str
    reason: str


class LabelFacts(NamedTuple):
    """What is said aloud of the column to predict."""

    column: str
    kind: str
    how: str
    """Why this one."""
    num_values: int
    num_nulls: int
    two_numbers: tuple[float, float] | None
    """All that a number to predict ever is, where that is two: mostly classes that were written with a fraction."""
    few_integers: tuple[int, int] | None = None
    """The least and the greatest of whole numbers to predict, where there are so few that they may be classes."""

    def line(self) -> str:
        what = f"a class of {self.num_values}" if self.kind == "class" else "a number"
        return f"{self.column}, {what}: {self.how}"


def recipe_for(encoder: Mapping[str, Any]) -> str:
    """The recipe that comes with Headway for `shards.encoder`."""
    return "tabular-regressor" if encoder.get("label_kind") == "number" else RECIPES[encoder["kind"]]


def draft_encoder(
    profile: TableProfile, *, is_text: bool, label: str = "", leaks: LeakingInputs = NO_LEAKS
) -> dict[str, Any]:
    """The fields of `shards.encoder`.

    Columns under suspicion and keys are left out: a person puts them in. Only where nothing else is there, the first
    column stands for the choice that is to be made.

    Args:
        label: the column to predict; empty: guessed by its name.
        leaks: inputs that alone tell the label are left out, where there are others to read.

    Raises:
        ConfigError: there is no such column, or none like it can be predicted.
    """
    usable = [column for column in profile.columns if _is_usable(column) and column.name not in leaks.certain]
    if label:
        return _tabular(usable, _label_of(profile, label, is_text=is_text)) or _nothing_to_read(profile, label)
    if is_text:
        return {"kind": "byte-pair", "vocab_size": 2048, "sequence_tokens": 256}
    tokens = [column for column in usable if _is_tokens(column)]
    if tokens:
        highest = max(tokens, key=lambda column: column.max_length or 0)
        return {"kind": "token-ids", "column": highest.name, "vocab_size": int(highest.high or 0) + 1}
    texts = [column for column in usable if column.family == "string" and (column.max_length or 0) > LONG_TEXT_CHARS]
    if texts:
        longest = max(texts, key=lambda column: column.max_length or 0)
        return {"kind": "byte-pair", "column": longest.name, "vocab_size": 2048, "sequence_tokens": 256}
    named = [(_label_rank(column.name), place) for place, column in enumerate(usable) if _kind_of(column)]
    rank, place = min(named, default=(len(LABEL_NAMES), 0))
    guessed = usable[place] if rank < len(LABEL_NAMES) else None
    return _tabular(usable, guessed) or {"kind": "tabular", "categorical": [profile.columns[0].name]}


def is_label_name(name: str) -> bool:
    return _label_rank(name) < len(LABEL_NAMES)


def _label_rank(name: str) -> int:
    """How sure the name is, from 0; as many as there are patterns: it is none."""
    ranks = (rank for rank, pattern in enumerate(LABEL_NAMES) if pattern.fullmatch(name.lower()))
    return next(ranks, len(LABEL_NAMES))


def label_facts(profile: TableProfile, encoder: Mapping[str, Any], *, is_given: bool) -> LabelFacts | None:
    """What is known of the drafted label; None where there is none."""
    if "label" not in encoder:
        return None
    column = next(each for each in profile.columns if each.name == encoder["label"])
    how = "as you said" if is_given else "guessed by its name. `--label COLUMN` says another"
    kind = encoder["label_kind"]
    # Of so few the approximate count is exact.
    two = few = None
    if kind == "number" and column.low is not None and column.high is not None:
        if column.num_distinct == 2:
            two = float(column.low), float(column.high)
        elif column.family == "integer" and column.num_distinct <= MOST_CLASSES_OF_INTEGERS:
            few = int(column.low), int(column.high)
    return LabelFacts(column.name, kind, how, column.num_distinct, column.num_nulls, two, few)


def drafted_label(encoder: Mapping[str, Any]) -> Label | None:
    """What is drafted to be predicted, and from what; None where no columns are read, or nobody said what for."""
    if encoder["kind"] != "tabular" or "label" not in encoder:
        return None
    return Label(column=encoder["label"], is_class=encoder["label_kind"] == "class", inputs=inputs_of(encoder))


def inputs_of(encoder: Mapping[str, Any]) -> tuple[str, ...]:
    """Columns that a drafted model of tables reads."""
    return (*encoder.get("numeric", ()), *encoder.get("times", ()), *encoder.get("categorical", ()))


def excluded_columns(
    profile: TableProfile, encoder: Mapping[str, Any], leaks: LeakingInputs = NO_LEAKS, *, source_format: Format
) -> list[ExcludedColumn]:
    """Columns of a table that the model would not read, each with the reason.

    Args:
        source_format: says who declares types: files themselves, or the pipeline file.
    """
    if encoder["kind"] != "tabular":
        return []
    read = {*inputs_of(encoder), encoder.get("label")}
    return [
        ExcludedColumn(each.name, leaks.named(each.name) or _reason(each, source_format))
        for each in profile.columns
        if each.name not in read
    ]


def _reason(column: ColumnProfile, source_format: Format) -> str:
    if column.suspicions:
        return "may hold personal data"
    if not column.num_values:
        return "holds nothing but nulls"
    if column.is_partition:
        return "names the files' folder"
    # Moments hardly ever occur twice, and are no keys for it.
    if column.shape is not None and column.shape.is_mixed:
        return f"each text is {column.shape.name}, and no type reads both; write them alike, and draft anew"
    if column.shape is not None and column.shape.is_time:
        is_declared = source_format in ("csv", "json-lines")
        if is_declared and column.shape.is_local:
            how = "with a `--timestamp-format` that fits" if source_format == "csv" else "written in ISO 8601"
            return f"each text is {column.shape.name}; {how}, it would be read"
        how = "by `source.column_types`" if is_declared else "which the files themselves have to say"
        return f"each text is {column.shape.name}; as a date or timestamp, {how}, it would be read"
    if column.is_unique and column.stray is None:
        return "no value occurs twice"
    if column.family in TIMES:
        return "is one and the same moment"
    if column.stray is not None:
        return f"text, though {column.num_values - column.stray.num_rows:,} of {column.num_values:,} values are numbers"
    if column.family == "string":
        return f"text of about {count(column.num_distinct, 'value')}"
    if column.family in ("bool", "integer", "float"):
        return "may be what to predict, with nothing else to read beside it"
    return f"{column.type}, which no encoder of tables reads"


def _label_of(profile: TableProfile, label: str, *, is_text: bool) -> ColumnProfile:
    where = f"--label {label!r}"
    if is_text:
        raise ConfigError("a table has columns to predict, and these are texts.", where=where, advice="Leave it out.")
    names = [column.name for column in profile.columns]
    column = next((each for each in profile.columns if each.name == label), None)
    if column is None:
        near = difflib.get_close_matches(label, names, n=1)
        advice = f"Did you mean {near[0]!r}? " if near else ""
        raise ConfigError("there is no such column.", where=where, advice=f"{advice}There are {', '.join(names)}.")
    if column.family == "string" and _kind_of(column) is None and (column.max_length or 0) > LONG_TEXT_CHARS:
        raise ConfigError(
            f"holds texts of up to {column.max_length:,} characters, and a class has {LONG_TEXT_CHARS} at most.",
            where=where,
            advice="Shorten them in the data, such as to a code of each, or name another column.",
        )
    if not column.num_values or _kind_of(column) is None:
        what = f"{column.type} of about {count(column.num_distinct, 'value')}" if column.num_values else "only nulls"
        raise ConfigError(
            f"holds {what}, which is neither a class nor a number.",
            where=where,
            advice="Name a column of numbers, or one of few values.",
        )
    return column


def _nothing_to_read(profile: TableProfile, label: str) -> dict[str, Any]:
    advice = "It takes numbers, or texts of few values; keys and what may be personal data are left out."
    for column in profile.columns:
        if column.stray is not None and column.name != label:
            cells = ", ".join(map(repr, column.stray.examples))
            advice = (
                f"Of `{column.name}` nearly all values are numbers; correct those that are none, such as {cells}, or "
                "of a CSV file take them for gaps by `--null`."
            )
            break
    raise ConfigError("no other column can be read by a model of tables.", where=f"--label {label!r}", advice=advice)


def _kind_of(label: ColumnProfile) -> str | None:
    """Whether a column is a class or a number to predict; None: neither."""
    if label.values or (label.family == "string" and _is_category(label)):
        return "class"
    if label.family == "integer":
        # Of whole numbers without a list of values, two are mostly yes and no; more are amounts.
        return "class" if label.num_distinct <= 2 else "number"
    return "number" if label.family in NUMBERS else None


def _is_usable(column: ColumnProfile) -> bool:
    return bool(column.num_values) and not column.suspicions and not column.is_unique and not column.is_partition


def _is_tokens(column: ColumnProfile) -> bool:
    return column.family == "list" and "int" in column.type and column.low is not None and column.low >= 0


def _is_number(column: ColumnProfile) -> bool:
    is_code = column.family == "integer" and 0 < len(column.values) <= MOST_CODES
    return column.family in NUMBERS and not is_code


def _is_category(column: ColumnProfile) -> bool:
    if column.shape is not None and column.shape.is_time:
        return False
    if column.values:
        return True
    is_short = column.family == "string" and (column.max_length or 0) <= LONG_TEXT_CHARS and column.shape is None
    few = column.num_distinct <= min(MOST_CATEGORIES, column.num_values / LEAST_ROWS_OF_ONE)
    return is_short and few


def _tabular(usable: Sequence[ColumnProfile], label: ColumnProfile | None) -> dict[str, Any]:
    features = [column for column in usable if column is not label]
    numeric = [column for column in features if _is_number(column)]
    categorical = [column for column in features if not _is_number(column) and _is_category(column)]
    times = [column for column in features if column.family in TIMES and column.low != column.high]
    if not numeric and not categorical and not times:
        return {}
    fields: dict[str, Any] = {
        "kind": "tabular",
        "numeric": [column.name for column in numeric],
        "categorical": [column.name for column in categorical],
    }
    if times:
        fields["times"] = [column.name for column in times]
    if label is not None:
        fields |= {"label": label.name, "label_kind": _kind_of(label)}
    if any(column.num_nulls or column.num_not_finite for column in (*numeric, *times)):
        fields["missing"] = "mean"
    return fields


def likely_labels(profile: TableProfile, encoder: Mapping[str, Any]) -> Iterator[str]:
    """Columns of two values that the model reads, the last one first: it may be what is to be predicted."""
    pairs = (column.name for column in reversed(profile.columns) if len(column.values) == 2)
    return (name for name in pairs if name in encoder.get("categorical", ()))
