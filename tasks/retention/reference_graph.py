"""What each file of a workspace needs: the names that documents say, and what lies beside them by rule."""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from headway.data_contracts.store.digests import sha256_bytes, sha256_of
from headway.data_contracts.store.documents import CheckpointManifest, Json, Link, Registration, RunSpec
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.folder_store import FileEntry
from headway.data_contracts.store.leftovers import STAGING_SUFFIX
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.data_contracts.store.references import DIGEST, References, references_in
from headway.tasks.core.lease_records import OWNERS
from headway.tasks.ownership.pipeline_history import PipelineEvent
from headway.training.checkpoint.layout import MANIFEST_NAME, RESULT_NAME, checkpoint_path, directory_name, run_folder

GROUP_RECORD = "group.json"
_HISTORY = f"documents/{PipelineEvent.kind}/"
NO_NAMES = References(digests=frozenset(), paths=frozenset(), links=frozenset())
SHORT = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")
OF_RUN = re.compile(r"runs/[0-9a-f]{16}(?=/)")
OF_CHECKPOINT = re.compile(r"runs/[0-9a-f]{16}/checkpoints/[^/]+(?=/)")
ADVICE = "Nothing was deleted: what it names cannot be known. Put it back from a copy, then clean again."


@dataclass
class ReferenceReader:
    """Reads what files name; remembers it for as long as a file stays the same."""

    workspace: Workspace
    _known: dict[FileEntry, References] = field(default_factory=dict)
    _bad: dict[FileEntry, str] = field(default_factory=dict)
    _values: dict[str, Json] = field(default_factory=dict)

    def references(self, file: FileEntry) -> References:
        """What a document, record or ref entry names; nothing for any other file, or a bad one."""
        if file not in self._known:
            self._known[file] = self._read(file) if _names_others(file.path) else NO_NAMES
        return self._known[file]

    def require_whole(self, file: FileEntry) -> None:
        """Raises `IntegrityError`: a document or ref entry that stays, and what else would have to cannot be read."""
        self.references(file)
        if file in self._bad and file.path.startswith(("documents/", "refs/")):
            raise IntegrityError(self._bad[file], where=file.path, advice=ADVICE)

    def is_bad(self, file: FileEntry) -> bool:
        self.references(file)
        return file in self._bad

    def _read(self, file: FileEntry) -> References:
        data = self.workspace.read_if_there(file.path)
        try:
            if data is None:
                raise ValueError
            value = json.loads(data)
            references = _of_history(references_in(value)) if file.path.startswith(_HISTORY) else references_in(value)
            is_same = (
                sha256_bytes(data) == own_digest(file.path)
                if file.path.startswith("documents/")
                # The name of a ref's entry is a number, so that it holds its own digest.
                else not file.path.startswith("refs/")
                or value["sha256"] == sha256_of({name: each for name, each in value.items() if name != "sha256"})
            )
        # JSON that is nested deep enough exhausts Python's stack.
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            self._bad[file] = "not a readable document."
            return NO_NAMES
        if not is_same:
            self._bad[file] = "its content differs from its digest."
        return references

    def pipeline(self, run: str) -> str:
        """Of a run's document; empty where it cannot be read."""
        return str(self._field(run, "pipeline") or "")

    def step(self, result: str) -> int | None:
        """The last step of a finished run."""
        step = self._field(result, "step")
        return step if isinstance(step, int) else None

    def registration(self, decision: str) -> str | None:
        """Digest of what was decided about."""
        found = self._field(decision, "registration")
        return str(found.get("sha256")) if isinstance(found, dict) else None

    def checkpoint(self, document: str) -> str | None:
        """The folder of the files that a checkpoint's document describes."""
        run, step = self._field(document, "run"), self._field(document, "step")
        if not isinstance(run, dict) or not isinstance(step, int):
            return None
        return checkpoint_path(run_folder(Link(kind=RunSpec.kind, sha256=run["sha256"])), step)

    def _field(self, path: str, name: str) -> Json:
        if path not in self._values:
            value: Json = None
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(self.workspace.read_if_there(path) or b"null")
            kept = ("pipeline", "run", "step", "registration")
            self._values[path] = {each: value.get(each) for each in kept} if isinstance(value, dict) else {}
        return self._values[path].get(name)


def _names_others(path: str) -> bool:
    is_record = path.startswith(("documents/", "refs/", "stages/")) and path.endswith(".json")
    return is_record or path.endswith(f"/{GROUP_RECORD}") or _is_result(path)


def _of_history(references: References) -> References:
    """What happened to a pipeline keeps what it links to: the words of a failure may name what is damaged, or gone."""
    return References(
        digests=frozenset(sha256 for _, sha256 in references.links), paths=frozenset(), links=references.links
    )


def _is_result(path: str) -> bool:
    """Whether it says what a run ended with."""
    return OF_RUN.match(path) is not None and path.count("/") == 2 and path.endswith(f"/{RESULT_NAME}")


def own_digest(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".json")


class ReferenceGraph:
    """What each file needs, by the listing of all."""

    def __init__(self, listed: Mapping[str, FileEntry], reader: ReferenceReader, retired: Collection[str] = ()) -> None:
        self._listed, self._reader, self._retired = listed, reader, retired
        self._by_digest: dict[str, list[str]] = defaultdict(list)
        self._by_short: dict[str, list[str]] = defaultdict(list)
        self._by_checkpoint: dict[str, list[str]] = defaultdict(list)
        for path in listed:
            if path.endswith(STAGING_SUFFIX):
                continue  # nobody can mean what never got its name
            for digest in DIGEST.findall(path):
                self._by_digest[digest].append(path)
            if found := OF_CHECKPOINT.match(path):
                self._by_checkpoint[found[0]].append(path)
            # A run's folder carries its document's name, which is no reason to keep logs and old checkpoints in it.
            for short in () if path.startswith(("runs/", f"{OWNERS}/")) else SHORT.findall(path):
                self._by_short[short].append(path)

    def references_of(self, path: str) -> Iterator[str]:
        """Files whose names it says, itself left out."""
        file = self._listed.get(path)
        if file is None:
            return
        if (kept := self._of_retired(path)) is not None:
            yield from kept
            return
        references = self._reader.references(file)
        for digest in references.digests:
            yield from (each for each in self._by_digest.get(digest, ()) if each != path)
        yield from (each for each in references.paths if each in self._listed and each != path)
        if path.startswith(f"documents/{CheckpointManifest.kind}/"):
            yield from self._by_checkpoint.get(self._reader.checkpoint(path) or "", ())
        elif OF_CHECKPOINT.match(path) and path.endswith(f"/{MANIFEST_NAME}"):
            yield from (each for each in self._by_checkpoint[path.rpartition("/")[0]] if each != path)
        elif _is_result(path):
            yield from self._last_checkpoint(path)

    def _last_checkpoint(self, result: str) -> list[str]:
        step = self._reader.step(result)
        folder = result.rpartition("/")[0]
        return [] if step is None else self._by_checkpoint.get(f"{folder}/checkpoints/{directory_name(step)}", [])

    def of(self, path: str) -> Iterator[str]:
        """What stays because this file does.

        Raises:
            IntegrityError: a document is damaged, or one that it links to is gone.
        """
        file = self._listed.get(path)
        if file is None:
            return
        if not self._is_superseded(path):
            self._reader.require_whole(file)
        if (kept := self._of_retired(path)) is not None:
            yield from kept
            return
        self._require_linked(path, file)
        yield from self.references_of(path)
        if path.startswith("documents/"):
            digest = own_digest(path)
            yield from self._by_short.get(digest[:16], ())
            if path.startswith(f"documents/{RunSpec.kind}/"):
                result = f"{run_folder(Link(kind=RunSpec.kind, sha256=digest))}/{RESULT_NAME}"
                yield from (each for each in (result,) if each in self._listed)

    def _of_retired(self, path: str) -> list[str] | None:
        """What stays of a retired version: its registration, what was decided about it, and its card, for the history;
        None for a file that speaks of no such version."""
        if not self._retired or not path.startswith(("refs/models/", "documents/")):
            return None
        if not path.startswith("refs/"):
            return self._cards(own_digest(path)) if self._is_of_retired(path) else None
        links = self._reader.references(self._listed[path]).links
        targets = [document_path(Link(kind=kind, sha256=sha256)) for kind, sha256 in links]
        if not any(self._is_of_retired(target) for target in targets):
            return None
        return [target for target in targets if target in self._listed]

    def _is_of_retired(self, document: str) -> bool:
        if document.startswith(f"documents/{Registration.kind}/"):
            return own_digest(document) in self._retired
        return document.startswith("documents/decision/") and self._reader.registration(document) in self._retired

    def _cards(self, digest: str) -> list[str]:
        return [each for each in self._by_short.get(digest[:16], ()) if each.startswith("cards/")]

    def _is_superseded(self, path: str) -> bool:
        """Whether an entry of a ref is history alone: a pipeline continues after a damaged one, a model does not."""
        folder, _, name = path.rpartition("/")
        number = name.removesuffix(".json")
        is_number = number.isascii() and number.isdecimal()  # `²` is a digit, too
        if not path.startswith("refs/") or path.startswith("refs/models/") or not is_number:
            return False
        return f"{folder}/{int(number) + 1:08d}.json" in self._listed

    def _require_linked(self, path: str, file: FileEntry) -> None:
        if not path.startswith(("documents/", "refs/")):
            return
        for kind, sha256 in self._reader.references(file).links:
            if DIGEST.fullmatch(sha256) and document_path(Link(kind=kind, sha256=sha256)) not in self._listed:
                raise IntegrityError(f"names {kind} {sha256[:12]}, which is gone.", where=path, advice=ADVICE)
