"""Text tables parsed by another process, with a bound on its memory and on how long it may say nothing."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.data_contracts.store import errors
from headway.data_contracts.store.errors import DataError, EnvironmentProblem, HeadwayError
from headway.data_contracts.tables import helper_process, text_table_process
from headway.data_contracts.tables.source_spec import SourceSpec

HOST = text_table_process.__name__
SILENCE_S = 120.0
"""How long a process may work on one block of a file. A block is read in about a second."""


def inferred_columns(
    spec: SourceSpec, path: Path, where: str, declared: Mapping[str, str], *, keeps_bad: bool, valueless: str = ""
) -> dict[str, str]:
    """Columns of a text table: types as declared, or as the values have.

    Args:
        keeps_bad: whether rows that cannot be read are passed over; else the file is refused for them.
        valueless: the type of a column without a value, in place of a refusal.

    Raises:
        DataError: the file cannot be read.
    """
    request = {"ask": "columns", "types": dict(declared), "keeps_bad": keeps_bad, "valueless": valueless}
    found: dict[str, str] = _ask(spec, path, where, request)["columns"]
    return found


def convert(
    spec: SourceSpec, path: Path, where: str, columns: Mapping[str, str], target: Path, *, keeps_bad: bool
) -> tuple[int, list[tuple[int, int, str]]]:
    """Write the rows of a text table as Parquet, within memory bounded by a block of text.

    Returns:
        The number of rows; and of those that cannot be read, which are null where they cannot: row from 0, number that
        messages give it, column. None of them unless `keeps_bad`.

    Raises:
        DataError: the file cannot be read.
        OSError: the target cannot be written.
    """
    request = {"ask": "convert", "types": dict(columns), "keeps_bad": keeps_bad, "target": str(target)}
    message = _ask(spec, path, where, request)
    return int(message["num_rows"]), [
        (int(row), int(number), str(column)) for row, number, column in message["unparsable"]
    ]


def _ask(spec: SourceSpec, path: Path, where: str, request: dict[str, Any]) -> dict[str, Any]:
    question = {**request, "spec": spec.model_dump(mode="json"), "path": str(path.resolve()), "where": where}
    try:
        message = helper_process.ask(HOST, question, silence_s=SILENCE_S)
    except helper_process.ProcessTimeout:
        raise DataError(
            f"reading it made no progress for {SILENCE_S:.0f} s and was given up.",
            where=where,
            advice="Write it again with shorter rows or fewer columns, as Parquet, or exclude it in `source.exclude`.",
        ) from None
    except helper_process.ProcessEnded as ended:
        raise _ended(ended.code, where, f"as {spec.format}") from None
    if "refused" in message:
        kind: type[HeadwayError] = getattr(errors, message["refused"])
        raise kind(message["what"], where=message["where"], advice=message["advice"])
    if "errno" in message:
        raise OSError(message["errno"], message["strerror"])
    if "out_of_memory" in message:
        raise _too_large(where, message["out_of_memory"])
    if "raised" in message:
        raise DataError(
            f"cannot be read as {spec.format} ({message['raised']}).",
            where=where,
            advice="Write it again, or exclude it in `source.exclude`.",
        )
    return message


def _too_large(where: str, limit_bytes: int) -> DataError:
    return DataError(
        f"reading it takes more than {limit_bytes >> 30:,} GiB of memory at once.",
        where=where,
        advice="Write it as Parquet, or with shorter rows.",
    )


def _ended(code: int, where: str, how: str) -> HeadwayError:
    if code == -signal.SIGKILL:
        return EnvironmentProblem(
            "the process that read it was killed, most likely for want of memory.",
            where=where,
            advice="Read it where there is more memory, or write it as Parquet.",
        )
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return DataError(
            f"it cannot be read {how}: it crashes the parser ({name}).",
            where=where,
            advice="It is damaged, or made to do so: write it again, or exclude it in `source.exclude`.",
        )
    return EnvironmentProblem(
        f"the process that should read it ended with exit code {code}.",
        where=where,
        advice=f"Try it by hand: {sys.executable} -P -m {HOST}.",
    )
