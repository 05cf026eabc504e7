"""What a folder, file or URI holds, guessed from the names of its files."""

from __future__ import annotations

import codecs
import contextlib
import glob
import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

import fsspec

from headway.data_contracts.sources.listing import list_local, list_remote
from headway.data_contracts.sources.locations import LOCAL_SCHEMES, follows_links, resolve_base_uri
from headway.data_contracts.store.errors import ConfigError, DataError
from headway.data_contracts.tables.source_spec import CsvOptions, Format, SourceSpec
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
DELIMITERS = (",", ";", "\t", "|")
SNIFFED_BYTES, SNIFFED_LINES = 1 << 16, 50
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


def guess_source(data: str, *, base: Path) -> GuessedSource:
    """The source that reads a folder, a file or a URI.

    Args:
        base: the folder relative paths start from.

    Raises:
        DataError: nothing is there.
        ConfigError: tables of more than one format.
    """
    uri, only = _split(data, base)
    plain = SourceSpec(uri=uri)
    root = resolve_base_uri(plain, base=base)
    include = (glob.escape(only),) if only else ("**/*",)
    names = (
        [file.path for file in list_remote(root, include, HIDDEN)]
        if "://" in root
        else [name for name, _ in list_local(Path(root), include, HIDDEN, follow_links=follows_links(plain))]
    )
    if not names:
        raise DataError("there is no file here.", where=data, advice="Give a folder, file or URI that holds data.")
    names = [name for name in names if not only or name == only]
    suffixes = Counter(_suffix(name) for name in names)
    kind = _format(suffixes, data)
    wanted = _wanted(suffixes, kind)
    has_index = False
    spec = SourceSpec(
        format=kind,
        uri=uri,
        include=include if only else tuple(f"**/*{suffix}" for suffix in wanted),
        exclude=() if only else HIDDEN if kind == "text-files" else HIDDEN + MARKERS,
    )
    data_files = [name for name in names if _suffix(name) in wanted]
    if kind == "csv":
        encoding, head = _decoded(_head(f"{root.rstrip('/')}/{min(data_files)}"))
        delimiter = "\t" if _bare(wanted[0]) == ".tsv" else _delimiter(head)
        has_index = head.startswith((delimiter, f'""{delimiter}'))
        found = {"delimiter": delimiter, "encoding": encoding, "decimal": _decimal(head, delimiter)}
        spec = spec.model_copy(update={"csv": CsvOptions.model_validate(found)})
    only_file = data_files[0] if len(data_files) == 1 and "/" not in data_files[0] else ""
    return GuessedSource(spec, len(names) - len(data_files), only_file, has_index)


def _head(place: str) -> bytes:
    """The beginning of a CSV file; empty where it cannot be read, for whoever reads the rows says why."""
    try:
        with fsspec.open(place, "rb", compression="infer") as stream:
            return bytes(stream.read(SNIFFED_BYTES))
    except Exception:  # each codec has errors of its own for bytes that it cannot read
        return b""


def _decoded(head: bytes) -> tuple[str, str]:
    """How the first lines are written, and what they say: UTF-8, unless they are none."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16", head.decode("utf-16", errors="replace")
    # The last character may be cut off, which a decoder that expects more does not mind.
    for encoding, codec in {"utf-8": "utf-8-sig", "cp1252": "cp1252"}.items():
        with contextlib.suppress(UnicodeDecodeError):
            return encoding, codecs.getincrementaldecoder(codec)().decode(head)
    return "latin-1", head.decode("latin-1")


def _decimal(head: str, delimiter: str) -> str:
    """A comma where numbers of the first lines have one, and none has a point."""
    if delimiter == ",":
        return "."
    values = [value.strip('"') for line in head.splitlines()[1:SNIFFED_LINES] for value in line.split(delimiter)]
    has = {mark: any(re.fullmatch(rf"[+-]?\d+[{mark}]\d+", value) for value in values) for mark in ",."}
    return "," if has[","] and not has["."] else "."


def _delimiter(head: str) -> str:
    """What stands between the values of a file's first lines: a comma, unless each has as many of another."""
    # Quoted values may hold any of them; the last line may be cut off.
    lines = [line for line in re.sub(r'"[^"]*"', "", head).splitlines()[:SNIFFED_LINES] if line]
    whole = lines[:-1] if len(head) >= SNIFFED_BYTES and len(lines) > 1 else lines
    for delimiter in DELIMITERS:
        counts = {line.count(delimiter) for line in whole}
        if len(counts) == 1 and counts != {0}:
            return delimiter
    return DELIMITERS[0]


def _split(data: str, base: Path) -> tuple[str, str]:
    """A folder and nothing, or the folder of a single file and its name."""
    if "://" in data and not data.startswith(LOCAL_SCHEMES):
        try:
            fs, path = fsspec.core.url_to_fs(data)
            is_file = fs.isfile(path)
        except (ValueError, ImportError, OSError) as error:
            raise ConfigError(f"no file system for this URI ({error}).", where=data) from error
        folder, _, name = data.rstrip("/").rpartition("/")
        return (folder, name) if is_file and urlsplit(folder).scheme else (data, "")
    local = Path(data.removeprefix("file://").removeprefix("local://")).expanduser()
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
