"""Made-up pipelines' work, with every kind of file that a real one leaves, in few bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import xxhash
from blake3 import blake3

from headway.data_contracts.store import refs, stages
from headway.data_contracts.store.digests import sha256_bytes, sha256_of
from headway.data_contracts.store.documents import (
    CheckpointFile,
    CheckpointManifest,
    ContractReceipt,
    DeviceFingerprint,
    EvaluationReport,
    FittedState,
    Interval,
    Link,
    ProofBatch,
    Registration,
    RunSpec,
    Shard,
    ShardGroup,
    ShardManifest,
    Snapshot,
)
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.training.checkpoint.layout import (
    BEST_STEP,
    RESULT_NAME,
    RunResult,
    checkpoint_path,
    directory_name,
    run_folder,
    stored_files,
)


@dataclass
class Made:
    """A run and all that it stands on."""

    run: Link
    checkpoint: Link
    files: list[str]
    """What its proof needs, documents included."""


class Maker:
    """Made-up pipelines' work, with every kind of file that a real one leaves, in few bytes."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def data(self, number: int) -> Link:
        """The manifest of a shard, and what it stands on."""
        w = self.workspace
        snapshot = w.publish_document(Snapshot(format="text-files", columns={}, num_rows=number, files=()))
        w.publish_json(f"places/{snapshot.sha256}.json", {"place": "/nowhere"})
        contract = w.publish_addressed(f"contracts/{sha256_bytes(b'rules %d' % number)}.yaml", b"rules %d" % number)
        receipt = ContractReceipt(
            contract=contract,
            contract_name="texts",
            contract_version="1.0.0",
            snapshot=snapshot,
            passed=True,
            num_rows=number,
            verdicts=(),
            num_quarantined=0,
            quarantine=None,
            metrics={},
        )
        w.publish_document(receipt)
        page = w.publish(f"reports/contract-{receipt.sha256[:16]}.html", b"page %d" % number)
        stages.record(w, "validate", {"data": number}, receipt.link, files=(contract, page))
        tokens = b"tokens %d" % number
        fitted = FittedState(
            encoder="byte-pair",
            spec={},
            snapshot=snapshot,
            receipt=receipt.link,
            files=(w.publish(f"fitted/{sha256_bytes(tokens)}/tokenizer.json", tokens),),
            libraries={},
        )
        w.publish_document(fitted)
        key = sha256_of(["group", number])
        rows = w.publish(f"shards/{key}/00000.parquet", b"rows %d" % number)
        w.publish_json(f"shards/{key}/group.json", {"record": {"key": key, "shard": rows.model_dump()}})
        group = ShardGroup(
            group=0,
            split="train",
            num_rows=1,
            num_samples=1,
            documents=(),
            shards=(Shard(file=rows, num_rows=1, row_groups=()),),
        )
        manifest = ShardManifest(
            snapshot=snapshot,
            receipt=receipt.link,
            fitted=fitted.link,
            spec={},
            columns=(),
            groups=(group,),
            content_sha256="0" * 64,
            libraries={},
        )
        w.publish_document(manifest)
        stages.record(w, "shard", {"data": number}, manifest.link, files=(rows,))
        return manifest.link

    def run(
        self,
        number: int,
        manifest: Link,
        *,
        start: Link | None = None,
        finished: bool = True,
        config: dict[str, Any] | None = None,
    ) -> Made:
        """A run with three checkpoints, the last of which is its result."""
        w = self.workspace
        shards = w.load(manifest, ShardManifest)
        code, lock = b"code %d" % (number % 2), b"lock"
        run = RunSpec(
            pipeline=f"pipeline-{number % 2}",
            config={"seed": number, **(config or {})},
            manifest=manifest,
            receipt=shards.receipt,
            fitted=shards.fitted,
            code=w.publish_addressed(f"code/{sha256_bytes(code)}.zip", code),
            environment=w.publish_addressed(f"environments/{sha256_bytes(lock)}.json", lock),
            start=start,
        )
        w.publish_document(run)
        folder = run_folder(run.link)
        w.publish(f"{folder}/attempts/001/ledger/rank-0.jsonl", b"{}\n")
        w.publish(f"{folder}/export/model.pt2", b"graph")
        for step in (1, 2, 3):
            manifest_at = self.checkpoint(run.link, step)
        if not finished:
            return Made(run.link, manifest_at.link, [])
        checkpoint = w.publish_document(manifest_at)
        ended = RunResult(
            run=run.sha256,
            step=3,
            checkpoint=directory_name(3),
            manifest_sha256=checkpoint.sha256,
            tensors_sha256=sha256_bytes(b""),
        )
        result = w.publish_json(f"{folder}/{RESULT_NAME}", ended.model_dump())
        files = (*stored_files(checkpoint_path(folder, 3), manifest_at), result)
        stages.record(w, "launch", {"run": run.sha256}, run.link, files=files)
        receipt = w.load(run.receipt, ContractReceipt)
        links = (run.link, checkpoint, manifest, run.receipt, run.fitted, receipt.snapshot)
        fitted_files = w.load(run.fitted, FittedState).files
        rows = [shard.file for group in shards.groups for shard in group.shards]
        stored = (*files, run.code, run.environment, receipt.contract, *fitted_files, *rows)
        return Made(run.link, checkpoint, [*map(document_path, links), *(file.path for file in stored)])

    def checkpoint(self, run: Link, step: int, *, best: int | None = None) -> CheckpointManifest:
        weights = b"weights %d of %s" % (step, run.sha256.encode())
        file = CheckpointFile(
            name="tensors.safetensors",
            size_bytes=len(weights),
            blake3=blake3(weights).hexdigest(),
            block_bytes=1 << 20,
            blocks=(xxhash.xxh3_128_hexdigest(weights),),
        )
        manifest = CheckpointManifest(
            run=run,
            step=step,
            num_samples=step,
            world_size=1,
            parent=None,
            files=(file,),
            layout=(),
            scalars={} if best is None else {BEST_STEP: best},
            proof=ProofBatch(file=file.name, loss_hex="0x0p+0"),
            fingerprint=DeviceFingerprint(device="cpu", machine="", cpu_capability="", torch="", num_threads=1),
        )
        content = {"manifest.json": manifest.to_bytes(), "manifest.sha256": f"{manifest.sha256}\n".encode()}
        for name, data in {file.name: weights, **content}.items():
            self.workspace.publish(f"{checkpoint_path(run_folder(run), step)}/{name}", data)
        return manifest

    def evaluate(self, made: Made, manifest: Link) -> Link:
        figure = Interval(value=1.0, low=0.9, high=1.1)
        report = EvaluationReport(
            checkpoint=made.checkpoint,
            manifest=manifest,
            split="heldout",
            examples_sha256="0" * 64,
            num_examples=1,
            metric="bits",
            greater_is_better=False,
            metrics={"bits": figure},
            slices={},
            baselines={},
            gate_baseline="bigram",
            baseline_difference=figure,
            comparison=None,
        )
        self.workspace.publish_document(report)
        page = self.workspace.publish(f"reports/evaluation-{report.sha256[:16]}.html", b"page")
        stages.record(self.workspace, "evaluate", {"of": made.checkpoint.sha256}, report.link, files=(page,))
        return report.link

    def register(self, made: Made, evaluation: Link, version: int) -> list[str]:
        """What the version's proof needs besides the run's."""
        w, name = self.workspace, refs_of("tiny")
        model = w.publish(f"models/tiny/{made.checkpoint.sha256[:16]}/model.pt2", b"model %d" % version)
        registration = Registration(
            model="tiny", run=made.run, checkpoint=made.checkpoint, evaluation=evaluation, artifacts=(model,)
        )
        w.publish_document(registration)
        w.publish(f"cards/tiny/{registration.sha256[:16]}.md", b"card")
        entry = refs.current(w, name)
        refs.move(w, name, registration.link, expected=entry, reason="registered", detail={"version": str(version)})
        return [document_path(registration.link), document_path(evaluation), model.path]


def refs_of(model: str) -> str:
    return f"models/{model}/versions"
