"""What a deployment consists of, as plain data: the same shape for what should be on a server and what is."""

from __future__ import annotations

from typing import Literal, get_args

from headway.data_contracts.store.documents import Frozen, Json

Kind = Literal["work pool", "concurrency limit", "variable", "deployment", "automation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order in which they are made; removed the other way round."""


class Resource(Frozen):
    kind: Kind
    name: str
    """Unique among its kind; a deployment's is FLOW/NAME."""
    fields: dict[str, Json]
    """As Prefect's API has them; all that `headway deploy` decides, and nothing else."""


class ExistingResource(Resource):
    """One that is on the server."""

    id: str
    ours: bool
    """It carries the mark of this project and profile."""
    used_by_others: tuple[str, ...] = ()
    """Deployments without the mark that stand on it."""


def mark_of(project: str, profile: str) -> str:
    """A tag on all that is made, or part of the name or description of what takes no tags."""
    return f"headway:{project}:{profile}"
