"""What the files of a snapshot counted, remembered under their digests, so that a file that stays is not read again.

A state is a cache and nothing stands on it: it is sealed by its own digest, made for one basis (code, library, rules),
and whatever is missing or damaged is counted again.
"""

from __future__ import annotations

from typing import Any

from headway.data_contracts.store.digests import canonical_json, sha256_of
from headway.data_contracts.store.errors import HeadwayError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.strict_json import parse_json
from headway.data_contracts.tables.rows_files import RowsFiles

MAX_STATE_GROUPS = 1000
"""A figure with more groups is not kept."""
FORMAT_VERSION = 1
Figures = dict[str, Any]


class FileStates:
    """Figures by name, for each file of `rows`.

    Args:
        basis: whatever else decides a figure: two states of other bases share nothing.
        known: figures of files by `file_key`, from an earlier snapshot.
    """

    def __init__(self, rows: RowsFiles, basis: str, known: dict[str, Figures] | None = None) -> None:
        self.basis = basis
        self._keys = [file_key(rows, place) for place in range(len(rows.files))]
        earlier = known or {}
        self._figures: dict[str, Figures] = {key: dict(earlier.get(key, {})) for key in self._keys}
        self._asked: set[str] = set()
        self.num_known_files = sum(key in earlier for key in self._keys)

    def known(self, name: str) -> dict[int, Any]:
        """Values of one figure, by the file's place."""
        self._asked.add(name)
        found = ((place, self._figures[key]) for place, key in enumerate(self._keys))
        return {place: _read(figures[name]) for place, figures in found if name in figures}

    def keep(self, place: int, name: str, value: Any) -> None:
        self._asked.add(name)
        self._figures[self._keys[place]][name] = _written(value)

    def to_bytes(self) -> bytes:
        """Canonical JSON of what was asked for; figures of rules that are gone are forgotten."""
        recorded = {
            key: {name: value for name, value in figures.items() if name in self._asked}
            for key, figures in self._figures.items()
        }
        value = {"format_version": FORMAT_VERSION, "basis": self.basis, "files": recorded}
        return canonical_json({**value, "sha256": sha256_of(value)})


def file_key(rows: RowsFiles, place: int) -> str:
    """What decides a file's rows: its bytes, and the columns that its folders' names hold."""
    folders = {name: texts[place] for name, texts in rows.partitions.items()}
    # The same bytes give other rows under other columns, such as an optional column that is null here.
    return sha256_of({"sha256": rows.files[place].sha256, "folders": folders, "columns": dict(rows.columns)})


def states_path(basis: str) -> str:
    return f"contract-states/{basis}.json"


def load_states(workspace: Workspace, rows: RowsFiles, basis: str) -> FileStates:
    """What was remembered; nothing, if nothing is there or it cannot be trusted."""
    where = states_path(basis)
    try:
        if not workspace.exists(where):
            return FileStates(rows, basis)
        value = parse_json(workspace.read(where))
        if value.pop("sha256") != sha256_of(value) or value["format_version"] != FORMAT_VERSION:
            return FileStates(rows, basis)
        return FileStates(rows, basis, value["files"] if value["basis"] == basis else None)
    except (HeadwayError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return FileStates(rows, basis)


def save_states(workspace: Workspace, states: FileStates) -> None:
    """Keep the figures of this snapshot's files, and only of these."""
    workspace.publish(states_path(states.basis), states.to_bytes())


def _written(value: Any) -> Any:
    """As JSON: groups as pairs, a double as its hexadecimal text, which also says NaN and infinity."""
    if isinstance(value, dict):
        return {"groups": sorted([key, weight] for key, weight in value.items())}
    return {"double": value.hex()} if isinstance(value, float) else value


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "double" in value:
        return float.fromhex(value["double"])
    return {int(key): int(weight) for key, weight in value["groups"]}
