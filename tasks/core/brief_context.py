"""What tasks need of a flow run, for a command that is none: its ledger and scratch folder go with the body."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.tasks.core.context import RunContext
from headway.training.observe.ledger import Ledger


@contextlib.contextmanager
def brief_context(pipeline: str, workspace: Workspace, base: Path | None = None) -> Iterator[RunContext]:
    """Args:
    base: the pipeline file's folder; the scratch folder, where there is no such file.
    """
    with (
        scratch_folder("headway-brief-") as folder,
        contextlib.closing(Ledger(folder / "ledger.jsonl")) as ledger,
    ):
        yield RunContext(
            pipeline=pipeline,
            workspace=workspace,
            base=base or folder,
            ledger=ledger,
            digests=DigestCache(workspace.local_path("digest-cache.json")),
            scratch=folder,
            budget_scope=str(uuid.uuid4()),
        )
