"""A small part of a source for a small retrain: the same one for the same files, whoever draws it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headway.data_contracts.sources.locations import resolve_base_uri
from headway.data_contracts.sources.reading import read_rows, take_snapshot, unparsable_rows
from headway.data_contracts.sources.stores import ListedFile, open_store
from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import Snapshot
from headway.data_contracts.store.errors import DataError
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.data_contracts.tables.file_cache import FileCache
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.data_contracts.types.report_text import count

MAX_FILES = 64
MAX_BYTES = 32 << 20
"""Of all files together; a larger one is taken alone."""
MAX_ROWS = 4096
"""Of tables; more are thinned out evenly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subset:
    source: SourceSpec
    """Reads the part from wherever it is asked."""
    share: float
    """Of the source, by bytes of its files and rows of its tables; above 0, and 1 where it is all."""
    message: str

    @property
    def is_all(self) -> bool:
        return self.share == 1


def draw_subset(
    spec: SourceSpec,
    base: Path,
    scratch: Path,
    texts: Collection[str] = (),
    quarantined: Mapping[str, str] | None = None,
) -> Subset:
    """Some files, first by the digest of their paths, and of long tables every so manieth row.

    Args:
        base: the folder relative paths start from.
        scratch: an existing folder; what is written there must outlive the subset.
        texts, quarantined: as for `take_snapshot`; of long tables, rows that cannot be read are left out.

    Raises:
        ConfigError, DataError: what is wrong with the source.
    """
    root, cache = resolve_base_uri(spec, base=base), DigestCache(scratch / "digests")
    listed = open_store(spec, root, cache, FileCache.beside(cache)).list_files()
    if not listed:
        raise DataError(
            "the source is empty: no file matches.",
            where=root,
            advice="Check `source.uri`, `source.include` and `source.exclude`.",
        )
    chosen = _chosen(listed)
    names = {"include": tuple(_literal(file.path) for file in chosen), "exclude": ()}
    found = spec.model_copy(update={"uri": root, **({} if len(chosen) == len(listed) else names)})
    share = 1.0 if len(chosen) == len(listed) else _share_of_bytes(chosen, listed)
    message = f"{len(chosen)} of {count(len(listed), 'file')}"
    if spec.is_table:
        snapshot = take_snapshot(found, base=base, cache=cache, texts=texts, quarantined=quarantined)
        if (every := -(-snapshot.num_rows // MAX_ROWS)) > 1:
            folder = scratch / "rows"
            folder.mkdir()
            num_rows = _thin_out(found, snapshot, base, cache, every, folder)
            message += f", {num_rows:,} of {count(snapshot.num_rows, 'row')}"
            thinned = SourceSpec(format="parquet", uri=str(folder), include=("*.parquet",))
            return Subset(source=thinned, share=share / every, message=message)
        message += f", {count(snapshot.num_rows, 'row')}"
    return Subset(source=found, share=share, message=message)


def _chosen(listed: list[ListedFile]) -> list[ListedFile]:
    chosen: list[ListedFile] = []
    left_bytes = MAX_BYTES
    for file in sorted(listed, key=lambda file: sha256_bytes(file.path.encode(errors="surrogateescape"))):
        if len(chosen) < MAX_FILES and file.size_bytes <= left_bytes:
            chosen.append(file)
            left_bytes -= file.size_bytes
    return chosen or [min(listed, key=lambda file: (file.size_bytes, file.path))]


def _share_of_bytes(chosen: list[ListedFile], listed: list[ListedFile]) -> float:
    """Below 1, since some are left out, though they may be empty."""
    part, whole = (1 + sum(file.size_bytes for file in files) for files in (chosen, listed))
    return min(part / whole, 1 - 1 / (1 + whole))


def _literal(path: str) -> str:
    """A glob that matches this path alone."""
    return re.sub(r"[*?\[]", r"[\g<0>]", path)


def _thin_out(spec: SourceSpec, snapshot: Snapshot, base: Path, cache: DigestCache, every: int, folder: Path) -> int:
    """Write every so manieth row of each file; returns how many."""
    written, seen = 0, 0
    for file in snapshot.files:
        kept, first = [], seen
        for batch in read_rows(spec, file, base=base, columns=snapshot.columns, digests=cache):
            bad = {first + row for row in unparsable_rows(spec, file, columns=snapshot.columns, digests=cache)}
            if places := [place for place in range(-seen % every, batch.num_rows, every) if seen + place not in bad]:
                kept.append(batch.take(pa.array(places)))
            seen += batch.num_rows
        if kept:
            table = pa.Table.from_batches(kept)
            pq.write_table(table, folder / f"{sha256_bytes(file.path.encode())[:16]}.parquet")
            written += table.num_rows
    return written
