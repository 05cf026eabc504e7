"""A pipeline's data from day to day, and a run on each, without a model being trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headway.data_contracts.sources.reading import take_snapshot
from headway.data_contracts.store.documents import ContractReceipt, Link, Registration, RunSpec
from headway.data_contracts.tables.source_spec import SourceSpec
from headway.tasks.core.candidate import read_candidate
from headway.tasks.core.context import RunContext
from headway.tasks.stages.scoring import ScoringHarness
from headway.tasks.stages.shard import current_fitted_state, shards_under
from headway.training.config.shards import ShardSpec
from headway.training.launch.base.gang import LaunchSpec

SOURCE = SourceSpec(uri="data", format="csv", include=("*.csv",))
TABLE = {"kind": "tabular", "numeric": ["a", "b"], "label": "y"}
NUM_ROWS = 40


def shards_spec(encoder: dict[str, Any], **fields: Any) -> ShardSpec:
    common = {"encoder": encoder, "num_groups": 1, "split_by": "row", "heldout_fraction": 0.3}
    return ShardSpec.model_validate(common | fields)


class Days:
    """A pipeline whose data and encoder change from day to day, without a model being trained."""

    def __init__(self, context: RunContext, register: Callable[..., tuple[Link, Link]]) -> None:
        self.context, self.workspace, self._register = context, context.workspace, register
        (context.base / "data").mkdir()

    def write(self, **columns: list[Any]) -> None:
        rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        (self.context.base / "data" / "a.csv").write_text("\n".join(rows) + "\n")

    def run(self, spec: ShardSpec) -> RunSpec:
        """A run on today's data."""
        workspace = self.workspace
        snapshot = workspace.publish_document(take_snapshot(SOURCE, base=self.context.base, cache=self.context.digests))
        receipt = workspace.publish_document(
            ContractReceipt(
                contract=workspace.publish("contracts/made-up.yaml", b""),
                contract_name="made-up",
                contract_version="1.0.0",
                snapshot=snapshot,
                passed=True,
                num_rows=NUM_ROWS,
                num_quarantined=0,
                quarantine=None,
                verdicts=(),
                metrics={},
            )
        )
        fitted = current_fitted_state(self.context, spec, SOURCE, snapshot, receipt)
        manifest = shards_under(self.context, spec, SOURCE, snapshot, receipt, fitted)
        registration = workspace.load(self._register(0)[0], Registration)
        synthetic = read_candidate(workspace, registration.checkpoint).run
        return synthetic.model_copy(update={"manifest": manifest, "receipt": receipt, "fitted": fitted})

    def champion(self, run: RunSpec) -> Link:
        """A registration of a model of this run."""
        workspace = self.workspace
        registration = workspace.load(self._register(0)[0], Registration)
        manifest = read_candidate(workspace, registration.checkpoint).manifest
        checkpoint = manifest.model_copy(update={"run": workspace.publish_document(run)})
        made = {"run": run.link, "checkpoint": workspace.publish_document(checkpoint)}
        return workspace.publish_document(registration.model_copy(update=made))

    def bench(self, spec: ShardSpec) -> ScoringHarness:
        return ScoringHarness(context=self.context, launch=LaunchSpec(), shards=spec, source=SOURCE)


def columns(**others: list[Any]) -> dict[str, list[Any]]:
    numbers = range(NUM_ROWS)
    return {"a": [*numbers], "b": [0.5 * n for n in numbers], "y": ["no" if n % 2 else "yes" for n in numbers]} | others
