"""`headway contract init`: a contract and a pipeline file, drafted from the data themselves."""

from __future__ import annotations

import re
import shlex
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import duckdb
from rich.console import Console
from rich.text import Text

from data_contracts.digest_cache import DigestCache
from data_contracts.documents import Snapshot
from data_contracts.draft import draft_contract
from data_contracts.errors import ConfigError, DataError
from data_contracts.plain_text import one_line
from data_contracts.profile import Profile, profile_rows
from data_contracts.report_text import count
from data_contracts.rows_database import RowsDatabase, out_of_memory
from data_contracts.source_guess import GuessedSource, guess_source
from data_contracts.sources import rows_files, take_snapshot
from flows.console import plain_console
from flows.pipeline_draft import draft_pipeline, left_out_line

MAX_COLUMNS = 4096
"""Each is profiled, and a person is to read what was drafted of it."""


class Drafted(NamedTuple):
    contract: Path
    pipeline: Path
    profile: Profile
    source: GuessedSource


def draft(data: str, *, out: str, name: str, base: Path) -> Drafted:
    """Profile data and write both files, which must not exist.

    Args:
        data: a folder, a file or a URI.
        out: the contract's file; `NAME.contract.yaml` if empty. The pipeline file lies beside it.
        name: of contract and pipeline; made from the data's only file, or else from `data`, if empty.
        base: the folder relative paths start from.

    Raises:
        ConfigError: a file exists, or the name is none.
        DataError: no files, no rows, or unreadable ones.
    """
    if name:
        _check_name(name)
    found = guess_source(data, base=base)
    name = name or slug(found.only_file or data)
    contract = base / (out or f"{name}.contract.yaml")
    pipeline = contract.with_name(f"{contract.name.removesuffix('.yaml').removesuffix('.contract')}.pipeline.yaml")
    for path in (contract, pipeline):
        if path.exists():
            raise _exists(path)
    snapshot, profile = _profile(found, base)
    seen = _source_in_words(data, snapshot)
    is_text = not found.spec.is_table
    is_partitioned = any("=" in folder for file in snapshot.files for folder in file.path.split("/")[:-1])
    beside = _beside(found, base, pipeline.parent)
    pipeline_text = draft_pipeline(
        beside, profile, name=name, seen=seen, contract=contract, is_partitioned=is_partitioned
    )
    _write_new(contract, draft_contract(profile, name=name, source=seen, is_text=is_text, now_unix_s=time.time()))
    _write_new(pipeline, pipeline_text)
    return Drafted(contract, pipeline, profile, found)


def _profile(found: GuessedSource, base: Path) -> tuple[Snapshot, Profile]:
    with tempfile.TemporaryDirectory(prefix="headway-init-") as folder:
        scratch = Path(folder).resolve()
        digests = DigestCache(scratch / "digests.json")
        snapshot = take_snapshot(found.spec, base=base, cache=digests)
        if not snapshot.num_rows:
            raise DataError(
                "there are no rows.", where=found.spec.uri, advice="A contract needs data to be drafted from."
            )
        if len(snapshot.columns) > MAX_COLUMNS:
            raise DataError(
                f"it has {len(snapshot.columns):,} columns, and a contract is drafted for {MAX_COLUMNS:,} at most.",
                where=found.spec.uri,
                advice="Write columns that are alike as one list; or write contract and pipeline file by hand.",
            )
        with rows_files(found.spec, snapshot, scratch, base=base, digests=digests) as rows:
            (scratch / "database").mkdir()
            database = RowsDatabase(folder=scratch / "database", rows=rows)
            try:
                with database.connect() as connection:
                    database.create_views(connection)
                    return snapshot, profile_rows(connection, rows.columns, database.select)
            except duckdb.OutOfMemoryException as error:
                raise out_of_memory(database.memory_limit) from error
            except duckdb.Error as error:
                # Each file can be read; its words are not shown, for they may quote the data.
                raise DataError(
                    f"the rows cannot be profiled ({type(error).__name__}).",
                    where=found.spec.uri,
                    advice="Look for values that no type should hold, such as a date in the year 1,000,000.",
                ) from error


def _beside(found: GuessedSource, base: Path, folder: Path) -> GuessedSource:
    """The same source, called from the pipeline file's folder: relative below it, absolute elsewhere."""
    uri = found.spec.uri
    if ":" in uri.partition("/")[0]:
        return found
    place, home = (base / Path(uri).expanduser()).resolve(), folder.resolve()
    short = str(place.relative_to(home)) if place.is_relative_to(home) else str(place)
    return found._replace(spec=found.spec.model_copy(update={"uri": short}))


def slug(data: str) -> str:
    """A name for contract and pipeline: the last part of a path or URI in lower case and dashes."""
    last = data.rstrip("/").rpartition("/")[2].rpartition(":")[2]
    found = re.sub(r"[^a-z0-9]+", "-", last.partition(".")[0].lower()).strip("-")
    return found or "data"


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise ConfigError(
            "is no name: lower case letters, digits and dashes.",
            where=f"--name {name!r}",
            advice=f"Try {slug(name)!r}.",
        )


def _source_in_words(data: str, snapshot: Snapshot) -> str:
    files = count(len(snapshot.files), "file")
    rows = "" if snapshot.format == "text-files" else f"{count(snapshot.num_rows, 'row')} in "
    return f"{data}: {rows}{files}, {snapshot.size_bytes / 1e6:,.1f} MB ({snapshot.format})"


def _write_new(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        raise ConfigError(f"cannot be written ({error.strerror}).", where=str(path)) from error


def _exists(path: Path) -> ConfigError:
    return ConfigError(
        "exists already, and is not overwritten.", where=str(path), advice="Give another --out or --name."
    )


def print_drafted(drafted: Drafted, console: Console | None = None) -> None:
    """What was written, what it rests on, what to do next."""
    console = console or plain_console()
    profile = drafted.profile
    suspected = [column.name for column in profile.columns if column.suspicions]
    console.print(f"{count(profile.num_rows, 'row')}, {count(len(profile.columns), 'column')}")
    if drafted.source.num_left_out:
        console.print(Text(one_line(left_out_line(drafted.source)), style="yellow"))
    if suspected:
        console.print(Text(one_line(f"may hold personal data: {', '.join(suspected)}"), style="yellow"))
    contract, pipeline = (shlex.quote(_shown(path)) for path in (drafted.contract, drafted.pipeline))
    questions = drafted.contract.read_text(encoding="utf-8").count("DECIDE")
    console.print(f"\nwrote  {contract}   {questions} things to decide, marked DECIDE")
    console.print(f"       {pipeline}")
    console.print(f"next   headway contract check {pipeline}")
    console.print(f"       headway plan {pipeline}")


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
