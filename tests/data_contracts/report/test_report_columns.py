"""The pictures put trouble first, say every figure beside its limit, and carry no markup of the data's."""

from __future__ import annotations

import re
from typing import Any

from headway.data_contracts.report.columns import ColumnCard, DriftFigure, State, columns_section
from headway.data_contracts.report.distribution_picture import Bar

HOSTILE = "<script>alert('x')</script>\u202e\n.py"


def section(*cards: ColumnCard) -> str:
    return columns_section(cards, baseline="9f" * 32)


def card(name: str = "age", *, state: State = "good", drift: float = 0.1, **changes: Any) -> ColumnCard:
    given = {
        "name": name,
        "type": "int64",
        "state": state,
        "problems": ("moved too far",) if state != "good" else (),
        "bars": (Bar(label=HOSTILE, share=1.0, baseline_share=1.0),),
        "is_numeric": False,
        "ends": ("", "", ""),
        "null_share": 0.25,
        "baseline_null_share": 0.5,
        "drift": (DriftFigure(measure="PSI", value=drift, limit=0.2),),
        **changes,
    }
    return ColumnCard(**given)


def test_columns_in_trouble_come_first_then_those_nearest_to_their_limit() -> None:
    cards = (card("calm"), card("near", drift=0.19), card("odd", state="warn"), card("worst", state="bad"))
    names = re.findall(r"<h3><code>(\w+)</code>", section(*cards))
    assert names == ["worst", "odd", "near", "calm"]


def test_a_column_says_its_drift_its_limit_and_its_nulls_beside_those_before() -> None:
    page = section(card(state="bad", drift=0.7))
    text = re.sub(r"<[^>]*>", " ", page)
    assert re.search(r"PSI\s+0\.700\s+limit 0\.2", text)
    assert re.search(r"nulls\s+25 %\s+was 50 %", text)
    assert "moved too far" in text
    assert "9f9f9f9f9f9f" in text


def test_without_an_accepted_snapshot_the_pictures_say_so() -> None:
    text = columns_section([card()], baseline="")
    assert "nothing to compare with" in text


def test_hostile_names_and_labels_are_only_text() -> None:
    text = section(card(HOSTILE), card(HOSTILE, is_numeric=True))
    assert "<script" not in text
    assert "\u202e" not in re.sub(r"<title>.*?</title>|aria-label='[^']*'", "", text, flags=re.DOTALL).split("<text")[0]
