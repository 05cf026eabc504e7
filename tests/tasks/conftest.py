"""Registrations without training: every document that one stands on, and a model folder of two small files."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prefect import artifacts
from prefect.context import FlowRunContext

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import (
    ChampionComparison,
    CheckpointManifest,
    ContractReceipt,
    DeviceFingerprint,
    EvaluationReport,
    Incomparable,
    Interval,
    Link,
    ProofBatch,
    Registration,
    RunSpec,
    ShardManifest,
    Snapshot,
    StoredFile,
)
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.tasks.core.context import RunContext
from headway.tasks.registry import champion, mlflow_store
from headway.tasks.registry.model_versions import ModelVersions
from headway.training.checkpoint.inexactness import inexactness
from headway.training.observe.ledger import Ledger
from tests.tasks.days import Days
from tests.warm_programs import forked_helpers

if TYPE_CHECKING:
    from tests.tasks.forge import Forge, Verify

MODEL = "tiny"
VERIFY_WITHIN_S = 20
MLMODEL = b"""\
flavors: {}
saved_input_example_info: {artifact_path: input_example.json}
signature: {inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1, -1]}}]'}
"""
NOWHERE = StoredFile(path="code/none.zip", size_bytes=0, sha256=sha256_bytes(b""))


@pytest.fixture(autouse=True)
def helpers_are_forks() -> Iterator[None]:
    """Of Headway's helpers these tests ask what they answer; how they start is asked in their own rooms."""
    with forked_helpers():
        yield


def link(kind: str, digit: str = "0") -> Link:
    return Link(kind=kind, sha256=digit * 64)


def make_context(workspace: Workspace, folder: Path) -> RunContext:
    folder.mkdir(parents=True, exist_ok=True)
    return RunContext(
        pipeline=MODEL,
        workspace=workspace,
        base=folder,
        ledger=Ledger(folder / "ledger.jsonl"),
        digests=DigestCache(folder / "digests.json"),
        scratch=folder,
        budget_scope="test",
    )


def report_on(
    checkpoint: Link, manifest: Link, champion: Link | None, *, better: bool = True, incomparable: str = ""
) -> EvaluationReport:
    difference = Interval(value=-0.5, low=-0.6, high=-0.4) if better else Interval(value=0.1, low=-0.1, high=0.3)
    comparison = None
    if champion is not None and not incomparable:
        comparison = ChampionComparison(champion=champion, metric="bits", champion_value=2.0, difference=difference)
    return EvaluationReport(
        checkpoint=checkpoint,
        manifest=manifest,
        split="heldout",
        examples_sha256="0" * 64,
        num_examples=1,
        metric="bits",
        greater_is_better=False,
        metrics={"bits": Interval(value=1.5, low=1.4, high=1.6)},
        slices={},
        baselines={"bigram": 2.0},
        gate_baseline="bigram",
        baseline_difference=difference,
        comparison=comparison,
        incomparable=Incomparable(champion=champion, reason=incomparable) if champion and incomparable else None,
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(str(tmp_path / "workspace"))


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.process)])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    """A workspace in a folder, and one in object storage."""
    if request.param == "folder":
        return Workspace.create(str(tmp_path / "workspace"))
    return Workspace.create(f"s3://{request.getfixturevalue('new_bucket')()}/team")


@pytest.fixture
def context(workspace: Workspace, tmp_path: Path) -> RunContext:
    return make_context(workspace, tmp_path / "flow")


Register = Callable[..., tuple[Link, Link]]


@pytest.fixture
def register(workspace: Workspace) -> Register:
    """Publish a registration of made-up weights that are told apart by a number, and its report against a champion."""
    snapshot = workspace.publish_document(Snapshot(format="text-files", columns={}, num_rows=0, files=()))
    receipt = ContractReceipt(
        contract=NOWHERE,
        contract_name="texts",
        contract_version="1.0.0",
        snapshot=snapshot,
        passed=True,
        num_rows=1,
        verdicts=(),
        num_quarantined=0,
        quarantine=None,
        metrics={},
    )
    shards = ShardManifest(
        snapshot=snapshot,
        receipt=workspace.publish_document(receipt),
        fitted=link("fitted"),
        spec={},
        columns=(),
        groups=(),
        content_sha256="0" * 64,
        libraries={},
    )
    manifest = workspace.publish_document(shards)

    def made(
        number: int,
        champion: Link | None = None,
        *,
        better: bool = True,
        incomparable: str = "",
        scalars: dict[str, int] | None = None,
    ) -> tuple[Link, Link]:
        run = RunSpec(
            pipeline=MODEL,
            config={"seed": number},
            manifest=manifest,
            receipt=shards.receipt,
            fitted=shards.fitted,
            code=NOWHERE,
            environment=NOWHERE,
        )
        checkpoint = CheckpointManifest(
            run=workspace.publish_document(run),
            step=number,
            num_samples=0,
            world_size=1,
            parent=None,
            files=(),
            layout=(),
            scalars=scalars or {},
            proof=ProofBatch(file="proof.safetensors", loss_hex="0x0p+0"),
            fingerprint=DeviceFingerprint(device="cpu", machine="", cpu_capability="", torch="", num_threads=1),
        )
        evaluated = workspace.publish_document(checkpoint)
        evaluation = report_on(evaluated, manifest, champion, better=better, incomparable=incomparable)
        evaluation = evaluation.model_copy(update={"inexact": inexactness(checkpoint.scalars)})
        folder = f"models/{MODEL}/{checkpoint.sha256[:16]}"
        registration = Registration(
            model=MODEL,
            run=run.link,
            checkpoint=checkpoint.link,
            evaluation=workspace.publish_document(evaluation),
            artifacts=(
                workspace.publish(f"{folder}/MLmodel", MLMODEL),
                workspace.publish(f"{folder}/artifacts/model.pt2", b"weights %d" % number),
                workspace.publish(f"{folder}/input_example.json", b"[[1]]"),
            ),
        )
        return workspace.publish_document(registration), evaluation.link

    return made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> str:
    """The tracking URI of a database of MLflow's."""
    return f"{mlflow_store.SQLITE}{shutil.copy(mlflow_tables, tmp_path_factory.mktemp('mlflow'))}"


@pytest.fixture
def versions(context: RunContext, store: str) -> ModelVersions:
    """Of a model that nobody has registered."""
    client = mlflow_store.connect(store)
    for model in client.search_registered_models():
        client.delete_registered_model(model.name)
    return ModelVersions(context, lambda: client, MODEL, store)


@pytest.fixture
def settle(versions: ModelVersions, register: Callable[..., tuple[Link, Link]]) -> Callable[..., Link]:
    """Register a model as a retrain does; returns its registration."""

    def settled(number: int, against: Link | None = None, *, better: bool = True) -> Link:
        registration, evaluation = register(number, against, better=better)
        champion.settle(versions, registration, evaluation)
        return registration

    return settled


@pytest.fixture
def days(context: RunContext, register: Register) -> Days:
    return Days(context, register)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The tables that Prefect is told, as in a flow run; bars are made and not kept.

    A context that is no real one counts as an async flow's: left alone, Prefect's functions would give coroutines.
    """
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(FlowRunContext, "get", classmethod(lambda _cls: SimpleNamespace(flow_run=object())))
    monkeypatch.setattr(artifacts, "create_table_artifact", lambda **fields: told.append(fields))
    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda **_: None)
    return told


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> Forge:
    from tests.tasks.forge import build

    return build(tmp_path_factory.mktemp("forge"), mlflow_tables)


@pytest.fixture
def forge(built: Forge) -> Iterator[Forge]:
    built.restore()
    yield built
    built.restore()


@pytest.fixture
def verify(built: Forge, capsys: pytest.CaptureFixture[str]) -> Iterator[Verify]:
    """Exit code and answer of the command, which may not take long."""
    from headway.flows.show.verify import verify_model

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("verify hangs: not done in time")

    def run(model: str = f"models:/{MODEL}@champion", within_s: int = VERIFY_WITHIN_S) -> tuple[int, dict[str, Any]]:
        signal.alarm(within_s)
        try:
            code = verify_model(model, built.workspace.uri, as_json=True)
        finally:
            signal.alarm(0)
        return code, json.loads(capsys.readouterr().out)

    before = signal.signal(signal.SIGALRM, too_long)
    yield run
    signal.signal(signal.SIGALRM, before)
