"""A forecast of the cost follows from what steps of the same pipeline cost before; held against hand computations."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.data_contracts.store.documents import Link
from headway.flows.accounts.kept_accounts import settle
from headway.flows.config.cost_bound import PROFILE
from headway.flows.config.pipeline_spec import PipelineSpec, load_pipeline
from headway.flows.show.cost_forecast import CostForecast, cost_lines, forecast
from headway.tasks.core.outlook import Outlook
from tests.flows.accounts.lives import RUN, Life, numbered

PRICED = """\
project: p
profiles:
  production:
    pool: {name: headway}
    prices: {device_hour_usd: {cpu: 36}}
"""
"""One US cent a device-second."""
THE_RUN = Link(kind="run-spec", sha256=RUN + "0" * 48)


@pytest.fixture
def priced(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(PROFILE, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (project / "deployments").mkdir()
    (project / "deployments" / "profiles.yaml").write_text(PRICED)
    return project


@pytest.fixture
def life(priced: Path) -> Life:
    """10 steps of one second on two devices, 4 seconds after the begin of their attempt: 0.30 USD with its end."""
    begin_s, life = time.time() - 1.0, Life(priced)
    life.flow("a", begin_s - 20.0, begin_s - 5.0, stop="window closed")
    life.attempt("a", begin_s - 20.0, begin_s - 5.0, numbered(1, 10, begin_s - 16.0))
    settle(life.workspace)
    return life


def spec(project: Path, bound: str = "") -> PipelineSpec:
    text = (project / "tiny.yaml").read_text().replace("pipeline: tiny", "pipeline: p")
    text = text.replace("registry:", "launch: {nodes: 1, ranks_per_node: 2}\nregistry:")
    (project / "p.yaml").write_text(text + bound)
    return load_pipeline(project / "p.yaml")


def stages(launch: str = "run", evaluate_s: float | None = 3.0, **of_launch: int) -> list[Outlook]:
    return [
        Outlook(stage="snapshot", state="found", detail="", expected_s=None),
        Outlook(stage="shard", state="run", detail="", expected_s=2.0),
        Outlook(stage="launch", state=launch, detail="", expected_s=None, **of_launch),
        Outlook(stage="evaluate", state="run", detail="", expected_s=evaluate_s),
    ]


def made(life: Life, pipeline: PipelineSpec, planned: list[Outlook], max_steps: int | None = 30) -> CostForecast:
    found = forecast(life.workspace, pipeline, planned, max_steps, THE_RUN)
    assert found is not None
    return found


def test_steps_that_are_left_cost_what_steps_did_and_other_stages_hold_the_same_devices(
    life: Life, priced: Path
) -> None:
    found = made(life, spec(priced), stages("resume", from_step=10))
    # A start of 4 s, 20 steps of 1 s, 2 s of sharding and 3 s of evaluation, on two devices.
    assert found.usd == pytest.approx(0.01 * 2 * (4 + 20 + 2 + 3))
    assert found.device_hours == pytest.approx(2 * 29 / 3600)
    assert (found.devices, found.device, found.usd_per_device_hour) == (2, "cpu", 36.0)
    assert found.how == "20 steps as the last 10, 1 s each" and found.bounds == []
    assert cost_lines(found) == [
        "cost         about 0.58 USD: 2 cpu at 36.00 an hour; 20 steps as the last 10, 1 s each"
    ]


def test_a_bound_that_would_be_reached_is_named_with_the_step_before_it(life: Life, priced: Path) -> None:
    pipeline = spec(priced, "cost_bound: {usd_per_run: 0.60, usd_per_month: 9}\n")
    of_run, of_month = made(life, pipeline, stages("resume", from_step=10)).bounds
    assert (of_run.spent_usd, of_run.is_reached) == (pytest.approx(0.30), True)
    # 0.30 are left: 0.04 of sharding and 0.08 of a start are not steps, and 0.18 are nine.
    assert of_run.at_step == 10 + 9
    assert (of_month.bound, of_month.is_reached, of_month.at_step) == ("usd_per_month", False, None)
    lines = cost_lines(made(life, pipeline, stages("resume", from_step=10)))
    assert lines[1] == "bound        usd_per_run 0.60, of which 0.30 is spent: this would reach it at about step 19"
    assert lines[2] == "bound        usd_per_month 9.00, of which 0.30 is spent: this would not reach it"


def test_a_bound_that_is_spent_says_so(life: Life, priced: Path) -> None:
    pipeline = spec(priced, "cost_bound: {usd_per_run: 0.25}\n")
    _, line = cost_lines(made(life, pipeline, stages("resume", from_step=10)))
    assert line == "bound        usd_per_run 0.25, of which 0.30 is spent: nothing more is paid for"


def test_a_bound_that_training_leaves_too_little_of_is_reached_after_it(life: Life, priced: Path) -> None:
    pipeline = spec(priced, "cost_bound: {usd_per_run: 0.85}\n")
    (bound,) = made(life, pipeline, stages("resume", from_step=10)).bounds
    assert (bound.is_reached, bound.at_step) == (True, None)


@pytest.mark.parametrize(
    ("max_steps", "pipeline", "why"),
    [(None, "p", "its steps are counted once its rows are"), (30, "new", "no step of this pipeline is on record here")],
)
def test_what_is_not_known_is_not_guessed(
    life: Life, priced: Path, max_steps: int | None, pipeline: str, why: str
) -> None:
    asked = spec(priced, "cost_bound: {usd_per_run: 0.60}\n").model_copy(update={"pipeline": pipeline})
    found = made(life, asked, stages(), max_steps)
    assert found.usd is None and found.how == why
    assert [bound.is_reached for bound in found.bounds] == [None]
    assert cost_lines(found)[0] == f"cost         not known: {why}"


def test_what_is_found_is_not_paid_again_and_a_stage_that_never_ran_is_left_out_by_name(
    life: Life, priced: Path
) -> None:
    found = made(life, spec(priced), stages("found", evaluate_s=None))
    assert found.usd == pytest.approx(0.01 * 2 * 2) and found.how == "without evaluate, which never ran here"


@pytest.mark.parametrize(("part_s", "devices"), [(0.0, 2), (5e-324, 2), (1e-300, 2), (9e18, 2), (-9e18, 2), (1.0, 0)])
def test_an_account_that_says_what_cannot_be_ends_no_plan(
    life: Life, priced: Path, part_s: float, devices: int
) -> None:
    (path,) = (life.workspace.local_root / "accounts" / RUN).glob("*.json")
    account = json.loads(path.read_text())
    account["goodput"] |= {"devices": devices}
    account["goodput"]["parts_device_s"] = dict.fromkeys(account["goodput"]["parts_device_s"], part_s)
    path.write_text(json.dumps(account))
    for usd in ("5.0e-324", "0.60", "1.0e+308"):
        found = made(life, spec(priced, f"cost_bound: {{usd_per_run: {usd}}}\n"), stages())
        assert cost_lines(found) and all(bound.spent_usd >= 0.0 for bound in found.bounds)


def test_without_prices_nothing_is_said_and_a_kind_without_one_is_named(life: Life, priced: Path) -> None:
    profiles = priced / "deployments" / "profiles.yaml"
    profiles.write_text(PRICED.replace("cpu", "NVIDIA H100"))
    found = made(life, spec(priced), stages())
    assert found.usd is None and found.how == "no price of cpu is declared"
    profiles.unlink()
    assert forecast(life.workspace, spec(priced), stages(), 30, None) is None


@pytest.mark.process
def test_the_plan_says_it_by_command(life: Life, priced: Path, headway: Callable[..., tuple[int, str]]) -> None:
    spec(priced, "cost_bound: {usd_per_run: 2}\n")
    code, text = headway("plan", "p.yaml", "--no-rehearse")
    assert code == 0 and "bound        usd_per_run 2.00, of which 0.00 is spent: this would reach it" in text, text
    assert "cost         about " in text and "500 steps as the last 10, 1 s each" in text
    code, text = headway("plan", "p.yaml", "--no-rehearse", "--json")
    cost = json.loads(text)["cost"]
    assert code == 0 and cost["usd"] >= 0.01 * 2 * 504
    assert cost["bounds"][0]["at_step"] == 96, "2 USD are 100 seconds of two devices, four of them a start"
