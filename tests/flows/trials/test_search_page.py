"""The page of a search shows every trial, compares them at a rung that all came to, and needs nothing else."""

from __future__ import annotations

import io
import math
import random
import re

import pytest

from headway.flows.console.console import plain_console
from headway.flows.report.search_table import SearchTable
from headway.flows.trials.report import print_ranking, table_of
from headway.flows.trials.search_page import explained, render_html
from headway.flows.trials.summary import (
    SearchSoFar,
    SideBySide,
    TrialRow,
    TrialsSummary,
    final_figure,
    rung_figures,
)
from tests.flows.report.test_summary import summary as retrained

LEVELS = [60, 180, 540]


def row(number: int, settings: dict[str, object], value: float, levels: int = 1, **fields: object) -> TrialRow:
    """A trial that came to so many of the levels, a tenth better at each."""
    rungs = {step: value * 0.9**place for place, step in enumerate(LEVELS[:levels])}
    ended = {} if levels < len(LEVELS) else {"value": rungs[540], "low": rungs[540] - 0.1, "high": rungs[540] + 0.1}
    known = {"trial": number, "settings": settings, "run": f"{number:016x}", "steps": LEVELS[levels - 1]}
    return TrialRow.model_validate({**known, "rungs": rungs, **ended, **fields})


def searched(rows: list[TrialRow], **fields: object) -> TrialsSummary:
    spent = sum(each.steps for each in rows)
    return TrialsSummary.model_validate(
        {
            "pipeline": "nightly",
            "metric": "log_loss",
            "greater_is_better": False,
            "num_ranking_examples": 178,
            "levels": LEVELS,
            "trials": rows,
            "steps_spent": spent,
            "steps_saved": 540 * len(rows) - spent,
            "is_decided": True,
            "verdict": "decided: trial 1 less 2",
            "keep": "training: {optimizer: {lr: 0.01}}",
            "best": retrained(is_champion=True, champion_version="4"),
            **fields,
        }
    )


def spread(num: int) -> list[TrialRow]:
    """Of a rate that decides what a trial comes to, and a kind that does not."""
    rng = random.Random(0)
    rates = [10 ** rng.uniform(-4, -1) for _ in range(num)]
    rows = [
        row(number, {"optimizer.lr": rate, "kind": rng.choice(["a", "b"])}, abs(math.log10(rate) + 2) + 0.1, 1)
        for number, rate in enumerate(rates, start=2)
    ]
    return [row(1, {"optimizer.lr": 0.01, "kind": "a"}, 0.1, 3), *rows]


def test_prefect_shows_the_rows_of_the_terminal_and_says_why_the_first_is_kept_in_a_line() -> None:
    made = searched(spread(1), ended="8 h so far", report="ledger/a/trials.html")
    (kept, other), line = table_of(made)
    assert list(kept) == ["trial", "optimizer.lr", "kind", "at 60", "at 180", "log_loss", "run"]
    assert (kept["trial"], kept["at 60"], kept["log_loss"]) == ("1", "0.1000", "0.0810 [-0.0190, 0.1810]")
    assert other["log_loss"] == "paused at step 60" and other["at 180"] == ""
    assert line == (
        "Trials, the one to keep first. decided: trial 1 less 2. Ended by its budget: 8 h so far. "
        "As a page: ledger/a/trials.html"
    )


def test_every_trial_is_a_line_and_a_row_and_the_one_that_is_kept_is_marked() -> None:
    rows = spread(30)
    page = render_html(searched(rows), 0.0)
    together = page.partition("All settings at once")[2].partition("</section>")[0]
    assert together.count("<title>trial ") == len(rows) and together.count("stroke-width:3") == 1
    assert all(each.run in page for each in rows)
    assert f"{1 - (540 + 30 * 60) / (31 * 540):.0%}" in page, "saved"
    assert "log_loss at step 60" in page and "://" not in page, "nothing is fetched"
    assert "by its budget" not in page
    assert "by its budget: 8 h so far" in render_html(searched(rows, ended="8 h so far"), 0.0)


SPENT = {
    "num_starts": 5,
    "device_hours": 2.5,
    "usd": 12.0,
    "side_by_side": SideBySide(at_once=2, step_s=0.013, alone_s=0.01),
}


def test_what_was_spent_and_where_trials_ended_and_how_they_held_each_other_up_is_said_everywhere() -> None:
    rows = [*spread(3), row(9, {"optimizer.lr": 0.5, "kind": "b"}, 1.0, cause="training", what="it diverged")]
    made = searched(rows, **SPENT)
    lines = (
        "1 at the end, 3 at step 60, 1 failed",
        "2.50 device hours, 12.00 USD, 5 starts",
        "2 trained at a time, a step in 13 ms; alone in 10 ms: 1.30 times as long",
    )
    stream = io.StringIO()
    print_ranking(made, plain_console(stream))
    page = render_html(made, 0.0)
    for line in lines:
        assert line in " ".join(stream.getvalue().split()) and line in page and line in made._repr_html_()
    tiles = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page))
    assert [tiles[f"trials {end}"] for end in ("at their ends", "paused", "failed")] == ["1", "3", "1"]
    assert (tiles["device hours"], tiles["starts"], tiles["USD"]) == ("2.5", "5", "12.00")
    assert made.model_dump(mode="json")["side_by_side"]["ratio"] == pytest.approx(1.3)
    unmeasured = searched(rows, **SPENT | {"usd": None, "side_by_side": SideBySide(at_once=2, step_s=1, alone_s=None)})
    assert "alone: not measured" in render_html(unmeasured, 0.0) and "USD" not in render_html(unmeasured, 0.0)


def test_a_page_of_a_search_that_goes_on_says_so_and_where_its_trials_are() -> None:
    rows = [*spread(3)[1:], row(9, {"optimizer.lr": 0.5, "kind": "b"}, 1.0, 0, rungs={}, steps=0)]
    so_far = SearchSoFar.model_validate(searched(rows).model_dump())
    page = render_html(so_far, 0.0, "The search goes on")
    header = page.partition("<header")[2].partition("</header>")[0]
    assert "<h1>The search goes on</h1>" in header and "4 trials: 3 at step 60, 1 before step 60." in header
    assert (
        "is ahead" in page and "is kept" not in page and "saved" not in page and all(each.run in page for each in rows)
    )
    nothing = so_far.model_copy(update={"metric": "", "trials": rows[-1:]})
    assert "1 before step 60" in render_html(nothing, 0.0, "Failed: all 4 trials failed.")


def test_what_a_setting_explains_is_near_all_for_one_that_decides_and_near_nothing_for_one_that_does_not() -> None:
    found = searched(spread(200))
    decides, does_not = explained(found, "optimizer.lr"), explained(found, "kind")
    assert decides is not None and does_not is not None
    assert decides > 0.6 and does_not < 0.1
    assert explained(searched(spread(3)), "optimizer.lr") is None, "too few say nothing"
    assert render_html(found, 0.0).index("<figcaption>optimizer.lr") < render_html(found, 0.0).index("<figcaption>kind")


def test_a_branch_that_varies_is_read_as_a_pipeline_file_has_it_everywhere() -> None:
    settings: list[dict[str, object]] = [{"ema": None}, {"ema": {"decay": 0.9}}, {"ema": {}, "ema.decay": 0.99}]
    found = searched([row(place, each, place / 10, 3) for place, each in enumerate(settings, start=1)])
    page, console = render_html(found, 0.0), io.StringIO()
    print_ranking(found, plain_console(console))
    for shown in ("null", "{decay: 0.9}", "{}"):
        assert shown in page and shown in console.getvalue()
        assert shown in [each["ema"] for each in table_of(found)[0]]
    live = SearchTable()
    for place, each in enumerate(settings, start=1):
        live.take({"event": "trial", "trial": f"trial {place}", "settings": each})
    assert [("{decay: 0.9}" in line, "null" in line) for line in live.lines(200)[1:]] == [
        (False, True),
        (True, False),
        (False, False),
    ]


def test_trials_that_failed_or_came_to_no_number_are_rows_and_no_points() -> None:
    rows = [
        *spread(4),
        row(7, {"optimizer.lr": 0.5, "kind": "b"}, math.nan),
        row(8, {"optimizer.lr": 0.9, "kind": "b"}, 1.0, cause="training", what="it diverged", rungs={}),
    ]
    page = render_html(searched(rows), 0.0)
    together = page.partition("All settings at once")[2].partition("</section>")[0]
    assert together.count("<title>trial ") == 5
    assert "failed (training): it diverged" in page and "nan" not in re.sub(r"<td.*?</td>", "", page)


def test_a_figure_of_a_later_step_than_its_rung_says_so_and_one_beyond_all_measure_is_short() -> None:
    rates = [{"optimizer.lr": each / 10} for each in (1, 2)]
    rows = [row(1, rates[0], 0.5, 3), row(2, rates[1], 1e308, 2, later={60: 180})]
    assert rung_figures(searched(rows), rows[0]) == ("0.5000", "0.4500")
    assert rung_figures(searched(rows), rows[1]) == ("1e+308 of step 180", "9e+307")
    enormous = row(3, rates[0], 1e308, 3, other_seeds={1: 1e308})
    assert final_figure(enormous) == "8.1e+307 [8.1e+307, 8.1e+307]; 1e+308 with seed 1"
    assert "1e+308 of step 180" in render_html(searched(rows), 0.0)


@pytest.mark.parametrize("greater_is_better", [False, True])
def test_without_rungs_and_with_one_trial_alone_it_is_a_page_too(greater_is_better: bool) -> None:
    ended = {"value": 0.5, "low": 0.4, "high": 0.6, "rungs": {540: 0.5}, "steps": 540}
    rows = [row(each, {"optimizer.lr": each / 10}, 1.0).model_copy(update=ended) for each in (1, 2)]
    for some in (rows, rows[:1]):
        page = render_html(searched(some, levels=[540], greater_is_better=greater_is_better, verdict=""), 0.0)
        assert "0.5000 [0.4000, 0.6000]" in page and "at step" not in page
