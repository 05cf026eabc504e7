"""A pipeline file as a command asks for it: found, read and checked once, however many parts of the command need it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from headway.data_contracts.suites.contract_file import using_contract_files
from headway.flows.config.pipeline_spec import PipelineSpec, find_pipeline_file, load_pipeline
from headway.flows.console.environment import project_folder


class PipelineFile(NamedTuple):
    asked: str
    """The path or the name that it was asked for by."""
    path: Path
    spec: PipelineSpec


_in_use: ContextVar[PipelineFile | None] = ContextVar("_in_use", default=None)


def pipeline_file(name: str) -> PipelineFile:
    """The one in use if it is this, else read now.

    Raises:
        ConfigError: no such file, or it cannot be used.
    """
    if (in_use := _in_use.get()) is not None and in_use.asked == name:
        return in_use
    path = find_pipeline_file(name, project_folder())
    return PipelineFile(name, path, load_pipeline(path))


@contextlib.contextmanager
def using_pipeline_file(name: str) -> Iterator[None]:
    """In the body it stays as it is now, and so do contracts: what was checked is what the flow runs."""
    token = _in_use.set(pipeline_file(name))
    try:
        with using_contract_files():
            yield
    finally:
        _in_use.reset(token)
