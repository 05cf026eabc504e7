"""A pipeline file as a command asks for it: found, read and checked once, however many parts of the command need it."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.places import real
from headway.data_contracts.suites.contract_file import using_contract_files
from headway.data_contracts.types.strict_yaml import parse_yaml, read_text
from headway.flows.config.pipeline_spec import PipelineSpec, find_pipeline_file, load_pipeline
from headway.flows.console.environment import project_folder
from headway.flows.console.output import print_line
from headway.flows.console.pipeline_names import OF_A_PIPELINE, pipeline_files


class PipelineFile(NamedTuple):
    asked: str
    """The path or the name that it was asked for by."""
    path: Path
    spec: PipelineSpec


MOST_BESIDE = 200
"""Files that are looked at beside a pipeline file: a folder may hold others by the thousand."""
_looked_beside: set[Path] = set()
_in_use: ContextVar[PipelineFile | None] = ContextVar("_in_use", default=None)


def pipeline_file(name: str) -> PipelineFile:
    """The one in use if it is this, else read now.

    Raises:
        ConfigError: no such file, or it cannot be used.
    """
    if (in_use := _in_use.get()) is not None and in_use.asked == name:
        return in_use
    path = find_pipeline_file(name, project_folder())
    spec = load_pipeline(path)
    if path not in _looked_beside:
        _looked_beside.add(path)
        # Not refused: a run that goes on has to be resumed and stopped, whatever else was put beside its file.
        if others := same_named(path, spec.pipeline, project_folder()):
            problem = shared_name(path, spec.pipeline, others)
            print_line(f"headway: {problem.where}: {problem.what} {problem.advice}", sys.stderr)
    return PipelineFile(name, path, spec)


def named_pipeline(file: Path) -> str | None:
    """The `pipeline:` of a file, whatever else is wrong with it; None where it has none."""
    try:
        text = read_text(file)
        content = parse_yaml(text, str(file)) if "pipeline:" in text else None
    except (OSError, ValueError, ConfigError):
        return None
    name = content.get("pipeline") if isinstance(content, dict) else None
    return name if isinstance(name, str) else None


def same_named(path: Path, pipeline: str, project: Path) -> list[Path]:
    """Other files beside a pipeline file, or of its project, that say the same under `pipeline:`."""
    beside = itertools.islice(path.parent.glob("*.yaml"), MOST_BESIDE)
    found = {real(each) for each in (*beside, *project.glob(f"*{OF_A_PIPELINE}"), *pipeline_files(project))}
    return sorted(each for each in found - {real(path)} if named_pipeline(each) == pipeline)


def shared_name(path: Path, pipeline: str, others: Sequence[Path]) -> ConfigError:
    """What is wrong with a file whose pipeline is called as that of others."""
    named = ", ".join(str(other) if other.parent != path.parent else other.name for other in others)
    return ConfigError(
        f"the pipeline is called {pipeline}, as that of {named} is: in one workspace they carry on each other's runs.",
        where=str(path),
        advice="Give each file a name of its own under `pipeline:`.",
    )


@contextlib.contextmanager
def using_pipeline_file(name: str) -> Iterator[None]:
    """In the body it stays as it is now, and so do contracts: what was checked is what the flow runs."""
    token = _in_use.set(pipeline_file(name))
    try:
        with using_contract_files():
            yield
    finally:
        _in_use.reset(token)
