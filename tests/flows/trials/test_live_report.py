"""The page of a search while it goes on, and where it found no winner; trials are played."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.data_contracts.store.errors import ConfigError, HeadwayError, RunStopped
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.cost_bound import PROFILE
from headway.flows.trials import live_report
from headway.flows.trials.live_report import PAUSE_PER_COST, LiveReport
from headway.flows.trials.search_page import render_html
from headway.training.checkpoint.layout import run_folder
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from tests.tasks.stages.test_search import Machine, by_number, link_of, spec

Prices = Callable[[float], None]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Search:
    """One in a workspace, whose page takes as long as the clock is told."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace.create(str(folder))
        self.clock, self.events = Clock(), list[dict[str, Any]]()
        context: Any = SimpleNamespace(
            pipeline="tiny",
            budget_scope="one",
            workspace=self.workspace,
            ledger=SimpleNamespace(event=lambda name, **fields: self.events.append({"event": name, **fields})),
        )
        pipeline: Any = SimpleNamespace(launch=SimpleNamespace(world_size=2, launcher="local"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Workspace, "load", lambda *_: SimpleNamespace(snapshot=SimpleNamespace(sha256="a" * 64)))
            self.live = LiveReport(context, pipeline, link_of(1), 1785542400.0, self.clock)

    @property
    def page(self) -> str:
        return self.workspace.local_path("ledger/one/trials.html").read_text()


@pytest.fixture
def search(tmp_path: Path) -> Search:
    return Search(tmp_path / "workspace")


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prices:
    def write(usd: float) -> None:
        folder = tmp_path / "project" / "deployments"
        folder.mkdir(parents=True)
        profile = f"{{pool: {{name: headway}}, prices: {{device_hour_usd: {{any: {usd}}}}}}}"
        (folder / "profiles.yaml").write_text(f"project: p\nprofiles: {{dev: {profile}}}\n")
        monkeypatch.delenv(PROFILE, raising=False)
        monkeypatch.setenv("HEADWAY_PROJECT", str(folder.parent))

    return write


def trained(workspace: Workspace, number: int, *attempts: tuple[float, float]) -> None:
    folder = workspace.local_path(run_folder(link_of(number)))
    folder.mkdir(parents=True)
    for place, (start_unix_s, end_unix_s) in enumerate(attempts):
        record = AttemptRecord(attempt=place, scope="one", start_unix_s=start_unix_s, end_unix_s=end_unix_s)
        AttemptRecords(folder).begin(record)
        AttemptRecords(folder).end(record)


def test_the_page_is_there_from_the_first_trial_on_and_says_at_each_rung_where_trials_are(search: Search) -> None:
    pages: list[str] = []

    def observe(found: Any) -> None:
        search.live.observe(found)
        pages.append(search.page)

    Machine(by_number).search(spec(rounds=1), observe=observe)
    stands = ("9 before step 60", "9 at step 60", "3 at step 180, 6 at step 60", "1 at the end, 2 at step 180, 6 at ")
    assert len(pages) == len(stands)
    for page, words in zip(pages, stands, strict=True):
        assert "<h1>The search goes on</h1>" in page and words in page and "of 2026-08-01" in page
    (event,) = search.events
    assert event["event"] == "search.page" and "ledger/one/trials.html" in event["message"]


def test_pages_take_no_more_than_a_four_hundredth_of_the_time(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []

    def slowly(*arguments: Any) -> str:
        drawn.append(search.clock.now_s)
        search.clock.now_s += 0.8
        return render_html(*arguments)

    monkeypatch.setattr(live_report, "render_html", slowly)
    found = Machine(by_number).search(spec(rounds=1))
    for _ in range(4000):
        search.live.observe(found)
        search.clock.now_s += 1.0
    assert 0.8 * len(drawn) <= search.clock.now_s / PAUSE_PER_COST + 0.8
    assert len(drawn) == 13, "and no fewer than that allows"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RunStopped("enough.", reason="requested"), "Stopped: enough."),
        (KeyboardInterrupt(), "Stopped: KeyboardInterrupt"),
        (ConfigError("it is none."), "Failed: it is none."),
    ],
)
def test_a_search_that_is_stopped_or_fails_leaves_a_page_of_what_there_is_also_where_one_was_just_drawn(
    search: Search, error: BaseException, words: str
) -> None:
    found = Machine(by_number).search(spec(rounds=1))
    search.live.observe(found)
    search.live._next_s = 1e9
    with pytest.raises(type(error)), search.live.of_its_end():
        raise error
    assert f"<h1>{words}</h1>" in search.page and "1 at the end, 2 at step 180, 6 at step 60" in search.page


def test_what_goes_wrong_after_the_last_page_is_not_said_of_the_search(search: Search) -> None:
    found = Machine(by_number).search(spec(rounds=1))
    search.live.observe(found)
    with pytest.raises(RunStopped), search.live.of_its_end():
        search.live.publish(search.live.so_far(found))
        raise RunStopped("stopped.", reason="requested")
    assert "Stopped" not in search.page


def test_where_all_fail_the_page_has_each_cause(search: Search) -> None:
    machine = Machine(by_number, fails_at=dict.fromkeys(range(1, 5), 60))
    with pytest.raises(HeadwayError), search.live.of_its_end():
        machine.search(spec(draws=2), observe=search.live.observe)
    assert "<h1>Failed: all 4 trials failed.</h1>" in search.page and "4 failed" in search.page
    assert search.page.count("failed (training): its loss is no number.") == 4


def test_a_page_that_cannot_be_written_ends_no_search(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr(Workspace, "publish", full)
    found = Machine(by_number).search(spec(rounds=1), observe=search.live.observe)
    assert found.best.trial.number == 1 and not search.events, "nobody is sent to a page that is not there"


def test_what_was_spent_is_of_all_attempts_at_these_trials_by_the_prices_that_are_known(
    tmp_path: Path, prices: Prices
) -> None:
    prices(3.0)
    search = Search(tmp_path / "workspace")
    trained(search.workspace, 1, (1000.0, 1600.0), (1900.0, 2800.0))
    trained(search.workspace, 2, (1600.0, 1900.0))
    found = search.live.so_far(Machine(by_number).search(spec(rounds=1)))
    assert (found.num_starts, found.device_hours, found.usd) == (3, 1.0, 3.0), "1,800 s of two devices"
    assert found.data is not None and found.data.snapshot == "a" * 64


def test_without_prices_hours_and_starts_are_known_alone(search: Search) -> None:
    found = search.live.so_far(Machine(by_number).search(spec(rounds=1)))
    assert (found.num_starts, found.device_hours, found.usd) == (0, 0.0, None)
