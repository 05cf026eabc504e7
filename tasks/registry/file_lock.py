"""One flow at a time: a lock file that the kernel frees when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from headway.data_contracts.store.errors import RegistryError
from headway.data_contracts.store.places import naming_the_place
from headway.training.launch.base.run_lock import locked

WITHIN_S = 600.0
"""Longer than any registration should take, its upload to a server included."""


@contextlib.contextmanager
def holding(path: Path, *, within_s: float = WITHIN_S) -> Iterator[None]:
    """Hold the lock file exclusively, waiting for whoever holds it.

    Raises:
        RegistryError: still held at the deadline; names the holder.
        EnvironmentProblem: the lock file cannot be written.
    """

    def busy(holder: str) -> RegistryError:
        what = f"another flow has held this for more than {within_s:g} s ({holder})."
        return RegistryError(what, where=str(path), advice="Wait for it, or end it; what was trained is kept.")

    with naming_the_place(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path, busy, within_s=within_s):
        yield
