"""The fitted state stays while it serves, and never outlives what it was fitted for."""

from __future__ import annotations

import pytest

from headway.data_contracts.sources.reading import SourceSpec, take_snapshot
from headway.data_contracts.store import refs, stages
from headway.data_contracts.store.documents import ContractReceipt, FittedState, Link, RunSpec, ShardManifest, Snapshot
from headway.data_contracts.store.errors import ConfigError, DataError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.tasks.core.context import RunContext
from headway.tasks.rows.fitted_refs import RECOVERED, fitted_ref, state_in_use
from headway.tasks.stages.shard import (
    Refit,
    current_fitted_state,
    fitted_beside_fold,
    outlook,
    shard,
    shards_under,
    usable_state,
)
from headway.tasks.stages.shard_group import ShardJob, shard_group, tasks_at_once
from headway.training.config.fold import Fold
from headway.training.config.shards import BytePairSpec, ShardSpec
from headway.training.data.shards.group_writer import GroupWriter
from headway.training.observe.ledger import Ledger, read_events

SPEC = ShardSpec(encoder=BytePairSpec(vocab_size=300, sequence_tokens=16), num_groups=2, heldout_fraction=0.3)
OTHER_SPLIT = SPEC.model_copy(update={"split_salt": "another"})


class Case:
    def __init__(self, root) -> None:
        (root / "texts").mkdir()
        for number in range(30):
            self.write(root, number, f"text {number} of several texts\n" * 5)
        self.root = root
        workspace = Workspace.create(str(root / "workspace"))
        self.context = RunContext(
            pipeline="tiny",
            workspace=workspace,
            base=root,
            ledger=Ledger(root / "ledger"),
            digests=DigestCache(root / "digests"),
            scratch=root,
            budget_scope="one",
        )
        self.source = SourceSpec(format="text-files", uri="texts", include=("**/*.txt",))

    @staticmethod
    def write(root, number: int, text: str) -> None:
        (root / "texts" / f"{number}.txt").write_text(text)

    def fit(self, spec: ShardSpec = SPEC) -> Link:
        return current_fitted_state(self.context, spec, self.source, *self.accepted())

    def accepted(self) -> tuple[Link, Link]:
        """A snapshot of today's texts, and a receipt for all of them."""
        workspace = self.context.workspace
        snapshot = take_snapshot(self.source, base=self.root, cache=self.context.digests)
        workspace.publish_document(snapshot)
        receipt = ContractReceipt(
            contract=workspace.publish("frozen/contract", b""),
            contract_name="tiny",
            contract_version="1",
            snapshot=snapshot.link,
            passed=True,
            num_rows=snapshot.num_rows,
            verdicts=(),
            num_quarantined=0,
            quarantine=None,
            metrics={},
        )
        return snapshot.link, workspace.publish_document(receipt)

    def damage(self, link: Link) -> None:
        (file,) = self.context.workspace.load(link, FittedState).files
        path = self.context.workspace.local_path(file.path)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    @property
    def reasons(self) -> list[str]:
        return [entry.reason for entry in refs.history(self.context.workspace, fitted_ref("tiny"))]

    @property
    def damages(self) -> list[str]:
        events = read_events(self.root / "ledger")
        return [str(event["message"]) for event in events if event["event"] == "stage.damaged"]


def known_fitted_state(case: Case, spec: ShardSpec) -> Link | None:
    """What a plan says, writing nothing."""
    state = usable_state(case.context, spec, state_in_use(case.context.workspace, "tiny"))
    return None if isinstance(state, Refit) else state.link


def detail(case: Case, spec: ShardSpec, snapshot: Link, receipt: Link) -> str:
    taken = case.context.workspace.load(snapshot, Snapshot)
    return outlook(case.context, spec, case.source, taken, receipt).detail


@pytest.fixture
def case(tmp_path) -> Case:
    return Case(tmp_path)


def test_a_listed_value_without_rows_is_refused_before_anything_is_fitted_or_told_at_each_run(case):
    def given(*heldout: str) -> ShardSpec:
        return ShardSpec(encoder=SPEC.encoder, num_groups=1, split={"column": "path", "heldout": heldout})

    with pytest.raises(DataError, match=r"no row has '7\.tx' in column 'path'.*'7\.txt' \(1 row\)"):
        shard.fn(case.context, given("0.txt", "7.tx"), case.source, *case.accepted())
    assert not case.reasons
    for _ in range(2):
        shard.fn(case.context, given("0.txt", "77.txt"), case.source, *case.accepted())
    told = [event["message"] for event in read_events(case.root / "ledger") if event["event"] == "shard.without_rows"]
    assert told == ["shards.split lists '77.txt', which no row has in column 'path'."] * 2


def test_new_data_keep_the_state(case):
    first = case.fit()
    case.write(case.root, 99, "new words\n" * 9)
    assert case.fit() == first == known_fitted_state(case, SPEC)
    assert case.reasons == ["first fit"]


def test_another_split_fits_again_for_the_old_state_saw_what_is_now_held_out(case):
    first = case.fit()
    assert known_fitted_state(case, OTHER_SPLIT) is None
    second = case.fit(OTHER_SPLIT)
    assert second != first
    assert case.fit(OTHER_SPLIT) == second
    assert case.fit() == first
    assert case.reasons == ["first fit", "another split", "another split"]


REFIT = SPEC.model_copy(update={"fit": 1})


def test_a_raised_counter_fits_again_on_todays_data_once(case):
    first = case.fit()
    for number in range(30):
        case.write(case.root, number, f"quite other words {number}\n" * 7)
    assert case.fit() == first
    assert known_fitted_state(case, REFIT) is None
    snapshot, receipt = documents(case)
    assert detail(case, REFIT, snapshot, receipt).startswith(
        "fits again (shards.fit is 1, was 0): all of 4 groups to encode anew, and nothing trained so far"
    )
    second = case.fit(REFIT)
    assert second != first
    case.write(case.root, 99, "new words\n" * 9)
    assert case.fit(REFIT) == second == known_fitted_state(case, REFIT)
    assert case.reasons == ["first fit", "shards.fit is 1, was 0"]


def test_an_entry_from_before_there_was_a_counter_was_the_first_fit(case):
    first = case.fit()
    entry = refs.current(case.context.workspace, fitted_ref("tiny"))
    refs.move(
        *(case.context.workspace, fitted_ref("tiny"), first),
        expected=entry,
        reason="older",
        detail={"split": SPEC.splitting},
    )
    assert known_fitted_state(case, SPEC) == first
    assert known_fitted_state(case, REFIT) is None


def test_a_state_fitted_again_to_the_same_files_finds_its_groups(case):
    assert REFIT.group_identity == SPEC.group_identity
    assert "fit" not in SPEC.identity and REFIT.identity == {**SPEC.identity, "fit": 1}


def test_a_damaged_entry_is_followed_by_the_state_that_was_fitted_again(case):
    case.fit()
    case.write(case.root, 99, "new words\n" * 9)
    second = case.fit(REFIT)
    trained_with(case, second, seed=1, ended_unix_s=100.0, spec=REFIT)
    break_newest_entry(case)
    assert known_fitted_state(case, REFIT) == second == case.fit(REFIT)


def test_a_damaged_state_heals_from_the_same_data_under_the_same_name(case):
    first = case.fit()
    case.damage(first)
    assert known_fitted_state(case, SPEC) is None
    assert case.fit() == first == known_fitted_state(case, SPEC)
    assert case.reasons == ["first fit"]


def test_a_damaged_state_whose_data_moved_on_is_replaced_and_said_to_be(case):
    first = case.fit()
    case.damage(first)
    for number in range(30):
        case.write(case.root, number, f"quite other words {number}\n" * 7)
    second = case.fit()
    assert second != first
    assert case.reasons == ["first fit", "the state in use is damaged"]
    assert f"{first.short} came from earlier data" in case.damages[-1]


def trained_with(
    case: Case, fitted: Link, *, seed: int, ended_unix_s: float | None = None, spec: ShardSpec = SPEC
) -> RunSpec:
    """A run of the pipeline on shards under this state; ended, if it says when."""
    workspace, (snapshot, receipt) = case.context.workspace, documents(case, spec)
    nothing = workspace.publish("frozen/contract", b"")
    run = RunSpec(
        pipeline="tiny",
        config={"seed": seed},
        manifest=shards_under(case.context, spec, case.source, snapshot, receipt, fitted),
        receipt=receipt,
        fitted=fitted,
        code=nothing,
        environment=nothing,
    )
    link = workspace.publish_document(run)
    if ended_unix_s is not None:
        stages.record(workspace, "launch", {"run": link.sha256}, link, provenance={"unix_s": ended_unix_s})
    return run


def break_newest_entry(case: Case) -> None:
    name = fitted_ref("tiny")
    number = refs.newest_number(case.context.workspace, name)
    case.context.workspace.publish(f"refs/{name}/{number:08d}.json", b"{}")


def test_a_damaged_entry_is_followed_by_what_the_last_training_went_with(case):
    first = case.fit()
    trained_with(case, first, seed=1, ended_unix_s=100.0)
    case.write(case.root, 99, "new words\n" * 9)
    break_newest_entry(case)
    assert known_fitted_state(case, SPEC) == first  # what a plan says, writing nothing
    assert refs.newest_number(case.context.workspace, fitted_ref("tiny")) == 1
    assert case.fit() == case.fit() == first
    entry = refs.current(case.context.workspace, fitted_ref("tiny"))
    assert (entry.number, entry.target, entry.reason) == (2, first, RECOVERED)
    assert len(case.damages) == 1 and "refs/fitted/tiny/00000001.json" in case.damages[0]


@pytest.mark.parametrize(("ended_unix_s", "last"), [((100.0, 200.0), 1), ((200.0, 100.0), 0), ((100.0, None), 0)])
def test_of_several_states_the_one_of_the_run_that_ended_last_was_in_use(case, ended_unix_s, last):
    first = case.fit()
    trained_with(case, first, seed=1, ended_unix_s=ended_unix_s[0])
    case.damage(first)
    for number in range(30):
        case.write(case.root, number, f"quite other words {number}\n" * 7)
    second = case.fit()
    trained_with(case, second, seed=2, ended_unix_s=ended_unix_s[1])
    case.damage(first)  # the same bit: whole again
    break_newest_entry(case)
    assert known_fitted_state(case, SPEC) == (first, second)[last]


def test_the_state_of_a_folds_model_is_never_taken_for_the_pipelines(case):
    first = case.fit()
    trained_with(case, first, seed=1, ended_unix_s=100.0)
    spec = SPEC.model_copy(update={"fold": Fold(number=1, of=3)})
    snapshot, receipt = documents(case, spec)
    beside = fitted_beside_fold(case.context, spec, case.source, snapshot, receipt, first)
    assert beside != first
    trained_with(case, beside, seed=2, ended_unix_s=200.0, spec=spec)
    break_newest_entry(case)
    assert known_fitted_state(case, SPEC) == first


def test_between_states_of_runs_that_never_ended_a_person_decides(case):
    first = case.fit()
    trained_with(case, first, seed=1)
    case.damage(first)
    for number in range(30):
        case.write(case.root, number, f"quite other words {number}\n" * 7)
    trained_with(case, case.fit(), seed=2)
    break_newest_entry(case)
    with pytest.raises(IntegrityError, match="not a readable ref entry"):
        case.fit()


def test_where_no_training_says_what_a_damaged_entry_was_a_person_is_asked(case):
    case.fit()
    break_newest_entry(case)
    for ask in (case.fit, lambda: known_fitted_state(case, SPEC)):
        with pytest.raises(IntegrityError, match=r"refs/fitted/tiny/00000001\.json: not a readable ref entry.*aside"):
            ask()


def documents(case: Case, spec: ShardSpec = SPEC) -> tuple[Link, Link]:
    """Today's snapshot and a receipt for it."""
    case.fit(spec)
    names = {kind: case.context.workspace.names(f"documents/{kind}") for kind in ("snapshot", "receipt")}
    newest = {
        kind: max(found, key=lambda name: (case.root / "workspace/documents" / kind / name).stat().st_mtime_ns)
        for kind, found in names.items()
    }
    snapshot, receipt = (Link(kind=kind, sha256=name.removesuffix(".json")) for kind, name in newest.items())
    return snapshot, receipt


def groups_on_disk(case: Case) -> set[str]:
    return {path.parent.name for path in (case.root / "workspace").glob("shards/*/group.json")}


def test_the_plan_counts_the_groups_that_growth_costs(case):
    snapshot, receipt = documents(case)
    assert detail(case, SPEC, snapshot, receipt).startswith("4 of 4 groups to encode, 0.0 MB")
    shards_under(case.context, SPEC, case.source, snapshot, receipt, known_fitted_state(case, SPEC))
    assert detail(case, SPEC, snapshot, receipt) == "44 training rows"
    case.write(case.root, 77, "one more text\n")
    snapshot, receipt = documents(case)
    before = groups_on_disk(case)
    assert detail(case, SPEC, snapshot, receipt).startswith("1 of 4 groups")
    assert groups_on_disk(case) == before
    shards_under(case.context, SPEC, case.source, snapshot, receipt, known_fitted_state(case, SPEC))
    assert len(groups_on_disk(case) - before) == 1


def test_the_plan_says_what_fitting_again_would_undo(case):
    snapshot, receipt = documents(case)
    message = detail(case, OTHER_SPLIT, snapshot, receipt)
    assert message.startswith("fits again (another split): all of 4 groups to encode anew, and nothing trained so far")


def test_a_group_can_be_written_by_whoever_is_sent_its_job(case):
    snapshot, receipt = documents(case)
    fitted = known_fitted_state(case, SPEC)
    job = ShardJob(
        workspace=case.context.workspace.uri,
        base=str(case.root),
        spec=SPEC,
        source=case.source,
        snapshot=snapshot,
        receipt=receipt,
        fitted=fitted,
    )
    sent = ShardJob.model_validate_json(job.model_dump_json())
    keys = {shard_group.fn(sent, group, (split,)) for group in (0, 1) for split in ("train", "heldout")}
    stamps = {path: path.stat().st_mtime_ns for path in (case.root / "workspace").rglob("shards/*/*")}
    link = shards_under(case.context, SPEC, case.source, snapshot, receipt, fitted)
    assert groups_on_disk(case) == keys
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps, "the flow found what the tasks wrote"
    assert case.context.workspace.load(link, ShardManifest).num_rows("train") > 0
    with pytest.raises(ConfigError, match="there is no group 9 of train"):
        shard_group.fn(sent, 9, ("train",))


def test_as_many_tasks_share_the_memory_bound_as_it_holds_shards_for(case):
    workspace = case.context.workspace
    fitted = workspace.load(case.fit(), FittedState)

    def at_once(memory_mb: int, shard_mb: int) -> int:
        spec = SPEC.model_copy(update={"memory_mb": memory_mb, "shard_mb": shard_mb})
        found = tasks_at_once(spec, fitted, workspace, 16)
        with GroupWriter(spec.model_copy(update={"memory_mb": memory_mb // found}), fitted, workspace):
            return found  # none is refused for its share

    assert [at_once(512, 32), at_once(512, 1), at_once(100, 10), at_once(8, 1)] == [5, 16, 3, 1]
    with pytest.raises(ConfigError, match=r"more than half of memory_mb \(8\)"):
        at_once(8, 64)
