"""The flow run of Prefect's that this process is in, asked without loading Prefect: who has not is in none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun


def current_flow_run() -> FlowRun | None:
    # To import Prefect takes two seconds of a processor, and commands that run no flow have not done so.
    if "prefect.context" not in sys.modules:
        return None
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    return None if context is None else context.flow_run
