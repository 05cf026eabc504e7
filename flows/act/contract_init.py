"""`headway contract init`: a contract and a pipeline file, drafted from the data themselves."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
from rich.console import Console
from rich.text import Text

from headway.data_contracts.drafting.contract_draft import draft_contract
from headway.data_contracts.drafting.leaking_inputs import NO_LEAKS, LeakingInputs, leaking_inputs
from headway.data_contracts.drafting.profile import ColumnProfile, TableProfile, profile_rows
from headway.data_contracts.drafting.text_dates import TextDates, text_dates
from headway.data_contracts.scans.rows_database import ROWS, RowsDatabase, identifier, out_of_memory
from headway.data_contracts.sources.delimited import FOUND, CsvChoice
from headway.data_contracts.sources.inference import TABLES, GuessedSource, guess_source
from headway.data_contracts.sources.reading import rows_files, take_snapshot
from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.data_contracts.store.places import at_home, real
from headway.data_contracts.store.plain_text import one_line
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.types.report_text import count
from headway.data_contracts.types.strict_yaml import parse_yaml
from headway.flows.act.editor_schemas import schema_comment, schema_files
from headway.flows.act.encoder_draft import (
    ExcludedColumn,
    LabelFacts,
    draft_encoder,
    drafted_label,
    excluded_columns,
    is_label_name,
    label_facts,
)
from headway.flows.act.pipeline_draft import (
    draft_pipeline,
    drafted_folds,
    drafted_fraction,
    excluded_line,
    in_words,
)
from headway.flows.console.console import plain_console
from headway.flows.console.environment import default_workspace
from headway.tasks.registry.promotion import LEAK_ADVICE, LIKELY_LEAK_ADVICE

MAX_NAME_CHARS = 100
"""It becomes those of files, which end in more."""
MAX_COLUMNS = 4096
"""Each is profiled, and a person is to read what was drafted of it."""
MAX_NAMED = 5
"""Columns of a line on the console."""

MAX_RARE_RATIO = 0.01
"""Of all rows: a class of no more may be mistyped."""

QUARANTINED = "Once it is a number, `unparsable_rows: quarantine` of the contract leaves out rows with other such cells"
LEAK_EXCLUDED = "If it is known when the model is asked, put it back and say `promotion: {label_leak: allow}`"


class ContractDraft(NamedTuple):
    contract: Path
    pipeline: Path
    profile: TableProfile
    source: GuessedSource
    given: CsvChoice
    label: LabelFacts | None
    """What is to be predicted; None: nothing, or nobody has said."""
    leaks: LeakingInputs
    excluded: list[ExcludedColumn]
    """Columns that the model would not read."""
    encoder: dict[str, Any]
    """The drafted fields of `shards.encoder`."""
    class_rows: dict[str, int]
    """By class of a text label, its rows; empty of any other."""
    dates: TextDates
    """How the dates are written that are texts so far."""


class NewFiles(contextlib.ExitStack):
    """Files that did not exist: gone again with the folders made for them, unless all of them are to stay."""

    def write(self, path: Path, text: str) -> None:
        """Raises `ConfigError` where the file exists, or cannot be written."""
        try:
            for folder in reversed([each for each in path.parents if not each.exists()]):
                folder.mkdir()
                # Callbacks run from the last to the first: files go before the folders that were made for them.
                self.callback(folder.rmdir)
            # Exclusive: a file that another process has made since the check is not overwritten.
            with path.open("x", encoding="utf-8") as stream:
                self.callback(path.unlink)
                stream.write(text)
        except FileExistsError as error:
            raise _exists(path) from error
        except OSError as error:
            raise ConfigError(f"cannot be written ({error.strerror}).", where=str(path)) from error

    def keep(self) -> None:
        self.pop_all()


def draft(data: str, *, out: str, name: str, base: Path, label: str = "", given: CsvChoice = FOUND) -> ContractDraft:
    """Profile data and write both files, or neither. Arguments and errors are those of `write_draft`."""
    with NewFiles() as files:
        drafted = write_draft(files, data, out=out, name=name, base=base, label=label, given=given)
        files.keep()
    return drafted


def write_draft(
    files: NewFiles,
    data: str,
    *,
    out: str,
    name: str,
    base: Path,
    label: str = "",
    given: CsvChoice = FOUND,
    project: Path | None = None,
) -> ContractDraft:
    """Profile data and write both files, which must not exist.

    Args:
        data: a folder, a file or a URI.
        out: the contract's file; `NAME.contract.yaml` if empty. The pipeline file lies beside it.
        name: of contract and pipeline; made from the data's only file, or else from `data`, if empty.
        base: the folder relative paths start from.
        label: the column to predict; empty: guessed by its name.
        given: how delimited text is written.
        project: data within this folder are named relative to the pipeline file; the file's own folder if left out.

    Raises:
        ConfigError: a file exists, the name is none, or the label is no column that can be predicted.
        DataError: no files, no rows, or unreadable ones.
    """
    if name:
        require_name(name, where=f"--name {name!r}")
    if "://" in out:
        # As a path it would be a folder `s3:` here.
        what = "is a URI, and drafts are written to this machine."
        raise ConfigError(what, where=f"--out {out!r}", advice="Give a path.")
    workspace = default_workspace() if project is None else str(project / "workspace")
    found = guess_source(data, base=base, given=given, workspace=None if "://" in workspace else real(base / workspace))
    name = name or slug(found.only_file or data)
    contract = base / (out or f"{name}.contract.yaml")
    pipeline = contract.with_name(f"{contract.name.removesuffix('.yaml').removesuffix('.contract')}.pipeline.yaml")
    for path in (contract, pipeline):
        if path.exists():
            raise _exists(path)
    profiled = _profile(found, base, label, given)
    if profiled.dates.formats and not given.timestamp_format:
        # The first lines of a file in order of time are all of January, whose days may be months.
        formats = (*found.spec.csv.timestamp_formats, *profiled.dates.formats)
        csv = found.spec.csv.model_copy(update={"timestamp_formats": tuple(dict.fromkeys(formats))})
        found = found._replace(spec=found.spec.model_copy(update={"csv": csv}), unclear_dates=profiled.dates.unclear)
        profiled = _profile(found, base, label, given)
    snapshot, profile, encoder, leaks, class_rows, dates = profiled
    seen = _describe_source(data, snapshot)
    is_text = not found.spec.is_table
    beside = _beside(found, base, real(pipeline.parent), real(project or pipeline.parent))
    excluded = excluded_columns(profile, encoder, leaks, source_format=found.spec.format)
    pipeline_text = draft_pipeline(
        beside,
        profile,
        encoder,
        name=name,
        seen=seen,
        contract=contract,
        is_partitioned=bool(_partitions(snapshot)),
        excluded=excluded,
        leaks=leaks,
    )
    contract_text = draft_contract(
        profile,
        name=name,
        source=seen,
        is_text=is_text,
        now_unix_s=time.time(),
        label=encoder.get("label", ""),
        leaks=leaks,
    )
    files.write(contract, schema_comment("contract") + contract_text)
    files.write(pipeline, schema_comment("pipeline") + pipeline_text)
    for path, text in schema_files(contract.parent).items():
        if not path.exists():
            files.write(path, text)
    facts = label_facts(profile, encoder, is_given=bool(label))
    return ContractDraft(
        contract,
        pipeline,
        profile,
        found,
        given,
        facts,
        leaks,
        excluded,
        encoder,
        class_rows,
        dates,
    )


def _with_partition(column: ColumnProfile, partitions: set[str]) -> ColumnProfile:
    # A label's folders are its classes, and no more of them come with time.
    return replace(column, is_partition=column.name in partitions and not is_label_name(column.name))


class _Profiled(NamedTuple):
    snapshot: Snapshot
    profile: TableProfile
    encoder: dict[str, Any]
    """The fields of `shards.encoder`."""
    leaks: LeakingInputs
    class_rows: dict[str, int]
    dates: TextDates


def _partitions(snapshot: Snapshot) -> set[str]:
    """Columns that folders such as `day=1` name."""
    folders = {folder for file in snapshot.files for folder in file.path.split("/")[:-1]}
    return {folder.partition("=")[0] for folder in folders if "=" in folder}


def _profile(found: GuessedSource, base: Path, label: str, given: CsvChoice) -> _Profiled:
    with tempfile.TemporaryDirectory(prefix="headway-init-") as folder:
        scratch = Path(folder).resolve()
        digests = DigestCache(scratch / "digests.json")
        snapshot = take_snapshot(found.spec, base=base, cache=digests, is_draft=True)
        if not snapshot.num_rows:
            raise DataError(
                "there are no rows.",
                where=f"{found.spec.uri}/{found.only_file}" if found.only_file else found.spec.uri,
                advice="A contract needs data to be drafted from.",
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
                    profile = profile_rows(connection, rows.columns, database.select)
                    partitions = _partitions(snapshot)
                    columns = tuple(_with_partition(each, partitions) for each in profile.columns)
                    profile = replace(profile, columns=columns)
                    if not found.spec.is_table:
                        _require_text(snapshot, profile, found.spec.uri)
                    may_be_dates = bool(found.unclear_dates or given.timestamp_format)
                    dates = text_dates(connection, profile) if may_be_dates else TextDates()
                    drafted = _drafted(connection, snapshot, profile, is_text=not found.spec.is_table, label=label)
                    return drafted._replace(dates=dates)
            except duckdb.OutOfMemoryException as error:
                raise out_of_memory(database.memory_limit) from error
            except duckdb.Error as error:
                # Each file can be read; its words are not shown, for they may quote the data.
                raise DataError(
                    f"the rows cannot be profiled ({type(error).__name__}).",
                    where=found.spec.uri,
                    advice="Look for values that no type should hold, such as a date in the year 1,000,000.",
                ) from error


def _require_text(snapshot: Snapshot, profile: TableProfile, where: str) -> None:
    """Raises `DataError`: none of the files, which are no tables, is a text."""
    # Null where a file is no UTF-8.
    if next(each for each in profile.columns if each.name == "num_chars").num_values:
        return
    first = min(file.path for file in snapshot.files)
    more = f", nor any of {count(len(snapshot.files) - 1, 'other file')}" if len(snapshot.files) > 1 else ""
    raise DataError(
        f"{first} is no table and no UTF-8 text{more}.",
        where=where,
        advice=f"Save a table as CSV or Parquet, under a name that ends in {', '.join(TABLES)}; texts as UTF-8.",
    )


def _drafted(
    connection: duckdb.DuckDBPyConnection, snapshot: Snapshot, profile: TableProfile, *, is_text: bool, label: str
) -> _Profiled:
    """An input that alone tells the label is not drafted: who reads no comment would train on it, and be refused."""
    encoder = draft_encoder(profile, is_text=is_text, label=label)
    predicted = drafted_label(encoder)
    if predicted is None:
        return _Profiled(snapshot, profile, encoder, NO_LEAKS, {}, TextDates())
    types = {column.name: column.type for column in profile.columns}
    leaks = leaking_inputs(connection, predicted, types, profile.num_rows)
    if leaks.certain and {*predicted.inputs} - {*leaks.certain}:
        encoder = draft_encoder(profile, is_text=is_text, label=label, leaks=leaks)
    column = next(each for each in profile.columns if each.name == predicted.column)
    has_names = predicted.is_class and column.family == "string" and not column.suspicions
    class_rows = _class_rows(connection, column.name) if has_names else {}
    return _Profiled(snapshot, profile, encoder, leaks, class_rows, TextDates())


def _class_rows(connection: duckdb.DuckDBPyConnection, label: str) -> dict[str, int]:
    name = identifier(label)
    counted = f"SELECT {name}, count(*) FROM {ROWS} WHERE {name} IS NOT NULL GROUP BY 1 ORDER BY 1"
    return dict(connection.execute(counted).fetchall())


def _beside(found: GuessedSource, base: Path, folder: Path, project: Path) -> GuessedSource:
    """The same source, called from the pipeline file's folder: relative within the project, absolute elsewhere."""
    uri = found.spec.uri
    # A scheme: a URI means the same place from every folder.
    if ":" in uri.partition("/")[0]:
        return found
    place = real(base / at_home(uri))
    short = os.path.relpath(place, folder) if place.is_relative_to(project) else str(place)
    return found._replace(spec=found.spec.model_copy(update={"uri": short}))


def slug(data: str) -> str:
    """A name for contract and pipeline: the last part of a path or URI in lower case and dashes."""
    last = data.rstrip("/").rpartition("/")[2].rpartition(":")[2]
    found = re.sub(r"[^a-z0-9]+", "-", last.partition(".")[0].lower())[:MAX_NAME_CHARS].strip("-")
    return found if found and _is_text(found) else f"data-{found}".strip("-")


def require_name(name: str, where: str) -> None:
    if len(name) > MAX_NAME_CHARS or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        what = f"is no name: lower case letters, digits and dashes, {MAX_NAME_CHARS} at most."
        raise ConfigError(what, where=where, advice=f"Try {slug(name)!r}.")
    if not _is_text(name):
        raise ConfigError("is a name that YAML takes for something else.", where=where, advice=f"Try {slug(name)!r}.")


def _is_text(name: str) -> bool:
    """Files say the name as it is, without quotes, and so does whoever edits them: `2026-01-01` is a day there."""
    return isinstance(parse_yaml(name, where="name"), str)


def _describe_source(data: str, snapshot: Snapshot) -> str:
    files = count(len(snapshot.files), "file")
    rows = "" if snapshot.format == "text-files" else f"{count(snapshot.num_rows, 'row')} in "
    return f"{data}: {rows}{files}, {snapshot.size_bytes / 1e6:,.1f} MB ({snapshot.format})"


def _exists(path: Path) -> ConfigError:
    return ConfigError(
        "exists already, and is not overwritten.",
        where=str(path),
        advice="Remove contract and pipeline file to draft both anew, or give another --out or --name.",
    )


def print_drafted(drafted: ContractDraft, console: Console | None = None) -> None:
    """What was written, what it rests on, what to do next."""
    console = console or plain_console()
    print_profiled(drafted, console)
    contract, pipeline = (shlex.quote(_shown(path)) for path in (drafted.contract, drafted.pipeline))
    console.print(f"\nwrote  {contract}   {num_decisions(drafted)} things to decide, marked DECIDE")
    console.print(f"       {pipeline}")
    console.print(f"next   headway contract check {pipeline}")
    console.print(f"       headway plan {pipeline}")


def num_decisions(drafted: ContractDraft) -> int:
    return drafted.contract.read_text(encoding="utf-8").count("DECIDE")


def print_profiled(drafted: ContractDraft, console: Console) -> None:
    profile = drafted.profile
    suspected = [column.name for column in profile.columns if column.suspicions]
    console.print(f"{count(profile.num_rows, 'row')}, {count(len(profile.columns), 'column')}")
    if drafted.source.spec.format == "csv":
        _print_written_as(drafted, console)
    if drafted.source.has_index:
        console.print("the first column has no name, as pandas writes row numbers: it is passed over")
    if drafted.source.num_excluded:
        console.print(Text(one_line(excluded_line(drafted.source)), style="yellow"))
    if profile.num_repeated:
        verb = "repeats" if profile.num_repeated == 1 else "repeat"
        repeated = f"{count(profile.num_repeated, 'row')} {verb} an earlier one: the contract warns of such"
        console.print(Text(one_line(repeated), style="yellow"))
    for line in _stray_lines(drafted):
        console.print(Text(one_line(line), style="yellow"))
    if suspected:
        console.print(Text(one_line(f"may hold personal data: {', '.join(suspected)}"), style="yellow"))
    if drafted.encoder["kind"] == "tabular":
        _print_columns(drafted, console)
    else:
        console.print(Text(one_line(f"model        {_language_model(drafted)}"), style="yellow"))


def _language_model(drafted: ContractDraft) -> str:
    """What is drafted where no column is to be predicted, for whoever expected one."""
    if not drafted.source.spec.is_table:
        files = count(drafted.profile.num_rows, "file")
        tables = ", ".join(TABLES)
        return f"a language model of texts, for {files} of no table: a table's name ends in {tables}"
    column = drafted.encoder["column"]
    what = "lists of tokens" if drafted.encoder["kind"] == "token-ids" else "texts"
    return f"a language model of the {what} in `{column}`. `--label COLUMN` drafts a model of the other columns"


def _stray_lines(drafted: ContractDraft) -> Iterator[str]:
    """What a few cells make of a column: one that is no number, and all of its numbers are texts."""
    nearly = {column.name: column.stray for column in drafted.profile.columns if column.stray is not None}
    headers = [name for name, stray in nearly.items() if name in stray.examples]
    if headers:
        yield f"header       stands among the rows, too, by {_named(headers)}: take that line out, and draft anew"
    others = ((name, stray) for name, stray in nearly.items() if stray.examples != (name,))
    for name, stray in itertools.islice(others, MAX_NAMED):
        few = ", ".join(map(repr, stray.examples))
        are = "1 value is none" if stray.num_rows == 1 else f"{stray.num_rows:,} values are none"
        it = "it" if stray.num_rows == 1 else "them"
        advice = f"correct {it}"
        if drafted.source.spec.format == "csv":
            gaps = " ".join(f"--null {shlex.quote(text)}" for text in stray.examples)
            advice += f", or take {it} for {'a gap' if stray.num_rows == 1 else 'gaps'} by `{gaps}`"
        said = f"`{name}` is text, though nearly all of it are numbers; {are}, such as {few}"
        yield f"no numbers   {said}: {advice}, and draft anew. {QUARANTINED}"


def _print_written_as(drafted: ContractDraft, console: Console) -> None:
    """How delimited text was read: where that is wrong, nothing that follows is right."""
    csv, given, also = drafted.source.spec.csv, drafted.given, drafted.source.also_delimiters
    parts = {"delimiter": repr(csv.delimiter), "encoding": csv.encoding, "decimal": repr(csv.decimal)}
    if csv.timestamp_formats:
        parts["timestamp_format"] = " and ".join(map(repr, csv.timestamp_formats))
    found = [name for name in parts if not getattr(given, name)]
    line = ", ".join(
        f"{name.replace('_', ' ')} {value}{'' if name in found else ' (as you said)'}" for name, value in parts.items()
    )
    options = ", ".join(f"--{name.replace('_', '-')}" for name in found)
    others = f"; found in the data: {options} {'says' if len(found) == 1 else 'say'} another" if found else ""
    console.print(Text(one_line(f"read as      {line}{others}")))
    if csv.skip_rows or given.skip_rows is not None:
        lines = f"{count(csv.skip_rows, 'line')} above the header passed over"
        by = "as you said" if given.skip_rows is not None else "found; `--skip-rows` says another number"
        line = f"{lines} ({by}): `source.csv.skip_rows` of the pipeline file"
        console.print(Text(one_line(f"             {line}"), style="yellow"))
    if csv.thousands or csv.units:
        units = [f"{unit!r} of `{name}`" for name, unit in csv.units.items()]
        thousands = f"{csv.thousands!r} between thousands of {_named(drafted.source.grouped)}"
        marks = [*([thousands] if csv.thousands else ()), *units]
        line = f"numbers      read without {' and '.join(marks)}: `source.csv.thousands` and `units` say it"
        console.print(Text(one_line(line)))
    if gaps := [each for each in csv.nulls if each]:
        are = f"{'is a gap' if len(gaps) == 1 else 'are gaps'}{' (as you said)' if {*gaps} <= {*given.null} else ''}"
        line = f"{' and '.join(map(repr, gaps))} among numbers {are}"
        elsewhere = "in every other column, too: `source.csv.nulls` of the pipeline file says it"
        console.print(Text(one_line(f"             {line}, {elsewhere}")))
    if unclear := drafted.source.unclear_numbers:
        verb = "is text" if len(unclear) == 1 else "are texts"
        line = f"{_named(unclear)} may hold numbers, and {verb} so far: nothing tells fractions from thousands there"
        console.print(Text(one_line(f"             {line}; `--decimal` does"), style="yellow"))
    if line := _text_dates_line(drafted):
        console.print(Text(one_line(f"             {line}"), style="yellow"))
    if also:
        fits = f"{' and '.join(map(repr, also))} would part the first lines as well: `--delimiter` says which it is"
        console.print(Text(one_line(f"             {fits}"), style="yellow"))
    names = [column.name for column in drafted.profile.columns]
    if numbers := [name for name in names if re.fullmatch(r"[+-]?\d*[.,]?\d+", name)]:
        named = f"the first line names columns {', '.join(numbers[:3])}"
        looks = f"{named}: if it is a row, write names above it, draft anew"
        console.print(Text(one_line(f"             {looks}"), style="yellow"))
    if len(drafted.profile.columns) == 1:
        console.print(Text("             one column: if it should be more, `--delimiter` is another", style="yellow"))


def _text_dates_line(drafted: ContractDraft) -> str:
    """What would make moments of dates that are texts; empty where there are none."""
    said, dates = drafted.given.timestamp_format, drafted.dates
    either = " or ".join(repr(each) for each in (*dates.formats, *dates.unclear))
    if said and either:
        return f"dates that {said!r} does not read are texts so far: `--timestamp-format` may be {either} for them"
    if unclear := " or ".join(map(repr, drafted.source.unclear_dates)):
        return f"dates may be {unclear}, and are texts so far: `--timestamp-format` says which it is"
    return ""


def _named(columns: Sequence[str]) -> str:
    more = [count(len(columns) - MAX_NAMED, "column") + " more"] if len(columns) > MAX_NAMED else []
    return " and ".join([*(f"`{name}`" for name in columns[:MAX_NAMED]), *more])


def _print_columns(drafted: ContractDraft, console: Console) -> None:
    """What a model would predict and not read, and by how many rows it would be judged: each a guess, said aloud."""
    label, num_rows = drafted.label, drafted.profile.num_rows
    if label is None:
        console.print(
            Text(
                "to predict   not known yet: remove the drafts and say `--label COLUMN`, or write `label:` into the "
                "pipeline file",
                style="yellow",
            )
        )
    else:
        console.print(Text(one_line(f"to predict   {label.line()}")))
    if label is not None and label.num_nulls:
        gaps = f"{count(label.num_nulls, 'row')} without {label.column}: the contract leaves them out"
        console.print(Text(one_line(f"no label     {gaps}"), style="yellow"))
    for line in _class_lines(drafted):
        console.print(Text(one_line(line), style="yellow"))
    for line in _leak_lines(drafted):
        console.print(Text(one_line(line), style="yellow"))
    if drafted.excluded:
        console.print(Text(one_line(f"not read     {in_words(drafted.excluded)}")))
    is_table = drafted.encoder["kind"] == "tabular"
    share = drafted_fraction(num_rows, is_table=is_table)
    if folds := drafted_folds(num_rows, is_table=is_table):
        console.print(f"judged by    all {num_rows:,} rows, each by one of {folds} further models that never saw it")
        return
    console.print(f"held out     about {round(share * num_rows):,} rows ({share:.0%}) judge the model")


def _class_lines(drafted: ContractDraft) -> Iterator[str]:
    """Classes that nobody may have meant: mistyped ones, and two that were written with a fraction."""
    rows = drafted.class_rows
    few = {name: number for name, number in rows.items() if number <= MAX_RARE_RATIO * sum(rows.values())}
    if few:
        rarest = sorted(few, key=few.__getitem__)[:MAX_NAMED]
        named = ", ".join(f"{name!r} in {count(few[name], 'row')}" for name in rarest)
        more = ", ..." if len(few) > MAX_NAMED else ""
        yield f"rare         {named}{more}: a class each. If they are mistyped, correct them, and draft anew"
    spelled = itertools.groupby(sorted(rows, key=_plain), key=_plain)
    alike = [names for _, group in spelled if len(names := [*group]) > 1]
    if alike:
        named = "; ".join(" and ".join(map(repr, names)) for names in alike[:MAX_NAMED])
        yield f"alike        {named}: a class each, though case and spaces alone differ: write them alike, draft anew"
    truths = {_plain(name): name for name in rows if _plain(name) in TRUTHS}
    if len(truths) > 2 and len(truths) == len({_plain(name) for name in rows}):
        named = ", ".join(repr(truths[name]) for name in sorted(truths))
        yield f"alike        {named}: a class each, though all say yes or no: write them in one manner, draft anew"
    if drafted.label is not None and drafted.label.two_numbers is not None:
        low, high = drafted.label.two_numbers
        what = f"{drafted.label.column} is {low:g} or {high:g}, and has fractions"
        advice = "write them as whole numbers or words (pandas: `.astype('Int64')`), and draft anew"
        yield f"two values   {what}. If these are classes, {advice}"
    if drafted.label is not None and drafted.label.few_integers is not None:
        low, high = drafted.label.few_integers
        what = f"{drafted.label.column} has {drafted.label.num_values} whole numbers, {low:,} to {high:,}"
        advice = "write `label_kind: class` and the recipe `tabular-classifier` into the pipeline file"
        yield f"few values   {what}, and is drafted as a number. If these are classes, {advice}"


TRUTHS = frozenset(["yes", "no", "y", "n", "true", "false", "t", "f", "on", "off", "0", "1"])
"""How files write yes and no: of one file each, two of them are the classes; of several, all are."""


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


def _leak_lines(drafted: ContractDraft) -> Iterator[str]:
    leaks, excluded = drafted.leaks, {each.column for each in drafted.excluded}
    if leaks.label and not leaks.rows:
        yield "leak?        nobody looked: the rows could not be asked. `headway contract check` looks again"
    seen = f"in {leaks.rows}"
    for name in leaks.certain:
        advice = f": the draft does not read it. {LEAK_EXCLUDED}" if name in excluded else f". {LEAK_ADVICE}"
        yield f"leak         {name} {leaks.named(name)}, {seen}{advice}"
    for name in leaks.likely:
        yield f"leak?        {name} {leaks.named(name)}, {seen}. {LIKELY_LEAK_ADVICE}"


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
