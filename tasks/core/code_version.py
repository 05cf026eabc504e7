"""What code a stage's result stands on: its root modules and every module of ours below that they import.

A run's recipe, imported by a name made at run time, is in the run's frozen code instead.
"""

from __future__ import annotations

import functools

from headway.data_contracts.store.digests import source_digest
from headway.training.observe.import_closure import lies_in, modules_below

FOLLOWED = ("headway.data_contracts", "headway.training")
# How ranks are started, watched and ended, and what they write of it, changes no result.
NOT_FOLLOWED = (
    "headway.training.launch",
    "headway.training.observe.ledger",
    "headway.training.observe.process_ends",
    "headway.training.observe.heartbeat",
)


@functools.cache
def code_version(*roots: str) -> str:
    """Digest of the modules' source: a stage made by other code is another stage."""
    return source_digest(modules_below(*roots, follow=decides_results))


def decides_results(module: str) -> bool:
    return lies_in(module, FOLLOWED) and not lies_in(module, NOT_FOLLOWED)
