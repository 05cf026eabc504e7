"""Whether a retrain of a pipeline is due, and by what: `Due` or `NotDue`, the same for the command and the watch.

Data are measured against the newest ask that no retrain has finished since, and else against the retrain that finished
last. So an ask stands until a retrain finishes, and the same data are asked for once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_contracts.documents import ContractReceipt, Link, Snapshot
from data_contracts.errors import ConfigError
from data_contracts.leftovers import at_work_in
from data_contracts.publication import Workspace
from flows.brief_context import brief_context
from flows.environment import project_folder
from flows.pipeline_spec import PipelineSpec, find_pipeline_file, load_pipeline
from flows.triggers.measure import Figure, because, drift, new_data
from flows.triggers.records import RetrainRecord, Standing, read_standing
from flows.triggers.spec import DriftLimit, TriggersSpec
from tasks.context import RunContext
from tasks.snapshot import snapshot
from tasks.validate import read_contract, receipt_of


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

    why: str
    ask: RetrainRecord
    """What is to be asked for; on record already where `is_recorded`."""
    is_recorded: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class NotDue:
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What a look came to."""

    pipeline: str
    decision: Due | NotDue
    figures: tuple[Figure, ...]
    standing: Standing


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A pipeline that has triggers."""

    path: Path
    spec: PipelineSpec
    triggers: TriggersSpec
    workspace: Workspace


def open_watched(pipeline: str, workspace: str) -> Watched:
    """Raises `ConfigError`: the file, it has no triggers, or its contract has no rule that its drift trigger needs."""
    path = find_pipeline_file(pipeline, project_folder())
    spec = load_pipeline(path)
    if spec.triggers is None:
        raise ConfigError(
            "the pipeline has no triggers.",
            where=str(path),
            advice="Give it a `triggers:` branch with new_data, drift or event; without one its windows and you start "
            "it.",
        )
    require_measured(path, spec)
    return Watched(path=path, spec=spec, triggers=spec.triggers, workspace=Workspace.create(workspace))


def require_measured(path: Path, spec: PipelineSpec) -> None:
    """Raises `ConfigError`: the pipeline's drift trigger needs a rule that its contract has not."""
    if spec.triggers is None or spec.triggers.drift is None:
        return
    contract, _ = read_contract(path.parent / spec.contract)
    if not contract.drift:
        raise ConfigError(
            "the contract has no drift rule, so that nothing measures drift.",
            where=f"{path}: triggers.drift",
            advice="Give the contract a `drift:` rule; its severity may be info.",
        )


def look(watched: Watched, newest_event: NewestEvent | None) -> Findings:
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
        at_work_in(workspace.local_root, workspace.local_path("sessions")),
        brief_context(pipeline, workspace, watched.path.parent) as context,
    ):
        taken = snapshot.fn(context, watched.spec.contract, watched.spec.source)
        standing = read_standing(workspace, pipeline)
        figures = tuple(_figures(context, watched, taken, standing, newest_event))
    decision = _decide(pipeline, taken, figures, standing)
    return Findings(pipeline=pipeline, decision=decision, figures=figures, standing=standing)


def _figures(
    context: RunContext, watched: Watched, taken: Link, standing: Standing, newest_event: NewestEvent | None
) -> Iterator[Figure]:
    triggers, load = watched.triggers, context.workspace.load
    reference = standing.asked or standing.finished
    if triggers.new_data is not None:
        before = None if reference is None else load(reference.snapshot, Snapshot)
        yield from new_data(triggers.new_data, load(taken, Snapshot), before)
    if triggers.drift is not None:
        yield from _drift(context, watched.spec, triggers.drift, taken, standing)
    if triggers.event:
        yield _event(triggers.event, standing, newest_event)


def _drift(
    context: RunContext, spec: PipelineSpec, limit: DriftLimit, taken: Link, standing: Standing
) -> Iterator[Figure]:
    if standing.finished is not None and taken == standing.finished.snapshot:
        said = "the data are those of the last retrain"
        yield Figure(trigger="drift", what="drift", value=None, limit=None, is_over=False, detail=said)
        return
    receipt = receipt_of(context, spec.contract, spec.source, taken, spec.shards)
    for figure in drift(limit, context.workspace.load(receipt, ContractReceipt)):
        if figure.is_over and "drift" in standing.ever_asked:
            # Data that trickle in would else be asked for at every look.
            yield figure.model_copy(update={"is_over": False, "detail": f"{figure.detail}; asked for already"})
        else:
            yield figure


def _event(name: str, standing: Standing, newest_event: NewestEvent | None) -> Figure:
    def figure(detail: str, new: str = "") -> Figure:
        return Figure(trigger="event", what=name, value=None, limit=None, is_over=bool(new), detail=detail, event=new)

    if newest_event is None:
        return figure("not known: no Prefect server is named")
    found = newest_event(name, 0.0 if standing.finished is None else standing.finished.unix_s)
    if found is None:
        return figure("none since the last retrain began")
    if standing.asked is not None and standing.asked.event == found.id:
        return figure(f"at {found.occurred}; asked for already")
    return figure(f"at {found.occurred}", new=found.id)


def _decide(pipeline: str, taken: Link, figures: Sequence[Figure], standing: Standing) -> Due | NotDue:
    asked, entry = standing.asked, standing.asked_entry
    if over := [figure for figure in figures if figure.is_over]:
        ask = RetrainRecord(
            pipeline=pipeline,
            action="asked",
            snapshot=taken,
            unix_s=time.time(),
            triggers=tuple(dict.fromkeys(figure.trigger for figure in over)),
            event=next((figure.event for figure in over if figure.event), "" if asked is None else asked.event),
        )
        return Due(why=because(over), ask=ask, is_recorded=False)
    if asked is not None and entry is not None:
        return Due(why=entry.reason, ask=asked, is_recorded=True)
    return NotDue(why="nothing is over its limit")
