"""The main job. It reads like the picture in the README:

snapshot ─► validate ─► shard ─► launch ─► verify ─► evaluate ─► register
"""

from __future__ import annotations

from prefect import flow

from flows.request import RetrainRequest
from flows.session import session
from flows.summary import RetrainSummary, summarise
from flows.windows.admission import keeping_to_windows
from tasks.evaluate import evaluate
from tasks.launch import launch
from tasks.register import register, tracking_uri
from tasks.shard import shard
from tasks.snapshot import snapshot
from tasks.validate import validate
from tasks.verify import verify


@flow(name="retrain", flow_run_name="retrain {request.pipeline}", persist_result=False)
@keeping_to_windows
def retrain(request: RetrainRequest) -> RetrainSummary:
    """Retrain one model: every stage finds what it made before, or makes it and writes it down.

    Args:
        request: What to retrain, and what may come of it.
    """
    with session(request) as (run, pipeline):
        files = snapshot(run, pipeline.source)
        receipt = validate(run, pipeline.contract, pipeline.source, files, pipeline.shards)
        manifest = shard(run, pipeline.shards, pipeline.source, files, receipt)
        # Called directly, in the main thread: a submitted task would never see Prefect's termination signal.
        training = launch(run, pipeline.training, pipeline.launch, manifest, tracking_uri(run, pipeline.registry))
        checkpoint = verify(run, pipeline.launch, training)
        evaluation = evaluate(run, pipeline, checkpoint)
        outcome = register(run, pipeline.registry, pipeline.promotion, pipeline.launch, checkpoint, evaluation)
        return summarise(run, pipeline, receipt, evaluation, outcome)
