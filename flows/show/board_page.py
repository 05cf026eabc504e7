"""The board as one HTML file: for who decides, who is on call, and who looks for a cause."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence

from headway.data_contracts.report.page import Markup, banner, folded, page, section, table, tiles
from headway.data_contracts.report.plots import Axis, Plot, colour, figure, key, pictures
from headway.data_contracts.store.plain_text import html
from headway.data_contracts.types.report_text import count, length, moment
from headway.flows.accounts.cost import CostLine
from headway.flows.accounts.figures import Histogram
from headway.flows.accounts.flow_account import FlowAccount
from headway.flows.accounts.goodput import MEANING, added
from headway.flows.accounts.objectives import CLASS_OBJECTIVES, LEAST_EVENTS, WINDOW_DAYS
from headway.flows.run.running_retrains import words
from headway.flows.show.board import DAY_S, Board, Day, Listed, failing

LARGEST = 10
"""States of one flow run that are drawn."""
FIRST = 12
"""Rows of a table before it is folded."""
OUTCOMES = ("succeeded", "stopped", "failed", "lost")
USES: Mapping[str, Callable[[CostLine], float]] = {
    "productive": lambda line: line.productive_usd,
    "overhead": lambda line: line.usd - line.productive_usd - line.wasted_usd,
    "wasted": lambda line: line.wasted_usd,
}


def render_html(board: Board) -> str:
    """The page."""
    fails = list(failing(board))
    word = f"{count(len(fails), 'pipeline')} failing" if fails else "no pipeline is failing"
    unwell = sum(not probe.has_succeeded or probe.is_late(board.unix_s) for probe in board.probes)
    if unwell:
        word += f", {count(unwell, 'probe')} {'is' if unwell == 1 else 'are'} not well"
    lead = html(", ".join(fails)) if fails else "Each pipeline's newest retrain to end by itself came to its end."
    problems = [problem for retrain in board.running for problem in retrain.problems]
    kicker = f"{html(board.workspace)}, last {board.num_days} days, {moment(board.unix_s)} UTC"
    sections = (
        banner("bad" if fails else "warn" if problems or unwell else "good", kicker, word, lead),
        tiles(_tiles(board)),
        _objectives(board),
        _trend(board),
        _live(board),
        _probes(board),
        _failing(board),
        _interruptions(board),
        _list(board),
        _time(board),
        _steps(board),
        _scaling(board),
        *(_curves(account) for account in board.newest),
    )
    return page("Headway: board", sections)


def _tiles(board: Board) -> list[tuple[str, str]]:
    tally = board.tally
    ended = sum(tally.outcomes.values())
    cost = tally.cost
    corrupt = tally.figures.checkpoints.counts.get("verify", {}).get("corrupt", 0)
    return [
        (f"{ended:,}", "flow runs that ended"),
        (_percent(tally.outcomes["succeeded"], ended), "of them succeeded"),
        (
            "none" if tally.forward_share is None else f"{100 * tally.forward_share:.0f} %",
            "of device time paid for were steps that count",
        ),
        (f"{cost.device_hours:,.1f}", "device-hours paid for"),
        *([(f"{cost.usd:,.2f}", "USD")] if board.has_prices else []),
        (f"{sum(tally.interruptions.values()):,}", "interrupted attempts"),
        (f"{corrupt:,}", "checkpoints quarantined"),
    ]


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"


def _objectives(board: Board) -> str:
    rows = []
    for name, target in CLASS_OBJECTIVES.items():
        found = board.tally.by_class.get(name)
        if found is not None and (found.num_events or found.num_done_in_window or found.num_cut):
            success = _held(found.success, target.success, found.num_events)
            in_window = _held(found.in_window, target.in_window, found.num_done_in_window + found.num_cut)
            rows.append((name, success, f"{100 * target.success:g} %", in_window, _target(target.in_window)))
    if not rows:
        return ""
    titles = ("Job class", "Succeeded", "Objective", "Done before their window closed", "Objective")
    note = (
        f"Failures by people and data count for none. An objective holds over {WINDOW_DAYS} days, and fewer than "
        f"{LEAST_EVENTS} retrains say nothing about it."
    )
    return section("Objectives", table(titles, rows), note=note)


def _held(found: float | None, target: float | None, num_events: int) -> str:
    if found is None:
        return "none"
    word = "missed, " if target is not None and found < target and num_events >= LEAST_EVENTS else ""
    return f"{word}{100 * found:.1f} % of {num_events:,}"


def _target(target: float | None) -> str:
    return "" if target is None else f"{100 * target:g} %"


def _trend(board: Board) -> str:
    if not board.days:
        return section("Trend", "<p>No flow run has ended within these days.</p>")
    figures = [_stacked(board, "Flow runs that ended", "flow runs a day", OUTCOMES, _num_ended)]
    if board.has_prices:
        figures.append(_stacked(board, "Cost", "USD a day", tuple(USES), _usd))
    else:
        figures.append(_stacked(board, "Device-hours paid for", "hours a day", ("device-hours",), _device_hours))
    if board.tally.recoveries:
        figures.append(_recoveries(board))
    return section("Trend", pictures(figures))


def _num_ended(day: Day, outcome: str) -> float:
    return sum(number for each, number in day.outcomes.items() if each == outcome)


def _usd(day: Day, use: str) -> float:
    return sum(map(USES[use], day.costs))


def _device_hours(day: Day, _: str) -> float:
    return sum(line.device_hours for line in day.costs)


def _days(board: Board) -> tuple[int, Axis]:
    today = int(board.unix_s // DAY_S)
    return today, Axis(label="days from today, UTC", low=-board.num_days, high=1, is_whole=True)


def _stacked(board: Board, title: str, unit: str, names: Sequence[str], figure_of: Callable[[Day, str], float]) -> str:
    """Bars a day, each name's on top of those before it."""
    today, x = _days(board)
    most = max(sum(figure_of(day, name) for name in names) for day in board.days.values())
    is_whole = figure_of is _num_ended
    plot = Plot(caption=title, x=x, y=Axis(label=unit, low=0.0, high=most * 1.05 or 1.0, is_whole=is_whole))
    for number, day in sorted(board.days.items()):
        when = datetime.datetime.fromtimestamp(number * DAY_S, datetime.UTC).date().isoformat()
        low = 0.0
        for place, name in enumerate(names):
            part = figure_of(day, name)
            if part > 0:
                said = f"{when}: {name} {part:,.4g}"
                plot.boxes([(number - today, number - today + 1.0, low, low + part, said)], colour(place))
                low += part
    legend = " ".join(key(colour(place), name) for place, name in enumerate(names))
    return figure(plot.svg(), title, legend)


def _recoveries(board: Board) -> str:
    tally = board.tally
    today, x = _days(board)
    causes = sorted({each.cause for each in tally.recoveries})
    y = Axis(label="seconds", low=0.0, high=max(each.total_s for each in tally.recoveries) * 1.05 or 1.0)
    plot = Plot(caption="Recoveries", x=x, y=y)
    for place, cause in enumerate(causes):
        points = [(each.begin_unix_s / DAY_S - today, each.total_s) for each in tally.recoveries if each.cause == cause]
        plot.points(points, colour(place), radius=4)
    legend = " ".join(key(colour(place), cause or "unknown") for place, cause in enumerate(causes))
    return figure(plot.svg(), "Recoveries, from the last new step to the next", legend)


def _live(board: Board) -> str:
    if not board.running:
        return section("Running here", "<p>No retrain runs on this machine.</p>")
    rows, told = [], []
    for retrain in board.running:
        said = words(retrain, board.unix_s)
        rows.append(
            (retrain.pipeline, retrain.run or "none yet", *(said.get(name, "") for name in ("stage", "step", "ETA")))
        )
        told += [f"<p class='note'>{html(problem.what)} {html(problem.advice)}</p>" for problem in retrain.problems]
    return section(
        "Running here", table(("Pipeline", "Run", "Stage", "Step", "ETA"), rows, num_words=5) + "".join(told)
    )


def _probes(board: Board) -> str:
    if not board.probes:
        return ""
    rows = []
    for each in board.probes:
        how = "succeeded" if each.has_succeeded else " ".join(filter(None, ("failed", each.stage, each.cause)))
        age = length(max(board.unix_s - each.end_unix_s, 0.0))
        since = "never" if each.last_success_unix_s is None else f"{moment(each.last_success_unix_s)} UTC"
        late = ", and late" if each.is_late(board.unix_s) else ""
        took = length(each.end_unix_s - each.begin_unix_s)
        rows.append((each.launcher, f"{how}{late}", each.message, since, age, took))
    titles = ("Launcher", "The newest", "What", "Last success", "Ended before", "Took")
    note = "Small retrains of made-up data, through every stage. Nothing else on this page counts them but costs."
    return section("Probes", table(titles, rows, num_words=4), note=note)


def _failing(board: Board) -> str:
    if not board.kept.failed:
        return ""
    held = {hold.pipeline for hold in board.kept.held}
    rows = [
        (
            each.pipeline,
            each.stage,
            each.failure.cause,
            f"{moment(each.failed_unix_s)} on {each.host}",
            "held" if each.pipeline in held else "",
            each.failure.what_and_where,
        )
        for each in board.kept.failed
    ]
    titles = ("Pipeline", "Stage", "Cause", "When, UTC", "", "What")
    note = "No retrain has finished since. <code>headway status</code> shows the card and the next step."
    return section("Failing", table(titles, rows, num_words=6), count=len(rows), note=note)


def _interruptions(board: Board) -> str:
    tally = board.tally
    causes = sorted({*tally.causes, *tally.interruptions})
    if not causes and not tally.figures.checkpoints.counts:
        return ""
    rows = [(cause or "unknown", f"{tally.causes[cause]:,}", f"{tally.interruptions[cause]:,}") for cause in causes]
    of = table(("Cause", "Flow runs that failed", "Attempts interrupted"), rows) if rows else ""
    outcomes = [
        (operation, outcome, f"{number:,}")
        for operation, by_outcome in sorted(tally.figures.checkpoints.counts.items())
        for outcome, number in sorted(by_outcome.items())
    ]
    checkpoints = table(("Checkpoints", "Outcome", "Number"), outcomes, num_words=2) if outcomes else ""
    return section("Failures and checkpoints", of + checkpoints)


def _list(board: Board) -> str:
    tally = board.tally
    if not board.listed:
        return ""
    titles = ("Ended, UTC", "Pipeline", "Run", "Outcome", "Took", "Steps that count", "Attempts")
    rows = [_row(each, has_prices=board.has_prices) for each in board.listed]
    all_titles = (*titles, *(("USD",) if board.has_prices else ()))
    note = f"The newest {len(rows):,} of {tally.num_flow_runs:,}." if tally.num_flow_runs > len(rows) else ""
    return section(
        "Flow runs", folded(all_titles, rows, first=FIRST, num_words=4), count=tally.num_flow_runs, note=note
    )


def _row(each: Listed, *, has_prices: bool) -> tuple[str, ...]:
    how = each.outcome + (f", {each.cause}" if each.cause else "") + (f" in {each.stage}" if each.stage else "")
    ettr = "" if each.ettr is None else f"{100 * each.ettr:.0f} %"
    run = Markup(f"<code>{html(each.run[:8])}</code>") if each.run else ""
    words_of = (moment(each.end_unix_s), each.pipeline, run, how)
    usd = (f"{each.usd:,.2f}",) if has_prices else ()
    return (*words_of, length(each.wall_s), ettr, f"{each.num_attempts:,}", *usd)


def _time(board: Board) -> str:
    tally = board.tally
    whole_s = sum(tally.device_s.values())
    if not whole_s:
        return ""
    rows = [
        (state, MEANING[state], f"{seconds / 3600:,.2f}", f"{100 * seconds / whole_s:.1f} %")
        for state, seconds in tally.device_s.items()
    ]
    titles = ("State", "What it is", "Device-hours", "Share")
    return section("Where device time went", folded(titles, rows, first=FIRST, num_words=2))


def _steps(board: Board) -> str:
    steps = board.tally.figures.steps
    if not steps.durations_s:
        return ""
    rows = [
        (part, *(f"{1000 * _quantile_s(histogram, share):,.6g}" for share in (0.5, 0.95, 0.99)),
         f"{1000 * histogram.sum_s / max(sum(histogram.counts), 1):,.1f}")
        for part, histogram in sorted(steps.durations_s.items(), key=lambda part: -part[1].sum_s)
    ]  # fmt: skip
    note = "In milliseconds, of rank 0; percentiles are at most the bound of a bucket."
    return section(
        "Steps by part", table(("Part", "p50", "p95", "p99", "Mean"), rows), count=steps.num_steps, note=note
    )


def _scaling(board: Board) -> str:
    """Of pipelines that trained on several numbers of devices; one alone scales with nothing."""
    rows = [
        (
            pipeline,
            Markup(f"<code>{html(line.run[:8])}</code>"),
            f"{line.devices:,}",
            f"{line.tokens_per_s:,.1f}",
            f"{line.tokens_per_device_s:,.1f}",
            f"{100 * line.efficiency:.1f} %",
        )
        for pipeline, lines in board.scaling.items()
        if len(lines) > 1
        for line in lines
    ]
    titles = ("Pipeline", "Run", "Devices", "Targets/s", "A device", "Efficiency")
    note = "Of the newest run on each number of devices, in steps that count; against the fewest."
    return section("Scaling", folded(titles, rows, first=FIRST, num_words=2), note=note) if rows else ""


def _quantile_s(histogram: Histogram, share: float) -> float:
    """The bound below which this share of all lies."""
    wanted, seen = share * sum(histogram.counts), 0
    for bound_s, number in zip((*histogram.bounds_s, histogram.bounds_s[-1]), histogram.counts, strict=True):
        seen += number
        if seen >= wanted:
            return bound_s
    return histogram.bounds_s[-1]


def _curves(account: FlowAccount) -> str:
    curve = account.curve
    assert curve is not None
    losses = [(step, loss) for step, loss in zip(curve.step, curve.loss, strict=True) if loss is not None]
    times = [(step, 1000 * seconds) for step, seconds in zip(curve.step, curve.step_s, strict=True)]
    validated = account.validation
    values = [] if validated is None else list(zip(validated.step, validated.value, strict=True))
    metric = "" if validated is None else validated.metric
    figures = []
    for title, unit, points in (("Loss", "loss", losses), ("Validation", metric, values), ("Step time", "ms", times)):
        if points:
            x = Axis(label="step", low=0, high=max(step for step, _ in points), is_whole=True)
            plot = Plot(caption=title, x=x, y=Axis.over(unit, [value for _, value in points]))
            figures.append(figure(plot.line(points).svg(), title))
    figures.append(_timeline(account))
    name = f"{account.pipeline} {account.run[:8]}, {moment(account.begin_unix_s)}"
    cause = f", {account.cause}" if account.cause else ""
    note = html(f"{account.outcome}{cause}; {count(account.goodput.num_attempts, 'attempt')}, "
                f"{account.figures.steps.num_steps:,} steps")  # fmt: skip
    return section(name, pictures(figures), note=note)


def _timeline(account: FlowAccount) -> str:
    """What the flow run's device time was for, one bar a state."""
    parts = list(added(account.goodput.parts_device_s).items())[:LARGEST]
    most_s = max((seconds for _, seconds in parts), default=1.0)
    plot = Plot(
        caption="Device time by state",
        x=Axis(label="state, by its place in the legend", low=0.5, high=len(parts) + 0.5, is_whole=True),
        y=Axis(label="device-seconds", low=0.0, high=most_s * 1.05 or 1.0),
    )
    for place, (state, seconds) in enumerate(parts):
        plot.bars([(place + 0.6, place + 1.4, seconds, f"{state} {seconds:,.1f} s")], colour(place))
    legend = " ".join(key(colour(place), f"{place + 1} {state}") for place, (state, _) in enumerate(parts))
    return figure(plot.svg(), "Device time by state", legend)
