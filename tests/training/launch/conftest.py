"""A run of toy workers, and a look at who is still alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headway.training.launch.base.gang import Gang, agent_argv, attempt_folder
from headway.training.launch.base.launcher import Handle
from headway.training.launch.base.process_tree import processes_with
from headway.training.launch.base.protocol import TOKEN, AttemptFiles
from headway.training.launch.hosts import owned
from headway.training.observe.ledger import Ledger, read_events
from tests.declared_events import require_declared
from tests.training.launch.toys.toy_agent import toy_argv
from tests.waiting import wait_until

TOYS = Path(__file__).parent / "toys"


@dataclass
class ToyRun:
    folder: Path
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder / "owner.jsonl")

    def gang(self, *arguments: str, nodes: int = 2, module: str = "toy_worker") -> Gang:
        return Gang(
            module=module,
            arguments=("--run-dir", str(self.folder), *arguments),
            nodes=nodes,
            ranks_per_node=1,
            import_path=(str(TOYS),),
            run_dir=self.folder,
        )

    def attempt(self, number: int) -> AttemptFiles:
        return AttemptFiles(attempt_folder(self.folder, number))

    def num_attempts(self) -> int:
        return len(list((self.folder / "attempts").glob("*")))

    def newest_step(self) -> int | None:
        for number in range(self.num_attempts(), 0, -1):
            spools = self.attempt(number).folder.glob("ledger/rank-*.jsonl")
            steps = [event["step"] for spool in spools for event in read_events(spool) if event["event"] == "step"]
            if steps:
                return max(steps)
        return None

    def events(self, name: str) -> list[dict[str, object]]:
        return [event for event in read_events(self.folder / "owner.jsonl") if event["event"] == name]

    def survivors(self) -> list[int]:
        handle = Handle.load(self.folder)
        return [] if handle is None else processes_with(TOKEN, handle.token)


@pytest.fixture
def toy_run(tmp_path: Path) -> Iterator[ToyRun]:
    yield ToyRun(tmp_path)
    require_declared(tmp_path)


@pytest.fixture
def toy_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that import no torch, for what guards and supervisors do whoever the agent is."""
    monkeypatch.setattr(owned, "agent_argv", toy_argv)


@pytest.fixture
def real_agents(toy_agents: None, forked_agents: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun after all, in a file of toy agents."""
    monkeypatch.setattr(owned, "agent_argv", agent_argv)


@pytest.fixture(name="wait_until")
def _wait_until() -> Callable[..., object]:
    return wait_until
