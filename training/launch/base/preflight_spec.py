"""What a profile or pipeline file asks of hosts."""

from __future__ import annotations

from pydantic import Field

from headway.data_contracts.store.documents import Frozen
from headway.training.launch.base.host_facts import PATIENCE_S


class PreflightSpec(Frozen):
    """What hosts have to be like before ranks are started on them."""

    environment: tuple[str, ...] = Field(
        default=(), description="Names of variables that ranks need, such as those of secrets; values stand nowhere."
    )
    min_free_bytes: int = Field(0, ge=0, description="Free on the file system that checkpoints are written to.")
    max_clock_skew_s: float = Field(
        5.0, gt=0, description="Seconds that a host's clock may be off the launching machine's."
    )
    max_resolve_s: float = Field(
        1.0, gt=0, lt=PATIENCE_S, description="Seconds that a host's name service may take; each process group asks it."
    )
    min_bytes_per_s: float = Field(1e6, ge=0, description="Between one host and the next.")
    max_latency_s: float = Field(0.1, gt=0, description="Between one host and the next.")
