"""What a folder, file or URI holds, guessed from the names of its files."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from headway.data_contracts.sources.delimited import FOUND, CsvChoice, written_as
from headway.data_contracts.sources.listing import list_local, list_remote
from headway.data_contracts.sources.locations import LOCAL_SCHEMES, follows_links, resolve_base_uri
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.data_contracts.store.file_systems import file_system_of
from headway.data_contracts.store.places import at_home
from headway.data_contracts.tables.source_errors import reading_remote
from headway.data_contracts.tables.source_spec import Format, SourceSpec
from headway.data_contracts.types.report_text import count

COMPRESSED = (".gz", ".bz2", ".zst")
TABLES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json-lines",
    ".ndjson": "json-lines",
    ".json": "json-lines",
}
HIDDEN = ("**/.*", "**/.*/**", "**/__pycache__/**")
MARKERS = ("**/_*", "**/_*/**")
"""What writers of tables leave beside them, such as `_SUCCESS` and `_delta_log`."""


class GuessedSource(NamedTuple):
    spec: SourceSpec
    num_excluded: int
    """Files beside the data that are of another kind."""
    only_file: str
    """The data's own name where one file is all of them; empty where there are several, or folders to look into."""
    has_index: bool = False
    """Whether a first column without a name is passed over."""
    also_delimiters: tuple[str, ...] = ()
    """Others that the first lines of delimited text could be parted by."""
    unclear_dates: tuple[str, ...] = ()
    """The formats that dates of delimited text may have whose day may be their month: texts until somebody says."""
    unclear_numbers: tuple[str, ...] = ()
    """Columns of delimited text that may be numbers, in a format that the file does not tell: texts, too, till then."""
    grouped: tuple[str, ...] = ()
    """Columns whose numbers have a mark between thousands, which is taken out."""


def guess_source(data: str, *, base: Path, given: CsvChoice = FOUND, workspace: Path | None = None) -> GuessedSource:
    """The source that reads a folder, a file or a URI.

    Args:
        base: the folder relative paths start from.
        given: how delimited text is written. With a delimiter, files that are called like no table hold one.
        workspace: where Headway keeps what it makes; nothing in it is data, today or after a retrain.

    Raises:
        DataError: nothing is there, or not in the encoding that is said.
        ConfigError: tables of more than one format, or something is said of files that are no delimited text.
    """
    if not data:
        raise ConfigError("the name is empty.", where="DATA", advice="Give a folder, file or URI that holds data.")
    uri, only = _split(data, base)
    plain = SourceSpec(uri=uri)
    root = resolve_base_uri(plain, base=base)
    include = (glob.escape(only),) if only else ("**/*",)
    hidden = (*HIDDEN, *_within(workspace, root))
    nothing = DataError("there is no file here.", where=data, advice="Give a folder, file or URI that holds data.")
    if "://" not in root and not Path(root).exists():
        raise nothing
    if "://" not in root and not Path(root).is_dir():  # the folder of a file has been told from it
        raise DataError("it is neither a file nor a folder.", where=data, advice="Give what holds data.")
    names = (
        [file.path for file in list_remote(root, include, hidden)]
        if "://" in root
        else [name for name, _ in list_local(Path(root), include, hidden, follow_links=follows_links(plain))]
    )
    if not names:
        raise nothing
    names = [name for name in names if not only or name == only]
    suffixes = Counter(_suffix(name) for name in names)
    kind = _format(suffixes, data)
    wanted = _wanted(suffixes, kind)
    if kind == "text-files" and given.delimiter:
        kind, wanted = "csv", _wanted(suffixes, "csv") or wanted
    if given.options and kind != "csv":
        raise ConfigError(
            f"goes with delimited text, and these files are {kind}.",
            where=given.options,
            advice="Leave it out." if kind != "text-files" else "Say `--delimiter`, too, if each holds a table.",
        )
    spec = SourceSpec(
        format=kind,
        uri=uri,
        include=include if only else tuple(f"**/*{suffix}" for suffix in wanted),
        exclude=() if only else hidden if kind == "text-files" else hidden + MARKERS,
    )
    data_files = [name for name in names if _suffix(name) in wanted]
    only_file = data_files[0] if len(data_files) == 1 and "/" not in data_files[0] else ""
    num_excluded = len(names) - len(data_files)
    if kind != "csv":
        return GuessedSource(spec, num_excluded, only_file)
    place = f"{root.rstrip('/')}/{min(data_files)}"
    found = written_as(place, given, is_tabs=_bare(wanted[0]) == ".tsv")
    texts = dict.fromkeys(found.unclear_numbers, "string")
    spec = spec.model_copy(update={"csv": found.csv, "column_types": texts})
    return GuessedSource(spec, num_excluded, only_file, *found[1:])


def _within(workspace: Path | None, root: str) -> Iterator[str]:
    """What to leave out of a folder in which the workspace lies, or will."""
    if workspace is not None and "://" not in root and root != str(workspace) and workspace.is_relative_to(root):
        yield f"{glob.escape(workspace.relative_to(root).as_posix())}/**"


def _split(data: str, base: Path) -> tuple[str, str]:
    """A folder and nothing, or the folder of a single file and its name."""
    if "://" in data and not data.startswith(LOCAL_SCHEMES):
        fs, path = file_system_of(data, data)
        with reading_remote(data):
            is_file = fs.isfile(path)
        folder, _, name = data.rstrip("/").rpartition("/")
        # A web server's own address is a page, and no file of a folder `http:/`.
        return (folder, name) if is_file and urlsplit(folder).netloc else (data, "")
    local = at_home(data.removeprefix("file://").removeprefix("local://"))
    return (str(local.parent), local.name) if (base / local).is_file() else (data, "")


def _suffix(name: str) -> str:
    """`.csv.gz` of `a/b.csv.gz`; empty for a name without one."""
    path = PurePosixPath(name)
    return "".join(path.suffixes[-2:]) if path.suffix in COMPRESSED else path.suffix


def _bare(suffix: str) -> str:
    return PurePosixPath(f"x{suffix}").suffixes[0] if suffix else ""


def _format(suffixes: Counter[str], data: str) -> Format:
    """Parquet is always data; CSV and JSON also lie about among programs and texts, so that they must be half."""
    found = Counter[Format]()
    for suffix, number in suffixes.items():
        if (kind := TABLES.get(_bare(suffix))) is not None:
            found[kind] += number
    if not found["parquet"] and 2 * found.total() < suffixes.total():
        return "text-files"
    kinds = [(kind, number) for kind, number in found.most_common() if number]
    if len(kinds) > 1:
        counted = " and ".join(f"{kind} ({count(number, 'file')})" for kind, number in kinds)
        raise ConfigError(
            f"holds tables of more than one format: {counted}.",
            where=data,
            advice="Give the folder or the file of one of them.",
        )
    return kinds[0][0]


def _wanted(suffixes: Counter[str], kind: Format) -> list[str]:
    """The suffixes of the data: a table format's own, or the commonest of text files."""
    if kind == "text-files":
        commonest = max(suffixes, key=lambda suffix: (suffixes[suffix], suffix))
        # Names without a suffix have nothing in common that a glob could say.
        return [commonest] if commonest else sorted(suffixes)
    of_kind = sorted(suffix for suffix in suffixes if TABLES.get(_bare(suffix)) == kind)
    # Commas and tabs are not read alike.
    return [each for each in of_kind if kind != "csv" or _bare(each) == _bare(of_kind[0])]
