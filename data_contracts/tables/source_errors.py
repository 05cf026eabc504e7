"""The words in which a source file is refused. None of them is a value of the data."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator, Sequence

from headway.data_contracts.store.errors import DataError, HeadwayError
from headway.data_contracts.store.file_systems import CREDENTIALS
from headway.data_contracts.store.store_errors import trouble_of

MAX_NAMES = 10
"""Of columns in a message; the others are counted."""
MAX_COMPARED = 10_000_000
"""Pairs of characters, of two lists of names, up to which a second is enough to compare each name with each."""
MIN_SIMILARITY = 0.6
"""Of two names that may be one column's, from 0 to 1."""


class UnparsableRow(DataError):
    """One row cannot be read as its columns' types; others of the file can."""


def changed(where: str) -> DataError:
    return DataError(
        "the file changed since the snapshot was taken.",
        where=where,
        advice="Run again: a new snapshot takes the file as it is now.",
    )


def changed_while_read(where: str) -> DataError:
    return DataError(
        "the file changed while it was read.",
        where=where,
        advice="Let its writer finish (publish by rename), then run again.",
    )


def unreadable(where: str, error: OSError) -> DataError:
    return DataError(
        f"cannot be read ({error.strerror or type(error).__name__}).",
        where=where,
        advice="Make it readable, or exclude it in `source.exclude`.",
    )


@contextlib.contextmanager
def reading_remote(where: str) -> Iterator[None]:
    """Turn whatever a store's client raises into an error that names the file, without the client's own words.

    Clients raise what they like (aiohttp, botocore and others share no base class), and may quote credentials.
    """
    try:
        yield
    except HeadwayError:
        raise
    except OSError as error:
        raise unreadable(where, error) from error
    except Exception as error:
        status = getattr(error, "status", None)
        shown = f"{type(error).__name__} {status}" if isinstance(status, int) else type(error).__name__
        advice = (
            CREDENTIALS if trouble_of(error).meaning == "credentials" else "Look at the store's state, and run again."
        )
        raise DataError(f"cannot be read ({shown}).", where=where, advice=advice) from error


@contextlib.contextmanager
def reading_table(where: str) -> Iterator[None]:
    """Turn what the file system and decompression raise into errors that name the file."""
    try:
        yield
    except OSError as error:
        # Arrow's own input errors carry no number.
        if error.errno is not None:
            raise unreadable(where, error) from error
        raise DataError(
            "the file is damaged: it cannot be decompressed to its end.",
            where=where,
            advice="Write it again, or exclude it in `source.exclude`.",
        ) from error


def not_parquet(where: str) -> DataError:
    return DataError(
        "not a readable Parquet file: it is cut short, damaged, or something else.",
        where=where,
        advice="Write it again, or exclude it in `source.exclude`.",
    )


NO_TEXTS = "holds texts that are not UTF-8", "Write it as binary, or as UTF-8."
"""Of a column: what is wrong, and what to do."""


def refused_column(where: str, column: str, reason: str, advice: str = "") -> DataError:
    return DataError(f"column `{column}`: {reason}.", where=where, advice=advice)


def other_columns(where: str, first: str, missing: Sequence[str], extra: Sequence[str]) -> DataError:
    parts = [f"lacks {_quoted(missing)}"] if missing else []
    parts += [f"has {_quoted(extra)} besides"] if extra else []
    return DataError(
        f"its columns are not those of {first}: it {' and '.join(parts)}.{_renamed(missing, extra)}",
        where=where,
        advice="Write all files of a source alike, or name columns that a file may lack in `source.optional_columns`.",
    )


def lacks_declared(where: str, missing: Sequence[str], undeclared: Sequence[str]) -> DataError:
    """Of the first file, which is held against the pipeline file alone."""
    besides = f", and has {_quoted(undeclared)}, which `source.column_types` does not list" if undeclared else ""
    return DataError(
        f"it lacks {_quoted(missing)}, which `source.column_types` in the pipeline file lists{besides}."
        f"{_renamed(missing, undeclared)}",
        where=where,
        advice="Write the column under the name that is listed; or change `source.column_types`, the contract and what "
        "else names it. Columns that a file may lack are named in `source.optional_columns`.",
    )


def _renamed(missing: Sequence[str], others: Sequence[str]) -> str:
    """Which of the others a missing column may have become, as a sentence that follows another.

    Empty where so much is other that it is no renaming, and to look for one would take long.
    """
    missing = missing[:MAX_NAMES]
    if sum(map(len, missing)) * sum(map(len, others)) > MAX_COMPARED:
        return ""
    by_words = {_words(other): other for other in others}
    pairs = []
    for name in missing:
        close = difflib.get_close_matches(_words(name), by_words, n=1, cutoff=MIN_SIMILARITY)
        pairs += [f"`{name}` become `{by_words[close[0]]}`" for _ in close]
    return f" Did {', and '.join(pairs)}?" if pairs else ""


def _words(name: str) -> str:
    """A name whose words may stand in another order and another case."""
    return " ".join(sorted(re.findall(r"[^\W_]+", name.lower())))


def other_type(where: str, column: str, found: str, expected: str, first: str) -> DataError:
    return DataError(
        f"column `{column}` is {found} here and {expected} in {first}.",
        where=where,
        advice="Write all files of a source alike.",
    )


def _quoted(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return ", ".join(f"`{name}`" for name in names[:MAX_NAMES]) + more
