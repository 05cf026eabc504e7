"""What a stage would do if a retrain came now: each answers for itself, by the key that it would look up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field

from headway.data_contracts.store import stages
from headway.data_contracts.store.documents import Frozen, Link
from headway.data_contracts.store.errors import IntegrityError
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage_records import newest_record_of


class Outlook(Frozen):
    stage: str
    state: Literal["found", "resume", "run"]
    detail: str
    """For a person: what it found, or why it runs and what that undoes."""
    expected_s: float | None
    """From the last time this pipeline ran the stage here, training by the step; None when it never did."""
    from_step: int | None = None
    """Of training that resumes: the step of its newest checkpoint."""
    document: Link | None = Field(default=None, exclude=True)
    """What it made, or is sure to make; None while nobody can know."""

    def saying(self, *before: str) -> Self:
        """The same, with something to be said before the rest."""
        return self.model_copy(update={"detail": "; ".join(filter(None, (*before, self.detail)))})


def look_up(context: RunContext, stage: str, inputs: Mapping[str, Any]) -> Outlook:
    """Found under the key of all its inputs, with every file proved intact; else that it would run."""
    try:
        record = stages.find(context.workspace, stage, stages.stage_key(stage, inputs), context.digests)
    except IntegrityError as error:
        return would_run(context, stage).saying(damaged(str(error)))
    if record is None:
        return would_run(context, stage)
    return found(stage, record.document, record.document.sha256[:12])


def found(stage: str, document: Link, detail: str) -> Outlook:
    return Outlook(stage=stage, state="found", detail=detail, expected_s=0.0, document=document)


def would_run(context: RunContext, stage: str) -> Outlook:
    record = newest_record_of(context.workspace, context.pipeline, stage)
    took_s = None if record is None else float(record.provenance["duration_s"])
    return Outlook(stage=stage, state="run", detail="", expected_s=took_s)


def damaged(what: str) -> str:
    return f"what it made is damaged: {what}"
