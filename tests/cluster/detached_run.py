"""A run of toy workers as a scheduler's job, and whoever watches it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from headway.training.launch.base.gang import Gang, LaunchSpec, attempt_folder
from headway.training.launch.base.launcher import Handle
from headway.training.launch.base.process_tree import processes_with
from headway.training.launch.base.protocol import TOKEN, AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.launch.base.stop_request import NEVER, StopRequest
from headway.training.launch.jobs.follow import follow
from headway.training.launch.jobs.job_request import DetachedFiles, JobHandle, JobOutcome
from headway.training.launch.jobs.scheduler import JobState, Scheduler
from headway.training.launch.supervise.launchers import scheduler_for
from headway.training.observe.ledger import Ledger, read_events
from tests.waiting import wait_until
from tests.warm_programs import Program

TOYS = Path(__file__).parents[1] / "training" / "launch" / "toys"
REPOSITORY = Path(__file__).parents[2]
LONG = ("--steps", "100000")


@dataclass
class DetachedRun:
    folder: Path
    spec: LaunchSpec
    """By which its job is asked for."""
    flows: list[subprocess.Popen[str]] = field(default_factory=list)
    agents: Literal["real", "toys"] = "toys"
    """Of jobs that its flows queue."""

    @functools.cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "owner.jsonl")

    @functools.cached_property
    def scheduler(self) -> Scheduler:
        return scheduler_for(self.spec)

    @property
    def files(self) -> DetachedFiles:
        return DetachedFiles(self.folder)

    def gang(self, *arguments: str, module: str = "toy_worker", **changes: Any) -> Gang:
        given: dict[str, Any] = {
            "module": module,
            "arguments": ("--run-dir", str(self.folder), *arguments),
            "nodes": 2,
            "ranks_per_node": 1,
            "import_path": (str(TOYS),),
            "run_dir": self.folder,
        }
        return Gang(**given | changes)

    def follow(self, gang: Gang, spec: LaunchSpec, poll: Callable[[], object] = lambda: None) -> None:
        def no_step() -> None:
            poll()

        follow(scheduler_for(spec), spec, gang, ledger=self.ledger, budget_scope="one", poll=no_step)

    def start_flow(self, spec: LaunchSpec, *arguments: str, stop: StopRequest = NEVER) -> subprocess.Popen[str]:
        fields = {"module": "toy_worker", "nodes": 2, "ranks_per_node": 1, "import_path": [str(TOYS)]}
        gang = fields | {"run_dir": str(self.folder), "arguments": ["--run-dir", str(self.folder), *arguments]}
        gang["stop"] = asdict(stop)
        with (self.folder / "flows.log").open("ab") as log:
            flow = Program(
                [
                    sys.executable,
                    "-m",
                    "tests.cluster.watching_flow",
                    spec.model_dump_json(),
                    json.dumps(gang),
                    self.agents,
                ],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdout=log,
                stderr=log,
            )
        self.flows.append(flow)
        return flow

    def go_unwatched(self, spec: LaunchSpec, *, living: Callable[[], list[int]]) -> int:
        """Kill its flow, and see it stop by itself. Returns the step of the checkpoint that it kept.

        Args:
            spec: with a lease of some seconds.
            living: processes of the job.
        """
        flow = self.start_flow(spec, "--until", str(self.folder / "enough"))
        self.wait_for_step()
        flow.kill()
        wait_until(lambda: self.state() is JobState.SUCCEEDED, what="the job's end")
        kept = self.checkpoint()
        assert kept >= 3 and living() == []
        left = JobOutcome.load(self.files, self.handle().order)
        assert left is not None and left.state == "stopped" and "nobody watches" in left.failure.what
        return kept

    def be_taken_up_again(self, spec: LaunchSpec) -> None:
        """See the next flow bring it to its end, in another attempt."""
        (self.folder / "enough").touch()
        self.follow(self.gang("--until", str(self.folder / "enough")), spec)
        assert self.records() == ["stopped", "done"]

    def attempt(self, number: int) -> AttemptFiles:
        return AttemptFiles(attempt_folder(self.folder, number))

    def newest_step(self, attempt: int) -> int:
        spool = self.attempt(attempt).rank_spool(0)
        return max((event["step"] for event in read_events(spool) if event["event"] == "step"), default=0)

    def first_step(self, attempt: int) -> int:
        spool = self.attempt(attempt).rank_spool(0)
        return next(int(event["step"]) for event in read_events(spool) if event["event"] == "step")

    def wait_for_step(self, step: int = 3, attempt: int = 1) -> None:
        wait_until(lambda: self.newest_step(attempt) >= step, what=f"step {step} of attempt {attempt}: {self.logs()}")

    def checkpoint(self) -> int:
        """The step of the newest, 0 without one."""
        path = self.folder / "checkpoint-0.txt"
        return int(path.read_text()) if path.exists() else 0

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.folder / "owner.jsonl") if event["event"] == name]

    def records(self) -> list[str]:
        return [record.state for record in AttemptRecords(self.folder).all()]

    def handle(self) -> JobHandle:
        found = JobHandle.load(self.files)
        assert found is not None
        return found

    def state(self) -> JobState:
        return self.scheduler.poll(self.handle()).state

    def survivors(self) -> list[int]:
        handle = Handle.load(self.folder)
        return [] if handle is None else processes_with(TOKEN, handle.token)

    def places(self) -> set[str]:
        """Of the pods that can be reached, by their own word."""
        return {path.stem for path in self.files.pods.glob("*.json")}

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.files.folder.glob("*.log")))
