"""How ranks get at the shards: nothing here changes which rows make a batch, so none of it is in a run's key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from headway.data_contracts.store.documents import Frozen
from headway.data_contracts.store.places import at_home

ENVIRONMENT_KEY = "HEADWAY_LOADER"


class LoaderSpec(Frozen):
    prefetch_bytes: int = Field(
        default=256 << 20, gt=0, description="The most that batches made ahead may take, in a rank's memory."
    )
    prefetch_threads: int = Field(default=1, ge=1, description="Threads of a rank that make batches ahead.")
    cache_folder: str | None = Field(
        default=None,
        description="Where a node keeps shards of a remote workspace, on its own disk; "
        "`headway/shards` in the user's cache folder by default.",
    )
    cache_bytes: int = Field(
        default=100 << 30, gt=0, description="The most that a node keeps; what was not used for longest goes first."
    )

    def environment(self) -> dict[str, str]:
        """How a launch tells its ranks, whose arguments name the run alone."""
        return {ENVIRONMENT_KEY: self.model_dump_json()}


def loader_spec(environ: Mapping[str, str] = os.environ) -> LoaderSpec:
    """What the launch said, or the defaults."""
    return LoaderSpec.model_validate_json(environ.get(ENVIRONMENT_KEY, "{}"))


def cache_folder(spec: LoaderSpec, environ: Mapping[str, str] = os.environ) -> Path:
    if spec.cache_folder is not None:
        return at_home(spec.cache_folder)
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return at_home(base) / "headway" / "shards"
