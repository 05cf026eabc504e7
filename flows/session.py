"""One flow run's surroundings: workspace, ledger, scratch folder and watchers, opened and closed in one place."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from prefect.runtime import flow_run

from data_contracts.digest_cache import DigestCache
from data_contracts.errors import HeadwayError
from data_contracts.publication import Workspace
from flows.environment import project_folder
from flows.orphan import ended_with_worker
from flows.pipeline_spec import PipelineSpec, find_pipeline_file, load_pipeline
from flows.request import RetrainRequest
from tasks.context import RunContext
from training.ledger import Ledger, Listener

watchers: ContextVar[tuple[Listener, ...]] = ContextVar("watchers", default=())
"""Who sees every event of the flow run as it happens: the terminal, a test."""
command_began_unix_s: ContextVar[float | None] = ContextVar("command_began_unix_s", default=None)
"""When the command was started, so that imports and Prefect's own start are accounted for too."""
WORKER_LOST = "the worker that started this flow is gone; a checkpoint is kept, and the next run continues from it."


@contextlib.contextmanager
def session(request: RetrainRequest) -> Iterator[tuple[RunContext, PipelineSpec]]:
    """Everything a flow run needs, from its request.

    Raises:
        ConfigError: the pipeline file.
        EnvironmentProblem: the workspace.
    """
    path = find_pipeline_file(request.pipeline, project_folder())
    pipeline = load_pipeline(path)
    workspace = Workspace.create(request.workspace)
    identity = str(flow_run.id or uuid.uuid4())
    ledger = Ledger(ledger_spool(workspace, identity), process="flow", flow_run=identity)
    ledger.listeners.extend(watchers.get())
    began = command_began_unix_s.get() or time.time()
    ledger.event("flow.begin", pipeline=pipeline.pipeline, note=request.note, began_unix_s=began)
    ledger.elapsed("start", began)
    scratch = Path(tempfile.mkdtemp(prefix="headway-"))
    digests = DigestCache(workspace.local_path("digest-cache.json"))
    try:
        with ended_with_worker(lambda: ledger.event("worker.lost", message=WORKER_LOST)):
            yield (
                RunContext(
                    pipeline=pipeline.pipeline,
                    workspace=workspace,
                    base=path.parent,
                    ledger=ledger,
                    digests=digests,
                    scratch=scratch,
                    budget_scope=identity,
                    may_promote=request.may_promote,
                ),
                pipeline,
            )
    except BaseException as error:
        ledger.event("flow.failed", error=type(error).__name__, message=str(error))
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.suppress(OSError, HeadwayError):
            digests.save()  # what was hashed need not be hashed again; losing it costs time alone
        ledger.event("flow.end")
        ledger.close()


def ledger_spool(workspace: Workspace, flow_run_id: str) -> Path:
    return workspace.local_path(f"ledger/{flow_run_id}/flow.jsonl")
