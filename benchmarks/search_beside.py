"""Whether trials that train beside each other on this machine end no later than those that take turns, with equal bits.

`python -m benchmarks.search_beside [--rounds N] [--json]`

Four short trials of the pipeline `digits`, one at a time and two at a time, turn about, each search in its own
workspace. Time is from the first trial's start to the last one's end, what lies between them included.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import Figure, show
from headway.tasks.search.budget import spent_by
from headway.tasks.search.pace import ProgressReader

TRIALS = """
evaluation: {ranking_share: 0.5}
trials:
  vary: {optimizer.lr: [0.002, 0.004, 0.008, 0.016]}
  max_parallel: MAX_PARALLEL
"""


class Search(NamedTuple):
    wall_s: float
    models: str
    """The run that was kept, and digests of all models by run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help="of each trial")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headway-benchmark-") as folder:
        project = Path(folder)
        for part in ("deployments", "data_contracts/contracts"):
            shutil.copytree(Path.cwd() / part, project / part)
        rounds = [[_search(project, arguments.steps, number) for number in (1, 2)] for _ in range(arguments.rounds)]
    show(figures(rounds), title="Trials side by side", as_json=arguments.json, libraries=("torch",))


def figures(rounds: list[list[Search]]) -> list[Figure]:
    """The ratio is taken round by round."""
    ratio = statistics.median(beside.wall_s / in_turn.wall_s for in_turn, beside in rounds)
    models = {search.models for each in rounds for search in each}
    in_turn_s = statistics.median(in_turn.wall_s for in_turn, _ in rounds)
    return [
        Figure(name="four trials, two at a time, wall", value=ratio, ratio_to="in turn", target="<= 1.0"),
        Figure(name="four trials in turn, wall", value=in_turn_s, unit="s"),
        Figure(
            name="different winners or models, by run and digest, over all searches",
            value=len(models),
            unit="",
            target="<= 1",
        ),
    ]


def _search(project: Path, steps: int, max_parallel: int) -> Search:
    file, workspace = project / "deployments" / "digits.yaml", project / "workspace"
    shutil.rmtree(workspace, ignore_errors=True)
    text = (Path.cwd() / "deployments" / "digits.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?ms)^windows:.*?(?=^\w)", "", text).replace("nodes: 2", "nodes: 1")
    text = re.sub(r"max_steps: \d+", f"max_steps: {steps}", text)
    file.write_text(text + TRIALS.replace("MAX_PARALLEL", str(max_parallel)), encoding="utf-8")
    command = [sys.executable, "-m", "headway", "trials", "digits", "--workspace", str(workspace), "--no-register"]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    runs = sorted((workspace / "runs").iterdir())
    (summary,) = workspace.glob("ledger/*/trials.json")
    kept = json.loads(summary.read_bytes())["trials"][0]["run"]
    results = {run.name: json.loads((run / "result.json").read_bytes())["tensors_sha256"] for run in runs}
    wall_s = spent_by(map(ProgressReader(""), runs)).wall_s
    print(f"{max_parallel} at a time: {wall_s:.1f} s, trial {kept} kept", file=sys.stderr)
    return Search(wall_s=wall_s, models=f"{kept} {results}")


if __name__ == "__main__":
    main()
