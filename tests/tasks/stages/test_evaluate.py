"""The report: figures, slices, baselines and the comparison, for texts and for classes alike."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest

from headway.data_contracts.store import stages
from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.documents import (
    EvaluationReport,
    Incomparable,
    Interval,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
)
from headway.data_contracts.store.errors import DataError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.candidate import Candidate, read_candidate
from headway.tasks.registry.evaluation_report import ReportContext, render_markdown
from headway.tasks.registry.promotion import decide, versus_rival
from headway.tasks.registry.promotion_spec import PromotionSpec, SliceLimits
from headway.tasks.reports.evaluation_page import render_html
from headway.tasks.reports.figures import EvaluationSpec, slices_of, widened
from headway.tasks.rows.heldout_parts import parts_of, require_parts
from headway.tasks.rows.ranking_split import remember_ranking
from headway.tasks.rows.slices import SliceBy, labels_of
from headway.tasks.stages.evaluate import _evaluate, _own_report
from headway.tasks.stages.register import RegistrySpec, registration_inputs
from headway.tasks.stages.scoring import ScoringHarness
from headway.training.config.shards import ShardSpec
from headway.training.evaluation.measures import CLASSES, NUMBERS, TEXT, TOKEN_IDS, MetricSet
from headway.training.evaluation.outputs import Outputs
from headway.training.evaluation.statistics import paired_difference
from headway.training.launch.base.gang import LaunchSpec
from headway.training.observe.ledger import read_events
from headway.training.programs.evaluation import Details, Scores
from tests.tasks.days import SOURCE, TABLE, Days, columns, shards_spec
from tests.tasks.registry.test_promotion import CHALLENGER

NUM_EXAMPLES = 40
SPEC = EvaluationSpec(bootstrap_resamples=100)
REGISTRY = RegistrySpec(model="tiny")
STANDING = ReportContext(pipeline="nightly", model="tiny", version="4")
RAMP = np.linspace(0.5, 1.5, NUM_EXAMPLES)


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeUpBench(ScoringHarness):
    """Scores that no rank computed."""

    kind: MetricSet
    are_files: bool = True
    own: Scores
    theirs: Scores | str
    """Or why there are none."""
    cut: dict[SliceBy, list[str]]
    has_changed: bool
    """Files of the source, since the snapshot."""
    keys: np.ndarray | None = None

    def slices_by(
        self, slices: tuple[SliceBy, ...], today: RunSpec, examples: tuple[str, ...]
    ) -> dict[SliceBy, list[str]]:
        return self.cut

    def keys_of(self, run: RunSpec, examples: tuple[str, ...]) -> np.ndarray | None:
        return self.keys

    def class_names(self, run: RunSpec) -> list[str]:
        return []

    def input_names(self, run: RunSpec) -> list[str]:
        return []

    def metric_set(self, run: RunSpec) -> MetricSet:
        return self.kind

    @property
    def examples_are_files(self) -> bool:
        return self.are_files

    def score(self, candidate: Candidate, **wanted: object) -> Scores:
        return self.own

    def score_champion(self, champion: Link, today: RunSpec) -> Scores | Incomparable:
        return Incomparable(champion=champion, reason=self.theirs) if isinstance(self.theirs, str) else self.theirs

    def examples_sha256(self, today: RunSpec, examples: tuple[str, ...]) -> str:
        return "0" * 64

    def contents(self, today: RunSpec, paths: tuple[str, ...]) -> list[bytes]:
        if self.has_changed:
            raise DataError("changed since the snapshot was taken.", where=paths[0])
        return [b"spam " * 100 for _ in paths]


def scores(kind: MetricSet, nats: float, *, baseline: str, num_examples: int = NUM_EXAMPLES) -> Scores:
    ramp = RAMP[:num_examples]

    def sums(factor: float) -> dict[str, np.ndarray]:
        extra = {"bytes": np.full(num_examples, 4.0), "correct": (np.arange(num_examples) % 4 > 0).astype(float)}
        extra |= {"squared_error": ramp * factor, "variation": np.full(num_examples, 4.0)}
        return {"nats": ramp * factor, "targets": np.ones(num_examples), **extra}

    return Scores(
        examples=tuple(f"{number:02d}" for number in range(num_examples)),
        slices=tuple(f"class {number % 4}" for number in range(num_examples)),
        sums=sums(nats),
        baselines={baseline: sums(2.0)},
    )


@pytest.fixture
def judge(context, workspace: Workspace, register):
    """A report on made-up scores, against a champion when there is one."""

    def evaluated(
        kind: MetricSet,
        own: Scores,
        theirs: Scores | str | None = None,
        cut: dict[SliceBy, list[str]] | None = None,
        has_changed: bool = False,
        keys: np.ndarray | None = None,
        **scalars: int,
    ) -> EvaluationReport:
        (registration, _), (champion, _) = register(1, scalars=scalars), register(2)
        checkpoint = workspace.load(registration, Registration).checkpoint
        bench = MadeUpBench(
            context=context,
            launch=LaunchSpec(),
            shards=ShardSpec(),
            source=None,  # type: ignore[arg-type]
            kind=kind,
            are_files=kind is TEXT,
            own=own,
            theirs=own if theirs is None else theirs,
            cut=cut or {},
            has_changed=has_changed,
            keys=keys,
        )
        made = _evaluate(bench, SPEC, REGISTRY, checkpoint, None if theirs is None else champion)
        assert isinstance(made.document, EvaluationReport)
        assert read_candidate(workspace, checkpoint).checkpoint == made.document.checkpoint
        return made.document

    return evaluated


def test_a_text_is_judged_in_bits_per_byte_beside_a_bigram_and_xz(judge) -> None:
    report = judge(TEXT, scores(TEXT, 1.0, baseline="bigram"))
    assert (report.metric, report.greater_is_better, list(report.metrics)) == (
        "bits_per_byte",
        False,
        ["bits_per_byte"],
    )
    assert report.metrics["bits_per_byte"].value == pytest.approx(1 / np.log(2) / 4)
    assert set(report.baselines) == {"bigram", "xz -9"}
    assert report.baselines["bigram"] == pytest.approx(2 / np.log(2) / 4)
    assert versus_rival(report).status == "passed"


def test_files_that_changed_since_the_snapshot_cost_the_figure_for_scale_and_not_the_run(judge, context) -> None:
    report = judge(TEXT, scores(TEXT, 1.0, baseline="bigram"), has_changed=True)
    assert set(report.baselines) == {"bigram"} and versus_rival(report).status == "passed"
    message = [
        event["message"]
        for event in read_events(context.scratch / "ledger.jsonl")
        if event["event"] == "evaluate.no_xz"
    ]
    assert message == ["left out: 00: changed since the snapshot was taken."]


def test_ids_are_judged_in_bits_per_token_beside_a_bigram_and_no_compressor(judge) -> None:
    report = judge(TOKEN_IDS, scores(TOKEN_IDS, 1.0, baseline="bigram"))
    assert (report.metric, list(report.metrics), list(report.baselines)) == (
        "bits_per_token",
        ["bits_per_token"],
        ["bigram"],
    )
    assert report.metrics["bits_per_token"].value == pytest.approx(1 / np.log(2))
    assert versus_rival(report).status == "passed"


def test_a_classifier_is_judged_in_log_loss_beside_the_class_prior_with_its_accuracy(judge) -> None:
    report = judge(CLASSES, scores(CLASSES, 1.0, baseline="class prior"))
    assert (report.metric, report.gate_baseline) == ("log_loss", "class prior")
    assert report.metrics["log_loss"].value == pytest.approx(1.0)
    assert report.metrics["accuracy"].value == 0.75
    assert report.baselines == {"class prior": pytest.approx(2.0)}
    assert list(report.slices) == [f"class {number}" for number in range(4)]
    assert versus_rival(report).status == "passed"
    assert versus_rival(judge(CLASSES, scores(CLASSES, 2.0, baseline="class prior"))).status == "failed"
    for page in (render_html(report, STANDING), render_markdown(report, STANDING)):
        assert "log loss" in page and "class prior" in page and "accuracy" in page
        assert "tiny version 4 beats the class prior" in page


def test_the_report_says_what_was_judged_when_against_whom_and_on_how_many_of_each_slice(judge, workspace) -> None:
    report = judge(CLASSES, scores(CLASSES, 1.1, baseline="class prior"), scores(CLASSES, 1.0, baseline="class prior"))
    (page,) = [workspace.read(f"reports/{name}").decode() for name in workspace.names("reports")]
    assert "tiny version 1 does not beat the champion" in page and "Evaluation of tiny, 20" in page
    later = dataclasses.replace(STANDING, champion_version="3", champion_since_unix_s=0.0, evaluated_unix_s=86_400.0)
    html, markdown = render_html(report, later), render_markdown(report, later)
    for text in (html, markdown):
        assert (
            "tiny version 4 does not beat the champion" in text and "champion version 3, since 1970-01-01 UTC" in text
        )
    assert "Evaluation of nightly, 1970-01-02 UTC" in html
    assert report.slice_sizes == dict.fromkeys([f"class {number}" for number in range(4)], 10)
    assert report.comparison is not None and set(report.comparison.slices) == set(report.slices)
    assert "| class 0 | 10 | " in markdown and "<td>class 0</td><td class='number'>10</td>" in html


def test_the_report_says_why_the_weights_are_not_those_of_an_undisturbed_run(judge, workspace) -> None:
    synthetic = scores(CLASSES, 1.0, baseline="class prior")
    exact, halved = judge(CLASSES, synthetic, inexact_resumes=0), judge(CLASSES, synthetic, halved_micro_batch=4)
    assert exact.inexact == "" and b"inexact" not in exact.to_bytes(), "digests of reports stay what they were"
    for page in (render_html(halved, STANDING), render_markdown(halved, STANDING)):
        assert "micro-batch halved to 4 when memory ran out" in page
    assert "undisturbed" not in render_html(exact, STANDING)


def test_the_report_says_how_many_held_out_examples_judge_nothing(judge) -> None:
    report = judge(CLASSES, scores(CLASSES, 1.0, baseline="class prior"))
    some = report.model_copy(update={"num_ranking_examples": 1234})
    for page in (render_html, render_markdown):
        assert "1,234 further held-out examples rank trials, or ranked trials or validated runs" in page(some, STANDING)
        assert "judge nothing" not in page(report, STANDING)
    assert f"{versus_rival(some).detail}. 1,234 further" in html.unescape(render_html(some, STANDING))


def test_a_report_of_before_that_names_another_split_is_still_read(judge) -> None:
    report = judge(CLASSES, scores(CLASSES, 1.0, baseline="class prior"))
    # As bytes: a copy of today's report takes any field, whether reports know it or not.
    before = canonical_json(json.loads(report.to_bytes()) | {"earlier_splits": "rows that ranked trials"})
    assert EvaluationReport.from_bytes(before, where="a report").to_bytes() == before
    assert b"earlier_splits" not in report.to_bytes()


def test_names_in_the_page_are_text_and_it_needs_nothing_else(judge) -> None:
    report = judge(CLASSES, scores(CLASSES, 1.0, baseline="class prior"))
    hostile = report.model_copy(update={"slices": {"<script>x</script>": report.metrics["log_loss"]}})
    page = render_html(hostile, dataclasses.replace(STANDING, pipeline="<img>"))
    assert "<script" not in page and "<img" not in page and "http:" not in page and "https:" not in page
    assert "Content-Security-Policy" in page


def test_a_number_is_judged_by_its_squared_error_beside_the_training_mean(judge) -> None:
    report = judge(NUMBERS, scores(NUMBERS, 1.0, baseline="training mean"))
    assert (report.metric, report.gate_baseline) == ("mean_squared_error", "training mean")
    assert report.metrics["mean_squared_error"].value == pytest.approx(1.0)
    assert report.metrics["rmse"].value == pytest.approx(1.0)
    assert report.metrics["r2"].value == pytest.approx(0.75)
    for interval in report.metrics.values():
        assert interval.low < interval.value < interval.high
    assert versus_rival(report).status == "passed"
    worse = judge(NUMBERS, scores(NUMBERS, 2.0, baseline="training mean"))
    assert versus_rival(worse).status == "failed"
    own, mean = worse.metrics["rmse"].value, math.sqrt(worse.baselines["training mean"])
    said = f"rmse {own:.4f} does not beat the training mean's {mean:.4f}: difference of mean_squared_error "
    assert said in versus_rival(worse).detail, "people know the label's unit, not its square"
    page = render_html(worse, STANDING)
    tiles = page[page.index("class='tiles'") if "class='tiles'" in page else page.index('class="tiles"') :]
    assert tiles.index("rmse") < tiles.index("mean squared error")
    assert "this model minus it, mean squared error" in page


def test_champion_and_challenger_are_compared_example_by_example(judge) -> None:
    better = judge(CLASSES, scores(CLASSES, 1.0, baseline="class prior"), scores(CLASSES, 1.1, baseline="class prior"))
    assert better.comparison is not None
    assert better.comparison.champion_value == pytest.approx(1.1)
    assert better.comparison.difference.value == pytest.approx(-0.1)
    assert versus_rival(better).status == "passed"
    worse = judge(CLASSES, scores(CLASSES, 1.1, baseline="class prior"), scores(CLASSES, 1.0, baseline="class prior"))
    assert versus_rival(worse).status == "failed"


def test_a_champion_without_scores_leaves_a_report_that_says_why_and_promotes_nobody(judge, workspace) -> None:
    own = scores(CLASSES, 1.0, baseline="class prior")
    report = judge(CLASSES, own, "its encoder cannot read <today>")
    assert report.comparison is None and report.incomparable is not None
    assert report.compared_with == report.incomparable.champion
    assert versus_rival(report).status == "failed"
    assert versus_rival(judge(CLASSES, own)).status == "passed"
    for page in (render_html(report, STANDING), render_markdown(report, STANDING)):
        assert "tiny version 4 cannot be compared with the champion" in page
        assert "its encoder cannot read" in page
    page = render_html(report, STANDING)
    assert "&lt;today&gt;" in page and report.incomparable.champion.sha256 in page


def test_a_report_of_a_comparison_has_the_bytes_it_always_had(judge) -> None:
    report = judge(CLASSES, scores(CLASSES, 1.0, baseline="class prior"))
    assert b"incomparable" not in report.to_bytes()
    assert EvaluationReport.from_bytes(report.to_bytes(), where="") == report


def test_a_slice_that_regresses_shows_however_much_better_the_model_is_on_the_whole(judge) -> None:
    """Of four slices each is doubted four times as much, for one of many looks worse by chance."""
    own, theirs = (scores(CLASSES, nats, baseline="class prior") for nats in (1.0, 1.3))
    worse = np.array([name == "class 2" for name in own.slices])
    own.sums["nats"][worse] *= 1.6
    report = judge(CLASSES, own, theirs)
    assert report.comparison is not None and report.comparison.difference.high < 0
    by_slice = report.comparison.slices
    assert by_slice["class 2"].low > 0
    assert all(by_slice[name].high < 0 for name in by_slice if name != "class 2")
    chosen = [number for number, name in enumerate(own.slices) if name == "class 2"]
    nats, other, targets = (sums[chosen] for sums in (own.sums["nats"], theirs.sums["nats"], own.sums["targets"]))
    a_quarter_of_the_doubt = {"confidence": 1 - (1 - SPEC.confidence) / 4, "resamples": 800, "seed": SPEC.seed}
    assert by_slice["class 2"] == paired_difference(nats, other, targets, **a_quarter_of_the_doubt)


def area_of(report: EvaluationReport) -> Interval:
    assert report.class_figures is not None
    (area,) = (each.roc_auc for each in report.class_figures.classes if each.roc_auc is not None)
    return area


def test_every_interval_of_rows_that_are_alike_is_drawn_key_by_key(judge) -> None:
    """One key has all rows of a slice: its interval has no width, and is no regression."""
    own, theirs = (scores(CLASSES, nats, baseline="class prior") for nats in (1.0, 1.3))
    draw = np.random.default_rng(0)
    label = np.arange(NUM_EXAMPLES) % 4 // 2
    probability = draw.dirichlet([1, 1], NUM_EXAMPLES).astype(np.float32)
    outputs = Outputs(
        label=label,
        predicted=probability.argmax(axis=1),
        confidence=probability.max(axis=1),
        probability_rows=np.arange(NUM_EXAMPLES),
        probability=probability,
    )
    details = Details(outputs=outputs, importance=draw.normal(size=(1, 9)), importance_rows=np.arange(0, 36, 4))
    own = replace(own, details=details)
    keys = np.arange(NUM_EXAMPLES, dtype=np.uint64) // 4 * 7
    keys[own.sums["nats"] < 0.6] = 99
    keys[2::4] = 5
    report = judge(CLASSES, own, theirs, keys=keys)
    alone = judge(CLASSES, own, theirs)
    assert report.num_keys == len(np.unique(keys)) and alone.num_keys == 0 and alone.slice_keys == {}
    assert report.slice_keys["class 2"] == 1 < report.slice_keys["class 1"]
    assert report.comparison is not None and alone.comparison is not None
    pairs = [
        (report.baseline_difference, alone.baseline_difference),
        (report.comparison.difference, alone.comparison.difference),
        (report.comparison.slices["class 2"], alone.comparison.slices["class 2"]),
        (report.metrics["accuracy"], alone.metrics["accuracy"]),
        (report.importances[0].increase, alone.importances[0].increase),
        (area_of(report), area_of(alone)),
        (report.class_figures.expected_calibration_error, alone.class_figures.expected_calibration_error),
    ]
    for together, apart in pairs:
        assert together.value == apart.value and (together.low, together.high) != (apart.low, apart.high)
    one = report.comparison.slices["class 2"]
    assert one.high - one.low == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("num_slices", [1, 10, 200])
def test_a_widened_interval_has_resamples_beyond_its_ends_however_many_slices_there_are(num_slices: int) -> None:
    wide = widened(SPEC, num_slices)
    assert wide.confidence == pytest.approx(1 - 0.05 / num_slices)
    assert wide.bootstrap_resamples * (1 - wide.confidence) / 2 >= 4.99
    assert widened(EvaluationSpec(bootstrap_resamples=90_000), num_slices).bootstrap_resamples == 90_000


def test_slices_by_a_column_stand_beside_those_that_evaluation_makes_and_may_not_regress_either(judge) -> None:
    own, theirs = (scores(CLASSES, nats, baseline="class prior") for nats in (1.0, 1.3))
    regions = ["south" if number < 8 else "north" if number < 37 else "west" for number in range(NUM_EXAMPLES)]
    own.sums["nats"][:8] *= 2
    by_region = {SliceBy(column="region"): [f"region = {region}" for region in regions]}
    report = judge(CLASSES, own, theirs, cut=by_region)
    classes = [f"class {number}" for number in range(4)]
    assert list(report.slices) == [*classes, "region = north", "region = south", "region = (others)"]
    assert report.slice_sizes["region = south"] == 8 and report.slice_sizes["region = (others)"] == 3
    assert report.comparison is not None and set(report.comparison.slices) == set(report.slices)
    assert report.comparison.difference.high < 0 < report.comparison.slices["region = south"].low
    assert "| region = south | 8 | " in render_markdown(report, STANDING)
    nats, other, targets = (sums[:8] for sums in (own.sums["nats"], theirs.sums["nats"], own.sums["targets"]))
    a_seventh_of_the_doubt = widened(SPEC, 7).resampling
    assert report.comparison.slices["region = south"] == paired_difference(
        nats, other, targets, **a_seventh_of_the_doubt
    ), "all seven together hold at the report's confidence"


@pytest.mark.parametrize(
    ("one", "other"),
    [("a|b", "a b"), ("a b", "a\u202eb"), ("a\0b", "a b"), (None, "(none)"), ("x" * 59 + "1" * 9, "x" * 59 + "2" * 9)],
)
def test_a_category_that_regresses_hides_behind_no_other_whose_name_looks_like_its_own(
    judge, one: str | None, other: str
) -> None:
    own, theirs = (scores(CLASSES, 1.0, baseline="class prior") for _ in range(2))
    half = NUM_EXAMPLES // 2
    own.sums["nats"][:half] *= 1.2
    own.sums["nats"][half:] *= 0.5
    by = SliceBy(column="c")
    report = judge(CLASSES, own, theirs, cut={by: labels_of(by, pa.array([one] * half + [other] * half))})
    assert [size for name, size in report.slice_sizes.items() if name.startswith("c = ")] == [half] * 2
    assert report.comparison is not None and report.comparison.difference.high < 0
    decision = decide(PromotionSpec(slices=SliceLimits(min_examples=5)), report, CHALLENGER)
    assert "slices" in [check.name for check in decision.failed]


def test_scores_on_other_examples_are_not_compared(judge) -> None:
    fewer = scores(CLASSES, 1.0, baseline="class prior", num_examples=NUM_EXAMPLES - 1)
    with pytest.raises(IntegrityError, match="different examples"):
        judge(CLASSES, scores(CLASSES, 1.0, baseline="class prior"), fewer)


def test_small_slices_are_taken_together_and_weightless_examples_left_out() -> None:
    names = ["a/"] * 6 + ["b/"] * 2 + ["c/"] * 3 + ["a/"]
    weights = [1.0] * 11 + [0.0]
    assert slices_of(names, weights) == {"a/": [0, 1, 2, 3, 4, 5], "(others)": [6, 7, 8, 9, 10]}


@pytest.mark.process
def test_what_a_search_chose_is_evaluated_anew_where_its_report_was_made_on_examples_that_ranked_it(days: Days) -> None:
    days.write(**columns())
    spec, context, workspace = shards_spec(TABLE), days.context, days.workspace
    manifest = days.run(spec).manifest
    registration = workspace.load(days.champion(days.run(spec)), Registration)
    found = workspace.load(registration.evaluation, EvaluationReport).model_copy(update={"manifest": manifest})

    def own_report(report: EvaluationReport, share: float) -> Link | None:
        made = registration.model_copy(update={"evaluation": workspace.publish_document(report)})
        inputs = registration_inputs(REGISTRY, made.checkpoint)
        stages.record(workspace, "register", inputs, workspace.publish_document(made), files=(), provenance={})
        evaluation = SPEC.model_copy(update={"ranking_share": share})
        return _own_report(context, evaluation, REGISTRY, made.checkpoint, report.compared_with)

    assert own_report(found, 0.0) == found.link, "nothing was chosen"
    remember_ranking(context, 0.5, spec, {})
    assert own_report(found, 0.5) is None, "no one has told its examples apart"
    require_parts(context, 0.5, SOURCE, manifest)
    assert own_report(found, 0.5) is None, "some of its examples have ranked"

    shards = workspace.load(manifest, ShardManifest)
    fewer = found.model_copy(update={"heldout_parts": parts_of(context, 0.5, SOURCE, shards).document})
    assert own_report(fewer, 0.5) == fewer.link
    parts_of(context, 0.2, SOURCE, shards)
    assert own_report(fewer, 0.2) == fewer.link, "what ranks is less, and all of it ranked before"
    remember_ranking(context, 0.7, spec, {})
    parts_of(context, 0.7, SOURCE, shards)
    assert own_report(fewer, 0.9) is None
