"""A bound on the cost: training stops with a checkpoint, is refused while all is spent, and continues once it may."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from headway.data_contracts.store.errors import CostBoundReached
from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.cost import costs
from headway.flows.accounts.flow_account import FlowAccount
from headway.flows.accounts.kept_accounts import all_accounts
from headway.flows.config.profiles import PricesSpec
from headway.flows.config.request import RetrainRequest
from headway.tasks.ownership.pipeline_history import read
from headway.training.observe.ledger import Event
from tests.e2e.in_prefect import failed_in_prefect
from tests.e2e.project import Project

USD_PER_S = 2.0
"""Of two ranks."""
PROFILES = """\
project: tiny
profiles:
  production:
    pool: {name: headway}
    prices: {device_hour_usd: {any: 3600}}
"""


@pytest.fixture
def bound(new_project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Project]]:
    """A project of which one run may cost so much."""
    project = new_project
    (project.root / "deployments").mkdir()
    (project.root / "deployments" / "profiles.yaml").write_text(PROFILES)
    monkeypatch.setenv("HEADWAY_PROJECT", str(project.root))
    project.edit("tiny.yaml", "max_steps: 120", "max_steps: 1000000")
    text = project.pipeline.read_text()

    def set_bound(usd: float, month_usd: float = 1e9) -> Project:
        spec = f"cost_bound: {{usd_per_run: {usd}, usd_per_month: {month_usd}}}\n"
        project.pipeline.write_text(text.replace("registry:", f"{spec}registry:"))
        return project

    yield set_bound


def steps(project: Project) -> list[Event]:
    return [e for attempt in project.attempts() for e in project.rank_events(attempt) if e["event"] == "step"]


def usd(project: Project) -> float:
    """What the run cost; those that were refused before they came to it are no part of it."""
    known = all_accounts(Workspace(str(project.workspace)))
    accounts: list[FlowAccount] = [account for account in known if account.run]
    return sum(line.usd for line in costs(accounts, "pipeline", PricesSpec(device_hour_usd={"any": 3600.0})))


@pytest.mark.long
def test_training_stops_with_a_checkpoint_before_it_costs_more_and_goes_on_when_it_may(
    bound: Callable[..., Project], prefect_here: None, forked_gangs: None
) -> None:
    from headway.flows.retrain_flow import retrain

    project = bound(0.01)
    request = RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace), in_window=False)
    state = retrain(request, return_state=True)
    assert (state.type.value, state.name) == ("COMPLETED", "CostBoundReached"), state.message
    assert "cost bound reached (usd_per_run: 0.01)" in state.message and "was not started" in state.message
    assert project.attempts() == [], "what is spent already is refused before training"

    may_cost = 20.0
    while not steps(project):  # a busy machine spends it before its first step
        assert may_cost < 2000, "it never comes to train"
        bound(may_cost := may_cost * 2)
        state = retrain(request, return_state=True)
        assert (state.type.value, state.name) == ("COMPLETED", "CostBoundReached"), state.message
    last = steps(project)[-1]["step"]
    assert f"cost bound reached (usd_per_run: {may_cost:,.2f}): stopped at step {last}" in state.message
    assert project.files(f"runs/*/checkpoints/*{last}/manifest.json")
    # The end of processes comes after the bound; on a busy machine that takes a while.
    assert usd(project) < may_cost + 15 * USD_PER_S
    assert read(Workspace(str(project.workspace)), "tiny").state == "bounded"
    assert failed_in_prefect(project) == [], "what has cost what it may has not failed"

    num_attempts = 0
    # What is left may pay for a start; soon it does not.
    while num_attempts != len(project.attempts()):
        num_attempts = len(project.attempts())
        assert num_attempts < 6, "it trains on"
        state = retrain(request, return_state=True)
        assert state.name == "CostBoundReached", state.message
    last = steps(project)[-1]["step"]

    bound(1e6)
    state = retrain(request.model_copy(update={"stop_at_step": last + 3}), return_state=True)
    assert (state.type.value, state.name) == ("COMPLETED", "Stopped"), state.message
    assert [step["step"] for step in steps(project)] == list(range(1, last + 4)), "no step twice, and none left out"
    assert len(list((project.workspace / "runs").iterdir())) == 1, "a bound is in no run's key"


def test_a_command_says_so_with_a_code_of_its_own_and_a_month_counts_every_run(bound: Callable[..., Project]) -> None:
    project = bound(1e6, month_usd=0.5)
    stopped = project.retrain("--json")
    assert stopped.returncode == CostBoundReached.exit_code, stopped.stderr
    assert "cost bound reached (usd_per_month: 0.50 in 20" in stopped.stderr, stopped.stderr
    before = len(project.files("ledger/*/flow.jsonl"))
    (project.root / "texts" / "part0" / "text00.txt").write_text("Other data, and so another run.\n" * 20)
    # What its account comes to may be some milliseconds less than what it was stopped at.
    project.edit(project.pipeline.name, "usd_per_month: 0.5", "usd_per_month: 0.4")
    refused = project.retrain()
    assert refused.returncode == CostBoundReached.exit_code, refused.stderr
    assert "the retrain was not started" in refused.stderr and "wait for the next month" in refused.stderr
    assert len(project.files("ledger/*/flow.jsonl")) == before, "refused before anything is spent"
    assert not project.attempts()
    status = json.loads(project.headway("status", "--json").stdout)
    assert status is not None
