"""The pages about models: what they show, how they hold whatever a report may hold, and two versions side by side."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from headway.data_contracts.report.page import Markup, folded, table
from headway.data_contracts.report.plots import Axis, Plot, linear_ticks, log_ticks
from headway.data_contracts.report.style import STYLE
from headway.data_contracts.store.documents import (
    EvaluationReport,
    Incomparable,
    Link,
    Registration,
    RunSpec,
    StoredFile,
)
from headway.data_contracts.store.errors import ConfigError
from headway.tasks.core.candidate import read_candidate
from headway.tasks.registry.evaluation_report import ReportContext, figure, leaderboard
from headway.tasks.reports import comparison_page
from headway.tasks.reports.comparison import Comparison
from headway.tasks.reports.evaluation_page import PageFacts, render_html
from headway.tasks.reports.evidence import Evidence, TrainingCurve, publish_curve, read_curve, read_evidence
from headway.tasks.reports.figures import EvaluationSpec
from headway.tasks.reports.pictures import MAX_LISTED, curve_section, wilson
from headway.tasks.rows.heldout_parts import Parts
from headway.tasks.stages.compare import compare, compared_version
from headway.tasks.stages.scoring import ScoringHarness
from headway.training.checkpoint.layout import run_folder
from headway.training.config.shapes import GAUSSIAN_NATS, TabularNumberShape
from headway.training.config.shards import ShardSpec
from headway.training.evaluation.class_figures import class_figures
from headway.training.evaluation.measures import CLASSES, MetricSet
from headway.training.evaluation.number_figures import number_figures
from headway.training.evaluation.outputs import Outputs
from headway.training.launch.base.gang import LaunchSpec
from headway.training.programs.evaluation import Scores
from tests.tasks.conftest import report_on
from tests.tasks.stages.test_evaluate import scores

RESAMPLING = {"resamples": 50, "confidence": 0.95, "seed": 0}
STANDING = ReportContext(pipeline="nightly", model="tiny", version="4")
SPEC = EvaluationSpec(bootstrap_resamples=100)


def report(**fields: object) -> EvaluationReport:
    whole = report_on(Link(kind="checkpoint", sha256="1" * 64), Link(kind="manifest", sha256="2" * 64), None)
    return whole.model_copy(update=fields)


def pictures_of(page: str) -> list[ET.Element]:
    return [ET.fromstring(each) for each in re.findall(r"<svg class='plot'.*?</svg>", page)]


def of_classes(num_rows: int, num_classes: int, labels: list[int] | None = None) -> Outputs:
    draw = np.random.default_rng(0)
    label = draw.integers(num_classes, size=num_rows) if labels is None else np.array(labels)
    probability = draw.dirichlet(np.ones(num_classes), size=num_rows)
    return Outputs(
        label=label,
        predicted=probability.argmax(axis=1),
        confidence=probability.max(axis=1).astype(np.float32),
        probability_rows=np.arange(num_rows),
        probability=probability.astype(np.float32),
    )


@pytest.mark.parametrize(
    ("num_rows", "num_classes", "labels"),
    [(2, 2, [0, 1]), (200, 2, None), (200, 10, None), (300, 1000, None), (40, 3, [1] * 40), (1, 2, [0])],
)
def test_a_page_of_classes_is_whole_however_few_the_rows_or_many_the_classes(num_rows, num_classes, labels):
    outputs = of_classes(num_rows, num_classes, labels)
    names = [f"class <b>{number}</b>" for number in range(num_classes)]
    shown = report(class_figures=class_figures(outputs, names, **RESAMPLING))
    page = render_html(shown, STANDING, Evidence(outputs=outputs), PageFacts(class_names=tuple(names)))
    has_curves = len(set(outputs.label.tolist())) > 1
    assert len(pictures_of(page)) == (3 if has_curves else 1)
    assert has_curves or "examples are all of one class" in page
    assert "<b>" not in page and "nan" not in page.replace("nance", "")
    assert len(page) < 2_000_000
    assert ("class='matrix'" in page) == (len(shown.class_figures.classes) <= 20)


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e12, 1e300])
@pytest.mark.parametrize("num_rows", [1, 2, 500])
def test_a_page_of_numbers_is_in_the_labels_unit_whatever_its_size(num_rows, scale):
    label = np.random.default_rng(0).normal(size=num_rows) * scale
    if scale > 1e200:  # whose squares are no numbers any more
        label = np.full(num_rows, 1e150)
    outputs = Outputs(label=label, predicted=label * 1.1)
    shown = report(number_figures=number_figures(outputs, **RESAMPLING))
    page = render_html(shown, STANDING, Evidence(outputs=outputs), PageFacts(target="price_eur"))
    assert "In the unit of price_eur" in page and len(pictures_of(page)) == 3
    for drawn in pictures_of(page):
        values = re.findall(r"-?\d+\.?\d*", " ".join(path.get("d", "") for path in drawn.iter()))
        assert values and all(math.isfinite(float(value)) and -20 < float(value) < 500 for value in values)


def test_ticks_are_round_few_and_between_the_ends():
    assert linear_ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert log_ticks(0.01, 100) == [0.01, 0.1, 1, 10, 100]
    for low, high in ((0, 1e-300), (-1e308, 1e308), (5, 5), (1e15, 1e15 + 1), (-3, 7)):
        ticks = linear_ticks(low, high)
        assert len(ticks) <= 13 and all(low - 1 <= tick <= high + 1 for tick in ticks)
    assert Axis.over("x", []).place(0.5) == pytest.approx(0.5, abs=0.1)


def test_every_colour_of_a_plot_is_the_pages_own_in_light_and_dark():
    plot = Plot(caption="x", x=Axis(label="x", low=0, high=1), y=Axis(label="<y>", low=0, high=1))
    drawn = plot.line([(0, 0), (1, 1)], "c9").points([(0, 0)], "c3").bars([(0, 1, 1, "a")]).svg()
    assert "fill=" not in drawn and "stroke=" not in drawn and "&lt;y&gt;" in drawn
    assert STYLE.count("--c9:") == 2 and ".plot .line.c9" in STYLE and "COLOURS" not in STYLE
    assert STYLE.count("{") == STYLE.count("}")


def test_long_tables_fold_and_only_markup_of_ours_is_no_text():
    rows = [(f"<i>{number}", "1") for number in range(40)]
    page = folded(("a", "b"), rows, first=MAX_LISTED)
    assert page.index("<details>") > page.index("&lt;i&gt;11<") and "28 more" in page
    assert "<details>" not in folded(("a", "b"), rows[: MAX_LISTED + 1], first=MAX_LISTED)
    assert "<td><b>x</b></td>" in table(("a",), [(Markup("<b>x</b>"),)])


def test_everything_scored_stands_on_the_leaderboard_the_best_first():
    lines = leaderboard(report(baselines={"bigram": 2.0, "boosted trees": 0.1}, gate_baseline="bigram"), "champion")
    assert [each.name for each in lines] == ["boosted trees (for scale)", "this model", "bigram (to be beaten)"]
    assert lines[2].difference is not None and lines[0].difference is None
    assert [figure(each) for each in (0.5, 1234.5, 123456.7, 1.5e12)] == ["0.5000", "1,234.5", "123,457", "1.5e+12"]


def test_the_interval_of_a_share_is_wilsons():
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)


def step(number: int, loss: float, *, event: str = "step", **more: float) -> str:
    return json.dumps({"event": event, "unix_s": 1e9 + number, "step": number, "loss": loss, "lr": 0.1, **more})


NO_VALIDATIONS: list[dict[str, Any]] = [
    {"value": 0.5},
    {"value": 0.5, "step": 1},
    {"value": float("nan"), "step": 1, "metric": "log_loss"},
    {"value": 0.5, "step": 1, "metric": 7},
]


def test_a_curve_is_of_the_steps_that_made_the_checkpoint_each_as_it_was_done_last(workspace, register):
    registration, _ = register(1)
    candidate = read_candidate(workspace, registration_of(workspace, registration).checkpoint)
    assert publish_curve(workspace, candidate) is None
    last = candidate.manifest.step
    lines = {
        1: [step(1, 9.0, gradient_noise_scale=7.5), step(2, 8.0, gradient_noise_scale=9.5)],
        2: [step(2, 7.0), step(2, 5.0, event="step.excluded")],
    }
    lines[2] += [step(number, 1.0) for number in range(3, last + 1)] + [step(last + 1, 0.5), "torn {"]
    lines[2] += [step(last, float("nan")), step(last, float("inf"))]
    lines[2] += [json.dumps({"event": "validation", "unix_s": 1e9} | each) for each in NO_VALIDATIONS]
    for attempt, events in lines.items():
        folder = workspace.local_path(f"{run_folder(candidate.manifest.run)}/attempts/{attempt}/ledger")
        folder.mkdir(parents=True)
        (folder / "rank-0.jsonl").write_text("".join(f"{each}\n" for each in events))
    kept = publish_curve(workspace, candidate)
    curve = read_curve(workspace, candidate.checkpoint)
    assert kept is not None and curve is not None and curve.num_excluded == 1
    assert curve.noise_scale == 7.5, "the second step was done again, and has none"
    assert "noise scale was 7.5 rows" in curve_section([("a", curve)])
    drawn = curve_section(
        [("a", curve.model_copy(update={"noise": ((1, 7.5), (2, 30.0)), "batch": ((1, 8), (2, 16))}))]
    )
    assert drawn.count("Gradient noise scale</figcaption>") == 1 and "Grey: rows of the batch." in drawn
    assert curve.validated == () and curve.step[-1] == last and curve.loss[:2] == (9.0, 7.0)[: len(curve.loss)]


def registration_of(workspace, link):
    return workspace.load(link, Registration)


def test_damaged_outputs_cost_their_pictures_and_not_the_page(workspace):
    file = StoredFile(path="reports/outputs-0.safetensors", size_bytes=3, sha256="0" * 64)
    workspace.publish(file.path, of_classes(3, 2).to_bytes())
    assert read_evidence(workspace, report(outputs=file)).outputs is None


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchOfTwo(ScoringHarness):
    """Scores of each registration, that no rank computed."""

    made: dict[Link, Scores | str]

    def metric_set(self, run: RunSpec) -> MetricSet:
        return CLASSES

    def parted(self, share: float, today: RunSpec, examples: tuple[str, ...]) -> Parts:
        return Parts(ranking=[0], evaluation=list(range(1, len(examples))))

    def score_champion(self, champion: Link, today: RunSpec, **wanted: object) -> Scores | Incomparable:
        found = self.made[champion]
        return Incomparable(champion=champion, reason=found) if isinstance(found, str) else found


@pytest.fixture
def compared(context, register):
    """What the comparison of two comes to."""

    def made(first: Scores | str, second: Scores) -> Comparison:
        (older, _), (newer, _) = register(1), register(2)
        bench = BenchOfTwo(
            context=context,
            launch=LaunchSpec(),
            shards=ShardSpec(),
            source=None,  # type: ignore[arg-type]
            made={older: first, newer: second},
        )
        versions = (compared_version(bench, "tiny", number, link) for number, link in (("1", older), ("2", newer)))
        return compare(bench, SPEC, *versions)

    return made


def test_two_versions_are_paired_row_by_row_over_all_and_in_each_slice(compared):
    worse, better = (scores(CLASSES, nats, baseline="class prior") for nats in (1.1, 1.0))
    worse.sums["correct"][3:9] = 0.0
    found = compared(worse, better)
    assert found.num_examples == len(better.examples) - 1, "what ranked trials judges nothing"
    assert found.headline == "tiny version 2 is better than tiny version 1"
    expected = (better.sums["nats"] - worse.sums["nats"])[1:].mean()
    assert found.difference.value == pytest.approx(expected)
    assert [each.name for each in found.measures] == ["log_loss", "accuracy"]
    assert [each.name for each in found.slices] == [f"class {number}" for number in range(4)]
    assert found.agreement is not None and found.agreement.only_second == 4 and found.agreement.only_first == 0
    assert [each.name for each in found.disagreements[:2]] == ["39", "38"]
    page = comparison_page.render_html(found, [], 0.0)
    assert "tiny version 2 is better than tiny version 1" in page and "Only tiny version 2 right" in page
    assert len(pictures_of(page)) == 1 and "http:" not in page and "<script" not in page


def test_two_that_do_not_differ_beyond_doubt_are_not_called_better_or_worse(compared):
    first, second = (scores(CLASSES, 1.0, baseline="class prior") for _ in range(2))
    second.sums["nats"][::2] += 0.1
    second.sums["nats"][1::2] -= 0.1
    found = compared(first, second)
    assert found.headline == "tiny version 2 and tiny version 1 do not differ beyond doubt"
    assert "better" not in comparison_page.render_html(found, [], 0.0).split("</header>")[0]


def test_what_cannot_be_compared_is_refused_with_the_reason(compared):
    own = scores(CLASSES, 1.0, baseline="class prior")
    with pytest.raises(ConfigError, match="it predicts the text"):
        compared("it predicts the text in column 'a', this model the class", own)
    fewer = scores(CLASSES, 1.0, baseline="class prior", num_examples=30)
    with pytest.raises(ConfigError, match="different examples"):
        compared(fewer, own)


def test_a_numbers_curve_is_drawn_in_its_own_unit_and_other_losses_in_nats() -> None:
    nats = tuple(0.5 * off**2 + GAUSSIAN_NATS for off in (1.0, 0.5))
    shape = TabularNumberShape(num_numeric=1, cardinalities=(), mean=0.0, deviation=40.0)
    steps = {"first_step": 1, "num_steps": 2, "num_excluded": 0, "started_unix_s": 0.0, "ended_unix_s": 1.0}
    curve = TrainingCurve.model_validate(
        {**steps, "step": (1, 2), "loss": nats, "low": nats, "high": nats, "lr": (0.1, 0.1)}
    )
    assert "loss, nats a target" in curve_section([("this model", curve)])
    known = curve.model_copy(update={"shape": shape})
    assert known.in_label_unit.loss == pytest.approx((40.0, 20.0))
    page = curve_section([("this model", known)], "price_eur")
    assert "rmse, in the unit of price_eur" in page and "nats" not in page
