"""A table whose label hangs on the hour and the weekday is drafted, learnt by network and trees, and asked in texts."""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

import headway
from headway.flows.act.contract_init import draft
from headway.flows.show.verify import verify_model

NUM_ROWS = 1500
TREES = {"name": "gradient-boosting", "model": {"iterations": 60}}
NETWORK = {"name": "tabular-classifier", "model": {"width": 32, "depth": 1}}


def project(folder: Path, recipe: dict[str, object]) -> SimpleNamespace:
    """Of visits, `late` holds by day on weekdays and by night at weekends, for nine of ten rows."""
    chance, first = random.Random(5), datetime.datetime(2024, 3, 1)
    rows = []
    for _ in range(NUM_ROWS):
        at = first + datetime.timedelta(minutes=chance.randrange(500 * 1440))
        is_late = (8 <= at.hour < 20) != (at.weekday() >= 5)
        when = at.isoformat(sep=" ") if chance.random() < 0.98 else ""
        rows.append(f"{when},{chance.randrange(50)},{'yes' if is_late != (chance.random() < 0.1) else 'no'}")
    (folder / "visits.csv").write_text("\n".join(["at,fare,late", *rows]) + "\n")
    pipeline = draft("visits.csv", out="", name="visits", base=folder, label="late").pipeline
    spec = yaml.safe_load(pipeline.read_text())
    assert spec["shards"]["encoder"]["times"] == ["at"]
    drafted = {} if recipe is TREES else {**spec["training"], "max_epochs": 12}
    spec |= {"training": {**drafted, "recipe": recipe}, "launch": {"nodes": 1}}
    spec["evaluation"] = {"bootstrap_resamples": 200}
    pipeline.write_text(yaml.safe_dump(spec))
    return SimpleNamespace(pipeline=pipeline, workspace=folder / "workspace")


@pytest.mark.long
@pytest.mark.parametrize("recipe", [TREES, NETWORK], ids=["trees", "network"])
def test_a_model_learns_from_hour_and_weekday_and_is_asked_in_texts(tmp_path: Path, retrain_here, recipe) -> None:
    case = project(tmp_path, recipe)
    summary, _ = retrain_here(case)
    assert summary.is_champion and summary.value < 0.8 * summary.baselines["class prior"]
    model = headway.load_table_model("models:/visits@champion", str(case.workspace))
    at = ["2024-10-09 13:00:00", "2024-10-09 02:00:00", "2024-10-12 13:00", "2024-10-12T02:00:00", None]
    made = model.predict({"at": at, "fare": [20] * 5})["prediction"].to_pylist()
    assert made[:4] == ["yes", "no", "no", "yes"]
    stamps = pd.DataFrame({"at": pd.to_datetime(pd.Series(at), format="mixed"), "fare": 20})
    assert model.predict(stamps)["prediction"].to_pylist() == made
    assert model.predict({"at": ["2031-01-01"], "fare": [20]}).num_rows == 1, "a time after all of training"
    assert verify_model("models:/visits@champion", str(case.workspace), as_json=True) == 0
