from __future__ import annotations

import datetime

import pytest

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.publication import Workspace
from headway.tasks.ownership.current_search import Due, begin, due, end
from headway.tasks.ownership.pipeline_history import SearchRecord, SearchState, read

BEGIN = datetime.datetime(2026, 10, 1, tzinfo=datetime.UTC)
OWN, OTHER = "a" * 64, "b" * 64
DAY_S = 86_400.0


def record(state: SearchState, days_after: float, settings: str = OWN) -> SearchRecord:
    link = Link(kind="manifest", sha256="c" * 64) if state == "started" else None
    return SearchRecord(
        state=state,
        started_unix_s=BEGIN.timestamp() + days_after * DAY_S,
        settings=settings,
        receipt=link,
        manifest=link,
        base=link,
    )


@pytest.mark.parametrize(
    ("newest", "wanted"),
    [
        (None, "begin"),
        (record("ended", -1), "begin"),
        (record("ended", 0), None),
        (record("ended", 30, OTHER), None),
        (record("started", -100), "continue"),
        (record("started", 5), "continue"),
        (record("started", 5, OTHER), "begin"),
        (record("failed", -1), "begin"),
        (record("failed", 5), None),
        (record("failed", 5, OTHER), "begin"),
        (record("stopped", 5), None),
        (record("stopped", 5, OTHER), None),
        (record("stopped", -1), "begin"),
    ],
)
def test_a_period_has_one_search_which_windows_continue_until_it_is_over(
    newest: SearchRecord | None, wanted: Due | None
) -> None:
    assert due(newest, OWN, BEGIN) == wanted


def test_the_end_of_a_search_leaves_the_record_of_one_that_began_since(workspace: Workspace) -> None:
    first, second = record("started", 1), record("started", 2, OTHER)
    begin(workspace, "tiny", first)
    begin(workspace, "tiny", second)
    end(workspace, "tiny", first.started_unix_s, OWN, "ended")
    assert read(workspace, "tiny").search == second
    end(workspace, "tiny", second.started_unix_s, OTHER, "ended")
    assert read(workspace, "tiny").search == record("ended", 2, OTHER)


def test_what_a_search_kept_is_to_be_written_down_until_another_has_ended(workspace: Workspace) -> None:
    def kept() -> str:
        newest = read(workspace, "tiny").search
        return "" if newest is None else newest.keep

    end(workspace, "tiny", 1.0, OWN, "ended", "training: {a: 1}")
    begin(workspace, "tiny", record("started", 1))
    assert kept() == "training: {a: 1}"
    end(workspace, "tiny", record("started", 1).started_unix_s, OWN, "stopped")
    assert kept() == "training: {a: 1}"
    begin(workspace, "tiny", record("started", 2, OTHER))
    assert not kept(), "of other settings"
    end(workspace, "tiny", record("started", 2).started_unix_s, OTHER, "ended")
    assert not kept()
