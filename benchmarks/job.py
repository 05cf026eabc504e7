"""What a job costs that is short: 300 steps of a tenth of a second, or 20, against training and saving by hand.

    python -m benchmarks.job [--json] [--rounds 5] [--steps 300] [--peers PYTHON]

`headway retrain` finds its data stages, and then trains, keeps a checkpoint, verifies it, evaluates model and champion,
exports the graph and registers the version, without a Prefect server. The script by hand trains the same network on
the same rows and saves it, and so do Lightning and accelerate, in an environment of their own (`job_peers.py`). CPU
seconds of all processes, contenders turn about, medians; ratios are taken round by round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import job_peers
from benchmarks.figures import Figure, show
from benchmarks.measure import Usage, measure

NUM_ROWS, NUM_FEATURES = 16_384, 32
TARGETS = {300: ("ratio", "<= 1.3"), 20: ("CPU s", "<= 15")}
PEERS = ("lightning", "accelerate")
CONTRACT = """
name: job
version: 1.0.0
columns:
{columns}
  label: {{type: int64, one_of: [0, 1]}}
"""
PIPELINE = """
pipeline: job
source: {{format: csv, uri: ., include: [rows.csv]}}
contract: contract.yaml
shards:
  encoder: {{kind: tabular, label: label, numeric: [{numeric}]}}
  num_groups: 1
  split_by: row
  heldout_fraction: 0.2
training:
  recipe: {{name: tabular-classifier, model: {{width: {width}, depth: {depth}, dropout: 0.0}}}}
  optimizer: {{kind: adamw, lr: 0.001}}
  max_steps: {steps}
  global_batch_sequences: {batch}
  micro_batch_sequences: {batch}
  seed: {seed}
launch: {{launcher: local, nodes: 1, ranks_per_node: 1}}
registry: {{model: job}}
"""


def make_rows(folder: Path) -> Path:
    """Rows of a label that a network can learn, as CSV for Headway and as an array for scripts; returns the array."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((NUM_ROWS, NUM_FEATURES)).astype(np.float32)
    label = (np.sin(features[:, 0]) + features[:, 1] * features[:, 2] > 0).astype(np.float32)
    rows = np.column_stack((features, label))
    names = [*(f"x{number}" for number in range(NUM_FEATURES)), "label"]
    lines = (",".join((*(f"{value:.6f}" for value in row[:-1]), f"{row[-1]:.0f}")) for row in rows)
    (folder / "rows.csv").write_text("\n".join((",".join(names), *lines)) + "\n")
    columns = "\n".join(f"  {name}: {{type: double}}" for name in names[:-1])
    (folder / "contract.yaml").write_text(CONTRACT.format(columns=columns))
    np.save(folder / "rows.npy", rows)
    return folder / "rows.npy"


def write_pipeline(folder: Path, steps: int, seed: int) -> Path:
    """Each round another seed: a run that is found costs nothing."""
    path = folder / "job.yaml"
    numeric = ", ".join(f"x{number}" for number in range(NUM_FEATURES))
    sizes = {"width": job_peers.WIDTH, "depth": job_peers.DEPTH, "batch": job_peers.BATCH}
    path.write_text(PIPELINE.format(numeric=numeric, steps=steps, seed=seed, **sizes))
    return path


def run(folder: Path, steps: int, rounds: int, peers: str | None) -> dict[str, list[Usage]]:
    """Usages by contender, in the order of the rounds."""
    rows = make_rows(folder)
    workspace = ("--workspace", str(folder / "workspace"))
    retrain = (sys.executable, "-m", "headway", "retrain", str(folder / "job.yaml"), *workspace)
    write_pipeline(folder, 2, seed=0)
    measure(retrain)
    others = {name: str(peers) for name in PEERS if peers and can_import(peers, name)}
    scripts = {"bare": sys.executable, **others}
    found: dict[str, list[Usage]] = {name: [] for name in ("headway", *scripts)}
    for number in range(rounds):
        write_pipeline(folder, steps, seed=number + 1)
        found["headway"].append(measure(retrain))
        for name, python in scripts.items():
            out = folder / f"{name}-{number}"
            out.mkdir()
            found[name].append(measure((python, job_peers.__file__, name, str(rows), str(out), str(steps))))
    return found


def can_import(python: str, module: str) -> bool:
    is_there = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0
    if not is_there:
        print(f"not measured: {module}: {python} cannot import it", file=sys.stderr)
    return is_there


def figures(steps: int, found: Mapping[str, Sequence[Usage]]) -> list[Figure]:
    unit, target = TARGETS.get(steps, ("", ""))
    bare_s = [each.cpu_s for each in found["bare"]]
    made = []
    for name, usages in found.items():
        label = f"{name}, {steps} steps"
        cpu_s = statistics.median(each.cpu_s for each in usages)
        is_ours = name == "headway"
        made.append(Figure(name=label, value=cpu_s, unit="CPU s", target=target if is_ours and unit == "CPU s" else ""))
        if name != "bare":
            ratio = statistics.median(each.cpu_s / bare for each, bare in zip(usages, bare_s, strict=True))
            goal = target if is_ours and unit == "ratio" else ""
            made.append(Figure(name=label, value=ratio, ratio_to="bare", target=goal))
        if is_ours:
            made.append(Figure(name=label, value=statistics.median(each.wall_s for each in usages), unit="s"))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.job", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter of an environment with lightning and accelerate")
    arguments = parser.parse_args()
    for name in ("PREFECT_API_URL", "HEADWAY_PREFECT_RECORDS"):
        os.environ.pop(name, None)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="headway-job-") as folder:
        found = run(Path(folder), arguments.steps, arguments.rounds, arguments.peers)
    show(figures(arguments.steps, found), title="Job", as_json=arguments.json, libraries=("torch", "numpy"))


if __name__ == "__main__":
    main()
