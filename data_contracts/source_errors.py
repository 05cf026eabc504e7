"""The words in which a source file is refused. None of them is a value of the data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from data_contracts.errors import DataError, HeadwayError


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
        raise DataError(
            f"cannot be read ({shown}).", where=where, advice="Look at the store's state, and run again."
        ) from error


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


def refused_column(where: str, column: str, reason: str) -> DataError:
    return DataError(f"column `{column}`: {reason}.", where=where)


def other_columns(where: str, first: str, missing: Iterable[str], extra: Iterable[str]) -> DataError:
    parts = [f"lacks {_quoted(missing)}"] if missing else []
    parts += [f"has {_quoted(extra)} besides"] if extra else []
    return DataError(
        f"its columns are not those of {first}: it {' and '.join(parts)}.",
        where=where,
        advice="Write all files of a source alike, or name columns that a file may lack in `source.optional_columns`.",
    )


def other_type(where: str, column: str, found: str, expected: str, first: str) -> DataError:
    return DataError(
        f"column `{column}` is {found} here and {expected} in {first}.",
        where=where,
        advice="Write all files of a source alike.",
    )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
