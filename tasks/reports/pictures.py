"""What a model said, as pictures and tables: training curves, classes, numbers, inputs, texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from headway.data_contracts.report.page import Markup, folded, section
from headway.data_contracts.report.plots import Axis, Plot, Scale, colour, figure, key, pictures
from headway.data_contracts.store.documents import ClassFigures, EvaluationReport, Interval, NumberFigures
from headway.data_contracts.store.plain_text import html
from headway.data_contracts.types import report_text
from headway.data_contracts.types.report_text import figure as shown_figure
from headway.tasks.registry.evaluation_report import shown, words
from headway.tasks.reports.evidence import TrainingCurve
from headway.training.evaluation.class_figures import curve_classes, curve_examples, curve_of
from headway.training.evaluation.outputs import Outputs

MAX_MATRIX = 20
"""Classes whose confusion is drawn; of more only the commonest pairs are listed."""
MAX_DRAWN = 3000
"""Points of a cloud."""
MAX_CURVE_POINTS = 300
MAX_LISTED = 12
"""Lines of a table before the rest is folded."""
NUM_HISTOGRAM_BINS = 30
SKEWED = 30.0
"""Of losses, highest to lowest: from here on their axis is logarithmic."""
MATRIX_CHARS = 18


def curve_section(curves: Sequence[tuple[str, TrainingCurve]], target: str = "the label") -> str:
    """Loss and learning rate of one run, or of several beside each other.

    Args:
        target: what is predicted, of numbers.
    """
    if not curves:
        return ""
    is_rmse = all(curve.shape is not None for _, curve in curves)
    what, axis = ("Rmse", f"rmse, in the unit of {target}") if is_rmse else ("Loss", "loss, nats a target")
    if is_rmse:
        curves = [(name, curve.in_label_unit) for name, curve in curves]
    x = Axis.over("step", (step for _, curve in curves for step in (curve.first_step, *curve.step)), margin=0.0)
    losses = [value for _, curve in curves for value in (*curve.loss, *curve.low, *curve.high)]
    positive = min(losses) > 0
    scale: Scale = "log" if positive and max(losses) > SKEWED * min(losses) else "linear"
    loss = Plot(caption=f"{what} by step", x=x, y=Axis.over(axis, losses, scale=scale))
    rates = Plot(caption="Learning rate by step", x=x, y=Axis.over("learning rate", _rates(curves)))
    for number, (name, curve) in enumerate(curves):
        style = colour(number)
        low, high = (list(zip(curve.step, values, strict=True)) for values in (curve.low, curve.high))
        loss.band(low, high, style).line(list(zip(curve.step, curve.loss, strict=True)), style, title=name)
        rates.line(list(zip(curve.step, curve.lr, strict=True)), style, title=name)
    (_, first), several = curves[0], len(curves) > 1
    legend = "".join(key(colour(number), name) for number, (name, _) in enumerate(curves)) if several else ""
    is_thinned = any(curve.num_steps > len(curve.step) for _, curve in curves)
    note = legend + (html("The line is the mean of neighbouring steps, the band their range.") if is_thinned else "")
    drawn = [figure(loss.svg(), f"{what} on the training split", note), figure(rates.svg(), "Learning rate", legend)]
    validated = [(name, curve) for name, curve in curves if curve.validated]
    if validated:
        drawn.insert(1, _validations(validated, x, legend))
    if any(curve.noise for _, curve in curves):
        drawn.append(_noise(curves, x, legend))
    return section("Training", pictures(drawn), note="" if several else html(_training(first)))


def _noise(curves: Sequence[tuple[str, TrainingCurve]], x: Axis, legend: str) -> str:
    """The gradient noise scale, and the batch where that grew: how many rows a step was worth, and how many it had."""
    values = [float(rows) for _, curve in curves for _, rows in (*curve.noise, *curve.batch)]
    plot = Plot(caption="Gradient noise scale by step", x=x, y=Axis.over("rows", values, scale="log"))
    for number, (name, curve) in enumerate(curves):
        plot.line(list(curve.noise), colour(number), title=name)
        # Each size until the next begins.
        for (step, rows), (following, _) in pairwise(curve.batch):
            plot.rule((float(step), float(rows)), (float(following), float(rows)))
    grew = html("Grey: rows of the batch.") if any(curve.batch for _, curve in curves) else ""
    return figure(plot.svg(), "Gradient noise scale", legend + grew)


def _validations(curves: Sequence[tuple[str, TrainingCurve]], x: Axis, legend: str) -> str:
    """The figure that each run was validated by; a dot where its model was taken."""
    metric = words(curves[0][1].metric)
    values = [value for _, curve in curves for _, value in curve.validated]
    plot = Plot(caption=f"{metric} by step", x=x, y=Axis.over(metric, values))
    for number, (name, curve) in enumerate(curves):
        plot.line(list(curve.validated), colour(number), title=name)
        plot.points([point for point in curve.validated if point[0] == curve.model_step], colour(number), radius=4)
    return figure(plot.svg(), "On the validation split", legend + html("The dot is the checkpoint that is the model."))


def _training(curve: TrainingCurve) -> str:
    excluded = f", batches left out by a guard: {curve.num_excluded:,}" if curve.num_excluded else ""
    started, ended = (report_text.moment(each) for each in (curve.started_unix_s, curve.ended_unix_s))
    scale = curve.noise_scale
    noise = "" if scale is None else f" The gradient noise scale was {scale:,.3g} rows at the end."
    return f"Steps {curve.first_step:,} to {curve.step[-1]:,}, from {started} to {ended} UTC{excluded}.{noise}"


def _rates(curves: Sequence[tuple[str, TrainingCurve]]) -> list[float]:
    return [0.0, *(rate for _, curve in curves for rate in curve.lr)]


def class_sections(found: ClassFigures, outputs: Outputs | None, names: Sequence[str]) -> str:
    """Args:
    names: of classes by number, for the curves.
    """
    num_seen = sum(each.num_actual for each in found.classes)
    drawn = [_calibration(found)]
    if outputs is not None and outputs.probability is not None:
        drawn = [*_area_curves(found, outputs, names), *drawn]
    sampled = "" if found.num_curve_examples == num_seen else f" Curves are of {found.num_curve_examples:,} of them."
    areas = "" if found.mean_roc_auc is None else f" Mean area under the ROC curves {found.mean_roc_auc:.4f}."
    note = f"Calibration error {shown(found.expected_calibration_error)}, over bins of a tenth.{areas}{sampled}"
    return section("Classes", _confusion(found) + _class_table(found), count=len(found.classes)) + section(
        "Probabilities", pictures(drawn), note=html(note)
    )


def _confusion(found: ClassFigures) -> str:
    classes = found.classes
    if len(classes) > MAX_MATRIX:
        return _confused_pairs(found)
    counts = {(each.actual, each.predicted): each.num_examples for each in found.confusions}
    counts |= {(number, number): each.num_correct for number, each in enumerate(classes)}
    head = "".join(f"<th title='{html(each.name)}'>{html(_cut(each.name))}</th>" for each in classes)
    rows = ""
    for number, each in enumerate(classes):
        cells = ""
        for other in range(len(classes)):
            count = counts.get((number, other), 0)
            share = count / each.num_actual if each.num_actual else 0.0
            style = f" style='background: rgba(var(--heat), {0.75 * share:.3f})'" if count else ""
            kind = " ".join(name for name, holds in (("same", number == other), ("none", not count)) if holds)
            title = f"{each.name} taken for {classes[other].name}: {count:,}, {100 * share:.1f} %"
            cells += f"<td class='{kind}' title='{html(title)}'{style}>{count:,}</td>"
        rows += f"<tr><th title='{html(each.name)}'>{html(_cut(each.name))}</th>{cells}</tr>"
    return (
        f"<div class='scroll'><table class='matrix'><thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
        "<p class='below'>Rows are the true class, columns what it was taken for; the stronger the colour, the larger "
        "the share of the row.</p>"
    )


def _confused_pairs(found: ClassFigures) -> str:
    rows = [
        (found.classes[each.actual].name, found.classes[each.predicted].name, f"{each.num_examples:,}")
        for each in found.confusions
    ]
    omitted = f"<p class='below'>and {found.num_confusions_omitted:,} rarer pairs.</p>"
    return (
        "<h3>Taken for another, the commonest pairs</h3>"
        + folded(("True class", "Taken for", "Examples"), rows, first=MAX_LISTED, num_words=2)
        + (omitted if found.num_confusions_omitted else "")
    )


def _class_table(found: ClassFigures) -> str:
    rows = []
    for each in found.classes:
        recall = f"{each.num_correct / each.num_actual:.3f}" if each.num_actual else "–"
        precision = f"{each.num_correct / each.num_predicted:.3f}" if each.num_predicted else "–"
        areas = [shown(area) if area is not None else "–" for area in (each.roc_auc, each.average_precision)]
        rows.append((each.name, f"{each.num_actual:,}", f"{each.num_predicted:,}", recall, precision, *areas))
    titles = ("Class", "Examples", "Taken for it", "Recall", "Precision", "ROC area", "Average precision")
    more = f"<p class='below'>and {found.num_classes_omitted:,} rarer classes.</p>"
    return folded(titles, rows, first=MAX_LISTED) + (more if found.num_classes_omitted else "")


def _area_curves(found: ClassFigures, outputs: Outputs, names: Sequence[str]) -> list[str]:
    chosen, numbers = curve_examples(outputs), curve_classes(outputs)
    if not numbers:
        return ["<p class='nothing'>No ROC curve: the examples are all of one class.</p>"]
    share = Axis(label="", low=0.0, high=1.0)
    x, recall = Axis(label="false positive rate", low=0, high=1), Axis(label="true positive rate", low=0, high=1)
    roc = Plot(caption="ROC curve", x=x, y=recall).rule((0, 0), (1, 1))
    precision = Plot(caption="Precision by recall", x=_named(share, "recall"), y=_named(share, "precision"))
    areas = {each.name: each for each in found.classes}
    legends: tuple[list[str], list[str]] = ([], [])
    for place, number in enumerate(numbers):
        name = names[number] if number < len(names) else f"class {number}"
        curve = curve_of(*chosen.of(number))
        # Evenly spread, both ends among them; fewer points than that repeat, and are drawn once.
        some = np.unique(np.linspace(0, len(curve.recall) - 1, MAX_CURVE_POINTS).astype(int))
        points = [values[some].tolist() for values in curve]
        roc.line(list(zip(points[0], points[1], strict=True)), colour(place), title=name)
        precision.line(list(zip(points[1], points[2], strict=True)), colour(place), title=name)
        tally = areas.get(name)
        for legend, area in zip(
            legends, (None, None) if tally is None else (tally.roc_auc, tally.average_precision), strict=True
        ):
            legend.append(key(colour(place), name + ("" if area is None else f" {shown(area)}")))
    one = "One class against the rest" if len(names) != 2 else "The rarer class"
    return [
        figure(roc.svg(), "ROC, with the area under it", f"{one}: {''.join(legends[0])}"),
        figure(precision.svg(), "Precision and recall, with average precision", "".join(legends[1])),
    ]


def _named(axis: Axis, label: str) -> Axis:
    return Axis(label=label, low=axis.low, high=axis.high)


def _calibration(found: ClassFigures) -> str:
    of = f"of {found.calibration_of}" if found.calibration_of else "of the class it was taken for"
    plot = Plot(
        caption="Calibration",
        x=Axis(label="mean probability", low=0, high=1),
        y=Axis(label="share that came true", low=0, high=1),
    ).rule((0, 0), (1, 1))
    whiskers = []
    for each in found.calibration:
        share = each.num_true / each.num_examples
        low, high = wilson(each.num_true, each.num_examples)
        counted = report_text.count(each.num_examples, "example")
        title = f"{counted}: said {each.mean_probability:.3f}, came true {share:.3f}"
        whiskers.append((each.mean_probability, share, low, high, title))
    plot.line([(x, y) for x, y, *_ in whiskers]).whiskers(whiskers)
    note = html(
        f"The probability {of}; whiskers are 95 % intervals of Wilson. On the diagonal it is worth what it says."
    )
    return figure(plot.svg(), "Calibration", note)


def wilson(num_true: int, num_examples: int, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share (Wilson, 1927)."""
    share, square = num_true / num_examples, z * z / num_examples
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(share * (1 - share) / num_examples + square / (4 * num_examples))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def number_sections(found: NumberFigures, outputs: Outputs | None, target: str) -> str:
    """Args:
    target: the column that is predicted, in whose unit all is.
    """
    drawn = [_by_band(found, target)]
    if outputs is not None:
        drawn = [_true_and_predicted(outputs, target), _residuals(outputs, target), *drawn]
    quantiles = ", ".join(f"{name} {shown_figure(value)}" for name, value in found.error_quantiles.items())
    note = (
        f"In the unit of {target}. Predicted minus true: mean {shown(found.mean_error)}, mean size "
        f"{shown(found.mean_absolute_error)}; {quantiles}."
    )
    rows = [
        (
            f"{report_text.number(each.low)} to {report_text.number(each.high)}",
            f"{each.num_examples:,}",
            shown(each.mean_error),
            shown(each.mean_absolute_error),
            shown_figure(each.rmse),
        )
        for each in found.bands
    ]
    titles = ("True value", "Examples", "Mean error", "Mean size of the error", "RMSE")
    return section("Numbers", pictures(drawn) + folded(titles, rows, first=MAX_LISTED), note=html(note))


def _true_and_predicted(outputs: Outputs, target: str) -> str:
    some = np.unique(np.linspace(0, len(outputs.label) - 1, MAX_DRAWN).astype(int))
    true, predicted = outputs.label[some], outputs.predicted[some]
    ends = [float(each) for values in (true, predicted) for each in (values.min(), values.max())]
    x, y = Axis.over(f"true {target}", ends), Axis.over("predicted", ends)
    plot = Plot(caption="Predicted against true", x=x, y=y).rule((x.low, x.low), (x.high, x.high))
    plot.points(zip(true.tolist(), predicted.tolist(), strict=True))
    of = "" if len(some) == len(outputs.label) else f"{len(some):,} of {len(outputs.label):,} examples. "
    return figure(plot.svg(), "Predicted against true", html(f"{of}On the diagonal a prediction is right."))


def _residuals(outputs: Outputs, target: str) -> str:
    error = outputs.predicted - outputs.label
    # Not from the least to the greatest: one outlier would leave all others in a single bar.
    low, high = float(np.quantile(error, 0.005)), float(np.quantile(error, 0.995))
    if not high > low:
        low, high = low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2
    # What lies beyond the ends is counted in the outermost bars.
    counts, edges = np.histogram(np.clip(error, low, high), bins=NUM_HISTOGRAM_BINS, range=(low, high))
    plot = Plot(
        caption="Residuals",
        x=Axis(label=f"predicted minus true {target}", low=low, high=high),
        y=Axis(label="examples", low=0.0, high=float(counts.max()) * 1.05),
    )
    bounds = edges.tolist()
    plot.bars(
        (left, right, float(count), f"{shown_figure(left)} to {shown_figure(right)}: {count:,}")
        for left, right, count in zip(bounds, bounds[1:], counts.tolist(), strict=False)
    )
    if low < 0 < high:
        plot.rule((0, 0), (0, float(counts.max()) * 1.05))
    return figure(plot.svg(), "Residuals", "The outermost bars hold what lies beyond them.")


def _by_band(found: NumberFigures, target: str) -> str:
    # Halved first: the sum of two large numbers may be infinite.
    middles = [each.low / 2 + each.high / 2 for each in found.bands]
    values = [end for each in found.bands for end in (each.mean_error.low, each.mean_error.high)]
    x, y = Axis.over(f"true {target}, by quantile", middles), Axis.over("mean error", [0.0, *values])
    plot = Plot(caption="Mean error by quantile", x=x, y=y).rule((x.low, 0), (x.high, 0))
    whiskers = [
        (middle, each.mean_error.value, each.mean_error.low, each.mean_error.high, shown(each.mean_error))
        for middle, each in zip(middles, found.bands, strict=True)
    ]
    plot.line([(x, y) for x, y, *_ in whiskers]).whiskers(whiskers)
    return figure(plot.svg(), "Mean error by quantile of the label", "Predicted minus true, with bootstrap intervals.")


def importance_section(report: EvaluationReport) -> str:
    if not report.importances:
        return ""
    widest = max(max(each.increase.value for each in report.importances), 0.0) or 1.0
    rows = [(each.name, _bar(each.increase, widest), shown(each.increase)) for each in report.importances]
    row = "out-of-fold row" if report.num_folds else "held-out row"
    note = (
        f"How much {words(report.metric)} grows on {report_text.count(report.num_importance_examples, row)} "
        "once an input takes other rows' values. Inputs that say the same share it: each alone can be done without."
    )
    titles = ("Input", "", f"{words(report.metric).capitalize()} grows by")
    return section("Importance of inputs", folded(titles, rows, first=MAX_LISTED), count=len(rows), note=html(note))


def _bar(increase: Interval, widest: float) -> str:
    share = 100 * min(max(increase.value, 0.0) / widest, 1.0)
    return Markup(f"<span class='meter'><i style='width:{share:.1f}%'></i></span>")


def worst_section(report: EvaluationReport) -> str:
    if not report.worst:
        return ""
    rows = [(each.name, shown_figure(each.value)) for each in report.worst]
    titles = ("Example", words(report.metric).capitalize())
    counted = "their fold, in the order of its shards" if report.num_folds else "the held-out split"
    note = f"By their own figure, the worst first. Rows count from 0 in {counted}."
    return section("Worst examples", folded(titles, rows, first=5), count=len(rows), note=note)


def continuation_section(report: EvaluationReport) -> str:
    if not report.continuations:
        return ""
    quoted = "".join(
        f"<p class='count'>Row {each.row:,} of the held-out split</p>"
        f"<p class='quote'><b>{_text(each.prompt)}</b>{_text(each.text)}</p>"
        for each in report.continuations
    )
    note = "Grey is the beginning of a held-out row, the rest is the model's: sampled at temperature 0.8, seeded."
    return section("Continuations", quoted, note=note)


def _text(text: str) -> str:
    # Line by line: line feeds are a text's own, all other controls are spelled out.
    return "\n".join(html(line.expandtabs(4)) for line in text.split("\n"))


def _cut(name: str) -> str:
    short_name = name.removeprefix("class ")
    return short_name if len(short_name) <= MATRIX_CHARS else short_name[: MATRIX_CHARS - 1] + "…"
