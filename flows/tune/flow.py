"""The stages that a retrain would run up to its shards, found or made, and the trials on them:

snapshot ─► validate ─► shard ─► ranks ─► buckets ─► loader ─► save interval
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headway.flows.config.pipeline_file import pipeline_file
from headway.flows.config.preflight import check_contract
from headway.flows.config.request import TuneRequest
from headway.flows.monitoring.pushing import pushing_session
from headway.flows.tune.advice_page import render_html
from headway.flows.tune.measuring import Tuner
from headway.tasks.stages.shard import shard
from headway.tasks.stages.snapshot import snapshot
from headway.tasks.stages.validate import validate
from headway.tasks.tuning import record
from headway.tasks.tuning.advice import Advice
from headway.tasks.tuning.record import Tuning


class Advised(NamedTuple):
    advice: Advice
    page: str
    """Where it is shown."""


def tune_here(request: TuneRequest, on_tuned: Callable[[Tuning], None]) -> Advised | None:
    """Measure, and advise where that was asked for.

    Args:
        on_tuned: told what was measured before anything is tried for advice, which may fail or be stopped.

    Raises: as a retrain, up to its training.
    """
    with pushing_session(request) as (run, pipeline):
        with run.ledger.span("check"):
            check_contract(pipeline, pipeline_file(request.pipeline).path)
        files = snapshot(run, pipeline.contract, pipeline.source)
        receipt = validate(run, pipeline.contract, pipeline.source, files, pipeline.shards)
        manifest = shard(run, pipeline.shards, pipeline.source, files, receipt)
        tuner = Tuner(run, pipeline, manifest, rounds=request.rounds)
        on_tuned(tuner.tune())
        if not request.advise:
            return None
        advice = tuner.advise()
        # A name of a pipeline has no dot: what was measured of another one is not replaced.
        place = f"{record.FOLDER}/{pipeline.pipeline}.advice"
        run.workspace.publish_json(f"{place}.json", advice.model_dump(mode="json"))
        run.workspace.publish(f"{place}.html", render_html(advice).encode())
        return Advised(advice, run.workspace.uri_of(f"{place}.html"))
