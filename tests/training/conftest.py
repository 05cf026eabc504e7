"""A tiny project: a dozen documents, sharded for real, and worker processes that train on them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import (
    ContractReceipt,
    FittedState,
    Link,
    RunSpec,
    ShardManifest,
    Snapshot,
    SourceFile,
    StoredFile,
)
from headway.data_contracts.store.publication import Workspace
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.shards import BytePairSpec, ShardSpec
from headway.training.config.training_spec import RecipeSpec, ScheduleSpec, TrainingSpec
from headway.training.data.shards.sharding import fit, write_shards
from headway.training.data.shards.splits import NO_ROWS, SourceRows
from headway.training.launch.base.ports import free_port
from headway.training.launch.node.forked_guards import forking
from headway.training.observe.ledger import Event, read_events
from tests.training.nursery import FOR_SLICES, ForkedRank, session_nursery
from tests.waiting import DEADLINE_S, wait_until
from tests.warm_programs import forked_helpers

REPOSITORY = Path(__file__).resolve().parents[2]

Started = subprocess.Popen[bytes] | ForkedRank

TINY = TrainingSpec(
    recipe=RecipeSpec(model={"width": 16, "depth": 2, "heads": 2, "hidden": 24}),
    schedule=ScheduleSpec(warmup_steps=2),
    max_steps=6,
    global_batch_sequences=8,
    micro_batch_sequences=2,
    checkpoints=CheckpointSpec(every_steps=2),
)


def texts() -> dict[str, bytes]:
    words = ["def", "return", "self", "value", "for", "in", "range", "if", "not", "None", "import", "class", "yield"]
    return {
        f"folder{number % 3}/file{number:02d}.py": " ".join(
            words[(number * 7 + place * place) % len(words)] for place in range(150 + 10 * number)
        ).encode()
        + b"\n"
        for number in range(24)
    }


def text_rows(data: bytes) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"text": pa.array([data], type=pa.binary())})


def rank_environment(rank: int, world_size: int, port: int, attempt_dir: Path) -> dict[str, str]:
    """What torchrun and a guard would tell a rank."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "TORCHELASTIC"))}
    return ours | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "HEADWAY_ATTEMPT_DIR": str(attempt_dir),
        "PYTHONPATH": str(REPOSITORY),
    }


def start_fresh(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    log: Path,
    environment: dict[str, str],
    start: Callable[..., subprocess.Popen[Any]] = subprocess.Popen,
) -> subprocess.Popen[Any]:
    """
    Args:
        start: how; as `Program` it has the imports that it needs.
    """
    with log.open("wb") as stream:
        return start(
            [sys.executable, "-m", module, *arguments],
            env=environment,
            cwd=folder,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@pytest.fixture
def helpers_are_forks() -> Iterator[None]:
    """Without their imports: for tests that do not ask how Headway's helpers start."""
    with forked_helpers():
        yield


@pytest.fixture
def forked_agents(helpers_are_forks: None) -> Iterator[None]:
    """Guards and agents are forks of Headway's own fork server, as those of a retrain are, and it is one of ours."""
    with forking():
        yield


@dataclass
class TinyProject:
    workspace: Workspace
    documents: dict[str, bytes]
    snapshot: Link
    receipt: ContractReceipt
    fitted: FittedState
    manifest: ShardManifest
    file: StoredFile
    started: list[Started] = field(default_factory=list)

    def publish_run(self, training: TrainingSpec = TINY, **changes: Any) -> RunSpec:
        run = RunSpec(
            pipeline="tiny",
            config=training.model_dump(mode="json"),
            manifest=self.manifest.link,
            receipt=self.manifest.receipt,
            fitted=self.manifest.fitted,
            code=self.file,
            environment=self.file,
        ).model_copy(update=changes)
        self.workspace.publish_document(run)
        return run

    def start(
        self, run: RunSpec, run_dir: Path, *, world_size: int, fresh: Collection[int] = (), **environment: Any
    ) -> list[Started]:
        """Start one attempt's ranks, each a `headway.training.programs.worker`; some `fresh`, without its imports."""
        arguments = ["--workspace", self.workspace.uri, "--run-spec", run.sha256, "--run-dir", str(run_dir)]
        parallel = run.config["parallel"]
        imports = FOR_SLICES if any(parallel[part] != 1 for part in ("pipeline", "shard", "tensor")) else ()
        return self.start_ranks(
            "headway.training.programs.worker",
            arguments,
            run_dir,
            world_size=world_size,
            fresh=fresh,
            imports=imports,
            **environment,
        )

    def start_ranks(
        self,
        module: str,
        arguments: Sequence[str],
        run_dir: Path,
        *,
        world_size: int,
        fresh: Collection[int] = (),
        imports: Sequence[str] = (),
        of_ranks: Sequence[Mapping[str, str]] = (),
        **environment: str,
    ) -> list[Started]:
        """
        Args:
            of_ranks: what is another one's in the environment of each rank.
        """
        attempt_dir = run_dir / "attempts" / f"{len(list(run_dir.glob('attempts/*'))):03d}"
        attempt_dir.mkdir(parents=True)
        port = free_port()
        ranks = []
        for rank in range(world_size):
            log = attempt_dir / f"rank-{rank}.log"
            ours = rank_environment(rank, world_size, port, attempt_dir) | environment
            ours |= of_ranks[rank] if of_ranks else {}
            ranks.append(
                start_fresh(module, arguments, run_dir, log, ours)
                if rank in fresh
                else session_nursery().start(
                    module, arguments, folder=run_dir, log=log, environment=ours, imports=imports
                )
            )
        self.started += ranks
        return ranks

    def train(self, run: RunSpec, run_dir: Path, *, world_size: int, **environment: Any) -> list[int]:
        """Run one attempt to its end. Returns the ranks' exit codes."""
        ranks = self.start(run, run_dir, world_size=world_size, **environment)
        codes = [rank.wait(DEADLINE_S) for rank in ranks]
        for rank, code in enumerate(codes):
            if code < 0:  # a crash shows nowhere else
                stacks = max(run_dir.glob("attempts/*")) / f"rank-{rank}.stacks"
                print(stacks.read_text() if stacks.exists() else f"rank {rank} left no stacks")
        return codes

    @staticmethod
    def log(run_dir: Path, rank: int = 0) -> str:
        """What a rank of the newest attempt wrote."""
        return (max(run_dir.glob("attempts/*")) / f"rank-{rank}.log").read_text()

    @staticmethod
    def events(run_dir: Path, rank: int = 0) -> list[Event]:
        """Ledger events of a rank in its newest attempt."""
        return read_events(max(run_dir.glob("attempts/*")) / "ledger" / f"rank-{rank}.jsonl")


@pytest.fixture(scope="session")
def until() -> Callable[..., object]:
    return wait_until


@pytest.fixture(scope="session")
def tiny_training() -> TrainingSpec:
    return TINY


@pytest.fixture(scope="session")
def shared_project(tmp_path_factory: pytest.TempPathFactory) -> TinyProject:
    """For tests that only read it, or write runs of their own."""
    return make_project(tmp_path_factory.mktemp("workspace"))


@pytest.fixture
def project(shared_project: TinyProject) -> Iterator[TinyProject]:
    yield shared_project
    _kill(shared_project)


@pytest.fixture(scope="session")
def new_project() -> Callable[..., TinyProject]:
    return publish_project


@pytest.fixture
def own_project(tmp_path: Path) -> Iterator[TinyProject]:
    """For tests that damage it."""
    made = make_project(tmp_path / "workspace")
    yield made
    _kill(made)


def _kill(project: TinyProject) -> None:
    for process in project.started:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
    project.started.clear()


def make_project(folder: Path, **shares: float) -> TinyProject:
    documents = texts()
    sources = [
        SourceRows(path, sha256_bytes(data), len(data), 1, NO_ROWS, partial(text_rows, data))
        for path, data in documents.items()
    ]
    spec = ShardSpec(
        encoder=BytePairSpec(vocab_size=300, sequence_tokens=16),
        num_groups=3,
        rows_per_row_group=8,
        **{"heldout_fraction": 0.3, **shares},
    )
    return publish_project(folder, documents, sources, spec)


def publish_project(
    folder: Path, documents: dict[str, bytes], sources: Sequence[SourceRows], spec: ShardSpec
) -> TinyProject:
    workspace = Workspace.create(str(folder))
    snapshot = Snapshot(
        format="text-files",
        columns={"text": "string"},
        num_rows=len(sources),
        files=tuple(SourceFile(path=s.path, size_bytes=s.size_bytes, sha256=s.sha256) for s in sources),
    )
    file = workspace.publish("frozen/nothing", b"nothing")
    receipt = ContractReceipt(
        contract=file,
        contract_name="tiny",
        contract_version="1.0.0",
        snapshot=workspace.publish_document(snapshot),
        passed=True,
        num_rows=len(sources),
        verdicts=(),
        num_quarantined=0,
        quarantine=None,
        metrics={},
    )
    receipt_link = workspace.publish_document(receipt)
    fitted = fit(spec, sources, workspace, snapshot=snapshot.link, receipt=receipt_link)
    workspace.publish_document(fitted)
    manifest = write_shards(spec, fitted, sources, workspace, snapshot=snapshot.link, receipt=receipt_link)
    workspace.publish_document(manifest)
    return TinyProject(workspace, documents, snapshot.link, receipt, fitted, manifest, file)
