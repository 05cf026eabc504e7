"""Plots with two axes as inline SVG: lines, bands, points, bars with whiskers.

No colour is written here: classes take theirs from the page, as in `distribution_picture`. Figures that are not finite
must have been left out before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headway.data_contracts.store.plain_text import html

WIDTH, HEIGHT = 460.0, 250.0
RIGHT, TOP, BOTTOM = 12.0, 10.0, 40.0
MAX_TICKS = 6
NUM_COLOURS = 10
"""Classes `c0` to `c9` of the style."""
CHAR_WIDTH = 6.6
"""Of a tick's text, about."""
TITLE_WIDTH = 30.0
"""That the vertical axis's title takes, and what lies between it, its ticks and the axis."""

Point = tuple[float, float]
Scale = Literal["linear", "log"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    label: str
    low: float
    high: float
    scale: Scale = "linear"
    is_whole: bool = False
    """Whether nothing lies between whole numbers."""

    @classmethod
    def over(cls, label: str, values: Iterable[float], *, scale: Scale = "linear", margin: float = 0.04) -> Axis:
        """Of all these values, with some room at both ends."""
        found = [each for each in values if each > 0 or scale == "linear"]
        low, high = (min(found), max(found)) if found else (0.0, 1.0)
        if scale == "log":
            return cls(label=label, low=low / 1.05, high=max(high, low) * 1.05, scale=scale)
        room = (high - low) * margin or abs(high) * margin or 1.0
        return cls(label=label, low=low - room, high=high + room)

    def place(self, value: float) -> float:
        """From 0 to 1; what lies beyond an end is drawn there."""
        if self.scale == "log":
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            # Halves first: the span of two finite numbers need not be finite.
            span = self.high / 2 - self.low / 2
            share = (value / 2 - self.low / 2) / span if span else 0.0
        return min(max(share, 0.0), 1.0)

    def ticks(self) -> list[float]:
        found = log_ticks(self.low, self.high) if self.scale == "log" else linear_ticks(self.low, self.high)
        return [tick for tick in found if tick == int(tick)] if self.is_whole else found


def linear_ticks(low: float, high: float) -> list[float]:
    """At most `MAX_TICKS` round numbers between two."""
    rough = (high / MAX_TICKS) - (low / MAX_TICKS)
    if not 0 < rough < math.inf:
        return []
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999), 10 * power)
    if not step or not math.isfinite(low / step) or not math.isfinite(high / step):
        return []
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, min(last, first + 2 * MAX_TICKS) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where those are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    skip = max(1, len(powers) // MAX_TICKS)
    factors = (1, 2, 5) if len(powers) <= 3 else (1,)
    return [f * 10.0**p for p in powers[::skip] for f in factors if low <= f * 10.0**p <= high]


def tick_text(value: float) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.1e}".replace("e+0", "e").replace("e-0", "e-").replace(".0e", "e")
    return f"{value:,.6g}"


@dataclass(kw_only=True)
class Plot:
    """Layers over one another, in the order in which they are added."""

    caption: str
    x: Axis
    y: Axis
    height: float = HEIGHT
    _layers: list[str] = field(default_factory=list)

    @property
    def _left(self) -> float:
        """Room for the longest tick of the vertical axis."""
        return TITLE_WIDTH + CHAR_WIDTH * max((len(tick_text(tick)) for tick in self.y.ticks()), default=0)

    def _at(self, x: float, y: float) -> Point:
        return (
            self._left + self.x.place(x) * (WIDTH - self._left - RIGHT),
            self.height - BOTTOM - self.y.place(y) * (self.height - TOP - BOTTOM),
        )

    def line(self, points: Sequence[Point], style: str = "c0", *, title: str = "") -> Plot:
        placed = [self._at(x, y) for x, y in points]
        if len(placed) == 1:
            return self.points(points, style)
        if placed:
            d = "M" + "L".join(f"{short(x)},{short(y)}" for x, y in placed)
            self._layers.append(f"<path class='line {style}' d='{d}'>{_title(title)}</path>")
        return self

    def band(self, lows: Sequence[Point], highs: Sequence[Point], style: str = "c0") -> Plot:
        placed = [self._at(x, y) for x, y in (*lows, *reversed(highs))]
        if placed:
            d = "M" + "L".join(f"{short(x)},{short(y)}" for x, y in placed) + "Z"
            self._layers.append(f"<path class='band {style}' d='{d}'/>")
        return self

    def points(self, points: Iterable[Point], style: str = "c0", *, radius: float = 2.2) -> Plot:
        """One path for all of them: thousands of elements would make a slow page."""
        d = "".join(f"M{short(x)},{short(y)}h0" for x, y in (self._at(*each) for each in points))
        if d:
            self._layers.append(f"<path class='dots {style}' style='stroke-width:{short(2 * radius)}' d='{d}'/>")
        return self

    def bars(self, bars: Iterable[tuple[float, float, float, str]], style: str = "c0") -> Plot:
        """From the axis up: left, right, height and what it says, each."""
        foot = max(self.y.low, 0.0)
        return self.boxes(((left, right, foot, height, title) for left, right, height, title in bars), style)

    def boxes(self, boxes: Iterable[tuple[float, float, float, float, str]], style: str = "c0") -> Plot:
        """Left, right, low, high and what it says, each; such as parts of bars on top of each other."""
        for left, right, low, high, title in boxes:
            (x1, y1), (x2, y2) = self._at(left, low), self._at(right, high)
            width, top = max(x2 - x1 - 1, 0.5), min(y1, y2)
            self._layers.append(
                f"<rect class='bar {style}' x='{short(x1 + 0.5)}' y='{short(top)}' width='{short(width)}' "
                f"height='{short(abs(y1 - y2))}'>{_title(title)}</rect>"
            )
        return self

    def whiskers(self, whiskers: Iterable[tuple[float, float, float, float, str]], style: str = "c0") -> Plot:
        """A point with its interval: x, value, low, high and what it says, each."""
        for x, value, low, high, title in whiskers:
            at, bottom, top = self._at(x, value), self._at(x, low), self._at(x, high)
            self._layers.append(
                f"<g>{_title(title)}<path class='line {style}' d='M{short(at[0])},{short(bottom[1])}V{short(top[1])}'/>"
                f"<circle class='dot {style}' cx='{short(at[0])}' cy='{short(at[1])}' r='3.5'/></g>"
            )
        return self

    def rule(self, start: Point, end: Point) -> Plot:
        """What figures are held against, such as a diagonal."""
        (x1, y1), (x2, y2) = self._at(*start), self._at(*end)
        self._layers.append(f"<path class='rule' d='M{short(x1)},{short(y1)}L{short(x2)},{short(y2)}'/>")
        return self

    def svg(self) -> str:
        return (
            f"<svg class='plot' viewBox='0 0 {short(WIDTH)} {short(self.height)}' role='img' "
            f"aria-label='{html(self.caption)}'>{self._axes()}{''.join(self._layers)}</svg>"
        )

    def _axes(self) -> str:
        left, bottom, right = self._left, self.height - BOTTOM, WIDTH - RIGHT
        drawn, last_x = [], -math.inf
        for tick in self.x.ticks():
            x, _ = self._at(tick, self.y.low)
            drawn.append(f"<path class='grid' d='M{short(x)},{short(TOP)}V{short(bottom)}'/>")
            text, half = tick_text(tick), len(tick_text(tick)) * CHAR_WIDTH / 2
            # Long numbers would run into each other, or over the edge.
            if x - half > last_x + 4 and x + half <= WIDTH:
                drawn.append(f"<text x='{short(x)}' y='{short(bottom + 15)}' text-anchor='middle'>{text}</text>")
                last_x = x + half
        for tick in self.y.ticks():
            _, y = self._at(self.x.low, tick)
            drawn.append(f"<path class='grid' d='M{short(left)},{short(y)}H{short(right)}'/>")
            drawn.append(f"<text x='{short(left - 6)}' y='{short(y + 4)}' text-anchor='end'>{tick_text(tick)}</text>")
        drawn.append(f"<path class='axis' d='M{short(left)},{short(TOP)}V{short(bottom)}H{short(right)}'/>")
        middle = short((left + right) / 2), short((TOP + bottom) / 2)
        drawn.append(
            f"<text class='title' x='{middle[0]}' y='{short(self.height - 6)}' text-anchor='middle'>"
            f"{html(self.x.label)}</text>"
            f"<text class='title' x='11' y='{middle[1]}' text-anchor='middle' transform='rotate(-90 11 {middle[1]})'>"
            f"{html(self.y.label)}</text>"
        )
        return "".join(drawn)


def colour(number: int) -> str:
    return f"c{number % NUM_COLOURS}"


def key(style: str, text: str) -> str:
    """A line of a legend, as HTML."""
    return f"<span class='legend'><i class='swatch {style}'></i>{html(text)}</span>"


def figure(picture: str, title: str, note: str = "") -> str:
    """A picture with its title above and a legend or note below, as HTML."""
    message = f"<p class='below'>{note}</p>" if note else ""
    return f"<figure><figcaption>{html(title)}</figcaption>{picture}{message}</figure>"


def pictures(figures: Iterable[str]) -> str:
    """Side by side, as many as there is room for."""
    return f"<div class='pictures'>{''.join(figures)}</div>"


def short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _title(text: str) -> str:
    return f"<title>{html(text)}</title>" if text else ""
