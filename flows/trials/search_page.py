"""The page of a search: what was tried, what each setting came to, and what it cost. One file that needs nothing else.

Trials are compared at the first rung, which all of them came to; figures of later ones are of the better trials alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headway.data_contracts.report.page import banner, definitions, folded, page, section, tiles
from headway.data_contracts.report.plots import Axis, Plot, colour, figure, key, pictures, short
from headway.data_contracts.store.plain_text import html
from headway.data_contracts.types.report_text import count, moment
from headway.data_contracts.types.report_text import figure as shown_figure
from headway.flows.trials.summary import (
    SearchSoFar,
    TrialRow,
    TrialsSummary,
    facts,
    num_by_end,
    progress_line,
    ranking,
    setting_names,
)
from headway.tasks.search.values import Value, shown

LISTED = 20
LOG_RATIO = 30
"""Positive values further apart than this are drawn by their logarithm."""
LEAST_RANKED = 8
"""Trials, for a share of their ranks to mean anything."""
NUM_BINS = 4
"""Of a setting's numbers, so that a share of ranks asks nothing of a curve's form."""
WIDTH, HEIGHT, TOP, SIDE, FOOT = 940.0, 300.0, 34.0, 70.0, 14.0
MAX_CHARACTERS = 16


def render_html(found: SearchSoFar, made_unix_s: float, state: str = "") -> str:
    """
    Args:
        made_unix_s: when the search ended, or how far it is known.
        state: that it goes on, or why it ended without a winner; of one that has a winner empty.
    """
    title = f"Search of {found.pipeline}"
    when, num = f"{moment(made_unix_s)} UTC", count(len(found.trials), "trial")
    if isinstance(found, TrialsSummary):
        word = "decided" if found.is_decided else "undecided"
        lead = f"Trial {found.trials[0].trial} is kept: {found.keep}. {found.verdict}".strip()
        banner_of = banner(
            "good" if found.is_decided else "warn", f"{html(title)}, {when}", f"{num}, {word}", html(lead)
        )
        kept = [("keep it", f"<code>{html(found.keep)}</code>")]
        reports = [(html(name), html(uri)) for name, uri in found.best.reports.items()]
    else:
        banner_of = banner("warn", f"{html(title)}, as of {when}", state, html(f"{num}: {progress_line(found)}."))
        kept, reports = [], []
    data = (
        []
        if found.data is None
        else [("data", f"of {found.data.day}, snapshot <code>{html(found.data.snapshot)}</code>")]
    )
    return page(
        title,
        [
            banner_of,
            tiles(_tiles(found)),
            _together(found),
            _one_by_one(found),
            _curves(found),
            _ranking(found),
            section(
                "What came of it",
                definitions([*kept, *((name, html(text)) for name, text in facts(found).items()), *data, *reports]),
            ),
        ],
    )


def _tiles(found: SearchSoFar) -> Iterator[tuple[str, str]]:
    if found.metric:
        direction = "higher" if found.greater_is_better else "lower"
        best = found.trials[0].value
        yield "none" if best is None else shown_figure(best), f"{found.metric}, {direction} is better"
        yield f"{found.num_ranking_examples:,}", "held-out examples that rank, and judge nothing else"
    yield f"{found.steps_spent:,}", "steps trained"
    if isinstance(found, TrialsSummary):
        yield f"{found.steps_saved / max(found.steps_spent + found.steps_saved, 1):.0%}", "of all trials' steps saved"
    if found.num_starts:
        yield f"{found.device_hours:.3g}", "device hours"
        yield f"{found.num_starts:,}", "starts"
    if found.usd is not None:
        yield f"{found.usd:,.2f}", "USD"
    for num, end in zip(num_by_end(found), ("at their ends", "paused", "failed"), strict=True):
        yield f"{num:,}", f"trials {end}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Setting:
    """An axis of a setting's values, or of figures."""

    name: str
    axis: Axis
    ends: tuple[str, str]
    """The least and the greatest value, as text."""
    words: tuple[str, ...] = ()
    """Of a setting that has words or a mixture of kinds: its values, each at its number."""

    def number(self, value: Value) -> float:
        return float(self.words.index(shown(value))) if self.words else float(value)  # type: ignore[arg-type]


def _axis(name: str, values: Sequence[float]) -> Axis:
    positive = min(values) > 0 and max(values) / min(values) >= LOG_RATIO
    return Axis.over(name, values, scale="log" if positive else "linear")


def _setting(name: str, compared: Sequence[tuple[TrialRow, float]]) -> _Setting:
    values = [row.settings[name] for row, _ in compared if name in row.settings]
    numbers = [float(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) == len(values):
        return _Setting(name=name, axis=_axis(name, numbers), ends=_ends(numbers))
    words = tuple(dict.fromkeys(map(shown, sorted(values, key=lambda each: (str(type(each)), str(each))))))
    axis = Axis(label=name, low=-0.5, high=len(words) - 0.5, is_whole=True)
    return _Setting(name=name, axis=axis, ends=(words[0], words[-1]), words=words)


def _ends(numbers: Sequence[float]) -> tuple[str, str]:
    return f"{min(numbers):.4g}", f"{max(numbers):.4g}"


def _compared(found: SearchSoFar) -> list[tuple[TrialRow, float]]:
    """Trials with what they came to at the first level, which none of them skipped."""
    first = found.levels[0]
    pairs = [(row, row.rungs.get(first, row.value if len(found.levels) == 1 else None)) for row in found.trials]
    return [(row, value) for row, value in pairs if value is not None and math.isfinite(value)]


def _level(found: SearchSoFar, row: TrialRow) -> int:
    """The furthest level that it was compared at, by its number."""
    return max((number for number, step in enumerate(found.levels) if step in row.rungs), default=0)


def _level_key(found: SearchSoFar) -> str:
    if len(found.levels) == 1:
        return ""
    ends = [f"paused at step {step:,}" for step in found.levels[:-1]] + ["trained to the end"]
    used = {_level(found, row) for row in found.trials}
    return "".join(key(colour(number), text) for number, text in enumerate(ends) if number in used)


def _at(found: SearchSoFar) -> str:
    return found.metric if len(found.levels) == 1 else f"{found.metric} at step {found.levels[0]:,}"


def _together(found: SearchSoFar) -> str:
    """Parallel coordinates (Inselberg, 1985): a line for each trial, from setting to setting to its figure."""
    compared = _compared(found)
    if len(compared) < 2:
        return ""
    settings = [_setting(name, compared) for name in setting_names(row.settings for row, _ in compared)]
    values = [value for _, value in compared]
    last = _Setting(name=_at(found), axis=_axis(_at(found), values), ends=_ends(values))
    axes = [*settings, last]
    xs = [SIDE + (WIDTH - 2 * SIDE) * place / max(len(axes) - 1, 1) for place in range(len(axes))]

    def y(share: float) -> float:
        return HEIGHT - FOOT - 18 - share * (HEIGHT - FOOT - TOP - 18)

    drawn = []
    # The worst first, so that the better ones lie over them.
    for row, value in sorted(compared, key=lambda pair: pair[1], reverse=not found.greater_is_better):
        # Past the axis of a setting that did not vary beside the others.
        shares = [
            (x, each.axis.place(each.number(row.settings[each.name])))
            for x, each in zip(xs, settings, strict=False)  # the last axis is the figure's
            if each.name in row.settings
        ]
        points = [f"{short(x)},{short(y(at))}" for x, at in [*shares, (xs[-1], last.axis.place(value))]]
        is_kept = row is found.trials[0]
        weight = "stroke-width:3" if is_kept else "stroke-width:1;opacity:0.55"
        says = f"trial {row.trial}: {', '.join(f'{n} {shown(v)}' for n, v in row.settings.items())}; {value:.4g}"
        drawn.append(
            f"<path class='line {colour(_level(found, row))}' style='{weight}' d='M{'L'.join(points)}'>"
            f"<title>{html(says)}</title></path>"
        )
    for x, each in zip(xs, axes, strict=True):
        low, high = (_cut(end) for end in each.ends)
        drawn.append(
            f"<path class='axis' d='M{short(x)},{short(y(0))}V{short(y(1))}'/>"
            f"<text x='{short(x)}' y='{short(y(1) - 8)}' text-anchor='middle'>{html(high)}</text>"
            f"<text x='{short(x)}' y='{short(y(0) + 15)}' text-anchor='middle'>{html(low)}</text>"
            f"<text class='title' x='{short(x)}' y='{short(HEIGHT - 5)}' text-anchor='middle'>{html(each.name)}</text>"
        )
    picture = (
        f"<svg class='plot' viewBox='0 0 {short(WIDTH)} {short(HEIGHT)}' role='img' aria-label='Settings and figures'>"
        f"{''.join(drawn)}</svg>"
    )
    thick = "is kept" if isinstance(found, TrialsSummary) else "is ahead"
    note = f"A line is a trial; the thick one {thick}. It passes by settings that did not vary. Point at it to read it."
    return section("All settings at once", picture + f"<p class='below'>{_level_key(found)}</p>", note=note)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def _one_by_one(found: SearchSoFar) -> str:
    """A picture for each setting, the one that explains the most first."""
    compared = _compared(found)
    if len(compared) < 2:
        return ""
    y = _axis(_at(found), [value for _, value in compared])
    names = setting_names(row.settings for row, _ in compared)
    figures = []
    for name in sorted(names, key=lambda name: -(explained(found, name) or 0.0)):
        setting = _setting(name, compared)
        plot = Plot(caption=f"{name} and {_at(found)}", x=setting.axis, y=y)
        groups: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for row, value in compared:
            if name not in row.settings:
                continue
            groups[_level(found, row)].append((setting.number(row.settings[name]), value))
        for level, points in sorted(groups.items()):
            plot.points(points, colour(level), radius=3.5)
        words = "; ".join(f"{number} is {word}" for number, word in enumerate(setting.words))
        share = explained(found, name)
        ranks = [] if share is None else [f"explains {share:.0%} of the trials' ranks"]
        figures.append(figure(plot.svg(), name, html("; ".join([*ranks, *([words] if words else [])]))))
    about_shares = (
        "How much of the trials' ranks a setting explains alone: the variance between its values, or between "
        f"{NUM_BINS} bins of its numbers, over all. A search looks closer where it is good, so that shares are small."
    )
    note = about_shares if len(compared) >= LEAST_RANKED else ""
    return section("Setting by setting", pictures(figures) + _level_key(found), note=note)


def explained(found: SearchSoFar, name: str) -> float | None:
    """The correlation ratio of a setting and the ranks of the trials at the first level, from 0 to 1.

    Of the trials in which it varied. None: too few were compared.
    Source: Fisher, Statistical Methods for Research Workers, 1925 (eta squared).
    """
    compared = [pair for pair in _compared(found) if name in pair[0].settings]
    if len(compared) < LEAST_RANKED:
        return None
    ranks = np.argsort(np.argsort([value for _, value in compared], kind="stable"), kind="stable").astype(float)
    setting = _setting(name, compared)
    numbers = np.array([setting.number(row.settings[name]) for row, _ in compared])
    if not setting.words and len(np.unique(numbers)) > NUM_BINS:
        numbers = np.searchsorted(np.quantile(numbers, np.arange(1, NUM_BINS) / NUM_BINS), numbers, side="right")
    total = float(((ranks - ranks.mean()) ** 2).sum())
    between = sum(
        float((numbers == each).sum() * (ranks[numbers == each].mean() - ranks.mean()) ** 2)
        for each in np.unique(numbers)
    )
    return between / total if total else 0.0


def _curves(found: SearchSoFar) -> str:
    """What each came to from rung to rung, and what a round found for its steps."""
    drawn = []
    shown_rungs = [row for row in found.trials if len(row.rungs) > 1]
    if shown_rungs:
        values = [value for row in shown_rungs for value in row.rungs.values() if math.isfinite(value)]
        y = _axis(found.metric, values)
        plot = Plot(caption="Figures by rung", x=_axis("step", [float(step) for step in found.levels]), y=y)
        for row in reversed(shown_rungs):
            points = sorted(
                (float(row.later.get(step, step)), value) for step, value in row.rungs.items() if math.isfinite(value)
            )
            plot.line(points, colour(_level(found, row)), title=f"trial {row.trial}")
        drawn.append(figure(plot.svg(), f"{found.metric} from rung to rung", _level_key(found)))
    best = _best_by_round(found)
    if len(best) > 1:
        y = Axis.over(found.metric, [value for _, value in best])
        plot = Plot(caption="The best for so many steps", x=Axis.over("steps trained", [0.0, best[-1][0]]), y=y)
        plot.line(best).points(best, radius=3.5)
        drawn.append(figure(plot.svg(), "The best of the rounds so far, by steps that they took"))
    return section("On the way", pictures(drawn)) if drawn else ""


def _best_by_round(found: SearchSoFar) -> list[tuple[float, float]]:
    """After each round: steps of all rounds so far, and the best that was trained to its end."""
    points: list[tuple[float, float]] = []
    better = max if found.greater_is_better else min
    for number in sorted({row.round for row in found.trials}):
        rows = [row for row in found.trials if row.round <= number]
        values = [row.value for row in rows if row.value is not None and math.isfinite(row.value)]
        if values:
            points.append((float(sum(row.steps for row in rows)), better(values)))
    return points


def _ranking(found: SearchSoFar) -> str:
    titles, rows = ranking(found)
    return section("Trials, best first", folded(titles, rows, first=LISTED, num_words=2), count=len(rows))
