"""Retention: the last ones stay, and the last good one always."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from training.checkpoint.layout import MANIFEST_NAME, directory_name
from training.checkpoint.retention import discard_expired, expired

STEPS = st.sets(st.integers(1, 50), max_size=12)


@given(STEPS, STEPS, st.integers(0, 5))
def test_the_newest_and_the_newest_good_one_are_never_deleted(steps, good, keep_last):
    gone = expired(steps, known_good=good, keep_last=keep_last)
    left = sorted(steps - set(gone))
    assert set(gone) <= steps
    assert set(sorted(steps)[len(steps) - keep_last :]) <= set(left) if keep_last else True
    if good & steps:
        assert max(good & steps) in left
    else:
        assert not gone, "while none is known to be good, nothing goes"


@given(STEPS, st.integers(1, 5))
def test_no_more_stay_than_asked_for_when_all_are_good(steps, keep_last):
    assert len(steps) - len(expired(steps, known_good=steps, keep_last=keep_last)) == min(keep_last, len(steps))


def test_what_expired_leaves_the_disk_and_nothing_else_does(tmp_path):
    for step in (2, 4, 6, 8):
        (tmp_path / directory_name(step)).mkdir()
        (tmp_path / directory_name(step) / MANIFEST_NAME).write_bytes(b"")
    (tmp_path / directory_name(3)).mkdir()  # being written: no manifest yet

    discard_expired(tmp_path, known_good={4}, keep_last=1)

    assert sorted(path.name for path in tmp_path.iterdir()) == [directory_name(step) for step in (3, 4, 8)]
