"""A champion that cannot read today's data ends no run: the new model is registered, and nobody is promoted unseen."""

from __future__ import annotations

import io
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.flows.act.champion_moves import promote
from headway.flows.report.terminal import Terminal
from headway.flows.show.verify import verify_model

PIPELINE = """\
pipeline: sides
source: {format: csv, uri: data, include: ["*.csv"]}
contract: contract.yaml
shards:
  encoder: {kind: tabular, numeric: [NAMES], label: side}
  num_groups: 1
  split_by: row
  heldout_fraction: 0.3
training:
  recipe: {name: tabular-classifier, model: {width: 16, depth: 1}}
  schedule: {warmup_steps: 5}
  max_steps: 40
  global_batch_sequences: 32
  micro_batch_sequences: 16
  checkpoints:
    every_steps: 20
launch: {nodes: 1}
evaluation: {bootstrap_resamples: 100}
registry: {model: sides}
"""


def write(folder: Path, names: list[str], version: str) -> None:
    """Which side of a line a point lies on, which no column tells alone."""
    draw, rows = random.Random(0), []
    for _ in range(300):
        point = {"x": draw.gauss(0, 1), "y": draw.gauss(0, 1)}
        cells = [f"{point[name]:.4f}" for name in names]
        rows.append(",".join([*cells, "over" if point["x"] + 0.3 * point["y"] > 0 else "under"]))
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "points.csv").write_text("\n".join([",".join([*names, "side"]), *rows]) + "\n")
    (folder / "pipeline.yaml").write_text(PIPELINE.replace("NAMES", ", ".join(names)))
    columns = "".join(f"  {name}: {{type: double}}\n" for name in names)
    (folder / "contract.yaml").write_text(
        f"name: points\nversion: {version}\nrows: {{min: 10}}\ncolumns:\n{columns}  side: {{type: string}}\n"
    )


@pytest.mark.long
def test_after_a_column_went_away_the_new_model_is_registered_and_the_champion_stays(
    tmp_path: Path, retrain_here
) -> None:
    project = SimpleNamespace(pipeline=tmp_path / "pipeline.yaml", workspace=tmp_path / "workspace")
    write(tmp_path, ["x", "y"], "1.0.0")
    first, _ = retrain_here(project)
    assert (first.version, first.is_champion) == ("1", True)

    write(tmp_path, ["x"], "2.0.0")
    second, _ = retrain_here(project)
    assert (second.version, second.promoted, second.is_champion, second.champion_version) == ("2", False, False, "1")
    assert "points.csv: has no column 'y', which was fitted as numbers" in second.reason
    assert second.champion_value is None and second.value < second.baselines["class prior"]
    shown = io.StringIO()
    Terminal(shown).summary(second)
    assert "has no column 'y'" in shown.getvalue()
    page = Path(second.reports["evaluation"].removeprefix("file://")).read_text()
    assert "sides version 2 cannot be compared with the champion" in page and "points.csv: has no column" in page

    third, _ = retrain_here(project)
    assert (third.version, third.is_champion, third.reason) == ("2", False, second.reason)
    assert {"evaluate", "register"} <= set(third.stages_found)
    assert verify_model("models:/sides/2", str(project.workspace), as_json=True) == 0

    moved = promote(str(project.workspace), "sides", "2", why="the column is gone", override="looked at by a person")
    assert (moved.from_version, moved.to_version) == ("1", "2")
