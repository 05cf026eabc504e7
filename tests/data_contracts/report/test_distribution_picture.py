"""Pictures show shares to scale, explain themselves, and are nobody's way into the page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from headway.data_contracts.report.distribution_picture import (
    HEIGHT,
    WIDTH,
    Bar,
    categorical_picture,
    numeric_picture,
    percent,
)

BARS = (
    Bar(label="0 to 1", share=0.5, baseline_share=0.25),
    Bar(label="1 to 2", share=0.25, baseline_share=0.5),
    Bar(label="2 to 3", share=0.25, baseline_share=0.25),
)
PLAIN = tuple(Bar(label=bar.label, share=bar.share) for bar in BARS)
PICTURES = (numeric_picture, categorical_picture)


def now(svg: str, side: str) -> list[float]:
    return [float(box.attrib[side]) for box in ElementTree.fromstring(svg).iter("rect") if box.attrib["class"] == "now"]


def test_bars_are_as_high_as_their_shares_and_the_highest_of_both_fills_the_picture() -> None:
    assert now(numeric_picture(BARS, caption="x"), "height") == [HEIGHT, HEIGHT / 2, HEIGHT / 2]
    low = (Bar(label="a", share=0.1, baseline_share=0.4), Bar(label="b", share=0.2, baseline_share=0.0))
    assert now(numeric_picture(low, caption="x"), "height") == [HEIGHT / 4, HEIGHT / 2]


def test_lying_bars_are_as_long_as_their_shares() -> None:
    long, *short = now(categorical_picture(BARS, caption="x"), "width")
    assert short == [long / 2, long / 2]


def test_the_accepted_snapshot_is_one_line_over_all_bins() -> None:
    svg = numeric_picture(BARS, caption="x")
    (path,) = [each for each in ElementTree.fromstring(svg).iter("path") if each.attrib["class"] == "then"]
    levels = [float(level) for level in re.findall(r"V([\d.]+)H", path.attrib["d"])]
    assert levels == [HEIGHT / 2, 0, HEIGHT / 2]
    assert float(re.findall(r"H([\d.]+)", path.attrib["d"])[-1]) == WIDTH


@pytest.mark.parametrize("picture", PICTURES)
def test_without_an_accepted_snapshot_nothing_is_drawn_for_it(picture) -> None:  # type: ignore[no-untyped-def]
    assert "then" not in picture(PLAIN, caption="x")
    assert "accepted" not in picture(PLAIN, caption="x")


@pytest.mark.parametrize("picture", PICTURES)
def test_each_bar_says_its_own_figures(picture) -> None:  # type: ignore[no-untyped-def]
    titles = [title.text for title in ElementTree.fromstring(picture(BARS, caption="x")).iter("title")]
    assert titles[0] == "0 to 1: 50 %, 25 % in the accepted snapshot"
    assert len(titles) == len(BARS)


@pytest.mark.parametrize("picture", PICTURES)
def test_hostile_labels_are_only_text(picture) -> None:  # type: ignore[no-untyped-def]
    hostile = "'><script>alert(1)</script>"
    svg = picture((Bar(label=hostile, share=1.0),), caption=hostile)
    assert "<script" not in svg
    assert ElementTree.fromstring(svg).attrib["aria-label"] == hostile


@pytest.mark.parametrize("picture", PICTURES)
def test_no_rows_and_no_bins_still_draw(picture) -> None:  # type: ignore[no-untyped-def]
    assert picture((), caption="x") == ""
    assert "nan" not in picture((Bar(label="a", share=0.0, baseline_share=0.0),), caption="x")


@pytest.mark.parametrize("picture", PICTURES)
def test_colours_come_from_the_page_alone(picture) -> None:  # type: ignore[no-untyped-def]
    assert not re.search(r"style=|fill=|stroke=|#|href|url", picture(BARS, caption="x"))


def test_a_little_is_never_called_nothing_nor_almost_all_everything() -> None:
    assert [percent(share) for share in (0.0, 1e-6, 0.0125, 0.5, 0.99999, 1.0)] == [
        *("0 %", "under 0.01 %", "1.25 %", "50 %", "over 99.99 %", "100 %")
    ]
