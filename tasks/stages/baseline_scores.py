"""What simple models say of held-out rows: fitted once for the same shards and code, and found for later models."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from headway.data_contracts.store import stages
from headway.data_contracts.store.documents import Document, Link, RunSpec
from headway.data_contracts.store.installation import version
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage import find_and_renew
from headway.training.config.shards import HELDOUT
from headway.training.engine.run_documents import training_spec
from headway.training.evaluation.measures import Sums

STAGE = "baselines"
MAX_EXAMPLES = 100_000
"""Of more, scores are kept by nobody: to read them back would be no quicker than to fit again."""


class BaselineScores(Document):
    """What the simple models of a table, or of texts, come to on each held-out example."""

    kind: ClassVar[str] = "baseline-scores"
    manifest: Link
    """The shards that they were fitted and scored on."""
    examples: tuple[str, ...]
    """Names of the examples, in the order of all sums."""
    sums: dict[str, dict[str, tuple[float, ...]]]
    """Sums over each example, by the model's name and their own."""


def found_baselines(context: RunContext, run: RunSpec, *, boosted_trees: bool) -> BaselineScores | None:
    """Those that an earlier model was held against, on the same shards; None: there are none."""
    record = find_and_renew(context, STAGE, _inputs(run, boosted_trees=boosted_trees))
    return None if record is None else context.workspace.load(record.document, BaselineScores)


def keep_baselines(
    context: RunContext, run: RunSpec, examples: tuple[str, ...], baselines: dict[str, Sums], *, boosted_trees: bool
) -> None:
    """Let the next model on these shards find them."""
    sums = {model: {name: tuple(values.tolist()) for name, values in its.items()} for model, its in baselines.items()}
    is_finite = all(math.isfinite(value) for its in sums.values() for values in its.values() for value in values)
    if not sums or not is_finite or len(examples) > MAX_EXAMPLES:
        return
    link = context.workspace.publish_document(BaselineScores(manifest=run.manifest, examples=examples, sums=sums))
    stages.record(
        context.workspace,
        STAGE,
        _inputs(run, boosted_trees=boosted_trees),
        link,
        provenance={"pipeline": context.pipeline},
    )


def sums_of(scores: BaselineScores) -> dict[str, Sums]:
    return {model: {name: np.array(values) for name, values in its.items()} for model, its in scores.sums.items()}


def _inputs(run: RunSpec, *, boosted_trees: bool) -> dict[str, Any]:
    """All that they follow from: a run's ranks fit them, with its frozen code."""
    return {
        "manifest": run.manifest.sha256,
        "split": HELDOUT,
        "boosted_trees": boosted_trees,
        "num_threads": training_spec(run).num_threads,
        "code": run.code.sha256,
        "environment": run.environment.sha256,
        "libraries": {name: version(name) for name in ("numpy", "torch", "scikit-learn")},
    }
