"""The main job. It reads like the picture in the README:

snapshot ─► validate ─► shard ─► launch ─► verify ─► evaluate ─► register
"""

from __future__ import annotations

from prefect import State, flow

from flows.request import RetrainRequest
from flows.session import session
from flows.summary import RetrainSummary, summarise
from flows.windows.admission import admit, skipped
from flows.windows.gate import Skip
from tasks.evaluate import evaluate
from tasks.launch import launch
from tasks.register import register, tracking_uri
from tasks.shard import shard
from tasks.snapshot import snapshot
from tasks.validate import validate
from tasks.verify import verify


@flow(name="retrain", flow_run_name="retrain {request.pipeline}", persist_result=False)
def retrain(request: RetrainRequest) -> RetrainSummary | State[None]:
    """Retrain one model: every stage finds what it made before, or makes it and writes it down.

    Args:
        request: What to retrain, and what may come of it.
    """
    admitted = admit(request)
    if isinstance(admitted, Skip):
        return skipped(admitted)
    with session(admitted) as (run, pipeline):
        files = snapshot(run, pipeline.source)
        receipt = validate(run, pipeline.contract, pipeline.source, files, pipeline.shards)
        manifest = shard(run, pipeline.shards, pipeline.source, files, receipt)
        # Called directly, in the main thread: a submitted task would never see Prefect's termination signal.
        training = launch(run, pipeline.training, pipeline.launch, manifest, tracking_uri(run, pipeline.registry))
        checkpoint = verify(run, pipeline.launch, training)
        evaluation = evaluate(run, pipeline, checkpoint)
        outcome = register(run, pipeline.registry, pipeline.promotion, pipeline.launch, checkpoint, evaluation)
        return summarise(run, pipeline, receipt, evaluation, outcome)
