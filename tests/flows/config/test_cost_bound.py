"""A bound on the cost has prices, of one profile that is meant, or is refused before anything is spent."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.cost_bound import PROFILE, CostBoundSpec, bound_prices, known_prices
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.config.preflight import check_request
from headway.flows.config.profiles import PricesSpec
from headway.flows.config.request import RetrainRequest
from tests.flows.tiny_pipeline import CONTRACT, PIPELINE

PRICED = "    prices: {{device_hour_usd: {{any: {}}}}}\n"


@pytest.fixture(autouse=True)
def no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROFILE, raising=False)


def write(folder: Path, **profiles: float | None) -> None:
    (folder / "deployments").mkdir(exist_ok=True)
    lines = ["project: p\nprofiles:\n"]
    for name, price in profiles.items():
        lines.append(f"  {name}:\n    pool: {{name: headway}}\n")
        lines.append("" if price is None else PRICED.format(price))
    (folder / "deployments" / "profiles.yaml").write_text("".join(lines))


def test_the_only_profile_with_prices_is_meant_and_of_several_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known_prices(tmp_path) is None
    write(tmp_path, dev=None, production=2.5)
    assert bound_prices(tmp_path).price_of("cpu") == 2.5
    write(tmp_path, dev=1.0, production=2.5)
    assert known_prices(tmp_path) is None
    with pytest.raises(ConfigError, match="which hold is not known") as refused:
        bound_prices(tmp_path)
    assert PROFILE in refused.value.advice
    monkeypatch.setenv(PROFILE, "dev")
    assert bound_prices(tmp_path).price_of("cpu") == 1.0


def test_a_profile_without_prices_bounds_nothing_and_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, dev=None)
    monkeypatch.setenv(PROFILE, "dev")
    with pytest.raises(ConfigError, match="a bound on the cost needs prices, and it has none"):
        bound_prices(tmp_path)
    monkeypatch.setenv(PROFILE, "staging")
    with pytest.raises(ConfigError, match="no profile is called 'staging'"):
        bound_prices(tmp_path)


@pytest.mark.parametrize("spec", [{}, {"usd_per_run": 0}, {"usd_per_month": -1}, {"usd_per_run": float("inf")}])
def test_a_bound_is_a_sum(spec: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        CostBoundSpec(**spec)


def test_a_retrain_whose_cost_is_bound_is_refused_without_prices_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_PROJECT", str(tmp_path))
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    (tmp_path / "tiny.yaml").write_text(PIPELINE + "cost_bound: {usd_per_run: 2}\n")
    assert load_pipeline(tmp_path / "tiny.yaml").cost_bound == CostBoundSpec(usd_per_run=2.0)
    request = RetrainRequest(pipeline=str(tmp_path / "tiny.yaml"), workspace=str(tmp_path / "workspace"))
    with pytest.raises(ConfigError, match="a bound on the cost needs prices"):
        check_request(request)
    assert not (tmp_path / "workspace").exists()
    write(tmp_path, production=2.5)
    assert check_request(request)[0].cost_bound is not None


@pytest.mark.parametrize("price", [-1.0, 1e308, float("nan"), float("inf")])
def test_a_price_is_one_that_sums_can_be_made_of(price: float) -> None:
    with pytest.raises(ValidationError):
        PricesSpec(device_hour_usd={"any": price})
