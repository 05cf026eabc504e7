"""Three trials of a tiny pipeline by the real workers and stages; without Prefect, which has no part in them.

python -m tests.cluster.tiny_trials FOLDER SPEC_JSON, to be run on a host of a test: all pause at a rung, and two of
them go on to their ends.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.documents import CheckpointManifest
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.tasks.core.context import RunContext
from headway.tasks.reports.figures import EvaluationSpec
from headway.tasks.search.configuration import Configuration
from headway.tasks.search.trials_spec import TrialsSpec
from headway.tasks.stages.trial_scores import PlannedTrial, TrialResult
from headway.tasks.stages.trials import describe_trials, room_of, train_trials
from headway.training.config.shards import ShardSpec
from headway.training.config.training_spec import TrainingSpec
from headway.training.launch.base.gang import LaunchSpec
from headway.training.observe.ledger import Ledger
from tests.training.conftest import make_project

LEDGER = "flow.jsonl"
RUNG, END = 2, 3
AT_ONCE = 2


@dataclass
class TinyTrials:
    context: RunContext
    planned: list[PlannedTrial]
    spec: LaunchSpec

    def train(self, num: int = 3, to_step: int | None = None) -> list[TrialResult]:
        """The first of them, to a step or to their ends."""
        wanted = self.planned[:num]
        room = None if self.spec.is_detached else room_of(self.context, wanted, self.spec, AT_ONCE)
        tracking_uri = f"sqlite:///{self.context.base}/mlflow.db"
        return train_trials.fn(
            self.context, wanted, self.spec, tracking_uri, AT_ONCE, EvaluationSpec(), to_step, room=room
        )

    def step_of(self, result: TrialResult) -> int:
        assert result.checkpoint is not None
        return self.context.workspace.load(result.checkpoint, CheckpointManifest).step


@contextlib.contextmanager
def tiny_trials(folder: Path, spec: LaunchSpec) -> Iterator[TinyTrials]:
    project = make_project(folder / "workspace")
    run = project.publish_run()
    training = TrainingSpec.model_validate(run.config).model_copy(update={"max_steps": END})
    trials = TrialsSpec.model_validate({"vary": {"optimizer.lr": [0.01, 0.02, 0.03]}}).drawn(
        Configuration(training=training, shards=ShardSpec())
    )
    with contextlib.closing(Ledger(folder / LEDGER)) as ledger:
        context = RunContext(
            pipeline="tiny",
            workspace=project.workspace,
            base=folder,
            ledger=ledger,
            digests=DigestCache(folder / "digests.json"),
            scratch=folder,
            budget_scope="one",
        )
        yield TinyTrials(context, describe_trials.fn(context, trials, lambda _: run.manifest), spec)


def main(folder: Path, spec: str) -> None:
    with tiny_trials(folder, LaunchSpec(**json.loads(spec))) as trials:
        paused = trials.train(to_step=RUNG)
        ended = trials.train(2)
    print(json.dumps([None if each.error is None else each.error.what for each in (*paused, *ended)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
