"""What each file of a workspace needs: the names that documents say, and what lies beside them by rule."""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from headway.data_contracts.store import refs
from headway.data_contracts.store.digests import sha256_bytes, sha256_of
from headway.data_contracts.store.documents import CheckpointManifest, Json, Link, Registration, RunSpec
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.leftovers import STAGING_SUFFIX
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.data_contracts.store.references import DIGEST, References, references_in
from headway.tasks.core.lease_records import OWNERS
from headway.tasks.ownership.pipeline_history import PipelineEvent
from headway.training.checkpoint.layout import MANIFEST_NAME, RESULT_NAME, checkpoint_path, run_folder

GROUP_RECORD = "group.json"
_FIELDS = {"pipeline", "run", "step", "registration"}
_HISTORY = f"documents/{PipelineEvent.kind}/"
NO_NAMES = References(digests=frozenset(), paths=frozenset(), links=frozenset())
SHORT = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")
OF_RUN = re.compile(r"runs/[0-9a-f]{16}(?=/)")
OF_CHECKPOINT = re.compile(r"runs/[0-9a-f]{16}/checkpoints/[^/]+(?=/)")
ADVICE = "Nothing was deleted: what it names cannot be known. Put it back from a copy, then clean again."


class FileReferences(NamedTuple):
    """What a document, record or entry of a ref says of others."""

    references: References = NO_NAMES
    fields: Mapping[str, Json] = {}
    """Of those by which something is found beside it."""
    fault: str = ""


class ReferenceReader:
    """Reads what files name, each file once."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._records: dict[str, FileReferences] = {}

    def read(self, path: str) -> FileReferences:
        """Nothing of a file that names no other, or that cannot be read."""
        if path not in self._records:
            self._records[path] = self._read(path) if _names_others(path) else FileReferences()
        return self._records[path]

    def _read(self, path: str) -> FileReferences:
        fields: Mapping[str, Json] = {}
        data = self._workspace.read_if_there(path) or b""
        try:
            value = json.loads(data)
            fields = {name: value[name] for name in _FIELDS & value.keys()}
            if path.startswith(_HISTORY):
                # What a search has yet to read its newest event alone says, and that is a root.
                value = {name: each for name, each in value.items() if name != "search"}
            references = references_in(value)
            # The name of a ref's entry is a number, so that it holds its own digest.
            if path.startswith("refs/"):
                is_same = value["sha256"] == sha256_of({name: each for name, each in value.items() if name != "sha256"})
            else:
                is_same = not path.startswith("documents/") or sha256_bytes(data) == own_digest(path)
        # JSON that is nested deep enough exhausts Python's stack.
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return FileReferences(fields=fields, fault="not a readable document.")
        fault = "" if is_same else "its content differs from its digest."
        return FileReferences(_of_history(references) if path.startswith(_HISTORY) else references, fields, fault)


def _names_others(path: str) -> bool:
    is_record = path.startswith(("documents/", "refs/", "stages/")) and path.endswith(".json")
    return is_record or path.endswith(f"/{GROUP_RECORD}") or _is_result(path)


def _of_history(references: References) -> References:
    """What happened to a pipeline keeps what it links to: the words of a failure may name what is damaged, or gone."""
    digests = frozenset(link.sha256 for link in references.links)
    return References(digests=digests, paths=frozenset(), links=references.links)


def _is_result(path: str) -> bool:
    """Whether it says what a run ended with."""
    return OF_RUN.match(path) is not None and path.count("/") == 2 and path.endswith(f"/{RESULT_NAME}")


def own_digest(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".json")


class ReferenceGraph:
    """What each file needs, by the listing of all."""

    def __init__(self, listed: Collection[str], reader: ReferenceReader, retired: Collection[str] = ()) -> None:
        self._listed, self._reader, self._retired = listed, reader, retired
        self._by_digest: dict[str, list[str]] = defaultdict(list)
        self._by_short: dict[str, list[str]] = defaultdict(list)
        self._by_checkpoint: dict[str, list[str]] = defaultdict(list)
        self._checkpoints_of: dict[str, set[str]] = defaultdict(set)
        """By a run's folder."""
        for path in listed:
            if path.endswith(STAGING_SUFFIX):
                continue  # nobody can mean what never got its name
            for digest in DIGEST.findall(path):
                self._by_digest[digest].append(path)
            if found := OF_CHECKPOINT.match(path):
                self._by_checkpoint[found[0]].append(path)
                self._checkpoints_of[found[0].partition("/checkpoints/")[0]].add(found[0])
            # A run's folder carries its document's name, which is no reason to keep logs and old checkpoints in it.
            for short in () if path.startswith(("runs/", f"{OWNERS}/")) else SHORT.findall(path):
                self._by_short[short].append(path)

    def references_of(self, path: str) -> Iterator[str]:
        """Files whose names it says, itself left out."""
        if path not in self._listed:
            return
        if (kept := self._of_retired(path)) is not None:
            yield from kept
            return
        references = self._reader.read(path).references
        for digest in references.digests:
            yield from (each for each in self._by_digest.get(digest, ()) if each != path)
        yield from (each for each in references.paths if each in self._listed and each != path)
        if path.startswith(f"documents/{CheckpointManifest.kind}/"):
            yield from self._by_checkpoint.get(self._checkpoint_folder(path), ())
        elif _is_result(path):
            yield from self._of_result(path)
        elif OF_CHECKPOINT.match(path) and path.endswith(f"/{MANIFEST_NAME}"):
            yield from (each for each in self._by_checkpoint[path.rpartition("/")[0]] if each != path)

    def _of_result(self, path: str) -> Iterator[str]:
        """Of the checkpoint that it names. Where it was damaged, any of its run's may be the model: it is made anew."""
        if (folder := self._checkpoint_folder(path)) in self._by_checkpoint:
            yield from self._by_checkpoint[folder]
            return
        for each in self._checkpoints_of[path.rpartition("/")[0]]:
            yield from self._by_checkpoint[each]

    def _checkpoint_folder(self, path: str) -> str:
        """Of the checkpoint that a document describes, or a run's result names; empty where it cannot be read."""
        fields = self._reader.read(path).fields
        with contextlib.suppress(ValueError, TypeError, KeyError):
            run = path.rpartition("/")[0] if _is_result(path) else run_folder(Link.model_validate(fields.get("run")))
            return checkpoint_path(run, fields["step"])
        return ""

    def of(self, path: str) -> Iterator[str]:
        """What stays because this file does.

        Raises:
            IntegrityError: a document is damaged, or one that it links to is gone.
        """
        if path not in self._listed:
            return
        is_retired = self._of_retired(path) is not None
        self._require_whole(path, is_retired)
        yield from self.references_of(path)
        if path.startswith("documents/") and not is_retired:
            digest = own_digest(path)
            yield from self._by_short.get(digest[:16], ())
            if path.startswith(f"documents/{RunSpec.kind}/"):
                result = f"{run_folder(Link(kind=RunSpec.kind, sha256=digest))}/{RESULT_NAME}"
                yield from (each for each in (result,) if each in self._listed)

    def _require_whole(self, path: str, is_retired: bool) -> None:
        if not path.startswith(("documents/", "refs/")):
            return
        record = self._reader.read(path)
        if record.fault and not self._is_superseded(path):
            raise IntegrityError(record.fault, where=path, advice=ADVICE)
        for link in () if is_retired else record.references.links:
            if document_path(link) not in self._listed:
                raise IntegrityError(f"names {link.short}, which is gone.", where=path, advice=ADVICE)

    def _of_retired(self, path: str) -> list[str] | None:
        """What stays of a retired version: its registration, what was decided about it, and its card, for the history;
        None for a file that speaks of no such version."""
        if not self._retired or not path.startswith(("refs/models/", "documents/")):
            return None
        if not path.startswith("refs/"):
            cards = (each for each in self._by_short.get(own_digest(path)[:16], ()) if each.startswith("cards/"))
            return [*cards] if self._is_of_retired(path) else None
        targets = self._reader.read(path).references.documents
        if not any(self._is_of_retired(target) for target in targets):
            return None
        return [target for target in targets if target in self._listed]

    def _is_of_retired(self, document: str) -> bool:
        if document.startswith(f"documents/{Registration.kind}/"):
            return own_digest(document) in self._retired
        if not document.startswith("documents/decision/"):
            return False
        found = self._reader.read(document).fields.get("registration")
        return isinstance(found, dict) and str(found.get("sha256")) in self._retired

    def _is_superseded(self, path: str) -> bool:
        """Whether an entry of a ref is history alone: a pipeline continues after a damaged one, a model does not."""
        folder, _, name = path.rpartition("/")
        number = name.removesuffix(".json")
        is_number = number.isascii() and number.isdecimal()  # `²` is a digit, too
        if not path.startswith("refs/") or path.startswith("refs/models/") or not is_number:
            return False
        return refs.entry_path(folder, int(number) + 1) in self._listed
