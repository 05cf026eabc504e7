"""What a search spends outside of training and scoring: proposals, descriptions, records, MLflow, ledger and its page.

`python -m benchmarks.search_bookkeeping [--rounds N] [--draws N] [--trial-s SECONDS] [--start-s SECONDS] [--json]`

200 trials of the pipeline `digits` in rounds of ten by `tpe`, without rungs and with two, in which no rank is started:
checkpoints and scores are made up on the spot, and all around them is real, from the first page to the report.
CPU seconds are of this process. What they are a share of is what training would have taken: starts, and steps.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
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
from headway.flows.report.summary import RetrainSummary
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage import StageOutput
from headway.tasks.registry import mlflow_store
from headway.tasks.stages.trial_scores import PlannedTrial, TrialScore
from headway.tasks.stages.trials import Rung
from headway.training.checkpoint.layout import run_folder
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords

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
  min_starts: 0
"""
RUNGS = "  rungs: {first: 44, eta: 3}\n"
"""A third goes on from a ninth of the steps, and a third of these from a third."""
STEPS = 400
TRIAL_S = 10.0
"""A trial of so many steps on one rank, its start included, on a quiet machine."""
START_S = 3.0
"""Of it until the first step and behind the last one, as each attempt takes again that goes on from a rung."""


class SearchIsOver(BaseException):
    """What follows a search is a retrain's."""


class Took(NamedTuple):
    """CPU seconds, and what training would have taken meanwhile."""

    proposals_s: float
    pages_s: float
    """Those that were drawn while the search went on."""
    all_s: float
    trained_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--trial-s", type=float, default=TRIAL_S, help="what a trial takes, which the share is of")
    parser.add_argument("--start-s", type=float, default=START_S, help="of it what a start takes")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    num, figures = arguments.rounds * arguments.draws, list[Figure]()
    for kind, rungs in (("without rungs", ""), ("with two rungs", RUNGS)):
        played = PlayedTraining(arguments.start_s, (arguments.trial_s - arguments.start_s) / STEPS)
        with tempfile.TemporaryDirectory(prefix="headway-benchmark-") as folder:
            took = played.search(Path(folder), arguments.rounds, arguments.draws, rungs)
        figures += [
            Figure(
                name=f"search of {num} trials {kind}, outside of training and scoring",
                value=took.all_s / took.trained_s,
                ratio_to=f"training them, {took.trained_s / num:.3g} s a trial",
                target="<= 0.02",
            ),
            Figure(name=f"the same for a trial {kind}, CPU", value=took.all_s / num, unit="s"),
            Figure(name=f"of it proposals and who goes on {kind}, CPU", value=took.proposals_s / num, unit="s"),
            Figure(name=f"of it pages {kind}, CPU", value=took.pages_s / num, unit="s"),
        ]
    show(figures, title="Bookkeeping of a search", as_json=arguments.json, libraries=("optuna", "mlflow", "prefect"))


@dataclass(slots=True)
class PlayedTraining:
    """Checkpoints and scores without a rank, and the time that ranks would have taken for them."""

    start_s: float
    step_s: float
    trained_s: float = 0.0
    client: Any = None
    shipped_s: float = 0.0
    """CPU seconds for what an attempt's own record in MLflow takes, which is part of training."""
    reached: dict[str, int] = field(default_factory=dict)
    """The furthest step of a run, by its digest."""
    at: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Run and step of a checkpoint, by its digest."""

    def now_s(self) -> float:
        """Of a clock that has seen the training, too."""
        return time.process_time() + self.trained_s

    def search(self, project: Path, num_rounds: int, num_draws: int, rungs: str) -> Took:
        for part in ("deployments", "data_contracts/contracts"):
            shutil.copytree(Path.cwd() / part, project / part)
        file = project / "deployments" / "digits.yaml"
        text = re.sub(r"(?ms)^windows:.*?(?=^\w)", "", file.read_text(encoding="utf-8")).replace("nodes: 2", "nodes: 1")
        trials = TRIALS.replace("DRAWS", str(num_draws)).replace("ROUNDS", str(num_rounds))
        file.write_text(text + trials + rungs, encoding="utf-8")

        from headway.flows import search as flow
        from headway.flows.config.pipeline_file import using_pipeline_file
        from headway.flows.config.request import TrialsRequest
        from headway.flows.prefect_api.ephemeral_server import prefect_api
        from headway.flows.trials import stages as flow_stages
        from headway.flows.trials.live_report import LiveReport
        from headway.tasks.search import proposals
        from headway.tasks.stages import launch, trial_scores
        from headway.tasks.stages import search as search_stage
        from headway.tasks.stages import trials as trials_stage

        spent_s = {"proposals": 0.0, "pages": 0.0, "all": 0.0}

        def timed(name: str, function: Any) -> Any:
            def call(*arguments: Any, **fields: Any) -> Any:
                began_s = time.process_time()
                try:
                    return function(*arguments, **fields)
                finally:
                    spent_s[name] += time.process_time() - began_s

            return call

        whole = timed("all", flow_stages.search_and_register)

        def searching(*arguments: Any, **fields: Any) -> Any:
            found = whole(*arguments, **fields)
            assert len(found.trials) == num_rounds * num_draws
            raise SearchIsOver

        with (
            mock.patch.object(search_stage, "next_round", timed("proposals", proposals.next_round)),
            mock.patch.object(search_stage, "prospects", timed("proposals", proposals.prospects)),
            mock.patch.object(search_stage, "compare_finalists", lambda *_: None),
            mock.patch.object(LiveReport, "observe", timed("pages", LiveReport.observe)),
            mock.patch.object(flow_stages, "LiveReport", partial(LiveReport, clock=self.now_s)),
            mock.patch.object(flow_stages, "evaluate_and_register", lambda *_: (None, None)),
            mock.patch.object(flow_stages, "summarise", lambda *_: _best()),
            mock.patch.object(flow, "search_and_register", searching),
            mock.patch.object(launch, "_train", self.to_the_end),
            mock.patch.object(trials_stage, "_rung", self.to_a_rung),
            mock.patch.object(trial_scores, "final_checkpoint", lambda context, run: ("", self.checkpoint(run, STEPS))),
            mock.patch.object(trial_scores, "furthest_step", lambda workspace, run: self.reached[run.sha256]),
            mock.patch.object(trial_scores, "_score", lambda bench, spec, checkpoint: self.score(checkpoint)),
            using_pipeline_file(str(file)),
            prefect_api(),
            contextlib.suppress(SearchIsOver),
        ):
            flow.trials(TrialsRequest(pipeline=str(file), workspace=str(project / "workspace")))
        return Took(spent_s["proposals"], spent_s["pages"], spent_s["all"] - self.shipped_s, self.trained_s)

    def to_the_end(self, context: RunContext, *arguments: Any) -> StageOutput:
        run, tracking_uri = arguments[2].run, arguments[3]
        self._ship(context, run, tracking_uri)
        return StageOutput(document=run, num_steps=self._train(context, run.link, STEPS))

    def to_a_rung(self, context: RunContext, each: PlannedTrial, *arguments: Any) -> StageOutput:
        tracking_uri, step = arguments[-2], int(arguments[-1])
        self._ship(context, each.settled.run, tracking_uri)
        num_steps, checkpoint = self._train(context, each.run, step), self.checkpoint(each.run, step)
        context.workspace.publish_document(checkpoint)
        return StageOutput(
            document=Rung(checkpoint=checkpoint.link, trained_step=step, is_finished=False), num_steps=num_steps
        )

    def _ship(self, context: RunContext, run: RunSpec, tracking_uri: str) -> None:
        """As whatever carries an attempt's figures to MLflow does first."""
        began_s = time.process_time()
        if self.client is None:
            self.client = mlflow_store.connect(tracking_uri)
        mlflow_store.find_or_create_run(self.client, context.workspace, context.pipeline, run)
        self.shipped_s += time.process_time() - began_s

    def _train(self, context: RunContext, run: Link, step: int) -> int:
        """An attempt, which is on record as any other."""
        num_steps = step - self.reached.get(run.sha256, 0)
        took_s = self.start_s + num_steps * self.step_s
        self.reached[run.sha256] = step
        self.trained_s += took_s
        folder = context.workspace.local_path(run_folder(run))
        folder.mkdir(parents=True, exist_ok=True)
        records, end_unix_s = AttemptRecords(folder), time.time()
        record = AttemptRecord(
            attempt=records.next_attempt(),
            scope=context.budget_scope,
            state="done" if step == STEPS else "stopped",
            step=step,
            start_unix_s=end_unix_s - took_s,
            end_unix_s=end_unix_s,
        )
        records.begin(record)
        records.end(record)
        return num_steps

    def checkpoint(self, run: Link, step: int) -> CheckpointManifest:
        made = CheckpointManifest(
            run=run,
            step=step,
            num_samples=64 * step,
            world_size=1,
            parent=None,
            files=(),
            layout=(),
            scalars={},
            proof=ProofBatch(file="proof.safetensors", loss_hex="0x0p+0"),
            fingerprint=DeviceFingerprint(device="cpu", machine="", cpu_capability="", torch="", num_threads=1),
        )
        self.at[made.sha256] = run.sha256, step
        return made

    def score(self, checkpoint: Link) -> StageOutput:
        run, step = self.at[checkpoint.sha256]
        value = int(hashlib.sha256(run.encode()).hexdigest()[:8], 16) / 2**32 + 1 / step
        score = TrialScore(
            checkpoint=checkpoint,
            metric="log_loss",
            greater_is_better=False,
            figure=Interval(value=value, low=value - 1e-6, high=value + 1e-6),
            num_examples=178,
            examples_sha256="0" * 64,
        )
        return StageOutput(document=score)


def _best() -> RetrainSummary:
    """What would have become of the winner."""
    return RetrainSummary(
        pipeline="digits",
        workspace="",
        model="digits",
        version="1",
        is_champion=True,
        champion_version="1",
        champion_since=None,
        promoted=True,
        reason="",
        metric="log_loss",
        value=0.0,
        low=0.0,
        high=0.0,
        other_metrics={},
        champion_value=None,
        baselines={},
        registration="",
        stages_found=[],
        stages_run=[],
        reports={},
        logs="",
        wall_s=0.0,
        time_s={},
        unattributed_ratio=0.0,
    )


if __name__ == "__main__":
    main()
