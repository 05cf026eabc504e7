"""Whether a retrain of a pipeline is due, and by what: `Due` or `NotDue`, the same for the command and the watch.

Data are measured against the newest ask that no retrain has finished since, and else against the retrain that finished
last. So an ask stands until a retrain finishes, and the same data are asked for once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.documents import ContractReceipt, Link, Snapshot
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.leftovers import at_work_in
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.suites.contract_file import read_contract_file
from headway.flows.config.pipeline_file import pipeline_file
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.triggers import DriftLimit, TriggersSpec
from headway.flows.triggers.metrics import TriggerMetric, because, drift, new_data
from headway.tasks.core.brief_context import brief_context
from headway.tasks.core.context import RunContext
from headway.tasks.core.identity import current_user
from headway.tasks.ownership.pipeline_history import PipelineEvent, RequestRecord, read
from headway.tasks.stages.snapshot import snapshot
from headway.tasks.stages.validate import receipt_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened, as Prefect's server has it."""

    id: str
    occurred: str
    """ISO 8601."""


NewestEvent = Callable[[str, float], Event | None]
"""The newest event of a name since a moment, in Unix seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """A retrain is due."""

    ask: RequestRecord
    """What is to be asked for; on record already where `is_recorded`."""
    is_recorded: bool

    @property
    def why(self) -> str:
        return self.ask.why


@dataclass(frozen=True, kw_only=True, slots=True)
class NotDue:
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TriggerEvaluation:
    """What a look came to."""

    pipeline: str
    decision: Due | NotDue
    figures: tuple[TriggerMetric, ...]
    history: PipelineEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedPipeline:
    """A pipeline that has triggers."""

    path: Path
    spec: PipelineSpec
    triggers: TriggersSpec
    workspace: Workspace


def open_watched(pipeline: str, workspace: str) -> WatchedPipeline:
    """Raises `ConfigError`: the file, it has no triggers, or its contract has no rule that its drift trigger needs."""
    _, path, spec = pipeline_file(pipeline)
    if spec.triggers is None:
        raise ConfigError(
            "the pipeline has no triggers.",
            where=str(path),
            advice="Give it a `triggers:` branch with new_data, drift or event; without one its windows and you start "
            "it.",
        )
    require_measured(path, spec)
    return WatchedPipeline(path=path, spec=spec, triggers=spec.triggers, workspace=Workspace.create(workspace))


def require_measured(path: Path, spec: PipelineSpec) -> None:
    """Raises `ConfigError`: the pipeline's drift trigger needs a rule that its contract has not."""
    if spec.triggers is None or spec.triggers.drift is None:
        return
    if not read_contract_file(path.parent / spec.contract).contract.drift:
        raise ConfigError(
            "the contract has no drift rule, so that nothing measures drift.",
            where=f"{path}: triggers.drift",
            advice="Give the contract a `drift:` rule; its severity may be info.",
        )


def evaluate_triggers(watched: WatchedPipeline, newest_event: NewestEvent | None) -> TriggerEvaluation:
    """Look at the data, and at what was asked for.

    A snapshot, and a receipt where drift is asked for, are found or made as a retrain would, which finds them then.

    Args:
        newest_event: asks a Prefect server; None: there is none to ask.

    Raises:
        DataError: the source.
        IntegrityError: the record of what was asked for is damaged.
    """
    workspace, pipeline = watched.workspace, watched.spec.pipeline
    with (
        # A look makes documents too, which a cleaner at work meanwhile must leave alone.
        at_work_in(workspace.local_root, workspace.local_path("sessions")),
        brief_context(pipeline, workspace, watched.path.parent) as context,
    ):
        # The plain function: as a task of Prefect's it would need a server.
        taken = snapshot.fn(context, watched.spec.contract, watched.spec.source)
        history = read(workspace, pipeline)
        figures = tuple(_figures(context, watched, taken, history, newest_event))
    decision = _decide(pipeline, taken, figures, history)
    return TriggerEvaluation(pipeline=pipeline, decision=decision, figures=figures, history=history)


def _figures(
    context: RunContext, watched: WatchedPipeline, taken: Link, history: PipelineEvent, newest_event: NewestEvent | None
) -> Iterator[TriggerMetric]:
    triggers, load = watched.triggers, context.workspace.load
    reference = history.snapshot if history.requested is None else history.requested.snapshot
    if triggers.new_data is not None:
        before = None if reference is None else load(reference, Snapshot)
        yield from new_data(triggers.new_data, load(taken, Snapshot), before)
    if triggers.drift is not None:
        yield from _drift(context, watched.spec, triggers.drift, taken, history)
    if triggers.event:
        yield _event(triggers.event, history, newest_event)


def _drift(
    context: RunContext, spec: PipelineSpec, limit: DriftLimit, taken: Link, history: PipelineEvent
) -> Iterator[TriggerMetric]:
    if taken == history.snapshot:
        message = "the data are those of the last retrain"
        yield TriggerMetric(trigger="drift", what="drift", value=None, limit=None, is_over=False, detail=message)
        return
    receipt = receipt_of(context, spec.contract, spec.source, taken, spec.shards)
    for figure in drift(limit, context.workspace.load(receipt, ContractReceipt)):
        if figure.is_over and "drift" in history.ever_requested:
            # Data that trickle in would else be asked for at every look.
            yield figure.model_copy(update={"is_over": False, "detail": f"{figure.detail}; asked for already"})
        else:
            yield figure


def _event(name: str, history: PipelineEvent, newest_event: NewestEvent | None) -> TriggerMetric:
    def figure(detail: str, new: str = "") -> TriggerMetric:
        return TriggerMetric(
            trigger="event", what=name, value=None, limit=None, is_over=bool(new), detail=detail, event=new
        )

    if newest_event is None:
        return figure("not known: no Prefect server is named")
    found = newest_event(name, history.taken_unix_s)
    if found is None:
        return figure("none since the last retrain began")
    if history.requested is not None and history.requested.event == found.id:
        return figure(f"at {found.occurred}; asked for already")
    return figure(f"at {found.occurred}", new=found.id)


def _decide(pipeline: str, taken: Link, figures: Sequence[TriggerMetric], history: PipelineEvent) -> Due | NotDue:
    requested = history.requested
    if over := [figure for figure in figures if figure.is_over]:
        ask = RequestRecord(
            pipeline=pipeline,
            snapshot=taken,
            request_unix_s=time.time(),
            why=because(over),
            by=current_user(),
            triggers=tuple(dict.fromkeys(figure.trigger for figure in over)),
            event=next((figure.event for figure in over if figure.event), "" if requested is None else requested.event),
        )
        return Due(ask=ask, is_recorded=False)
    if requested is not None:
        return Due(ask=requested, is_recorded=True)
    return NotDue(why="nothing is over its limit")
