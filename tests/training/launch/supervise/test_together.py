"""Gangs side by side: each in a place of its own, none ending another, all stopped in order with their owner."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import HeadwayError, RanksLost, RunStopped, TrainingFailed
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.stop_request import StopRequest, request_stop
from headway.training.launch.hosts import owned
from headway.training.launch.supervise import together
from headway.training.launch.supervise.room import Room, Slot
from headway.training.launch.supervise.together import supervise_all
from headway.training.observe.ledger import Ledger, read_events
from tests.training.launch.conftest import ToyRun

SPEC = LaunchSpec(nodes=1, stop_grace_s=600, peer_grace_s=1, backoff_s=0, max_attempts=1)

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("toy_agents")]


class Team:
    """Toy runs of one owner."""

    def __init__(self, folder: Path, num: int, num_slots: int, *arguments: str) -> None:
        self.runs = [ToyRun(folder / f"run-{number}") for number in range(num)]
        self.arguments = [arguments] * num
        self.ledger = Ledger(folder / "flow.jsonl")
        slots = [Slot(spec=SPEC, environment={"SLOT": str(number)}) for number in range(num_slots)]
        self.room = Room(slots=slots, whole=Slot(spec=SPEC, environment={"SLOT": "all"}), is_here=False)
        self.lost: list[int] = []
        self.going: set[int] = set()
        self.most = 0
        self.ended: dict[int, HeadwayError | None] = {}
        self.act: Callable[[int, int], object] = lambda number, step: None

    def begin(self, number: int) -> Any:
        self.going.add(number)
        self.most = max(self.most, len(self.going))

        def poll() -> int | None:
            step = self.runs[number].newest_step()
            if step is not None:
                self.act(number, step)
            return step

        return self.runs[number].gang(*self.arguments[number], nodes=1), poll

    def told(self, number: int, error: HeadwayError | None) -> None:
        self.going.remove(number)
        self.ended[number] = error

    def run(self, tolerable: Callable[[HeadwayError], bool] = lambda error: False) -> None:
        supervise_all(
            self.room,
            len(self.runs),
            self.begin,
            ledger=self.ledger,
            budget_scope="one",
            tolerable=tolerable,
            again=lambda number, error: self.lost.append(number),
            ended=self.told,
        )

    def survivors(self) -> list[int]:
        return [pid for run in self.runs for pid in run.survivors()]


def test_as_many_train_at_a_time_as_there_are_places_and_a_place_is_one_runs_alone(tmp_path: Path) -> None:
    team = Team(tmp_path, 5, 2, "--steps", "6")
    slots: dict[int, set[str]] = {}

    def look(number: int, step: int) -> None:
        rank = team.runs[number].attempt(1).read_markers()[0]
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{rank.pid}/environ").read_bytes().split(b"\0")
            found = {each.decode().partition("=")[2] for each in environment if each.startswith(b"SLOT=")}
            slots.setdefault(number, set()).update(found)

    team.act = look
    team.run()
    assert team.ended == dict.fromkeys(range(5)) and team.most == 2 and team.survivors() == []
    assert {place for found in slots.values() for place in found} == {"0", "1"}
    assert all(len(found) == 1 for found in slots.values())


def test_what_an_earlier_owner_left_is_ended_on_all_hosts_and_not_only_on_those_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team, asked = Team(tmp_path, 1, 2, "--steps", "2"), list[float]()
    everything = SPEC.model_copy(update={"stop_grace_s": 601.0})
    team.room.whole = Slot(spec=everything)
    reattach = owned.OwnedLauncher.reattach

    def ask(launcher: Any, run_dir: Path) -> Any:
        asked.append(launcher._spec.stop_grace_s)
        return reattach(launcher, run_dir)

    monkeypatch.setattr(owned.OwnedLauncher, "reattach", ask)
    team.run()
    assert asked == [601.0]


def test_one_that_fails_ends_no_other_and_its_place_is_given_on(tmp_path: Path) -> None:
    team = Team(tmp_path, 3, 2, "--steps", "6")
    team.arguments[0] = ("--last-words", "it diverged")
    team.run(tolerable=lambda error: isinstance(error, TrainingFailed))
    failure = team.ended.pop(0)
    assert "it diverged" in str(failure) and team.ended == {1: None, 2: None}
    assert team.survivors() == []


@pytest.mark.long
def test_one_that_is_lost_beside_others_begins_again_with_a_place_less_and_one_alone_is_at_its_end(
    tmp_path: Path,
) -> None:
    team = Team(tmp_path, 3, 2, "--steps", "6")
    team.arguments[1] = ("--steps", "9", "--trouble", '{"kind": "kill", "step": 3, "attempt": 1}')
    team.run()
    assert team.lost == [1] and team.ended == dict.fromkeys(range(3))
    assert len(team.room.slots) == 1 and team.runs[1].num_attempts() == 2
    (again,) = [event["message"] for event in read_events(tmp_path / "flow.jsonl") if event["event"] == "gang.again"]
    assert again == "run-1 lost its ranks beside others and begins again, with 1 at a time"

    always = Team(tmp_path / "always", 2, 2, "--steps", "6")
    always.arguments[0] = ("--trouble", '{"kind": "kill", "step": 3}')
    with pytest.raises(RanksLost):
        always.run()
    assert always.lost == [0] and always.ended == {1: None} and always.survivors() == []


def test_what_ends_one_for_all_has_the_others_keep_a_checkpoint_and_nobody_is_left(tmp_path: Path) -> None:
    team = Team(tmp_path, 4, 3, "--steps", "1000000")

    def stop_the_second(number: int, step: int) -> None:
        if all((run.newest_step() or 0) > 2 for run in team.runs[:3]):
            request_stop(team.runs[1].folder, "enough")

    team.act = stop_the_second
    with pytest.raises(RunStopped, match="enough"):
        team.run()
    assert team.survivors() == [] and team.ended == {}
    kept = [run.folder.joinpath("checkpoint-0.txt").exists() for run in team.runs]
    assert kept == [True, True, True, False], "the fourth was never begun"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_the_owner_stops_all_in_order(tmp_path: Path, interrupt: type[BaseException]) -> None:
    team = Team(tmp_path, 2, 2, "--steps", "1000000")
    is_over = threading.Event()

    def arrive(number: int, step: int) -> None:
        if not is_over.is_set() and all((run.newest_step() or 0) > 2 for run in team.runs):
            is_over.set()
            raise interrupt

    team.act = arrive
    with pytest.raises(interrupt):
        team.run()
    assert team.survivors() == []
    # The other is asked to stop before what the one waits for where it arrived: they keep their checkpoints together.
    events = [event["event"] for event in read_events(tmp_path / "flow.jsonl")]
    assert events.index("attempt.stop") < events.index("attempt")
    assert all(run.folder.joinpath("checkpoint-0.txt").exists() for run in team.runs)


def test_a_gang_waits_until_memory_is_there_for_one_as_large_as_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = [0]
    monkeypatch.setattr("headway.training.launch.supervise.room.available_bytes", lambda: available[0])
    team = Team(tmp_path, 3, 3, "--until", str(tmp_path / "enough"))
    team.room = replace(team.room, is_here=True)

    def look(number: int, step: int) -> None:
        if team.room.largest_bytes and number == 0 and step > 5:
            assert available[0] or len(team.going) == 1, "no memory is there for another"
            available[0] = 3 * team.room.largest_bytes
        if len(team.going) == 3:
            (tmp_path / "enough").touch()

    team.act = look
    team.run()
    assert team.most == 3 and team.ended == dict.fromkeys(range(3))


def test_each_may_spend_its_share_of_what_is_left_and_one_alone_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def watch(spec: LaunchSpec, gang: Gang, **fields: Any) -> Iterator[float]:
        shares.append(gang.stop.paid_s)
        yield 0.0

    monkeypatch.setattr(together, "supervising", watch)
    for num_slots in (4, 1):
        team = Team(tmp_path / str(num_slots), 1, num_slots)
        begin = team.begin

        def begun(number: int, begin: Callable[[int], Any] = begin) -> Any:
            gang, poll = begin(number)
            return replace(gang, stop=StopRequest(paid_s=100.0)), poll

        team.begin = begun  # type: ignore[method-assign]
        team.run()
    assert shares == [25.0, 100.0]


def test_how_long_a_step_took_side_by_side_and_alone_is_told(tmp_path: Path) -> None:
    team = Team(tmp_path, 2, 2, "--steps", "40")
    team.arguments[1] = ("--steps", "80")
    team.run()
    (told,) = [event["message"] for event in read_events(tmp_path / "flow.jsonl") if event["event"] == "gang.pace"]
    assert told.startswith("2 trained at a time, a step in ") and "; alone in " in told
    assert (pace := team.room.paces.pace()) is not None and str(pace) == told
