"""Shards of trials: once for each setting of theirs, beside the pipeline's own, and with the same held-out examples."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store.documents import Link, RunSpec, ShardManifest
from headway.data_contracts.store.errors import ConfigError
from headway.tasks.reports.figures import EvaluationSpec
from headway.tasks.rows.fitted_refs import state_in_use
from headway.tasks.rows.heldout_parts import parts_of
from headway.tasks.search.configuration import Configuration
from headway.tasks.stages import trial_shards as module
from headway.tasks.stages.shard import shard
from headway.tasks.stages.trial_scores import Scoring
from headway.tasks.stages.trial_shards import TrialShards
from headway.training.config.order_spec import MixedDataset, OrderSpec
from headway.training.config.shards import HELDOUT, ShardSpec, SkewLimits
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.measures import metric_set_for
from headway.training.evaluation.scorers import score_all, scorer_of
from headway.training.launch.base.gang import LaunchSpec
from headway.training.observe.ledger import read_events
from tests.tasks.days import SOURCE, TABLE, Days, columns, shards_spec
from tests.tasks.stages.test_shard import SPEC, Case

pytestmark = pytest.mark.process

VOCABULARY, LENGTH = "shards.encoder.vocab_size", "shards.encoder.sequence_tokens"


class Trials:
    """A pipeline with its own shards, and trials beside it."""

    def __init__(self, context: Any, spec: ShardSpec, source: SourceSpec, snapshot: Link, receipt: Link) -> None:
        self.context, self.spec, self.source, self.snapshot, self.receipt = context, spec, source, snapshot, receipt
        self.own = self.retrained(spec)
        self.base = Configuration(training=TrainingSpec(), shards=spec)
        scoring = Scoring(
            evaluation=EvaluationSpec(ranking_share=0.5), launch=LaunchSpec(nodes=1), shards=spec, source=source
        )
        self.shards = TrialShards(context, scoring, self.own)

    def retrained(self, spec: ShardSpec) -> Link:
        return shard.fn(self.context, spec, self.source, self.snapshot, self.receipt)

    def manifest(self, **chosen: Any) -> Link:
        return self.shards.manifest(self.base.with_settings(named(chosen)).shards)

    def load(self, link: Link) -> ShardManifest:
        return self.context.workspace.load(link, ShardManifest)

    def made(self, stage: str) -> list[bool]:
        """Of each time that a stage came to its result, whether it was made."""
        events = read_events(Path(self.context.base) / "ledger")
        return [not event["found"] for event in events if event["event"] == f"stage.{stage}" and "found" in event]

    def compared(self, link: Link, share: float = 0.5) -> tuple[str, ...]:
        """Digests of the examples that rank and of those that judge, with what each counts."""
        workspace, manifest = self.context.workspace, self.load(link)
        scorer = scorer_of(workspace, manifest, ShardReader(workspace, manifest, HELDOUT))

        def predict(rows: Any) -> Any:
            values = rows["tokens"][:, 1:] if "tokens" in rows else rows["label"]
            return {name: np.zeros(values.shape) for name in ("nats", "correct", "squared_error")}

        measure = metric_set_for(workspace, manifest).decisive
        weights: dict[str, float] = defaultdict(float)
        for block in score_all(scorer, range(scorer.num_blocks), predict, on_block=lambda: None):
            for name, weight in zip(block["examples"], block["sums"][measure.denominator], strict=True):
                weights[name] += float(weight)
        names = tuple(sorted(weights))
        bench = self.shards._scoring.harness(self.context)
        run: Any = RunSpec.model_construct(manifest=link)
        parts = parts_of(self.context, share, self.source, manifest, names)
        assert parts.ranking and parts.evaluation
        return tuple(
            bench.compared_examples_sha256(
                run, tuple(names[each] for each in part), [weights[names[each]] for each in part]
            )
            for part in (parts.ranking, parts.evaluation)
        )


def named(chosen: dict[str, Any]) -> dict[str, Any]:
    return {f"shards.{name.replace('__', '.')}": value for name, value in chosen.items()}


@pytest.fixture
def texts(tmp_path: Path) -> Trials:
    case = Case(tmp_path)
    return Trials(case.context, SPEC, case.source, *case.accepted())


@pytest.fixture
def table(days: Days) -> Trials:
    days.write(**columns(c=[n % 5 for n in range(40)]))
    spec = shards_spec({**TABLE, "categorical": ["c"]})
    shards = days.workspace.load(days.run(spec).manifest, ShardManifest)
    return Trials(days.context, spec, SOURCE, shards.snapshot, shards.receipt)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(260, 320), st.integers(4, 40), st.integers(1, 3), st.sampled_from(["hash", "file", "folder"]))
def test_whatever_the_encoder_of_a_text_the_same_documents_rank_and_the_same_judge_and_each_counts_the_same(
    texts: Trials, vocab_size: int, sequence_tokens: int, num_groups: int, group_by: str
) -> None:
    of_encoder = {"encoder__vocab_size": vocab_size, "encoder__sequence_tokens": sequence_tokens}
    link = texts.manifest(**of_encoder, num_groups=num_groups, group_by=group_by, seed=num_groups)
    assert texts.compared(link) == texts.compared(texts.own)


def test_whatever_the_encoder_of_a_table_the_same_rows_rank_and_the_same_judge(table: Trials) -> None:
    for chosen in ({"encoder__standardise": False}, {"encoder__max_categories": 2, "encoder__missing": "mean"}):
        link = table.manifest(**chosen)
        assert link != table.own and table.compared(link) == table.compared(table.own)
    other = table.retrained(table.spec.model_copy(update={"seed": 5}))
    assert table.compared(other) != table.compared(table.own), "rows are named by their places, which it decides"


def test_which_examples_rank_trials_is_kept_with_their_shards_whatever_becomes_of_the_source(
    table: Trials, days: Days
) -> None:
    link = table.manifest(encoder__standardise=False)
    days.write(**columns(c=[0] * 40))
    parts = parts_of(table.context, 0.5, table.source, table.load(link))
    assert parts.ranking and parts.evaluation


def test_shards_are_made_once_for_each_setting_and_the_pipelines_own_state_stays_in_use(texts: Trials) -> None:
    in_use = state_in_use(texts.context.workspace, "tiny")
    assert texts.manifest(encoder__vocab_size=300) == texts.own, "as the file has it"
    longer, larger = texts.manifest(encoder__sequence_tokens=32), texts.manifest(encoder__vocab_size=310)
    assert len({texts.own, longer, larger}) == 3
    assert (texts.made("fit"), texts.made("shard")) == ([True, True], [True] * 3), "one state for two lengths"
    assert texts.load(longer).fitted == texts.load(texts.own).fitted != texts.load(larger).fitted
    assert texts.manifest(encoder__vocab_size=310) == larger and len(texts.made("shard")) == 3, "not even looked up"
    assert state_in_use(texts.context.workspace, "tiny") == in_use

    # The file with what was kept: fitted and sharded before, and from then on the state in use.
    kept = texts.base.with_settings({VOCABULARY: 310}).shards
    assert texts.retrained(kept) == larger
    assert (texts.made("fit")[2:], texts.made("shard")[3:]) == ([False], [False])
    entry = state_in_use(texts.context.workspace, "tiny")
    assert entry is not None and entry.target == texts.load(larger).fitted


def test_rows_are_counted_by_each_trials_own_shards_and_none_is_made_for_what_no_rank_can_train(
    texts: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = Configuration(training=TrainingSpec(max_epochs=2), shards=texts.spec)
    steps = [texts.shards.settled(epochs.with_settings({LENGTH: length})).training.max_steps for length in (16, 8, 32)]
    assert steps[1] > 1.8 * steps[0] > 1.8 * 1.8 * steps[2]

    num_made = len(texts.made("shard"))
    unshared = texts.base.with_settings({VOCABULARY: 311, "global_batch_sequences": 4})
    monkeypatch.setattr(texts.shards, "_scoring", Scoring(
        evaluation=EvaluationSpec(), launch=LaunchSpec(nodes=5), shards=texts.spec, source=texts.source
    ))  # fmt: skip
    with pytest.raises(ConfigError, match="5 ranks cannot share"):
        texts.shards.settled(unshared)
    assert len(texts.made("shard")) == num_made


def test_what_data_refuse_and_what_predicts_something_else_is_no_trial(
    table: Trials, texts: Trials, days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = [0.5 * n for n in range(39)]
    days.write(**columns(b=[*gap, ""], c=[n % 5 for n in range(40)], t=["text"] * 40))
    spec = shards_spec({**TABLE, "categorical": ["c"], "missing": "mean"})
    shards = days.workspace.load(days.run(spec).manifest, ShardManifest)
    gappy = Trials(days.context, spec, SOURCE, shards.snapshot, shards.receipt)
    with pytest.raises(ConfigError, match="the data cannot be encoded so: "):
        gappy.manifest(encoder__missing="refuse")
    with pytest.raises(ConfigError, match="the data cannot be encoded so: column 't' is string, not a number"):
        gappy.manifest(encoder__numeric=["a", "t"])
    one_group = SPEC.model_copy(update={"num_groups": 1, "skew": SkewLimits(max_rows_ratio=1.0001)})
    uneven = Trials(texts.context, one_group, texts.source, texts.snapshot, texts.receipt)
    with pytest.raises(ConfigError, match=r"the data cannot be encoded so: has .* times the mean of 3 groups"):
        uneven.shards.manifest(uneven.base.with_settings(named({"num_groups": 3})).shards)

    # As of an encoder of one's own, which says only once it is fitted what it is.
    targets = iter(["the text of one", "the tokens of another"])
    monkeypatch.setattr(module, "target_of", lambda encoder, statistics: next(targets))
    with pytest.raises(ConfigError, match="would predict the tokens of another, and the pipeline file"):
        texts.manifest(encoder__vocab_size=305)


def test_datasets_that_are_mixed_in_are_to_be_encoded_like_a_trials_own(texts: Trials) -> None:
    mix = OrderSpec(mix=(MixedDataset(manifest=texts.own.sha256),))
    mixed = Configuration(training=TrainingSpec(order=mix), shards=texts.spec)
    weighted = texts.shards.settled(mixed.with_settings({"order.mix.0.weight": 3}))
    assert weighted.training.order.weights == [1, 3]
    with pytest.raises(ConfigError, match="have to be encoded like it"):
        mixed.with_settings({VOCABULARY: 312})
    # Of another pipeline file, which no trial's settings made.
    other = Configuration(training=TrainingSpec(), shards=texts.spec).with_settings({VOCABULARY: 312})
    with pytest.raises(ConfigError, match="cannot be mixed with"):
        texts.shards.settled(Configuration(training=mixed.training, shards=other.shards))
