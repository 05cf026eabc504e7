"""Traces of steps, by configuration or on request; without either, nothing of the profiler is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.training.config.training_spec import ProfileSpec
from headway.training.engine.profiling import StepProfiler, request_profile
from headway.training.launch.node.rank_process import RankProcess
from headway.training.programs.session import train_run


@pytest.fixture
def train(project, tmp_path: Path):
    def run_here(training) -> Path:
        attempt = tmp_path / "attempts" / f"{len(list(tmp_path.glob('attempts/*'))):03d}"
        attempt.mkdir(parents=True)
        train_run(RankProcess(attempt), project.workspace, project.publish_run(training).link, tmp_path)
        return attempt

    return run_here


def optimizer_steps(trace: Path) -> int:
    """Steps in a trace: the loss's mean is gathered once in each."""
    events = json.loads(trace.read_bytes())["traceEvents"]
    return sum(str(event.get("name")).startswith("autograd::engine::evaluate_function: NllLoss") for event in events)


def test_a_window_of_steps_is_traced_by_every_rank(project, tiny_training, train, tmp_path):
    attempt = train(tiny_training.model_copy(update={"profile": ProfileSpec(first_step=3, num_steps=2)}))

    (trace,) = attempt.glob("profile-*")
    assert trace.name == "profile-config-rank-0.json"
    assert optimizer_steps(trace) == 2 * tiny_training.num_replicas
    (told,) = (event for event in project.events(tmp_path) if event["event"] == "profile")
    assert told["last_step"] == 4


def test_a_trace_that_is_open_when_training_ends_holds_the_steps_so_far(project, tiny_training, train, tmp_path):
    attempt = train(tiny_training.model_copy(update={"profile": ProfileSpec(first_step=5, num_steps=50)}))

    assert tiny_training.max_steps == 6
    (trace,) = attempt.glob("profile-*")
    assert trace.name == "profile-config-rank-0.json"
    assert optimizer_steps(trace) == 2 * tiny_training.num_replicas
    (told,) = (event for event in project.events(tmp_path) if event["event"] == "profile")
    assert told["last_step"] == 6


def test_a_request_in_the_runs_folder_is_served_once(tiny_training, train, tmp_path):
    pattern = request_profile(tmp_path, num_steps=1)
    first = train(tiny_training)
    (tmp_path / "result.json").unlink()
    (trace,) = first.glob("profile-*")
    assert list(tmp_path.glob(pattern)) == [trace], "where it was said to lie"
    assert optimizer_steps(trace) == tiny_training.num_replicas

    again = train(tiny_training.model_copy(update={"max_steps": 6}))
    assert not list(again.glob("profile-*"))


def test_a_torn_or_foreign_request_is_no_request(tmp_path):
    rank = RankProcess(tmp_path / "attempt")
    for text in ("{", "[1]", '"x"'):
        (tmp_path / "profile-request.json").write_text(text)
        StepProfiler(rank, tmp_path, None).at_boundary(0)
    assert not list(tmp_path.glob("**/profile-*-rank-*"))
