"""A flow run's last word: what its workspace keeps goes to the Pushgateway that the environment names, if it names one.

For machines that no Prometheus reaches, and containers that are gone before it looks. It is bounded in time, and fails
nothing: what a retrain came to does not depend on who watches.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.cost_bound import known_prices
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.request import TrainingRequest
from headway.flows.console.environment import PUSHGATEWAY, project_folder
from headway.flows.console.last_act import problem_within
from headway.flows.report.failure_facts import BRIEFLY
from headway.flows.run.session import session
from headway.tasks.core.context import RunContext

WITHIN_S = 5.0


def push_quietly(uri: str, environ: Mapping[str, str] = os.environ) -> None:
    """Push the last word of a workspace; what is in the way is logged in one sentence.

    Args:
        uri: of the workspace.
    """
    if not environ.get(PUSHGATEWAY, "").strip():
        return
    if problem := problem_within(WITHIN_S, lambda: _push(uri, environ), "metrics-push"):
        logging.getLogger(__name__).warning(
            "The last word for the Pushgateway was not pushed: %s. `headway metrics --push` sends it.", problem
        )


def _push(uri: str, environ: Mapping[str, str]) -> None:
    # Only here: what it needs takes time to import, and most flow runs have no gateway.
    from headway.flows.monitoring.last_word import push

    prices = None
    with contextlib.suppress(ConfigError):  # of profiles; whoever needs them has reported it
        prices = known_prices(project_folder())
    push(Workspace(uri, BRIEFLY), prices, WITHIN_S, environ)


@contextlib.contextmanager
def pushing_session(request: TrainingRequest, *, finds_only: bool = False) -> Iterator[tuple[RunContext, PipelineSpec]]:
    """As `session`, and its last word is pushed once it is closed.

    Args: and what is raised: as of `session`.
    """
    has_begun = has_succeeded = False
    try:
        with session(request, finds_only=finds_only) as (run, pipeline):
            has_begun = True
            yield run, pipeline
        has_succeeded = True
    finally:
        # One that only finds, and does not find all, leaves nothing behind.
        if has_succeeded or (has_begun and not finds_only):
            push_quietly(request.workspace)
