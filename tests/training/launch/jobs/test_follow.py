"""What a flow does with the jobs it watches when one of them, or somebody, ends it: on a scheduler of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import HeadwayError, IntegrityError, RunStopped, TrainingFailed
from headway.training.launch.base.failure import NO_FAILURE, Failure
from headway.training.launch.base.gang import DetachedSpec, Gang, LaunchSpec
from headway.training.launch.base.stop_request import NAME, requested_stop
from headway.training.launch.jobs import follow as following
from headway.training.launch.jobs.follow import follow_all
from headway.training.launch.jobs.job_request import DetachedFiles, JobHandle, JobOutcome, JobRequest
from headway.training.launch.jobs.scheduler import JobReport, JobState, Scheduler, SchedulerSilent, run_key
from headway.training.observe.ledger import Event, Ledger, read_events

SPEC = LaunchSpec(launcher="slurm", stop_grace_s=1.0, detached=DetachedSpec(unreachable_s=1.0))


class Desk(Scheduler):
    """Every job runs until it is asked to stop, or until a test ends it."""

    name = "desk"

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        self.is_silent = False
        self.asked: list[str] = []
        """Under which keys a job was looked for, in vain: it was silent."""
        self.cancelled: list[str] = []
        """Under which keys."""

    def key(self, run_dir: Path) -> str:
        return run_key(run_dir)

    def find(self, key: str) -> str | None:
        if self.is_silent:
            self.asked.append(key)
            raise SchedulerSilent("nobody is at the desk.")
        return self.jobs.get(key)

    def submit(self, order: JobRequest) -> JobHandle:
        key = self.key(order.to_gang().run_dir)
        job = self.jobs[key] = f"{len(self.jobs) + 1}"
        return JobHandle(launcher=self.name, job=job, key=key, order=order.order, log="")

    def poll(self, handle: JobHandle, *, since_s: float = 0.0) -> JobReport:
        (run_dir,) = (run_dir for run_dir in self.run_dirs if self.key(run_dir) == handle.key)
        if requested_stop(run_dir) is not None:
            end(run_dir, "stopped")
        return JobReport(state=JobState.RUNNING)

    def cancel(self, handle: JobHandle) -> None:
        self.cancelled.append(handle.key)

    run_dirs: Sequence[Path] = ()


def end(run_dir: Path, state: str, error: HeadwayError | None = None) -> None:
    files = DetachedFiles(run_dir)
    failure = NO_FAILURE if error is None else Failure.of(error, "")
    JobOutcome.model_validate({"order": JobRequest.load(files).order, "state": state, "failure": failure}).save(files)


def state_of(run_dir: Path) -> str | None:
    files = DetachedFiles(run_dir)
    outcome = JobOutcome.load(files, JobRequest.load(files).order)
    return None if outcome is None else outcome.state


@pytest.fixture
def run_dirs(tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"{number}123456789abcdef" for number in range(3)]
    for run_dir in made:
        run_dir.mkdir()
    return made


@pytest.fixture
def desk(run_dirs: list[Path], monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(following, "POLL_S", 0.01)
    desk = Desk()
    desk.run_dirs = run_dirs
    return desk


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with contextlib.closing(Ledger(tmp_path / "flow.jsonl")) as ledger:
        yield ledger


def events(ledger_folder: Path, name: str) -> list[Event]:
    return [event for event in read_events(ledger_folder / "flow.jsonl") if event["event"] == name]


def watch(desk: Desk, ledger: Ledger, polls: Sequence[Callable[[], None]], **how: object) -> None:
    watched = [
        (Gang(module="none", arguments=(), nodes=1, ranks_per_node=1, import_path=(), run_dir=run_dir), poll)
        for run_dir, poll in zip(desk.run_dirs, polls, strict=True)
    ]
    follow_all(desk, SPEC, watched, ledger=ledger, budget_scope="one", at_once=3, **how)  # type: ignore[arg-type]


def fail_with(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def go_on() -> None:
    return None


@pytest.mark.parametrize("why", [KeyboardInterrupt(), RuntimeError("a defect")])
def test_the_time_of_every_run_is_accounted_for_when_one_ends_the_flow(
    tmp_path: Path, desk: Desk, ledger: Ledger, why: BaseException
) -> None:
    with pytest.raises(type(why)) as ended:
        watch(desk, ledger, [go_on, go_on, fail_with(why)])

    assert len(events(tmp_path, "launch.follow.begin")) == len(events(tmp_path, "launch.follow")) == 3
    assert ended.tb is not None, "what the generators stand in is still alive"


def test_a_scheduler_that_is_silent_is_asked_once_for_a_job_and_holds_up_no_other_runs_stop(
    tmp_path: Path, desk: Desk, ledger: Ledger
) -> None:
    def be_interrupted_at_the_desk() -> None:
        DetachedFiles(desk.run_dirs[0]).job.unlink()
        desk.is_silent = True
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(desk, ledger, [go_on, go_on, be_interrupted_at_the_desk])

    assert desk.asked == [desk.key(desk.run_dirs[0])]
    assert [state_of(run_dir) for run_dir in desk.run_dirs] == [None, "stopped", "stopped"]
    (told,) = events(tmp_path, "job.unknown")
    assert "nobody is at the desk" in told["message"]


def test_a_run_whose_stop_cannot_be_written_is_cancelled_and_the_others_stop_in_order(
    desk: Desk, ledger: Ledger
) -> None:
    first = desk.run_dirs[0]

    def be_interrupted_where_nothing_can_be_written() -> None:
        (first / NAME / "in the way").mkdir(parents=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(desk, ledger, [go_on, go_on, be_interrupted_where_nothing_can_be_written])

    assert desk.cancelled == [desk.key(first)]
    assert [state_of(run_dir) for run_dir in desk.run_dirs] == [None, "stopped", "stopped"]


def finish(run_dir: Path, state: str = "done", error: HeadwayError | None = None) -> Callable[[], None]:
    def end_once() -> None:
        if state_of(run_dir) is None:
            end(run_dir, state, error)

    return end_once


def test_what_a_jobs_supervisor_records_is_taken_over_under_the_name_of_its_run(
    tmp_path: Path, desk: Desk, ledger: Ledger
) -> None:
    def record(run_dir: Path, **fields: str) -> Callable[[], None]:
        def record_and_end() -> None:
            if state_of(run_dir) is None:
                files = DetachedFiles(run_dir)
                job = JobHandle.load(files)
                assert job is not None
                with contextlib.closing(Ledger(files.spool(job.job, 0))) as spool:
                    spool.event("rank.slow", **fields)
                end(run_dir, "done")

        return record_and_end

    first, second, third = desk.run_dirs
    watch(desk, ledger, [record(first), record(second), record(third, run="its own word")])

    assert [event["run"] for event in events(tmp_path, "rank.slow")] == [first.name, second.name, "its own word"]


@pytest.mark.parametrize(
    "why", [IntegrityError("a checkpoint that is none"), RunStopped("no time"), OSError("no disk")]
)
def test_what_goes_wrong_with_one_runs_end_stops_the_others_in_order(
    desk: Desk, ledger: Ledger, why: Exception
) -> None:
    first, *others = desk.run_dirs

    with pytest.raises(type(why)):
        watch(desk, ledger, [finish(first), go_on, go_on], ended=lambda *_: fail_with(why)())

    assert [state_of(run_dir) for run_dir in others] == ["stopped", "stopped"]


def test_a_stop_of_one_run_stops_all(desk: Desk, ledger: Ledger) -> None:
    first, *others = desk.run_dirs
    with pytest.raises(RunStopped, match="enough"):
        watch(desk, ledger, [finish(first, "stopped", RunStopped("enough")), go_on, go_on])
    assert [state_of(run_dir) for run_dir in others] == ["stopped", "stopped"]


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_job_that_was_last_seen_in_the_queue_is_taken_out_unless_it_has_begun_since(
    desk: Desk, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    cancelled, asked = list[str](), set[str]()

    def seen_late(handle: JobHandle, *, since_s: float = 0.0) -> JobReport:
        asked.update([handle.job] if since_s else [])
        if has_begun and handle.job in asked:
            return Desk.poll(desk, handle)
        return JobReport(state=JobState.PENDING)

    monkeypatch.setattr(desk, "poll", seen_late)
    monkeypatch.setattr(desk, "cancel", lambda handle: cancelled.append(handle.job))
    first, *others = desk.run_dirs
    with pytest.raises(RunStopped, match="enough"):
        watch(desk, ledger, [finish(first, "stopped", RunStopped("enough")), go_on, go_on])
    assert cancelled == ([] if has_begun else ["2", "3"])
    assert [state_of(run_dir) for run_dir in others] == ["stopped" if has_begun else None] * 2


@pytest.mark.parametrize("is_bearable", [True, False])
def test_what_ends_a_run_ends_no_watching_of_the_others_where_it_is_bearable(
    desk: Desk, ledger: Ledger, is_bearable: bool
) -> None:
    """Where it is not, their jobs are left alone, and the next flow finds them; so it is with a defect."""
    first, _, third = desk.run_dirs
    ends: dict[int, HeadwayError | None] = {}
    reason = TrainingFailed("it diverged.")

    def meet_a_defect_once_the_first_is_told() -> None:
        if ends:
            raise RuntimeError("a defect")

    polls = [finish(first, "failed", reason), meet_a_defect_once_the_first_is_told, go_on]
    with pytest.raises(RuntimeError if is_bearable else TrainingFailed):
        watch(desk, ledger, polls, tolerable=lambda error: is_bearable, ended=ends.__setitem__)

    assert [type(error) for error in ends.values()] == ([TrainingFailed] if is_bearable else [])
    assert state_of(third) is None
