"""Which held-out examples rank and which judge: told before a model is trained, and none does both, whenever."""

from __future__ import annotations

import pytest

from headway.data_contracts.store.documents import Link, ShardManifest
from headway.data_contracts.store.errors import DataError
from headway.tasks.rows.heldout_parts import Parts, evaluated, parts_of, require_parts
from headway.tasks.rows.ranking_split import remember_ranking
from headway.training.config.shards import ShardSpec
from tests.tasks.days import SOURCE, TABLE, Days, columns, shards_spec

pytestmark = pytest.mark.process

SHARE = 0.5


def shards_of(days: Days, **fields: object) -> tuple[Link, ShardManifest]:
    manifest = days.run(shards_spec(TABLE, **fields)).manifest
    return manifest, days.workspace.load(manifest, ShardManifest)


def parts(days: Days, share: float, shards: ShardManifest) -> Parts:
    return parts_of(days.context, share, SOURCE, shards)


def test_what_ranked_trials_judges_no_more_when_the_share_is_lowered(days: Days) -> None:
    days.write(**columns())
    _, shards = shards_of(days)
    before = parts(days, SHARE, shards)
    assert before.ranking and before.evaluation and not set(before.ranking) & set(before.evaluation)
    assert len(parts(days, SHARE / 2, shards).evaluation) > len(before.evaluation), "nothing has ranked yet"

    remember_ranking(days.context, SHARE, shards_spec(TABLE), {})
    remember_ranking(days.context, SHARE / 2, shards_spec(TABLE), {})
    assert parts(days, SHARE, shards) == before
    fewer, none, more = (parts(days, share, shards) for share in (SHARE / 2, 0.0, 1.5 * SHARE))
    assert set(fewer.ranking) < set(before.ranking) and fewer.evaluation == before.evaluation
    assert none == Parts(ranking=[], evaluation=before.evaluation)
    assert set(more.ranking) > set(before.ranking) and set(more.evaluation) < set(before.evaluation)


def test_neither_a_smaller_split_nor_another_one_gives_back_what_ranked(days: Days) -> None:
    days.write(**columns())
    remember_ranking(days.context, SHARE, shards_spec(TABLE), {})
    _, smaller = shards_of(days, heldout_fraction=0.3 * SHARE)
    with pytest.raises(DataError, match=r"0 rank trials and 0 evaluate; [1-9]\d* ranked trials or"):
        parts(days, 0.0, smaller)
    _, other = shards_of(days, split_salt="another")
    found = parts(days, 0.0, other)
    num_heldout = sum(group.num_samples for group in other.groups if group.split == "heldout")
    assert not found.ranking and 0 < len(found.evaluation) < num_heldout


def test_parts_are_asked_for_before_training_and_read_from_the_source_once(days: Days) -> None:
    days.write(**columns())
    manifest, shards = shards_of(days)
    with pytest.raises(DataError, match=r"0 rank trials and \d+ evaluate"):
        require_parts(days.context, 0.001, SOURCE, manifest)
    require_parts(days.context, SHARE, SOURCE, manifest)
    days.write(**columns(b=[2.0] * 40))
    require_parts(days.context, SHARE, SOURCE, manifest)  # found
    require_parts(days.context, 0.0, SOURCE, manifest)  # nothing to tell apart
    found = parts(days, SHARE, shards)
    assert found.ranking and found.evaluation, "also where a search is continued after the source has changed"
    assert found.document is not None
    names = [str(row) for row in range(len(found.ranking) + len(found.evaluation))]
    assert evaluated(days.workspace, found.document, shards, names) == found.evaluation, "by what a report names"
    with pytest.raises(DataError, match=r"a\.csv"):
        parts(days, SHARE / 2, shards)


def test_of_a_given_split_a_share_ranks_and_what_ranked_judges_no_more_whatever_is_listed(days: Days) -> None:
    quarters = [("train", "train", "valid", "test")[row % 4] for row in range(40)]
    days.write(**columns(part=quarters))

    def given(*heldout: str) -> tuple[ShardSpec, ShardManifest]:
        split = {"column": "part", "train": ["train"], "heldout": heldout, "others": "leave_out"}
        fields = {"split_by": "given", "split": split}
        return shards_spec(TABLE, **fields), shards_of(days, **fields)[1]

    spec, shards = given("test")
    counts = {split: sum(g.num_samples for g in shards.groups if g.split == split) for split in ("train", "heldout")}
    assert counts == {"train": 20, "heldout": 10}
    before = parts(days, SHARE, shards)
    assert before.ranking and before.evaluation and len(before.ranking) + len(before.evaluation) == 10
    remember_ranking(days.context, SHARE, spec, {})
    assert parts(days, 0.0, shards) == Parts(ranking=[], evaluation=before.evaluation)
    _, more = given("test", "valid")
    wider = parts(days, 0.0, more)
    assert len(wider.evaluation) == len(before.evaluation) + 10, "all but those that ranked"
