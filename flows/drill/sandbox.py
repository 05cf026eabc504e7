"""Where drills happen: a made-up pipeline and a workspace of its own, and the command `headway retrain` on it.

Nothing of it is anybody's: its folder is new, its processes know no server, registry or workspace of the team's, and
all of them carry the folder's name in their environment, by which whoever is left is found and ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.places import entries
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import SHIPPED
from headway.flows.drill.objectives import CHECKPOINT_EVERY_STEPS
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.process_tree import die_with_parent, end_in_order, processes_with, sweep
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.jobs.job_request import DetachedFiles, JobHandle
from headway.training.launch.supervise.launchers import scheduler_for

SANDBOX = "DRILL_SANDBOX"
PLAN, PLANTED = "plan.json", "planted.json"
"""As in `deployments/drill/network.py`, which cannot import this."""
MAX_STEPS = 240
GLOBAL_BATCH, MICRO_BATCH = 64, 32
"""Two micro-batches a step: one for each of the two ranks."""
NUM_NODES = 2
NUM_FILES, ROWS_A_FILE = 4, 600
NUMBERS = ("length", "width", "height", "weight", "speed", "age")
NUM_KINDS = 4
MAX_ROWS_RATIO = 1.5
COMMAND_WITHIN_S, QUEUED_WITHIN_S = 240.0, 1800.0
"""After which a command is ended that should have taken seconds; the second where it may wait in a queue."""
END_S = 10.0
"""Beyond the grace of its ranks, for a command that is ended."""
LEASE_S = 60.0
"""After which a scheduler's job stops whose drill was killed."""
LEFT_AFTER_S = 10.0
"""How long after its command a process may live: guards keep their grace."""
POLL_S, REMOTE_S = 0.02, 0.5
"""How often it is looked who is left; a scheduler is asked less often."""
_NOT_OURS = ("PREFECT_", "MLFLOW_", "HEADWAY_", "DRILL_", "OTEL_")
"""Beginnings of variables that may name what exists: to a team's collector a planted failure would look like one."""


def base_pipeline(name: str, launch: Mapping[str, Any]) -> dict[str, Any]:
    """The sandbox's pipeline, as its file says it."""
    return {
        "pipeline": name,
        "source": {"format": "csv", "uri": "data", "include": ["*.csv"]},
        "contract": "contract.yaml",
        "shards": {
            "encoder": {"kind": "tabular", "label": "kind", "numeric": list(NUMBERS)},
            "group_by": "file",
            "split_by": "row",
            "heldout_fraction": 0.2,
            "skew": {"max_rows_ratio": MAX_ROWS_RATIO},
        },
        "training": {
            "recipe": {"name": "recipes.network:Network"},
            "optimizer": {"kind": "adamw", "lr": 0.005},
            "max_steps": MAX_STEPS,
            "global_batch_sequences": GLOBAL_BATCH,
            "micro_batch_sequences": MICRO_BATCH,
            "guards": {"non_finite": {"action": "skip"}},
            "checkpoints": {"every_steps": CHECKPOINT_EVERY_STEPS},
        },
        "launch": {**launch, "nodes": NUM_NODES, "ranks_per_node": 1, "backoff_s": 0.2},
        "evaluation": {"bootstrap_resamples": 100, "trees_baseline": False},
        "registry": {"model": "drill"},
    }


def contract() -> dict[str, Any]:
    numbers = {name: {"type": "double", "min": -100, "max": 100} for name in NUMBERS}
    return {
        "name": "drill",
        "version": "1.0.0",
        "description": "Made-up measurements of made-up things.",
        "rows": {"min": 100},
        "columns": {**numbers, "kind": {"type": "int64", "in": list(range(NUM_KINDS))}},
    }


def write_rows(folder: Path, seed: int, rows_of: Sequence[int], *, scale: float = 1.0) -> None:
    """Measurements of which two tell the kind.

    Args:
        rows_of: each file.
        scale: of the measurements: 1 keeps them in the contract's range.
    """
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    for number, rows in enumerate(rows_of):
        lines = [",".join((*NUMBERS, "kind"))]
        for _ in range(rows):
            values = [draw.gauss(0, 1) for _ in NUMBERS]
            kind = 2 * (values[0] > 0) + (values[1] > 0)
            lines.append(",".join((*(f"{scale * value:.6f}" for value in values), str(kind))))
        (folder / f"part-{number}.csv").write_text("\n".join(lines) + "\n")


LOCAL = LaunchSpec()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A command that ran."""

    code: int
    begin_unix_s: float
    took_s: float
    message: str
    """The last that it said on stderr."""
    processes_left: int
    """That outlived it, and were ended here."""


@dataclass
class Sandbox:
    root: Path
    seed: int
    launch: LaunchSpec = LOCAL
    """How its ranks are started; there are two nodes of one rank."""
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)
    """Of the commands, in order."""
    last_message: str = ""
    """What the newest of them said on stderr."""

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def workspace(self) -> Workspace:
        return Workspace(str(self.root / "workspace"))

    def make(self) -> None:
        write_rows(self.project / "data", self.seed, [ROWS_A_FILE] * NUM_FILES)
        recipes = self.project / "recipes"
        recipes.mkdir()
        (recipes / "__init__.py").write_text("")
        shutil.copyfile(SHIPPED / "deployments/drill/network.py", recipes / "network.py")
        (self.project / "contract.yaml").write_text(yaml.safe_dump(contract(), sort_keys=False))

    def write_pipeline(self, name: str, changes: Mapping[str, Any]) -> None:
        """The base pipeline under a name of its own, and so with a run of its own; bits do not depend on the name."""
        spec = merged(base_pipeline(name, self._launch()), changes)
        (self.project / f"{name}.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))

    def _launch(self) -> dict[str, Any]:
        said = self.launch.model_dump(mode="json", exclude_unset=True)
        if self.launch.is_detached:
            said = merged(said, {"detached": {"lease_s": LEASE_S}})
        if self.launch.kubernetes is not None:
            # Pods have the variables that their job names; other hosts have those of the command.
            said = merged(said, {"kubernetes": {"environment": {SANDBOX: str(self.root)}}})
        return said

    def plan(self, **fault: Any) -> None:
        """What the next command's ranks are to suffer; nothing without arguments."""
        (self.root / PLANTED).unlink(missing_ok=True)
        (self.root / PLAN).unlink(missing_ok=True)
        if fault:
            (self.root / PLAN).write_text(json.dumps(fault))

    def planted(self) -> dict[str, Any] | None:
        """When and where it came about; None while it has not."""
        try:
            found: dict[str, Any] = json.loads((self.root / PLANTED).read_text())
        except FileNotFoundError:
            return None
        return found

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """This process's, without a word of what exists."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}
        home = {"PREFECT_HOME": str(self.root / "prefect"), "HEADWAY_PROJECT": str(self.project)}
        return {**ours, **home, SANDBOX: str(self.root), **more}

    def retrain(
        self,
        name: str,
        *,
        environment: Mapping[str, str] | None = None,
        meanwhile: Callable[[subprocess.Popen[bytes]], object] = lambda _process: None,
        before: Callable[[], object] | None = None,
        through: Sequence[str] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> Ended:
        """Run `headway retrain` to its end.

        Args:
            environment: more variables for it.
            meanwhile: called again and again while it runs.
            before: called in the new process, before it becomes the command.
            through: a program that starts it, with its arguments.
        """
        file, uri = f"{name}.yaml", self.workspace.uri
        arguments = ("retrain", file, "--workspace", uri, "--no-register")
        begin_unix_s, started_s = time.time(), time.monotonic()
        with tempfile.TemporaryFile() as printed:
            command = (*through, sys.executable, "-P", "-m", "headway", *arguments)
            process = self.start(command, environment or {}, before=before, stdin=stdin, stderr=printed)
            try:
                within_s = QUEUED_WITHIN_S if self.launch.is_detached else COMMAND_WITHIN_S
                while process.poll() is None and time.monotonic() - started_s < within_s:
                    meanwhile(process)
                    time.sleep(POLL_S)
            finally:
                self.end(process)
            took_s = time.monotonic() - started_s
            printed.seek(0)
            lines = [
                line for line in printed.read().decode(errors="replace").splitlines() if line.startswith("headway: ")
            ]
        code = process.wait()
        self.exit_codes.append(code)
        num_left = len(self._left())
        self.last_message = message = lines[-1].removeprefix("headway: ") if lines else ""
        return Ended(code=code, begin_unix_s=begin_unix_s, took_s=took_s, message=message, processes_left=num_left)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        before: Callable[[], object] | None = None,
        stdin: int = subprocess.DEVNULL,
        stderr: Any = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """A process of the sandbox, which dies with this one."""

        process = subprocess.Popen(
            command,
            cwd=self.project,
            env=self.environment(environment),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            process_group=0,  # a terminal's Ctrl-C comes to us alone
            preexec_fn=die_with_parent if before is None else partial(_die_with_parent_after, before),
        )
        self._started.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """In order where it can: its ranks keep a checkpoint."""
        end_in_order(process, self.launch.stop_grace_s + END_S)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if process in self._started:
            self._started.remove(process)

    def _left(self) -> list[str]:
        """Whoever has outlived its command is ended, and counted; the drill's own helpers are none."""
        deadline_s = time.monotonic() + LEFT_AFTER_S
        own = {process.pid for process in self._started}
        while left := [*self._here(own), *self._remote()]:
            if time.monotonic() > deadline_s:
                self.end_all()
                break
            time.sleep(POLL_S if self.launch.launcher == "local" else REMOTE_S)
        return left

    def _here(self, own: Collection[int]) -> list[str]:
        return [f"process {pid}" for pid in processes_with(SANDBOX, str(self.root)) if pid not in own]

    def _remote(self) -> list[str]:
        """Of the ranks' machines: guards, and jobs, that have not said that they are at their end."""
        if self.launch.launcher == "local":
            return []
        attempts = map(AttemptFiles, self._runs.glob("*/attempts/*"))
        guards = (files.read_status(node) for files in attempts for node in range(NUM_NODES))
        living = (f"guard of node {each.node} on {each.host}" for each in guards if each and each.state != "ended")
        return [*living, *(job.job for job in self._jobs())]

    @property
    def _runs(self) -> Path:
        return self.workspace.local_root / "runs"

    def _jobs(self) -> list[JobHandle]:
        """Of a scheduler's, those that have not ended."""
        if not self.launch.is_detached:
            return []
        handles = (JobHandle.load(DetachedFiles(path)) for path in entries(self._runs))
        # A key is written down before there is a job.
        queued = [each for each in handles if each is not None and each.job]
        scheduler = scheduler_for(self.launch) if queued else None
        return [each for each in queued if scheduler is not None and not scheduler.poll(each).state.has_ended]

    def end_all(self) -> None:
        """Nobody is left afterwards."""
        for process in self._started:
            if self.launch.is_detached:
                # A job is ended in order by its flow alone.
                end_in_order(process, self.launch.stop_grace_s + END_S)
            process.kill()
        self._cancel_jobs()
        sweep(SANDBOX, str(self.root))
        for process in self._started:
            process.wait()
        self._started.clear()

    def _cancel_jobs(self) -> None:
        deadline_s = time.monotonic() + self.launch.stop_grace_s + END_S
        # Where the scheduler gives no answer, the lease ends them.
        with contextlib.suppress(EnvironmentProblem):
            for job in self._jobs():
                scheduler_for(self.launch).cancel(job)
            # Their folder goes next.
            while self._jobs() and time.monotonic() < deadline_s:
                time.sleep(REMOTE_S)


def _die_with_parent_after(before: Callable[[], object]) -> None:
    die_with_parent()
    before()


@contextlib.contextmanager
def sandbox(
    seed: int, keep: Path | None = None, launch: LaunchSpec = LOCAL, shared: Path | None = None
) -> Iterator[Sandbox]:
    """A new one, which goes with the body.

    Args:
        keep: a folder that is not there yet, and stays.
        launch: how its ranks are started.
        shared: a folder that the ranks' machines see at the same path; None: it is made for temporary files.

    Raises:
        ConfigError: something is there.
    """
    with _temporary_folder(shared) if keep is None else _new_folder(keep) as root:
        made = Sandbox(root, seed, launch)
        try:
            made.make()
            yield made
        finally:
            made.end_all()


@contextlib.contextmanager
def _temporary_folder(shared: Path | None) -> Iterator[Path]:
    if shared is not None:
        shared.mkdir(parents=True, exist_ok=True)
    try:
        with scratch_folder("headway-drill-", shared) as folder:
            # Jobs and hosts are told of it by a path that starts at the root.
            yield folder.resolve()
    finally:
        if shared is not None:
            with contextlib.suppress(OSError):
                shared.rmdir()  # another drill's may lie there


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    try:
        # Exclusively: what is there may be anybody's workspace.
        folder.mkdir()
    except OSError as error:
        raise ConfigError(
            f"no new folder can be made there ({error.strerror}).",
            where=str(folder),
            advice="A drill touches nothing that exists: name a folder that is not there yet, in one that is.",
        ) from error
    yield folder.resolve()


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for name, value in above.items():
        old = both.get(name)
        both[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return both
