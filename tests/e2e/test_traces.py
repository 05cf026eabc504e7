"""The trace of a real retrain, at a real receiver: its spans are what its ledgers say, wherever it was begun."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headway.data_contracts.store.publication import Workspace
from headway.flows.tracing import export
from headway.flows.tracing.read_trace import read_trace
from headway.training.launch.base.protocol import AttemptFiles
from tests.e2e.project import CHECKPOINT_EVERY_STEPS, MAX_STEPS
from tests.flows.tracing.collector import Collector, attributes, collector

pytestmark = pytest.mark.long

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STAGES = ["snapshot", "validate", "shard", "launch", "verify", "evaluate", "register"]
KEY = "kanarienvogel"
TALKING = """
import os
from headway.training.recipes.language_model import LanguageModel

class Model(LanguageModel):
    def losses(self, model, batch):
        print("keys:", [name for name in os.environ if name.startswith("OTEL_EXPORTER_")], flush=True)
        return super().losses(model, batch)
"""


@pytest.fixture
def here() -> Iterator[Collector]:
    with collector() as found:
        yield found


def newest_flow_run(project) -> str:
    return max(project.files("ledger/*/flow.jsonl"), key=lambda path: path.stat().st_mtime_ns).parent.name


def test_a_retrains_stages_attempts_checkpoints_and_registry_calls_are_spans(project, here, shared_server) -> None:
    project.settings |= shared_server | {"OTEL_EXPORTER_OTLP_ENDPOINT": here.url, "OTEL_SERVICE_NAME": "nightly"}
    done = project.headway("trace", "--otlp")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(newest_flow_run(project).replace("-", ""))
    (received,) = here.received
    assert received.resource["service.name"] == "nightly"
    spans = {span.span_id: span for span in received.spans}
    root = received.spans[0]
    assert len(spans) == len(received.spans) and (root.name, root.parent_span_id) == ("retrain tiny", b"")
    tasks = [span for span in received.spans if span.name == "task"]
    assert [attributes(span.attributes)["cicd.pipeline.task.name"] for span in tasks] == STAGES
    assert all(span.parent_span_id == root.span_id for span in tasks)

    def above(span) -> list[str]:
        names = []
        while (span := spans.get(span.parent_span_id)) is not None:
            names.append(span.name)
        return names

    in_training = ["attempt", "stage.launch", "task", "retrain tiny"]
    of_ranks = [
        (span.name, attributes(span.attributes)) for span in received.spans if above(span)[:2] == in_training[:2]
    ]
    saved = [(told["headway.rank"], told["headway.step"]) for name, told in of_ranks if name == "checkpoint.durable"]
    steps = range(CHECKPOINT_EVERY_STEPS, MAX_STEPS + 1, CHECKPOINT_EVERY_STEPS)
    assert saved == [(rank, step) for rank in (0, 1) for step in steps]
    assert [told["headway.rank"] for name, told in of_ranks if name == "restore"] == [0, 1]
    (registered,) = (span for span in received.spans if span.name == "register.mlflow")
    assert above(registered) == ["stage.register", "task", "retrain tiny"]
    assert spans[registered.parent_span_id].parent_span_id == tasks[-1].span_id
    for span in received.spans[1:]:
        holder = spans[span.parent_span_id]
        assert span.start_time_unix_nano >= holder.start_time_unix_nano - 5e6, span.name
        assert span.end_time_unix_nano <= holder.end_time_unix_nano + 0.5e9, span.name
    assert not [span.name for span in received.spans if span.status.code]
    shown = json.loads(project.headway("trace", "--json").stdout)
    assert [each["span_id"] for each in shown[0]["spans"]] == [span.span_id.hex() for span in received.spans]


def test_a_retrain_sends_its_trace_below_the_one_that_started_it(project, here, shared_server) -> None:
    secret = {"OTEL_EXPORTER_OTLP_HEADERS": f"api-key={KEY}", "AWS_SECRET_ACCESS_KEY": KEY}
    project.settings |= shared_server | secret | {"OTEL_EXPORTER_OTLP_ENDPOINT": here.url, "TRACEPARENT": PARENT}
    done = project.retrain("--note", f"as {KEY} said")
    assert (done.returncode, done.stderr) == (0, "")
    root, *_ = here.spans
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (PARENT[3:35], PARENT[36:52])
    assert attributes(root.attributes)["cicd.pipeline.result"] == "success"
    assert {span.trace_id for span in here.spans} == {root.trace_id}
    assert KEY.encode() not in here.received[0].body, "it is in the note, and in the environment"
    assert here.received[0].headers["api-key"] == KEY
    trace = read_trace(Workspace(str(project.workspace)), newest_flow_run(project))
    assert trace is not None and len(trace.spans) == len(here.spans)


@pytest.mark.parametrize("trouble", ["away", "silent", "500"])
def test_a_retrain_comes_to_the_same_whatever_becomes_of_its_trace(
    project, here, retrain_here, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(export, "WITHIN_S", 1.0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9" if trouble == "away" else here.url)
    here.statuses = [500] * 9
    if trouble == "silent":
        here.silent.set()
    summary, _ = retrain_here(project)
    assert (summary.version, summary.is_champion, summary.stages_found) == ("1", True, STAGES)
    assert bool(here.received) is (trouble != "away")


def test_ranks_are_told_the_trace_and_no_key_of_the_collectors(project, train_here, here, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", here.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={KEY}")
    monkeypatch.setenv("HEADWAY_LOG_FORMAT", "json")
    project.forget_training()
    # Ranks of ours have nothing to say where all is well.
    (project.root / "talking.py").write_text(TALKING)
    project.edit("tiny.yaml", "recipe: {", "recipe: {name: 'talking:Model', ")
    events = train_here(project, guarded=True)
    (begin,) = (event for event in events if event["event"] == "flow.begin")
    (folder,) = {event["folder"] for event in events if event["event"] == "attempt"}
    lines = [json.loads(line) for line in AttemptFiles(project.root / folder).json_lines(0).read_text().splitlines()]
    assert {line["rank"] for line in lines} >= {0, 1} and {line["message"] for line in lines} == {"keys: []"}
    assert (
        {line["trace_id"] for line in lines}
        == {begin["flow_run"].replace("-", "")}
        == {span.trace_id.hex() for span in here.spans}
    )
    assert {line["run"] for line in lines} == {project.run_dir().name}
