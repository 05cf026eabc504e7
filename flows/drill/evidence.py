"""What a disturbed run left behind: read from its ledgers, records and result, as a person on call would."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from headway.data_contracts.store.places import entries
from headway.data_contracts.store.publication import Workspace
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
from headway.training.checkpoint.layout import RESULT_NAME
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles, attempt_numbers
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.observe.ledger import Event, event_end_unix_s, read_events


class MadeStep(NamedTuple):
    """Of rank 0."""

    attempt: int
    step: int
    end_unix_s: float
    loss: float


class RunEvidence:
    """Of one pipeline of the sandbox, as it is now."""

    def __init__(self, workspace: Workspace, pipeline: str) -> None:
        self._workspace, self._pipeline = workspace, pipeline

    @cached_property
    def events(self) -> list[Event]:
        """Of its flow runs, by time."""
        found: list[Event] = []
        for folder in entries(self._workspace.local_root / "ledger"):
            events = read_events(folder / "flow.jsonl")
            if events and events[0].get("pipeline") == self._pipeline:
                found += events
        return sorted(found, key=lambda event: float(event["unix_s"]))

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]

    @property
    def run_dir(self) -> Path | None:
        """Where it was trained; None: it came to no training."""
        folders = self.named("run.folder")
        return Path(str(folders[-1]["path"])) if folders else None

    @cached_property
    def records(self) -> list[AttemptRecord]:
        return [] if self.run_dir is None else AttemptRecords(self.run_dir).all()

    def files(self, attempt: int) -> AttemptFiles:
        assert self.run_dir is not None
        return AttemptFiles(attempt_folder(self.run_dir, attempt))

    def rank_events(self, attempt: int, rank: int = 0) -> list[Event]:
        return read_events(self.files(attempt).rank_spool(rank))

    @property
    def num_ranks_started(self) -> int:
        """Over all attempts."""
        folder = self.run_dir
        attempts = {} if folder is None else attempt_numbers(folder / "attempts")
        return sum(len(AttemptFiles(path).read_markers()) for path in attempts.values())

    @cached_property
    def steps(self) -> list[MadeStep]:
        """In order of time, those that were made again among them."""
        return [
            MadeStep(record.attempt, int(event["step"]), event_end_unix_s(event), float(event["loss"]))
            for record in self.records
            for event in self.rank_events(record.attempt)
            if event["event"] == "step"
        ]

    def reached(self, attempt: int) -> int:
        """The furthest step up to the end of an attempt; 0: none."""
        return max((step.step for step in self.steps if step.attempt <= attempt), default=0)

    def lost_steps(self, attempt: int) -> int:
        """Steps that were made again after an attempt."""
        reached = self.reached(attempt)
        return sum(step.attempt > attempt and step.step <= reached for step in self.steps)

    def first_new_step_unix_s(self, attempt: int) -> float | None:
        """When the first step was made that had not been before an attempt ended."""
        reached = self.reached(attempt)
        return next((step.end_unix_s for step in self.steps if step.attempt > attempt and step.step > reached), None)

    @property
    def tensors_sha256(self) -> str | None:
        """Of all final tensors; None: it did not come to its end."""
        if self.run_dir is None or not (path := self.run_dir / RESULT_NAME).is_file():
            return None
        return str(json.loads(path.read_bytes())["tensors_sha256"])

    @property
    def card(self) -> Mapping[str, Any]:
        """The newest failure card; empty: nothing failed for good."""
        cards = self.named("flow.card")
        return cards[-1] if cards else {}


class Metrics:
    """What the exporter says of the sandbox at one moment."""

    def __init__(self, workspace: Workspace) -> None:
        self._samples = [] if not workspace.local_root.exists() else list(_samples(workspace))
        self.unix_s = time.time()

    def total(self, name: str, labels: Mapping[str, str]) -> float:
        """The sum of all series of a family with these labels; 0 where there is none."""
        return sum(
            value for sample, found, value in self._samples if sample == name and labels.items() <= found.items()
        )

    def buckets(self, name: str, labels: Mapping[str, str]) -> dict[float, float]:
        """Of a histogram, how many lie below each bound."""
        return {
            float(found["le"]): value
            for sample, found, value in self._samples
            if sample == f"{name}_bucket" and labels.items() <= found.items()
        }


def _samples(workspace: Workspace) -> Iterator[tuple[str, Mapping[str, str], float]]:
    for family in WorkspaceMetrics(workspace).collect():
        for sample in family.samples:
            yield sample.name, sample.labels, float(sample.value)
