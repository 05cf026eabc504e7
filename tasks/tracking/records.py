"""What is written of a run, named as MLflow's entities are, whose fields these have: `mlflow.entities` takes seconds to
import."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    """Unix time in milliseconds."""
    step: int


class Param(NamedTuple):
    key: str
    value: str


class RunTag(NamedTuple):
    key: str
    value: str


class InputTag(NamedTuple):
    key: str
    value: str


class LoggedDataset(NamedTuple):
    name: str
    digest: str
    source_type: str
    source: str


Dataset = LoggedDataset
"""By MLflow's name of it."""


class DatasetInput(NamedTuple):
    dataset: LoggedDataset
    tags: list[InputTag]


class RunInfo(NamedTuple):
    run_id: str
    run_name: str
    experiment_id: str
    status: str
    start_time: int
    """Unix time in milliseconds."""
    artifact_uri: str


class RunData(NamedTuple):
    tags: dict[str, str]


class Run(NamedTuple):
    info: RunInfo
    data: RunData


class Experiment(NamedTuple):
    experiment_id: str


class MadeVersion(NamedTuple):
    version: str
