"""Kill ranks at random moments until every run is through, and compare each with the undisturbed one.

    python -m tests.soak.kills [--kills 200] [--seed N] [--out FILE]

Any rank, or all of them, at any moment: while starting, restoring, training, or between the first byte of a checkpoint
and its manifest. Every next attempt has 1, 2 or 4 ranks. Checked for each run: its last checkpoint and its weights are
the undisturbed run's bit for bit; every step of every attempt had the undisturbed run's window and loss; the steps of
the attempts follow each other without a gap. Prints one JSON object, and exits 1 when anything differed.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.training.checkpoint.layout import committed_steps
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.communication_spec import FederatedSpec, IntegerCompressionSpec, OuterSpec, SyncSpec
from headway.training.launch.base.ports import free_port
from headway.training.observe.ledger import read_events
from tests.training.conftest import TINY, TinyProject, make_project, rank_environment
from tests.training.nursery import ForkedRank, Nursery

MOMENTS = ("start", "step", "step", "checkpoint", "checkpoint")
KILLS_PER_RUN = 25
DEADLINE_S = 240.0

VARIANTS = {
    "every step": {"checkpoints": CheckpointSpec(every_steps=1)},
    "every third step": {"checkpoints": CheckpointSpec(every_steps=3)},
    "seldom": {"checkpoints": CheckpointSpec(every_steps=20), "seed": 1},
    "whole numbers": {
        "checkpoints": CheckpointSpec(every_steps=2),
        "gradient_compression": IntegerCompressionSpec(kind="int8", islands=4, block=32),
    },
    "islands apart": {
        "checkpoints": CheckpointSpec(every_steps=4),
        "sync": SyncSpec(every_steps=6, islands=4, fragments=2, delay_steps=2, movements="int8"),
    },
    "two sites": {
        "checkpoints": CheckpointSpec(every_steps=5),
        "sync": SyncSpec(every_steps=5, islands=2, start_after_steps=7, outer=OuterSpec(lr=0.9, momentum=0.5)),
    },
    "federated": {
        "checkpoints": CheckpointSpec(every_steps=4),
        "sync": SyncSpec(
            every_steps=4,
            islands=2,
            outer=OuterSpec(kind="yogi", lr=0.1, momentum=0.5),
            federated=FederatedSpec(personal=("norm.*",), proximal=0.1, lost_fraction=0.2),
        ),
    },
}


@dataclass
class Evidence:
    """What was done, and what came of it."""

    seed: int
    kills: int = 0
    runs: int = 0
    attempts: int = 0
    moments: collections.Counter[str] = field(default_factory=collections.Counter)
    found_doing: collections.Counter[str] = field(default_factory=collections.Counter)
    """What the first rank that was killed had begun and not ended, by its ledger."""
    unfinished_checkpoints: int = 0
    """Kills that left a checkpoint's folder without its manifest."""
    worlds: collections.Counter[int] = field(default_factory=collections.Counter)
    steps_repeated: int = 0
    steps_trained: int = 0
    failures: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "equal_bits": not self.failures}


class Soak:
    """Args:
    steps: of each run.
    worlds: numbers of ranks that an attempt may have, each as likely as it is often named.
    """

    def __init__(self, folder: Path, seed: int, *, steps: int = 160, worlds: Sequence[int] = (1, 2, 2, 4)) -> None:
        self.evidence = Evidence(seed)
        self._random, self._steps, self._worlds = random.Random(seed), steps, worlds
        self._folder, self._nursery = folder, Nursery(folder / "nursery.log")
        self._project: TinyProject = make_project(folder / "workspace")
        self._undisturbed: dict[str, Path] = {}

    def __enter__(self) -> Soak:
        return self

    def __exit__(self, *_error: object) -> None:
        self._nursery.close()

    def run(self, kills: int) -> Evidence:
        started_s = time.monotonic()
        for number, variant in enumerate(itertools.cycle(VARIANTS)):
            if self.evidence.kills >= kills:
                break
            self._disturbed_run(number, variant, min(KILLS_PER_RUN, kills - self.evidence.kills))
        self.evidence.wall_s = round(time.monotonic() - started_s, 1)
        return self.evidence

    def _disturbed_run(self, number: int, variant: str, kills: int) -> None:
        reference = self._reference(variant)
        run_dir = self._folder / f"run-{number}"
        run_dir.mkdir()
        self.evidence.runs += 1
        for _ in range(kills):
            self._attempt(variant, run_dir, self._random.choice(self._worlds), kill=True)
            if (run_dir / "result.json").exists():
                break
        while not (run_dir / "result.json").exists():
            self._attempt(variant, run_dir, self._random.choice(self._worlds), kill=False)
        problems = [*differences(reference, run_dir), *wrong_steps(reference, run_dir, self._steps, self.evidence)]
        self.evidence.failures += [f"run {number} ({variant}): {problem}" for problem in problems]

    def _reference(self, variant: str) -> Path:
        if variant not in self._undisturbed:
            run_dir = self._folder / f"undisturbed-{len(self._undisturbed)}"
            run_dir.mkdir()
            self._attempt(variant, run_dir, 1, kill=False)
            self._undisturbed[variant] = run_dir
        return self._undisturbed[variant]

    def _attempt(self, variant: str, run_dir: Path, world_size: int, *, kill: bool) -> None:
        ranks = self._start(variant, run_dir, world_size)
        try:
            if kill:
                self._kill_one(run_dir, ranks)
            else:
                ended = [rank.has_ended(DEADLINE_S) for rank in ranks]
                assert all(ended), f"an undisturbed attempt did not end: {run_dir}"
        finally:
            for rank in ranks:
                rank.kill()
                assert rank.has_ended(DEADLINE_S)
                rank.close()

    def _start(self, variant: str, run_dir: Path, world_size: int) -> list[ForkedRank]:
        run = self._project.publish_run(TINY.model_copy(update={"max_steps": self._steps, **VARIANTS[variant]}))
        attempt = run_dir / "attempts" / f"{len(list(run_dir.glob('attempts/*'))):03d}"
        attempt.mkdir(parents=True)
        port = free_port()
        argv = ["--workspace", self._project.workspace.uri, "--run-spec", run.sha256, "--run-dir", str(run_dir)]
        self.evidence.attempts += 1
        self.evidence.worlds[world_size] += 1
        return [
            self._nursery.start(
                "headway.training.programs.worker",
                argv,
                folder=run_dir,
                log=attempt / f"rank-{rank}.log",
                environment=rank_environment(rank, world_size, port, attempt),
            )
            for rank in range(world_size)
        ]

    def _kill_one(self, run_dir: Path, ranks: list[ForkedRank]) -> None:
        moment = self._random.choice(MOMENTS)
        victims = ranks if self._random.random() < 0.2 else [self._random.choice(ranks)]
        self._await(moment, run_dir, ranks)
        if any(rank.has_ended() for rank in ranks):
            return  # it was faster than the kill
        for rank in victims:
            rank.kill()
        # Peers notice by themselves, or are ended as a guard would, sooner or later.
        patience_s = self._random.choice((0.0, 0.02, 0.3))
        for rank in ranks:
            rank.has_ended(patience_s)
            rank.kill()
            rank.has_ended(DEADLINE_S)
        self.evidence.kills += 1
        self.evidence.moments[moment] += 1
        self.evidence.found_doing[unfinished(newest_spool(run_dir))] += 1
        self.evidence.unfinished_checkpoints += any(without_manifest(run_dir))

    def _await(self, moment: str, run_dir: Path, ranks: list[ForkedRank]) -> None:
        if moment == "start":
            _poll(lambda: False, ranks, self._random.uniform(0, 0.4))
            return
        spool, after = newest_spool(run_dir), self._random.randrange(25)
        _poll(lambda: spool.exists() and spool.read_bytes().count(b'"event":"step"') > after, ranks, DEADLINE_S)
        if moment == "checkpoint":
            _poll(lambda: any(without_manifest(run_dir)), ranks, DEADLINE_S)
        _poll(lambda: False, ranks, self._random.uniform(0, 0.01))


def _poll(condition: Callable[[], bool], ranks: list[ForkedRank], within_s: float) -> None:
    """Until it holds, the time is over, or a rank has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and not condition() and not any(rank.has_ended() for rank in ranks):
        pass


def newest_spool(run_dir: Path) -> Path:
    return max(run_dir.glob("attempts/*")) / "ledger" / "rank-0.jsonl"


def without_manifest(run_dir: Path) -> Iterator[Path]:
    """Folders of checkpoints that are being written, or never will be."""
    return (path for path in run_dir.glob("checkpoints/step-*") if not (path / "manifest.json").exists())


def unfinished(spool: Path) -> str:
    """The innermost thing that a rank had begun and not ended; `training` when there is none."""
    started: list[str] = []
    for event in read_events(spool):
        name = str(event["event"])
        if name.endswith(".begin"):
            started.append(name.removesuffix(".begin"))
        elif name in started:
            started.remove(name)
        elif name == "rank.armed":
            started = ["start"]
        elif name == "step" and started == ["start"]:
            started = []
    return started[-1] if started else "training"


def differences(reference: Path, run_dir: Path) -> Iterator[str]:
    ours, theirs = (json.loads((folder / "result.json").read_bytes()) for folder in (run_dir, reference))
    for name in ("step", "checkpoint", "tensors_sha256"):
        if ours[name] != theirs[name]:
            yield f"{name} {ours[name]}, undisturbed {theirs[name]}"
    if committed_steps(run_dir / "checkpoints")[-1] != theirs["step"]:
        yield "the last checkpoint is not that of the last step"


def steps_of(run_dir: Path) -> list[list[dict[str, Any]]]:
    """Rank 0's step records, by attempt."""
    spools = (attempt / "ledger" / "rank-0.jsonl" for attempt in sorted(run_dir.glob("attempts/*")))
    return [[event for event in read_events(spool) if event["event"] == "step"] for spool in spools]


def wrong_steps(reference: Path, run_dir: Path, last_step: int, evidence: Evidence) -> Iterator[str]:
    """Steps with another window or loss than the undisturbed run's, and gaps between attempts."""
    expected = {step["step"]: (step["window"], step["loss"]) for step in steps_of(reference)[0]}
    reached = 0
    for number, attempt in enumerate(steps_of(run_dir)):
        for place, step in enumerate(attempt):
            if (step["window"], step["loss"]) != expected[step["step"]]:
                yield f"attempt {number}: step {step['step']} differs from the undisturbed run's"
            before = reached if place == 0 else attempt[place - 1]["step"]
            if step["step"] > before + 1 or (place and step["step"] != before + 1):
                yield f"attempt {number}: step {step['step']} follows step {before}"
            evidence.steps_trained += 1
            evidence.steps_repeated += step["step"] <= reached
            reached = max(reached, step["step"])
    if reached != last_step:
        yield f"only {reached} of {last_step} steps are on record"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Soak(Path(folder), arguments.seed) as soak:
        evidence = soak.run(arguments.kills).as_json()
    text = json.dumps(evidence, indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    return 1 if evidence["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
