"""Pictures of distributions as inline SVG: bars for what is there now, an outline for what was accepted before.

No colour is written here: classes take theirs from the page, so that light, dark and print agree. A bar explains
itself in a `<title>`, which browsers show on hover and screen readers read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.data_contracts.report.plots import short
from headway.data_contracts.store.plain_text import html

WIDTH, HEIGHT = 320.0, 84.0
BAR_GAP = 1.5
ROW_HEIGHT, LABEL_WIDTH = 20.0, 96.0
MAX_LABEL_CHARS = 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bin or one category. Shares are of the rows with a value."""

    label: str
    share: float
    baseline_share: float | None = None

    @property
    def sentence(self) -> str:
        then = "" if self.baseline_share is None else f", {percent(self.baseline_share)} in the accepted snapshot"
        return f"{self.label}: {percent(self.share)}{then}"


def numeric_picture(bars: Sequence[Bar], *, caption: str) -> str:
    """Upright bars side by side, each a bin of equal width on the page whatever its bounds."""
    if not bars:
        return ""
    step, top = WIDTH / len(bars), _greatest(bars)
    # Very many bins would otherwise be all gap.
    gap = min(BAR_GAP, step / 4)
    shapes = []
    for place, bar in enumerate(bars):
        height = HEIGHT * bar.share / top
        shapes.append(
            f"<g><title>{html(bar.sentence)}</title>"
            f"<rect class='hit' {_box(place * step, 0, step, HEIGHT)}/>"
            f"<rect class='now' {_box(place * step + gap / 2, HEIGHT - height, step - gap, height)}/></g>"
        )
    return _svg(HEIGHT, [*shapes, _outline(bars, step, top), _line(0, HEIGHT, WIDTH, HEIGHT)], caption)


def _outline(bars: Sequence[Bar], step: float, top: float) -> str:
    """The accepted snapshot as one line of stairs over all bins."""
    if all(bar.baseline_share is None for bar in bars):
        return ""
    steps = [f"M0,{short(HEIGHT)}"]
    for place, bar in enumerate(bars):
        level = HEIGHT - HEIGHT * (bar.baseline_share or 0.0) / top
        steps.append(f"V{short(level)}H{short((place + 1) * step)}")
    return f"<path class='then' d='{''.join(steps)}V{short(HEIGHT)}'/>"


def categorical_picture(bars: Sequence[Bar], *, caption: str) -> str:
    """Lying bars, one a category, with its name before it; the accepted snapshot is a frame around."""
    if not bars:
        return ""
    top, room = _greatest(bars), WIDTH - LABEL_WIDTH
    shapes = []
    for place, bar in enumerate(bars):
        y = place * ROW_HEIGHT
        then = ""
        if bar.baseline_share is not None:
            then = f"<rect class='then' {_box(LABEL_WIDTH, y + 2.5, room * bar.baseline_share / top, ROW_HEIGHT - 5)}/>"
        shapes.append(
            f"<g><title>{html(bar.sentence)}</title><rect class='hit' {_box(0, y, WIDTH, ROW_HEIGHT)}/>"
            f"<text x='{short(LABEL_WIDTH - 8)}' y='{short(y + 14)}' text-anchor='end'>{html(_cut(bar.label))}"
            "</text>"
            f"<rect class='now' {_box(LABEL_WIDTH, y + 2.5, room * bar.share / top, ROW_HEIGHT - 5)}/>{then}</g>"
        )
    height = ROW_HEIGHT * len(bars)
    return _svg(height, [*shapes, _line(LABEL_WIDTH, 0, LABEL_WIDTH, height)], caption)


def percent(share: float) -> str:
    """A share for reading: never `0 %` of something, nor `100 %` of less than all."""
    if 0 < share < 0.0001:
        return "under 0.01 %"
    if 0.9999 < share < 1:
        return "over 99.99 %"
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + " %"


def _greatest(bars: Sequence[Bar]) -> float:
    return max(max(bar.share, bar.baseline_share or 0.0) for bar in bars) or 1.0


def _cut(label: str) -> str:
    return label if len(label) <= MAX_LABEL_CHARS else label[: MAX_LABEL_CHARS - 1] + "…"


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"x='{short(x)}' y='{short(y)}' width='{short(width)}' height='{short(height)}'"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"<path class='axis' d='M{short(x1)},{short(y1)}L{short(x2)},{short(y2)}'/>"


def _svg(height: float, shapes: Sequence[str], caption: str) -> str:
    # Half a stroke of room all round, so that no line at the edge is cut.
    return (
        f"<svg class='picture' viewBox='-1 -1 {short(WIDTH + 2)} {short(height + 2)}' role='img' "
        f"aria-label='{html(caption)}'>{''.join(shapes)}</svg>"
    )
