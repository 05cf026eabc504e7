"""What a search spends outside of training and scoring: proposals, descriptions, records, MLflow and ledger.

`python -m benchmarks.search_bookkeeping [--rounds N] [--draws N] [--trial-s SECONDS] [--json]`

200 trials of the pipeline `digits` in rounds of ten by `tpe`, in which no rank is started: a trial's model and score
are made up on the spot, and all around them is real. CPU seconds are of this process.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.figures import Figure, show
from headway.data_contracts.store.documents import (
    CheckpointManifest,
    DeviceFingerprint,
    Interval,
    Link,
    ProofBatch,
    RunSpec,
)
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage import StageOutput
from headway.tasks.search.trials_spec import TrialsSpec
from headway.tasks.stages.trial_scores import TrialScore

TRIALS = """
evaluation: {ranking_share: 0.5}
trials:
  vary:
    optimizer.lr: {log_uniform: [0.0005, 0.05]}
    optimizer.weight_decay: {uniform: [0.0, 0.2]}
    recipe.model.dropout: {uniform: [0.0, 0.5]}
  search: tpe
  draws: DRAWS
  rounds: ROUNDS
  max_trials: 1000
  max_parallel: 1
"""
TRIAL_S = 10.0
"""A trial of 400 steps on one rank, its start included, on a quiet machine."""


class SearchIsOver(BaseException):
    """What follows a search is a retrain's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--trial-s", type=float, default=TRIAL_S, help="what a trial takes, which the share is of")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headway-benchmark-") as folder:
        proposals_s, all_s = _took(Path(folder), arguments.rounds, arguments.draws)
    num = arguments.rounds * arguments.draws
    show(
        [
            Figure(
                name=f"search of {num} trials without rungs, outside of training and scoring",
                value=all_s / num / arguments.trial_s,
                ratio_to=f"a trial of digits, {arguments.trial_s:g} s",
                target="<= 0.02",
            ),
            Figure(name="the same for a trial, CPU", value=all_s / num, unit="s"),
            Figure(name="of it proposals, CPU", value=proposals_s / num, unit="s"),
        ],
        title="Bookkeeping of a search",
        as_json=arguments.json,
        libraries=("optuna", "mlflow", "prefect"),
    )


def _took(project: Path, num_rounds: int, num_draws: int) -> tuple[float, float]:
    """CPU seconds of proposals, and of the whole search."""
    for part in ("deployments", "data_contracts/contracts"):
        shutil.copytree(Path.cwd() / part, project / part)
    file = project / "deployments" / "digits.yaml"
    text = re.sub(r"(?ms)^windows:.*?(?=^\w)", "", file.read_text(encoding="utf-8")).replace("nodes: 2", "nodes: 1")
    trials = TRIALS.replace("DRAWS", str(num_draws)).replace("ROUNDS", str(num_rounds))
    file.write_text(text + trials, encoding="utf-8")

    from headway.flows.config.pipeline_file import using_pipeline_file
    from headway.flows.config.request import TrialsRequest
    from headway.flows.prefect_api.ephemeral_server import prefect_api
    from headway.flows.search import trials as trials_flow
    from headway.flows.trials import stages as flow_stages
    from headway.tasks.search import proposals
    from headway.tasks.stages import launch, trial_scores
    from headway.tasks.stages import search as search_stage

    proposals_s = all_s = 0.0
    propose, searched = proposals.next_round, search_stage.search

    def proposing(*arguments: Any, **fields: Any) -> Any:
        nonlocal proposals_s
        began_s = time.process_time()
        try:
            return propose(*arguments, **fields)
        finally:
            proposals_s += time.process_time() - began_s

    def searching(context: RunContext, spec: TrialsSpec, *arguments: Any, **fields: Any) -> Any:
        nonlocal all_s
        began_s = time.process_time()
        found = searched(context, spec, *arguments, **fields)
        all_s = time.process_time() - began_s
        assert len(found.trials) == num_rounds * num_draws
        raise SearchIsOver

    with (
        mock.patch.object(search_stage, "next_round", proposing),
        mock.patch.object(search_stage, "compare_finalists", lambda *_: None),
        mock.patch.object(flow_stages, "search", searching),
        mock.patch.object(launch, "_train", lambda *arguments: _trained(arguments[3].run)),
        mock.patch.object(trial_scores, "final_checkpoint", lambda context, run: ("", _checkpoint(run))),
        mock.patch.object(trial_scores, "furthest_step", lambda workspace, run: 400),
        mock.patch.object(trial_scores, "_score", lambda bench, spec, checkpoint: _scored(checkpoint)),
        using_pipeline_file(str(file)),
        prefect_api(),
        contextlib.suppress(SearchIsOver),
    ):
        trials_flow(TrialsRequest(pipeline=str(file), workspace=str(project / "workspace")))
    return proposals_s, all_s


def _trained(run: RunSpec) -> StageOutput:
    return StageOutput(document=run, num_steps=400)


def _checkpoint(run: Link) -> CheckpointManifest:
    return CheckpointManifest(
        run=run,
        step=400,
        num_samples=25_600,
        world_size=1,
        parent=None,
        files=(),
        layout=(),
        scalars={},
        proof=ProofBatch(file="proof.safetensors", loss_hex="0x0p+0"),
        fingerprint=DeviceFingerprint(device="cpu", machine="", cpu_capability="", torch="", num_threads=1),
    )


def _scored(checkpoint: Link) -> StageOutput:
    value = int(hashlib.sha256(checkpoint.sha256.encode()).hexdigest()[:8], 16) / 2**32
    score = TrialScore(
        checkpoint=checkpoint,
        metric="log_loss",
        greater_is_better=False,
        figure=Interval(value=value, low=value - 1e-6, high=value + 1e-6),
        num_examples=178,
        examples_sha256="0" * 64,
    )
    return StageOutput(document=score)


if __name__ == "__main__":
    main()
