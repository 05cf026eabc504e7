"""What a flow and a detached run say to each other, and where: small JSON files in the run's folder.

<run_dir>/detached/
    owner.lock                 held by the flow that watches
    order.json                 what the job is to run, frozen before it is queued
    job.json                   the job, for a later flow to find
    lease.json                 renewed by the flow that watches
    start.json                 which start of the job is the newest
    outcome.json               how the order ended, or that a flow has acknowledged it
    job-<id>.log               what the job's own process wrote
    job-<id>-<restarts>.jsonl  the supervisor's ledger
    pods/                      where the pods of a job can be reached; see `pods`
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.errors import ConfigError, HeadwayError, RunStopped
from headway.training.launch.base.failure import NO_FAILURE, EndState, Failure
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.protocol import DETACHED, read_json, write_json
from headway.training.launch.base.stop_request import StopRequest

_ACKNOWLEDGED = "is_acknowledged"


class DetachedFiles:
    """Names of a detached run's files."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / DETACHED
        self.order = self.folder / "order.json"
        self.job = self.folder / "job.json"
        self.start = self.folder / "start.json"
        self.lease = self.folder / "lease.json"
        self.outcome = self.folder / "outcome.json"
        self.pods = self.folder / "pods"

    def log(self, job: str) -> Path:
        return self.folder / f"job-{job}.log"

    def spool(self, job: str, restarts: int) -> Path:
        return self.folder / f"job-{job}-{restarts}.jsonl"

    def spools(self, job: str) -> list[Path]:
        """Of all its starts, in their order."""
        return sorted(self.folder.glob(f"job-{job}-*.jsonl"), key=lambda path: int(path.stem.rpartition("-")[2]))


class JobRequest(Frozen):
    """What a job is to run. It holds no secret: what ranks need comes by the job's own environment."""

    order: str
    """Drawn for every submission, so that no outcome is taken for another's."""
    spec: LaunchSpec
    gang: dict[str, Any]
    budget_scope: str
    without: tuple[str, ...] = ()
    """Machines that the job is to do without if others will do, for a rank on them was slow."""

    @classmethod
    def of(cls, order: str, spec: LaunchSpec, gang: Gang, budget_scope: str, without: Collection[str] = ()) -> Self:
        return cls(
            order=order, spec=spec, gang=_as_json(gang), budget_scope=budget_scope, without=tuple(sorted(without))
        )

    def to_gang(self) -> Gang:
        # JSON has neither tuples, sets nor paths.
        fields = self.gang | {name: tuple(self.gang[name]) for name in ("arguments", "import_path")}
        possible = fields["possible_nodes"]
        stored = {
            "run_dir": Path(fields["run_dir"]),
            "stop": StopRequest(**fields["stop"]),
            "possible_nodes": None if possible is None else frozenset(possible),
        }
        return Gang(**fields | stored)

    def save(self, files: DetachedFiles) -> None:
        write_json(files.order, self.model_dump())

    @classmethod
    def load(cls, files: DetachedFiles) -> Self:
        """Raises `ConfigError`: there is none that this version of Headway reads."""
        try:
            return cls.model_validate(read_json(files.order) or {})
        except ValidationError as error:
            raise ConfigError(
                "no order that this version of Headway reads.",
                where=str(files.order),
                advice="The job was queued by another version: cancel it, and retrain.",
            ) from error


def _as_json(gang: Gang) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(json.dumps(asdict(gang), default=_plain))
    return value


def _plain(value: object) -> str | list[Any]:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{value!r} has no place in an order")


class JobOutcome(Frozen):
    """How an order ended, in the supervisor's words."""

    order: str
    state: EndState | Literal["preempted"]
    """`preempted`: another job is to resume from the checkpoint that it kept. It was asked to make room, and could not
    be queued again by itself; or it continues without a slow machine."""
    job: str = ""
    failure: Failure = NO_FAILURE
    """What its supervisor raised."""

    @classmethod
    def of_error(cls, order: str, job: str, error: BaseException, place: str) -> Self:
        state: EndState = "stopped" if isinstance(error, RunStopped) else "failed"
        return cls(order=order, state=state, job=job, failure=Failure.of(error, place))

    def save(self, files: DetachedFiles) -> None:
        write_json(files.outcome, self.model_dump())

    @classmethod
    def load(cls, files: DetachedFiles, order: str) -> Self | None:
        """None while there is none, or another order's, or one that was acknowledged."""
        value = read_json(files.outcome)
        # An outcome of an earlier order may lie there still; its order's name tells them apart.
        is_news = value is not None and value.get("order") == order and not value.get(_ACKNOWLEDGED)
        return cls.model_validate(value) if is_news else None

    def acknowledge(self, files: DetachedFiles) -> None:
        """A later flow has nothing to do with it."""
        write_json(files.outcome, {"order": self.order, _ACKNOWLEDGED: True})

    @staticmethod
    def is_acknowledged(files: DetachedFiles, order: str) -> bool:
        value = read_json(files.outcome)
        return value is not None and value.get("order") == order and bool(value.get(_ACKNOWLEDGED))

    def to_error(self, where: str) -> HeadwayError:
        """What the supervisor raised; a defect of its own is reported as one."""
        return self.failure.to_error() or HeadwayError(
            f"the supervisor in the job failed: {self.failure.what or 'without a word'}", where=where
        )


class JobHandle(Frozen):
    """Enough to find a job again after the flow that queued it is gone."""

    launcher: str
    job: str
    key: str
    """By which the engine knows the run's job; the same for whoever submits it."""
    order: str
    log: str
    """The file in which the job's own process writes."""

    def save(self, files: DetachedFiles) -> None:
        write_json(files.job, self.model_dump())

    @classmethod
    def load(cls, files: DetachedFiles) -> Self | None:
        value: Mapping[str, Any] | None = read_json(files.job)
        try:
            return None if value is None else cls.model_validate(value)
        except ValidationError:
            return None
