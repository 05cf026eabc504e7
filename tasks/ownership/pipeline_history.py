"""What happened to a pipeline, and how it stands since: the ref `pipelines/<pipeline>`, one entry an event.

Each event carries the whole standing on. So the newest entry alone tells whoever looks, and appending is the
compare-and-set: who decided by a standing that is no longer the newest decides anew.
"""

from __future__ import annotations

import contextlib
import datetime
import operator
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

from headway.data_contracts.store import refs
from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.store.documents import Document, Frozen, Link, Sha256
from headway.data_contracts.store.errors import IntegrityError, RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.refs import LATEST_UNIX_S
from headway.tasks.core.identity import current_user
from headway.training.launch.base.failure import Failure
from headway.training.observe.ledger_lines import LARGEST

PIPELINES = "pipelines"
Moment = Annotated[float, Field(ge=0.0, lt=LATEST_UNIX_S)]
"""In seconds since 1970; one that no calendar can show would end every command that shows it."""
RunState = Literal["started", "cut", "bounded", "stopped", "finished", "failed"]
"""`cut`: a window closed; `bounded`: it has cost what it may. Either is finished before newer data are taken."""
EventName = RunState | Literal["new", "failed", "asked", "held", "released", "skipped", "opened", "unskipped", "search"]
SearchState = Literal["started", "ended", "failed", "stopped"]
"""One that a window cut, or a crash, is `started`: it is continued. `stopped`: by a person."""
Trigger = Literal["new data", "drift", "event"]


class Hold(Frozen):
    """A person lets no retrain of the pipeline begin."""

    pipeline: str
    by: str
    why: str
    since: str
    """ISO 8601, in UTC; empty, as `current_user`, where the record cannot be read."""

    def __str__(self) -> str:
        return f"{self.by} holds {self.pipeline} since {self.since}: {self.why}" if self.since else self.why


class WindowOverride(Frozen):
    """What a person decided about a stretch of time, whatever the windows say."""

    action: Literal["skip", "open"]
    start_unix_s: Moment
    end_unix_s: Moment
    why: str
    by: str
    decided_unix_s: Moment


class RequestRecord(Frozen):
    """A retrain that triggers asked for."""

    pipeline: str
    snapshot: Link
    """The data that it was asked for."""
    request_unix_s: Moment
    why: str
    by: str
    triggers: tuple[Trigger, ...] = ()
    event: str = ""
    """Id of the newest event that it was asked for by."""

    @property
    def key(self) -> str:
        """One for all who look: two asks of one key are one retrain."""
        return sha256_of(self.model_dump(mode="json"))[:16]

    @property
    def requested_at(self) -> str:
        """ISO 8601, in UTC."""
        return iso_utc(self.request_unix_s)


class _Retrain(BaseModel):
    model_config = ConfigDict(frozen=True)

    pipeline: str
    host: str
    """Where the flow ran."""
    flow_run: str


class FailedRetrain(_Retrain):
    """What a failure card says in short, and where it lies."""

    stage: str
    """Empty where it was none."""
    failed_unix_s: Moment
    failure: Failure
    card: str
    """The page, as a path on that host."""

    @computed_field
    def failed_at(self) -> str:
        """ISO 8601, in UTC."""
        return iso_utc(self.failed_unix_s)


class FinishedRetrain(_Retrain):
    """The newest whose model came to be evaluated and registered, whether it was trained or found."""

    finished_unix_s: Moment
    started_unix_s: Moment
    """What failed before is over. Never earlier than that of one that finished before: what it mended stays mended."""

    @computed_field
    def finished_at(self) -> str:
        """ISO 8601, in UTC."""
        return iso_utc(self.finished_unix_s)


class SearchRecord(Frozen):
    """The newest search that a schedule began, or that ended."""

    state: SearchState
    started_unix_s: Moment
    settings: Sha256
    """Of what the pipeline file said that decides which trials there are."""
    receipt: Link | None = None
    """Of the data that all its trials are trained on; None, as the two that follow, once it is over."""
    manifest: Link | None = None
    base: Link | None = None
    """A run with the file's own settings, whose code, environment and start all trials have."""
    keep: str = Field(default="", exclude_if=lambda keep: not keep)
    """Once it has ended: what the file has to say to train with the winner's settings; empty: it says so."""

    @property
    def started_at(self) -> str:
        """ISO 8601, in UTC."""
        return iso_utc(self.started_unix_s)


class PipelineEvent(Document):
    """What happened, and how the pipeline stands since. A run is named as its folder is, and kept from nothing by it.

    Unlike a stage's document it holds times and hosts: it is made from nothing that is found again.
    """

    kind: ClassVar[str] = "pipeline-event"
    pipeline: str
    """The pipeline's name."""
    event: EventName = "new"
    """`new`: nothing has happened yet; never written."""

    run: str = ""
    """The one it is at; empty where the first window closed before a run was described."""
    state: RunState | None = None
    """What became of that run."""
    started_unix_s: float = Field(default=0.0, ge=0.0, lt=LATEST_UNIX_S)
    """When it was started first."""
    windows_cut: int = Field(default=0, ge=0, lt=LARGEST)
    """Windows in a row that closed before a run of this pipeline was finished."""
    starving: bool = Field(default=False, exclude_if=operator.not_)
    """They are more than the pipeline's windows may be."""

    finished: FinishedRetrain | None = None
    """The newest retrain that finished."""
    failed: FailedRetrain | None = None
    """The newest that failed since a retrain began that has finished."""
    snapshot: Link | None = None
    """The data of the last finished retrain that took the newest: triggers measure against them."""
    taken_unix_s: float = Field(default=0.0, ge=0.0, lt=LATEST_UNIX_S)
    """When that one began."""
    requested: RequestRecord | None = None
    """The newest ask that no retrain has finished since, and by what was asked at all since then."""
    ever_requested: tuple[Trigger, ...] = ()
    """Kinds of triggers that asked since that retrain; drift asks once, whatever other trigger asks after it."""
    search: SearchRecord | None = Field(default=None, exclude_if=lambda search: search is None)
    """The newest search; None: none was begun by a schedule, and none has ended."""
    hold: Hold | None = None
    """Set while a person holds the pipeline; None: nobody does."""
    overrides: tuple[WindowOverride, ...] = ()
    """In the order in which they were made; those that were over a year before the newest are left out."""

    @property
    def cut(self) -> str:
        """How many windows closed too early, for a person."""
        windows = "one window" if self.windows_cut == 1 else f"{self.windows_cut} windows in a row"
        return f"{windows} closed before {f'run {self.run} was finished' if self.run else 'training began'}"


def iso_utc(unix_s: float) -> str:
    """To the second."""
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).isoformat(timespec="seconds")


def ref_of(pipeline: str) -> str:
    return f"{PIPELINES}/{pipeline}"


def read(workspace: Workspace, pipeline: str) -> PipelineEvent:
    """The newest event; `new` before the first.

    Raises:
        IntegrityError: it is damaged; to guess what people decided would be worse than to stop.
    """
    return _newest(workspace, pipeline)[1]


def append(
    workspace: Workspace,
    pipeline: str,
    follow: Callable[[PipelineEvent], PipelineEvent | None],
    *,
    why: str = "",
    is_repair: bool = False,
) -> PipelineEvent | None:
    """Follow the newest event, or the one that another process writes at the same moment.

    Args:
        follow: what happened now, from what stood before; None: nothing is written, and None returned.
        why: in a person's words, where it is a person's decision.
        is_repair: where the newest event cannot be read, it follows what stood before that.

    Raises:
        IntegrityError: the newest event is damaged.
    """
    rejected: PipelineEvent | None = None
    while True:
        newest, before = (_newest_readable if is_repair else _newest)(workspace, pipeline)
        if before == rejected:
            return before  # what we would have written: a window that cut two retrains at once was one
        now = rejected = follow(before)
        if now is None:
            return None
        target = workspace.publish_document(now)
        with contextlib.suppress(RefConflict):
            detail = {"by": current_user()}
            refs.move(workspace, ref_of(pipeline), target, expected=newest, reason=why or now.event, detail=detail)
            return now


def _newest(workspace: Workspace, pipeline: str) -> tuple[refs.RefEntry | None, PipelineEvent]:
    entry = refs.current(workspace, ref_of(pipeline))
    return entry, PipelineEvent(pipeline=pipeline) if entry is None else workspace.load(entry.target, PipelineEvent)


def _newest_readable(workspace: Workspace, pipeline: str) -> tuple[int, PipelineEvent]:
    newest = refs.newest_number(workspace, ref_of(pipeline))
    for number in range(newest, 0, -1):
        with contextlib.suppress(IntegrityError):
            entry = refs.read_entry(workspace, ref_of(pipeline), number)
            # The damaged entry's number, not this one's: the repair comes after both, and the history keeps them.
            return newest, workspace.load(entry.target, PipelineEvent)
    return newest, PipelineEvent(pipeline=pipeline)


def record_ask(workspace: Workspace, ask: RequestRecord, seen: PipelineEvent) -> None:
    """Of two who saw the same, one asks.

    Raises:
        RefConflict: another ask came first, or a retrain finished; look again.
    """

    def with_request(before: PipelineEvent) -> PipelineEvent:
        # Other events, such as a hold, take nothing from the ask; it is written after them.
        if any(getattr(before, name) != getattr(seen, name) for name in ("requested", "snapshot", "taken_unix_s")):
            raise RefConflict(
                "another ask came first, or a retrain finished.", where=ask.pipeline, advice="Look again."
            )
        ever = tuple(dict.fromkeys((*before.ever_requested, *ask.triggers)))
        return before.model_copy(update={"event": "asked", "requested": ask, "ever_requested": ever})

    append(workspace, ask.pipeline, with_request, why=ask.why)


def record_failure(workspace: Workspace, failed: FailedRetrain) -> None:
    """It stands until a retrain that began later has finished."""
    append(workspace, failed.pipeline, lambda before: before.model_copy(update={"event": "failed", "failed": failed}))
