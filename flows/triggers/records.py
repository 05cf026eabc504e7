"""Which retrains were asked for and which finished, as a pipeline's history: the ref `retrains/<pipeline>`.

One ref holds both, so that appending is the compare-and-set that makes one ask of two: who saw the history before
another ask, or before a retrain finished, has to look again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import ClassVar, Literal

from data_contracts import refs
from data_contracts.documents import Document, Link
from data_contracts.errors import IntegrityError, RefConflict
from data_contracts.publication import Workspace
from tasks.context import RunContext
from tasks.identity import who

Trigger = Literal["new data", "drift", "event"]


class RetrainRecord(Document):
    """A retrain that was asked for, or one that finished."""

    kind: ClassVar[str] = "retrain-record"
    pipeline: str
    action: Literal["asked", "finished"]
    snapshot: Link
    """The data that it was asked for, or that it was made of."""
    unix_s: float
    """When it was asked for; of one that finished, when it began."""
    triggers: tuple[Trigger, ...] = ()
    """What it was asked for by."""
    event: str = ""
    """Id of the newest event that it was asked for by."""

    @property
    def key(self) -> str:
        """One for all who look: two asks of one key are one retrain."""
        return self.sha256[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a pipeline stands: the retrain that finished last, and what was asked for since."""

    newest: refs.RefEntry | None
    """What the next record is appended behind."""
    finished: RetrainRecord | None
    asked: RetrainRecord | None
    """The newest ask that no retrain has finished since."""
    asked_entry: refs.RefEntry | None
    ever_asked: frozenset[Trigger]
    """By what was asked since the last one finished."""


def records_ref(pipeline: str) -> str:
    return f"retrains/{pipeline}"


def read_standing(workspace: Workspace, pipeline: str) -> Standing:
    """Raises `IntegrityError`: a record is damaged, so that nobody knows what was asked for."""
    newest, asks = None, []
    finished = None
    for entry in refs.newest_first(workspace, records_ref(pipeline)):
        newest = newest or entry
        record = workspace.load(entry.target, RetrainRecord)
        if record.action == "finished":
            finished = record
            break
        asks.append((record, entry))
    asked, asked_entry = asks[0] if asks else (None, None)
    return Standing(
        newest=newest,
        finished=finished,
        asked=asked,
        asked_entry=asked_entry,
        ever_asked=frozenset(trigger for record, _ in asks for trigger in record.triggers),
    )


def record_ask(workspace: Workspace, ask: RetrainRecord, standing: Standing, *, why: str) -> refs.RefEntry:
    """Raises `RefConflict`: another ask came first, or a retrain finished; look again."""
    link = workspace.publish_document(ask)
    return refs.move(
        workspace, records_ref(ask.pipeline), link, expected=standing.newest, reason=why, detail={"who": who()}
    )


def record_finished(context: RunContext, snapshot: Link, *, serves_events: bool) -> None:
    """Write down what a retrain was made of: triggers measure against it from now on.

    Args:
        serves_events: whether it counts when it began, and not only of which data it was made: one that found
            everything is written down again.
    """
    record = RetrainRecord(pipeline=context.pipeline, action="finished", snapshot=snapshot, unix_s=context.began_unix_s)
    name = records_ref(context.pipeline)
    while True:
        newest = refs.current(context.workspace, name)
        if not serves_events and newest is not None and _tells(context.workspace, newest.target, snapshot):
            return
        with contextlib.suppress(RefConflict):
            link = context.workspace.publish_document(record)
            refs.move(context.workspace, name, link, expected=newest, reason=f"retrain {context.budget_scope} finished")
            return


def _tells(workspace: Workspace, record: Link, snapshot: Link) -> bool:
    """Whether a record says that a retrain of these data finished; a damaged one says nothing."""
    with contextlib.suppress(IntegrityError):
        said = workspace.load(record, RetrainRecord)
        return (said.action, said.snapshot) == ("finished", snapshot)
    return False
