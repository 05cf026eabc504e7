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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import SHIPPED
from headway.flows.drill.objectives import CHECKPOINT_EVERY_STEPS
from headway.training.launch.base.process_tree import die_with_parent, end_in_order, processes_with, sweep

SANDBOX = "DRILL_SANDBOX"
PLAN, PLANTED = "plan.json", "planted.json"
"""As in `deployments/drill/network.py`, which cannot import this."""
MAX_STEPS = 240
GLOBAL_BATCH, MICRO_BATCH = 64, 32
"""Two micro-batches a step: one for each of the two ranks."""
NUM_FILES, ROWS_A_FILE = 4, 600
NUMBERS = ("length", "width", "height", "weight", "speed", "age")
NUM_KINDS = 4
MAX_ROWS_RATIO = 1.5
COMMAND_WITHIN_S = 240.0
"""After which a command is ended that should have taken seconds."""
ENDS_WITHIN_S = 20.0
LEFT_AFTER_S = 10.0
"""How long after its command a process may live: guards keep their grace."""
POLL_S = 0.02
_NOT_OURS = ("PREFECT_", "MLFLOW_", "HEADWAY_", "DRILL_", "OTEL_")
"""Beginnings of variables that may name what exists: to a team's collector a planted failure would look like one."""


def base_pipeline(name: str) -> dict[str, Any]:
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
        "launch": {"nodes": 2, "ranks_per_node": 1, "backoff_s": 0.2},
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
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)
    """Of the commands, in order."""

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
        spec = _merged(base_pipeline(name), changes)
        (self.project / f"{name}.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))

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
                while process.poll() is None and time.monotonic() - started_s < COMMAND_WITHIN_S:
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
        left = self._left()
        message = lines[-1].removeprefix("headway: ") if lines else ""
        return Ended(code=code, begin_unix_s=begin_unix_s, took_s=took_s, message=message, processes_left=len(left))

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
        end_in_order(process, ENDS_WITHIN_S)
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if process in self._started:
            self._started.remove(process)

    def _left(self) -> list[int]:
        """Whoever has outlived its command is ended, and counted; the drill's own helpers are none."""
        deadline_s = time.monotonic() + LEFT_AFTER_S
        own = {process.pid for process in self._started}
        while left := [pid for pid in processes_with(SANDBOX, str(self.root)) if pid not in own]:
            if time.monotonic() > deadline_s:
                break
            time.sleep(POLL_S)
        if left:
            self.end_all()
        return left

    def end_all(self) -> None:
        """Nobody is left afterwards."""
        for process in self._started:
            process.kill()
        sweep(SANDBOX, str(self.root))
        for process in self._started:
            process.wait()
        self._started.clear()


def _die_with_parent_after(before: Callable[[], object]) -> None:
    die_with_parent()
    before()


@contextlib.contextmanager
def sandbox(seed: int, keep: Path | None = None) -> Iterator[Sandbox]:
    """A new one, which goes with the body.

    Args:
        keep: a folder that is not there yet, and stays.

    Raises:
        ConfigError: something is there.
    """
    with scratch_folder("headway-drill-") if keep is None else _new_folder(keep) as root:
        made = Sandbox(root, seed)
        try:
            made.make()
            yield made
        finally:
            made.end_all()


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


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged
