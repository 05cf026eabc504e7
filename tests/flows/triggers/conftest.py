"""A tiny table whose drift the contract measures, and a pipeline that is watched; no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data_contracts.store.publication import Workspace
from headway.flows.triggers.evaluation import TriggerEvaluation, evaluate_triggers, open_watched
from headway.tasks.core.brief_context import brief_context
from headway.tasks.ownership.current_run import finish
from headway.tasks.ownership.pipeline_history import PipelineEvent, RequestRecord, read, record_ask
from headway.tasks.stages.snapshot import snapshot
from headway.tasks.stages.validate import validate

PIPELINE = """\
pipeline: tiny
source: {format: csv, uri: data, include: ["*.csv"]}
contract: contract.yaml
shards: {encoder: {kind: tabular, numeric: [x], label: y}}
training: {recipe: {name: tabular-classifier}}
registry: {model: tiny}
"""
CONTRACT = """\
name: tiny
version: 1.0.0
columns:
  x: {type: double}
  y: {type: int64}
drift: [{id: steady, columns: [x], max_psi: 9, num_bins: 4, severity: warning}]
"""


class Pipeline:
    """Its files and workspace, and what a retrain would write down."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workspace = folder, Workspace.create(str(folder / "workspace"))

    def write(self, name: str, num_rows: int, *, x: float = 0.0) -> None:
        """A file of so many rows, whose x run from `x` on."""
        rows = (f"{x + number / 100},{number % 2}\n" for number in range(num_rows))
        (self.folder / "data").mkdir(exist_ok=True)
        (self.folder / "data" / f"{name}.csv").write_text("x,y\n" + "".join(rows))

    def say(self, triggers: str) -> None:
        (self.folder / "tiny.yaml").write_text(f"{PIPELINE}triggers: {triggers}\n")

    def evaluate_triggers(self, newest_event=None) -> TriggerEvaluation:
        return evaluate_triggers(open_watched("tiny.yaml", self.workspace.uri), newest_event)

    def retrain(self, *, started_unix_s: float = 1e9) -> None:
        """The part of a retrain that triggers know: it passes the gate, and is written down."""
        watched = open_watched("tiny.yaml", self.workspace.uri)
        with brief_context("tiny", self.workspace, watched.path.parent) as context:
            taken = snapshot.fn(context, watched.spec.contract, watched.spec.source)
            validate.fn(context, watched.spec.contract, watched.spec.source, taken)
            object.__setattr__(context, "started_unix_s", started_unix_s)
            finish(context, started_unix_s, taken)

    def status(self) -> PipelineEvent:
        return read(self.workspace, "tiny")

    def ask(self, found: TriggerEvaluation) -> RequestRecord:
        record_ask(self.workspace, found.decision.ask, found.history)
        return found.decision.ask


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """Two files of 100 rows."""
    made = Pipeline(tmp_path)
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    made.write("a", 100)
    made.write("b", 100)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PROJECT", raising=False)
    return made
