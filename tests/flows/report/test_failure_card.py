"""The failure card: what a person at 3 a.m. wants to know, on one page; it never hides what went wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import io
import json
import shutil
import time
from pathlib import Path
from typing import get_args

import pytest

from headway.data_contracts.store.errors import (
    Cause,
    ConfigError,
    ContractViolation,
    DataError,
    EnvironmentProblem,
    HeadwayError,
    IntegrityError,
    PromotionRefused,
    RanksLost,
    RegistryError,
    RunStopped,
    TrainingFailed,
)
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.flows.config.pipeline_spec import PipelineSpec, load_pipeline
from headway.flows.config.request import RetrainRequest, TrialsRequest
from headway.flows.console.command_signals import HungUp, Terminated
from headway.flows.console.console import plain_console
from headway.flows.report.failure_card import FailureCard, markdown, print_card
from headway.flows.report.failure_facts import NAME, failure_card, make_card
from headway.flows.report.next_steps import FIRST_STEP, TO_FIX
from headway.flows.report.terminal import Terminal
from headway.flows.show.status import Status, read_status
from headway.tasks.core.context import RunContext
from headway.tasks.ownership.current_run import finish
from headway.tasks.ownership.pipeline_history import FailedRetrain
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.observe.ledger import Event, Ledger, read_events
from tests.flows.tiny_pipeline import CONTRACT, PIPELINE

WINDOWS = "windows: {time_zone: UTC, open: [{days: [sun], start: '01:00', end: '05:00'}]}\n"
LOST = AttemptRecord(
    attempt=1,
    scope="mine",
    failure=Failure(what="rank 1 was killed | it left no word.", rank=1, host="n7"),
    step=40,
    start_unix_s=1.0,
)


class Retrain:
    """A flow run's surroundings, and a run of it whose ranks left their records."""

    def __init__(self, folder: Path, windows: str = "") -> None:
        (folder / "contract.yaml").write_text(CONTRACT)
        (folder / "tiny.yaml").write_text(PIPELINE + windows)
        self.spec: PipelineSpec = load_pipeline(folder / "tiny.yaml")
        self.workspace = Workspace.create(str(folder / "workspace"))
        self.request = RetrainRequest(pipeline=str(folder / "tiny.yaml"), workspace=self.workspace.uri)
        self.folder = self.workspace.local_path("ledger/mine")
        self.context = RunContext(
            pipeline="tiny",
            workspace=self.workspace,
            base=folder,
            ledger=Ledger(self.folder / "flow.jsonl"),
            digests=DigestCache(folder / "digests.json"),
            scratch=folder,
            budget_scope="mine",
        )
        self.run_dir = self.workspace.local_path("runs/0123456789abcdef")
        for step in (20, 40):
            manifest = self.run_dir / "checkpoints" / f"step-{step:08d}" / "manifest.json"
            manifest.parent.mkdir(parents=True)
            manifest.write_text("{}")
        (self.run_dir / "checkpoints" / "step-00000060").mkdir()
        self.log = self.run_dir / "stderr.log"
        self.log.write_text("starting\n\nout of luck [1]\n")

    def record(self, *records: AttemptRecord, gang: str = ".") -> None:
        for record in records:
            (self.run_dir / gang).mkdir(exist_ok=True)
            AttemptRecords(self.run_dir / gang).end(record)

    def card(self, error: Exception) -> FailureCard:
        return make_card(self.context, self.request, self.spec, error, "launch", self.run_dir)


@pytest.fixture
def retrain(tmp_path: Path) -> Retrain:
    return Retrain(tmp_path)


def shown(card: FailureCard, width: int = 80) -> str:
    stream = io.StringIO()
    print_card(card, plain_console(stream, width=width))
    return stream.getvalue()


def test_it_says_who_failed_first_what_was_tried_and_from_where_it_goes_on(retrain) -> None:
    lost = dataclasses.replace(LOST, failure=dataclasses.replace(LOST.failure, log=str(retrain.log)))
    earlier = AttemptRecord(attempt=9, scope="another flow run", start_unix_s=0.5)
    stopped = AttemptRecord(attempt=2, scope="mine", state="stopped", start_unix_s=2.0, end_unix_s=3.0, step=44)
    retrain.record(earlier, lost, stopped)
    retrain.record(AttemptRecord(attempt=1, scope="mine", state="done", start_unix_s=0.7, end_unix_s=0.9), gang="fit")

    card = retrain.card(TrainingFailed("rank 1: killed.", where="here", advice="all 5 attempts are spent."))

    assert (card.failure.rank, card.failure.host, card.last_lines) == (1, "n7", ["starting", "out of luck [1]"])
    assert card.last_good_step == 40, "a folder without a manifest is no checkpoint"
    assert [(gang, attempt.attempt, attempt.state, attempt.step) for gang, attempt in card.attempts] == [
        ("fit", 1, "done", None),
        ("train", 1, "failed", 40),
        ("train", 2, "stopped", 44),
    ]
    assert (card.failure.cause, card.failure.exit_code, card.stage) == ("training", 6, "launch")
    assert "logs 0123456789abcdef --rank 1" in card.commands["what it wrote"]
    assert card.commands["resume"] == retrain.request.command
    for text in (markdown(card), shown(card, width=400)):
        for message in (
            "tiny failed in stage launch",
            "n7",
            "out of luck [1]",
            "step 40",
            card.next,
            *card.commands.values(),
        ):
            assert message in text, message
    assert r"rank 1 was killed \| it left no word." in markdown(card)
    assert max(len(line) for line in shown(card).splitlines() if line.startswith(("╭", "│", "╰"))) <= 80


def test_what_failed_before_training_names_the_causes_own_advice_and_the_ledger_and_no_command_that_shows_nothing(
    retrain,
) -> None:
    refused = ContractViolation("12 rows break it.", where="snapshot 1", advice="Read reports/contract-1.html.")
    early = make_card(retrain.context, retrain.request, retrain.spec, refused, "validate", None)
    for text in (markdown(early), shown(early, width=400)):
        assert "Read reports/contract-1.html." in text and str(retrain.folder) in text
        assert "headway status" not in text and "headway logs" not in text
    late = shown(retrain.card(TrainingFailed("lost.", advice="Mend it.\nIts last lines:\nold news")), width=400)
    assert "Mend it." in late and "headway status" in late and "old news" not in late


def test_a_rank_whose_work_was_done_after_all_is_not_what_failed(retrain) -> None:
    retrain.record(LOST, AttemptRecord(attempt=2, scope="mine", state="done", start_unix_s=2.0, end_unix_s=3.0))
    card = retrain.card(IntegrityError("a file is gone.", where="there"))
    assert (card.failure.rank, card.first, card.last_lines) == (None, "", [])
    assert [attempt.state for _, attempt in card.attempts] == ["failed", "done"]


def test_what_happens_next_is_what_will_happen(tmp_path) -> None:
    for windows, error, message in (
        (
            "",
            TrainingFailed("lost."),
            "until somebody or a trigger asks for a retrain, which takes data and code as they are then",
        ),
        ("", OSError("gone"), "which resumes from step 40"),
        (WINDOWS, RanksLost("killed."), "resumes from step 40."),
        (
            WINDOWS,
            ContractViolation("no."),
            "a retrain starts then, and is refused again unless the data or the contract is mended.",
        ),
        (WINDOWS, OSError("gone"), "resumes from step 40."),
        (WINDOWS, TrainingFailed("lost."), "data and code as they are then. What failed for good fails again there"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        card = Retrain(folder, windows).card(error)
        assert message in card.next
        assert ("The next window opens at" in card.next) == bool(windows)


@pytest.mark.parametrize(
    ("error", "first"),
    [
        (ContractViolation("no."), "Mend the data or the contract"),
        (DataError("empty."), "Mend the source"),
        (ConfigError("no such key."), "Mend the pipeline file"),
        (TrainingFailed("lost."), "Mend what the first rank that failed names above"),
        (RanksLost("killed."), "Look after the machines that were lost"),
        (EnvironmentProblem("no space left."), "Put right what is named above"),
        (IntegrityError("damaged."), "Bring back what is named above"),
        (RegistryError("MLflow refuses."), "Put MLflow right"),
        (PromotionRefused("worse."), "Read the reasons above and decide"),
        (ZeroDivisionError(), "Report it with its traceback"),
    ],
)
def test_without_windows_it_says_by_cause_what_a_person_does_next_and_runs_then(
    retrain, error: Exception, first: str
) -> None:
    card = retrain.card(error)
    assert card.next.startswith(first) and "then run the same command, which is below" in card.next
    assert "Nothing" not in card.next and retrain.request.command in card.commands.values()


def test_there_is_a_card_while_the_store_is_away_too_and_it_says_what_is_not_known(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise EnvironmentProblem("asking failed 3 times in 15 s.", where="s3://bucket/refs")

    retrain = Retrain(tmp_path, WINDOWS)
    monkeypatch.setattr("headway.flows.report.next_steps.read_overrides", away)
    card = retrain.card(TrainingFailed("lost."))
    assert (card.failure.what, card.last_good_step) == ("lost.", 40)
    assert (
        card.next == "Not known while the workspace does not answer (s3://bucket/refs: asking failed 3 times in 15 s.)"
    )


def test_commands_and_paths_stand_in_one_piece_however_narrow_the_terminal_is(retrain) -> None:
    card = retrain.card(TrainingFailed("lost."))
    lines = shown(card, width=40).splitlines()
    for message in (card.ledger, *card.commands.values()):
        assert [line for line in lines if line.endswith(message)]


def test_a_defect_is_called_one(retrain) -> None:
    card = retrain.card(ZeroDivisionError("division by zero"))
    failure = card.failure
    assert (failure.cause, failure.exit_code, failure.what) == ("defect", 70, "ZeroDivisionError: division by zero")
    assert "defect of Headway" in markdown(card)


def test_a_failure_leaves_it_beside_the_ledger_and_travels_on(retrain) -> None:
    with pytest.raises(TrainingFailed, match="lost"), failure_card(retrain.context, retrain.request, retrain.spec):
        retrain.context.ledger.event("run.folder", path=str(retrain.run_dir))
        with retrain.context.ledger.span("task", task="launch"):
            raise TrainingFailed("lost.")
    assert "tiny failed in stage launch" in (retrain.folder / NAME).read_text()
    (event,) = [event for event in read_events(retrain.folder / "flow.jsonl") if event["event"] == "flow.card"]
    assert FailureCard.model_validate(event).run == "0123456789abcdef"
    assert json.dumps(event)


def test_one_whose_words_reach_nobody_is_kept_all_the_same(retrain) -> None:
    """As where the terminal that a listener writes to is closed."""

    def tell(event: Event) -> None:
        if event["event"] == "flow.card":
            raise ValueError("I/O operation on closed file.")

    retrain.context.ledger.listeners.append(tell)
    with pytest.raises(TrainingFailed), failure_card(retrain.context, retrain.request, retrain.spec):
        raise TrainingFailed("lost.")
    assert "lost." in (retrain.folder / NAME).read_text()


def test_a_failure_stands_in_the_status_until_a_retrain_finishes_and_a_stop_finishes_none(retrain) -> None:
    def end_with(error: Exception | None, started_unix_s: float = 0.0) -> list[FailedRetrain]:
        with contextlib.suppress(HeadwayError), failure_card(retrain.context, retrain.request, retrain.spec):
            if error is not None:
                raise error
            finish(retrain.context, started_unix_s or time.time())
        return read_status(retrain.workspace.uri).failed

    assert end_with(None) == []
    (first,) = end_with(TrainingFailed("lost.", advice="Look."))
    assert (first.pipeline, first.failure.what, first.failure.advice) == ("tiny", "lost.", "Look.")
    assert first.flow_run == "mine"
    assert Path(first.card).read_text().startswith("# tiny failed")
    (second,) = end_with(IntegrityError("damaged.", where="a/file"))
    assert second.failure.what_and_where == "a/file: damaged."
    assert end_with(RunStopped("asked.")) == [second]
    assert end_with(None, second.failed_unix_s - 1) == [second], "what began before may still be so"
    finish(dataclasses.replace(retrain.context, may_register=False), time.time())
    trials = TrialsRequest(pipeline="tiny.yaml")
    with pytest.raises(TrainingFailed), failure_card(retrain.context, trials, retrain.spec):
        raise TrainingFailed("a trial of it.")
    assert read_status(retrain.workspace.uri).failed == [second], "neither is a retrain"
    assert end_with(None) == []


def test_one_that_finishes_on_older_data_brings_no_mended_failure_back(retrain) -> None:
    with pytest.raises(TrainingFailed), failure_card(retrain.context, retrain.request, retrain.spec):
        raise TrainingFailed("lost.")
    mended_unix_s = time.time()
    finish(retrain.context, mended_unix_s)
    finish(retrain.context, mended_unix_s - 3600)
    status = read_status(retrain.workspace.uri)
    assert status.failed == []
    assert [finished.started_unix_s for finished in status.finished] == [mended_unix_s]


def test_when_a_retrain_finished_last_stands_in_the_status_beside_a_failure_since(retrain) -> None:
    def end_with(error: Exception | None) -> Status:
        with contextlib.suppress(HeadwayError), failure_card(retrain.context, retrain.request, retrain.spec):
            if error is not None:
                raise error
            finish(retrain.context, time.time())
        return read_status(retrain.workspace.uri)

    assert end_with(TrainingFailed("lost.")).finished == []
    started = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    (finished,) = end_with(None).finished
    assert (finished.pipeline, finished.flow_run) == ("tiny", "mine")
    assert started <= datetime.datetime.fromisoformat(finished.finished_at) <= datetime.datetime.now(datetime.UTC)
    for error in (TrainingFailed("lost."), RunStopped("asked.")):
        assert end_with(error).finished == [finished]


def test_where_the_disk_is_full_whoever_looks_on_is_told_all_the_same(retrain) -> None:
    (retrain.folder / NAME).mkdir()
    heard: list[Event] = []
    retrain.context.ledger.listeners.append(heard.append)
    with pytest.raises(TrainingFailed), failure_card(retrain.context, retrain.request, retrain.spec):
        raise TrainingFailed("lost.")
    assert "flow.card" in [event["event"] for event in heard]
    assert [each.failure.what for each in read_status(retrain.workspace.uri).failed] == ["lost."]


def test_a_stop_is_no_failure(retrain) -> None:
    with pytest.raises(RunStopped), failure_card(retrain.context, retrain.request, retrain.spec):
        raise RunStopped("asked.")
    assert not (retrain.folder / NAME).exists()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, Terminated, HungUp])
def test_an_interrupt_is_no_failure_and_tells_of_which_step_a_checkpoint_is_kept(
    retrain, interrupt: type[BaseException]
) -> None:
    shown = io.StringIO()
    retrain.context.ledger.listeners.append(Terminal(shown))
    with pytest.raises(interrupt), failure_card(retrain.context, retrain.request, retrain.spec):
        raise interrupt
    assert shown.getvalue() == "", "no run was begun"
    for kept in ("the checkpoint of step 40", "no checkpoint yet"):
        with pytest.raises(interrupt), failure_card(retrain.context, retrain.request, retrain.spec):
            retrain.context.ledger.event("run.folder", path=str(retrain.run_dir))
            raise interrupt
        assert shown.getvalue().splitlines()[-1] == f"kept       {kept}"
        shutil.rmtree(retrain.run_dir / "checkpoints")
        (retrain.run_dir / "checkpoints").mkdir()
    assert not (retrain.folder / NAME).exists()


def test_what_went_wrong_is_raised_even_where_no_card_can_be_written(retrain) -> None:
    (retrain.folder / NAME).mkdir()
    with (
        pytest.raises(TrainingFailed, match="lost") as raised,
        failure_card(retrain.context, retrain.request, retrain.spec),
    ):
        raise TrainingFailed("lost.")
    assert "Nor could a failure card be written" in raised.value.__notes__[0]


def test_after_a_contract_violation_it_says_what_to_mend_and_not_to_retrain(retrain) -> None:
    card = make_card(
        retrain.context, retrain.request, retrain.spec, ContractViolation("the data break tiny."), "validate", None
    )
    assert card.next == (
        "Mend the data or the contract, then run the same command, which is below. Until then every retrain fails the "
        "same way."
    )
    assert list(card.commands) == ["look again", "once the data or the contract is mended"]
    assert "contract check" in card.commands["look again"]


def test_what_a_file_of_the_users_caused_is_mended_in_the_file_that_the_error_names(retrain, tmp_path: Path) -> None:
    contract = tmp_path / "rows.contract.yaml"
    contract.write_text("")
    for where, mended in (
        (str(contract), "rows.contract.yaml"),
        (f"{contract}:12", "rows.contract.yaml"),
        ("shards.encoder.label", "the pipeline file"),
        ("", "the pipeline file"),
    ):
        error = ConfigError("version 1.0.0 breaks what 1.0.0 accepted.", where=where)
        card = make_card(retrain.context, retrain.request, retrain.spec, error, "validate", None)
        assert card.next.startswith(f"Mend {mended}, then"), where
        assert list(card.commands) == [f"once {mended} is mended"]


def test_a_failure_is_placed_by_the_newest_word_of_any_rank_and_not_by_the_last_checkpoint(retrain) -> None:
    retrain.record(LOST)
    attempt = retrain.run_dir / "attempts" / "001"
    (attempt / "ledger").mkdir(parents=True)
    spool = Ledger(attempt / "ledger" / "rank-0.jsonl")
    spool.event("step", step=148, duration_s=0.1)
    marker = {"rank": 1, "pid": 1, "parent_pid": 1, "state": "failed", "unix_s": 1.0, "step": 150}
    (attempt / "rank-1.json").write_text(json.dumps(marker))
    card = retrain.card(EnvironmentProblem("no space left."))
    assert (card.failed_step, card.last_good_step) == (150, 40)
    text = " ".join(shown(card, width=200).split())
    assert "failed at step 150" in text and "last good checkpoint of step 40" in text


def test_every_cause_of_a_failure_has_words_of_its_own_on_what_to_do() -> None:
    assert {*TO_FIX, *FIRST_STEP} == {*get_args(Cause), "defect"} - {"stopped"}
