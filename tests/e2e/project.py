"""A tiny project: a pipeline file, a contract, some texts, and the `headway` command on them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.training.launch.base.launcher import Handle
from headway.training.launch.base.process_tree import processes_with, sweep
from headway.training.launch.base.protocol import TOKEN
from headway.training.observe.ledger import Event, read_events
from tests.declared_events import require_declared
from tests.warm_programs import Program

DEADLINE_S = 900.0
PROJECT = "TEST_PROJECT"
"""In the environment of all that a project's command starts."""
MAX_STEPS = 120
CHECKPOINT_EVERY_STEPS = 20

PIPELINE = f"""\
pipeline: tiny
source: {{format: text-files, uri: texts, include: ["**/*.txt"]}}
contract: contract.yaml
shards:
  encoder: {{kind: byte-pair, vocab_size: 300, sequence_tokens: 32}}
  num_groups: 2
  heldout_fraction: 0.2
training:
  recipe: {{model: {{width: 32, depth: 1, heads: 1, hidden: 32}}}}
  optimizer: {{lr: 0.02}}
  schedule: {{warmup_steps: 5}}
  max_steps: {MAX_STEPS}
  checkpoints:
    every_steps: {CHECKPOINT_EVERY_STEPS}
launch: {{nodes: 1, ranks_per_node: 2}}
evaluation: {{bootstrap_resamples: 100}}
registry: {{model: tiny}}
"""

CONTRACT = """\
name: tiny-texts
version: 1.0.0
description: Made-up sentences.
rows: {min: 10}
columns:
  path: {type: string, unique: true}
  sha256: {type: string}
  size_bytes: {type: int64, min: 0}
  is_utf8: {type: bool}
  has_nul: {type: bool}
  num_lines: {type: int64}
  num_chars: {type: int64, nullable: true}
  max_line_chars: {type: int64, nullable: true}
  text: {type: string, nullable: true}
rules:
  - {id: utf-8, column: is_utf8, in: [true], action: quarantine}
  - {id: line-length, column: max_line_chars, max: 500}
"""

LETTERS = "bcdfghjklmnpqrst"


def sentence(at: int) -> str:
    """Words that follow from the word before last, which a bigram never sees and one attention layer learns at once."""
    words = []
    for _ in range(8):
        words.append(f" {LETTERS[at]} then")
        at = (5 * at + 3) % len(LETTERS)
    return "".join(words) + "\n"


def write_texts(folder: Path, num_files: int = 60) -> None:
    for number in range(num_files):
        draw = random.Random(number)
        path = folder / f"part{number % 3}" / f"text{number:02d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(sentence(draw.randrange(len(LETTERS))) for _ in range(20 + number)))


@dataclass
class Project:
    """A pipeline file, a contract, some texts and a workspace, with the `headway` command to work on them."""

    root: Path
    prefect_home: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    """Environment variables that the command gets besides."""

    @classmethod
    def create(cls, root: Path, prefect_home: Path) -> Project:
        write_texts(root / "texts")
        (root / "tiny.yaml").write_text(PIPELINE)
        (root / "contract.yaml").write_text(CONTRACT)
        return cls(root, prefect_home)

    @property
    def pipeline(self) -> Path:
        return self.root / "tiny.yaml"

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def environment(self) -> dict[str, str]:
        """This process's, without a word to or from Prefect, MLflow and Headway."""
        ours = {n: v for n, v in os.environ.items() if not n.startswith(("PREFECT_", "MLFLOW_", "HEADWAY_"))}
        return {**ours, "PREFECT_HOME": str(self.prefect_home), PROJECT: str(self.root), **self.settings}

    def start(self, *arguments: str, wrapper: tuple[str, ...] = (), is_fresh: bool = False) -> subprocess.Popen[str]:
        """The real command, in a process group of its own as a shell would start it.

        Without a wrapper, and unless `is_fresh`, it and what it starts of Headway's are forks that import nothing.
        """
        command = [*wrapper, str(Path(sys.executable).with_name("headway")), *arguments]
        options: dict[str, Any] = {
            "cwd": self.root,
            "env": self.environment,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "process_group": 0,
        }
        if wrapper or is_fresh:
            self.started.append(subprocess.Popen(command, text=True, **options))
        else:
            self.started.append(Program([sys.executable, *command], **options))
        return self.started[-1]

    def headway(
        self, *arguments: str, wrapper: tuple[str, ...] = (), is_fresh: bool = False
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, wrapper=wrapper, is_fresh=is_fresh)
        out, err = process.communicate(timeout=DEADLINE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def retrain(self, *options: str, is_fresh: bool = False) -> subprocess.CompletedProcess[str]:
        return self.headway("retrain", "tiny.yaml", *options, is_fresh=is_fresh)

    def edit(self, file: str, old: str, new: str) -> None:
        text = (self.root / file).read_text()
        assert old in text
        (self.root / file).write_text(text.replace(old, new))

    def files(self, pattern: str) -> list[Path]:
        """Files of the workspace, sorted."""
        return sorted(path for path in self.workspace.glob(pattern) if path.is_file())

    def file(self, pattern: str) -> Path:
        (found,) = self.files(pattern)
        return found

    def run_dir(self) -> Path:
        (found,) = (self.workspace / "runs").iterdir()
        return found

    def result(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.run_dir() / "result.json").read_bytes())
        return value

    def forget_training(self) -> None:
        """As if training had never begun; what came before it, and what would follow from its result, is kept."""
        shutil.rmtree(self.workspace / "runs")
        shutil.rmtree(self.workspace / "stages" / "launch")

    def forget_the_model(self) -> None:
        """As if training had never begun, and nothing had come of it."""
        self.forget_training()
        shutil.rmtree(self.workspace / "stages" / "verify")
        self.forget_the_registry()

    def forget_the_registry(self) -> None:
        """As if what was trained had neither been evaluated nor registered."""
        shutil.rmtree(self.workspace / "stages" / "evaluate")
        self.forget_the_registration()

    def forget_the_registration(self) -> None:
        """As if what was evaluated had not been registered."""
        for left in ("stages/register", "refs/models", "models", "mlartifacts"):
            shutil.rmtree(self.workspace / left)
        (self.workspace / "mlflow.db").unlink()
        if "mlflow" in sys.modules:  # this process takes it for open, with all its tables
            from mlflow.tracking._model_registry.registry import ModelRegistryStoreRegistry
            from mlflow.tracking._tracking_service.registry import TrackingStoreRegistry

            TrackingStoreRegistry._get_store_with_resolved_uri.cache_clear()
            ModelRegistryStoreRegistry._get_store_with_resolved_uri.cache_clear()

    def attempts(self) -> list[Path]:
        return sorted(self.workspace.glob("runs/*/attempts/*"))

    def rank_events(self, attempt: Path) -> list[Event]:
        return read_events(attempt / "ledger" / "rank-0.jsonl")

    def newest_step(self) -> int:
        steps = [e["step"] for a in self.attempts()[-1:] for e in self.rank_events(a) if e["event"] == "step"]
        return max(steps, default=0)

    def rank_pid(self, rank: int) -> int:
        pid: int = json.loads((self.attempts()[-1] / f"rank-{rank}.json").read_bytes())["pid"]
        return pid

    def living(self) -> list[int]:
        """Ranks, agents and guards, whoever their parent has become."""
        handles = [Handle.load(path.parent) for path in self.workspace.glob("runs/**/launch.json")]
        return [pid for handle in handles if handle is not None for pid in processes_with(TOKEN, handle.token)]

    def everybody(self) -> list[int]:
        """The command, its server, and all that it and they have started, whoever their parent has become."""
        return processes_with(PROJECT, str(self.root))

    def clean_up(self) -> None:
        """Nothing of ours may outlive its test, however the test ended."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            process.wait()
        self.started.clear()
        sweep(PROJECT, str(self.root))
        self.settings.clear()
        require_declared(self.workspace)


def let_go_of_databases() -> None:
    """MLflow keeps connections open for as long as the process lives, to a file that is another one now."""
    for name in ("tracking", "model_registry"):
        module = sys.modules.get(f"mlflow.store.{name}.sqlalchemy_store")
        store = getattr(module, "SqlAlchemyStore", None)
        for engine in getattr(store, "_engine_map", {}).values():
            engine.dispose()
