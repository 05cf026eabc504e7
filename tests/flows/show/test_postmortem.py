"""A draft of a postmortem says what ledgers know, what went by itself and what it cost, and asks the rest."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.profiles import PricesSpec
from headway.flows.report.written_report import to_html, to_markdown
from headway.flows.show import postmortem
from headway.flows.show.postmortem import read_postmortem, written
from headway.tasks.ownership.pipeline_history import FailedRetrain, record_failure
from headway.training.launch.base.failure import Failure
from tests.flows.accounts.lives import LOST, RUN, Life, numbered

PRICES = PricesSpec(device_hour_usd={"cpu": 36.0, "any": 9e8})
BEGIN_S = 1_790_000_000.0


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def interrupted(life: Life, what: str = LOST.what) -> None:
    life.flow("f", BEGIN_S, BEGIN_S + 60.0, ("stage.register", BEGIN_S + 55.0, BEGIN_S + 58.0))
    lost = dataclasses.replace(LOST, what=what)
    life.attempt("f", BEGIN_S, BEGIN_S + 12.0, numbered(1, 8, BEGIN_S + 2.0), failure=lost)
    life.attempt("f", BEGIN_S + 20.0, BEGIN_S + 50.0, numbered(5, 20, BEGIN_S + 25.0))


def test_it_says_what_happened_what_went_by_itself_and_what_that_took(life: Life) -> None:
    interrupted(life)
    found = read_postmortem(life.workspace.uri, RUN, PRICES)
    (recovery,) = found.account.recoveries
    assert recovery.cause == "infrastructure" and found.failed is None
    assert found.wasted_usd == pytest.approx(sum(found.account.waste_device_s.values()) * 0.01)
    text = written(found)
    assert text.word == "1 interruption, and it went on" and "rank 1 was killed" in text.lead
    assert any("infrastructure" in question for question in found.questions)
    page = to_markdown(text)
    for part in ("What happened", "What went by itself", "Effect", "Open questions", "rank 1 was killed"):
        assert part in page
    assert all(line.event not in ("step", "checkpoint.durable") for line in found.timeline)


def test_a_retrain_that_failed_for_good_is_told_with_its_advice(life: Life) -> None:
    life.flow("f", BEGIN_S, BEGIN_S + 60.0, failed=("TrainingFailed", "training", "launch"))
    life.attempt("f", BEGIN_S, BEGIN_S + 50.0, numbered(1, 8, BEGIN_S + 2.0), failure=LOST)
    failure = Failure(what="it broke", cause="training", advice="mend it")
    failed = FailedRetrain(
        pipeline="p", host="h", flow_run="f", stage="launch", failed_unix_s=time.time(), failure=failure, card="c"
    )
    record_failure(life.workspace, failed)
    text = written(read_postmortem(life.workspace.uri, RUN, PricesSpec()))
    assert (text.state, text.word, text.lead) == ("bad", "It failed for good", "it broke")
    assert "mend it" in to_markdown(text) and not any("USD" in name for _, name in text.tiles)


def test_a_run_that_is_no_further_since_is_not_said_to_have_gone_on(life: Life) -> None:
    life.flow("f", BEGIN_S, BEGIN_S + 60.0, stop="window closed")
    life.attempt("f", BEGIN_S, BEGIN_S + 12.0, numbered(1, 8, BEGIN_S + 2.0), failure=LOST)
    assert written(read_postmortem(life.workspace.uri, RUN, PRICES)).word == "Interrupted, and no further since"


def test_of_a_long_timeline_the_end_is_there_in_both_forms(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    life.flow("f", BEGIN_S, BEGIN_S + 1000.0)
    for number in range(30):
        begin_s, step = BEGIN_S + 20.0 * number, 2 * number + 1
        lost = dataclasses.replace(LOST, what=f"loss {number}")
        life.attempt("f", begin_s, begin_s + 10.0, numbered(step, step + 1, begin_s + 2.0), failure=lost)
    found = read_postmortem(life.workspace.uri, RUN, PRICES)
    assert found.num_lines == len(found.timeline) > 50
    for page in (to_html(written(found)), to_markdown(written(found))):
        assert page.count("loss 29") > 1 and page.count("loss 0") > 1
    monkeypatch.setattr(postmortem, "MAX_LINES", 10)
    shorter = read_postmortem(life.workspace.uri, RUN, PRICES)
    assert shorter.timeline == found.timeline[-10:] and shorter.num_lines == found.num_lines
    assert f"{found.num_lines - 10} earlier lines are left out" in to_markdown(written(shorter))


def test_a_run_to_which_nothing_happened_has_none(life: Life) -> None:
    life.flow("f", BEGIN_S, BEGIN_S + 60.0)
    life.attempt("f", BEGIN_S, BEGIN_S + 50.0, numbered(1, 8, BEGIN_S + 2.0))
    with pytest.raises(ConfigError, match="nothing happened to it"):
        read_postmortem(life.workspace.uri, RUN, PRICES)


def test_what_ranks_said_is_markup_in_neither_form(life: Life) -> None:
    interrupted(life, "<b>[x](y)</b> | \x1b[31m")
    text = written(read_postmortem(life.workspace.uri, RUN, PRICES))
    assert "<b>[x]" not in to_html(text) and "\x1b" not in to_html(text) + to_markdown(text)
