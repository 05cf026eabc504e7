"""What finding everything costs: a second retrain of a pipeline, with no Prefect server configured.

`python -m benchmarks.second_run [--pipeline NAME] [--workspace DIR] [--rounds N] [--json]`

Beside it stands what any flow on this stack pays before its first line of work: Prefect's own ephemeral server with
one flow run, and one look at a model's alias in MLflow's SQLite store.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Figure, show
from benchmarks.measure import Usage, interleaved, measure

CPU_S, WALL_S = 4.0, 5.0
EMPTY = """
from headway.flows.console.environment import prepare
prepare()
from prefect import flow
@flow
def empty():
    return 1
empty()
import mlflow
mlflow.set_tracking_uri({uri!r})
mlflow.MlflowClient().search_registered_models()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", default="stdlib-lm")
    parser.add_argument("--workspace", default="", help="a workspace where it was retrained before; else one is made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headway-benchmark-") as folder:
        workspace = Path(arguments.workspace or folder).resolve()
        retrain = ("headway", "retrain", arguments.pipeline, "--workspace", str(workspace))
        second = (sys.executable, "-m", *retrain)
        measure(second)
        script = Path(folder) / "empty_flow.py"
        script.write_text(EMPTY.format(uri=f"sqlite:///{workspace / 'mlflow.db'}"))
        os.environ["PYTHONPATH"] = str(Path.cwd())
        found = interleaved({"second": second, "empty": (sys.executable, str(script))}, rounds=arguments.rounds)
    show(figures(found["second"], found["empty"]), title="A second run", as_json=arguments.json, libraries=LIBRARIES)


LIBRARIES = ("prefect", "mlflow")


def figures(second: list[Usage], empty: list[Usage]) -> list[Figure]:
    """Medians over the rounds; the ratio is taken round by round."""
    ratio = statistics.median(ours.cpu_s / theirs.cpu_s for ours, theirs in zip(second, empty, strict=True))
    return [
        Figure(
            name="second run, CPU",
            value=statistics.median(each.cpu_s for each in second),
            unit="CPU s",
            target=f"<= {CPU_S:g}",
        ),
        Figure(
            name="second run",
            value=statistics.median(each.wall_s for each in second),
            unit="s",
            target=f"<= {WALL_S:g}",
        ),
        Figure(
            name="empty flow and MLflow client, CPU",
            value=statistics.median(each.cpu_s for each in empty),
            unit="CPU s",
        ),
        Figure(name="second run, CPU", value=ratio, unit="ratio", ratio_to="empty flow and MLflow client"),
    ]


if __name__ == "__main__":
    main()
