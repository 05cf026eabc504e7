"""Which held-out examples rank and which judge: told before a model is trained, and none does both."""

from __future__ import annotations

import pytest

from data_contracts.documents import Link, ShardManifest
from data_contracts.errors import DataError
from tasks.heldout_parts import parts_of, require_parts
from tests.tasks.days import SOURCE, TABLE, Days, columns, shards_spec

SHARE = 0.5


def shards_of(days: Days, **fields: object) -> tuple[Link, ShardManifest]:
    manifest = days.run(shards_spec(TABLE, **fields)).manifest
    return manifest, days.workspace.load(manifest, ShardManifest)


def test_parts_are_asked_for_before_training_and_read_from_the_source_once(days: Days) -> None:
    days.write(**columns())
    manifest, shards = shards_of(days)
    with pytest.raises(DataError, match=r"0 rank trials and \d+ judge"):
        require_parts(days.context, 0.001, SOURCE, manifest)
    require_parts(days.context, SHARE, SOURCE, manifest)
    days.write(**columns(b=[2.0] * 40))
    require_parts(days.context, SHARE, SOURCE, manifest)  # found
    require_parts(days.context, 0.0, SOURCE, manifest)  # nothing to tell apart
    with pytest.raises(DataError, match=r"a\.csv"):
        parts_of(days.context, SHARE, SOURCE, shards)
