"""A small champion, with three versions behind it, whose workspace tests alter and have put back."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headway.data_contracts.store.digests import canonical_json, sha256_of
from headway.data_contracts.store.documents import Registration, ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.data_contracts.store.references import reached
from headway.tasks.registry import champion, mlflow_store
from headway.tasks.registry.model_versions import ModelVersions
from headway.tasks.retention.reachability import KINDS
from headway.tasks.retention.reference_graph import GROUP_RECORD, ReferenceGraph, ReferenceReader
from headway.training.checkpoint.layout import (
    RESULT_NAME,
    RunResult,
    directory_name,
    run_folder,
)
from headway.training.frozen.result import tensors_sha256
from headway.training.programs.export import write_graph
from tests.e2e.project import let_go_of_databases
from tests.tasks.conftest import MLMODEL, MODEL, make_context, report_on
from tests.tasks.past_work import Made, Maker
from tests.training.checkpoint.conftest import make_content, run_in_gang, save_checkpoint

CHAMPION, CHALLENGER, VERSIONS = (f"refs/models/{MODEL}/{name}" for name in ("champion", "challenger", "versions"))
Verify = Callable[..., tuple[int, dict[str, Any]]]


class Forge:
    """The champion's workspace, put back as it was before each change."""

    def __init__(self, workspace: Workspace, runs: list[Made], last: Registration) -> None:
        self.workspace, self.root, self.runs, self.last = workspace, Path(workspace.uri), runs, last
        self.pristine = {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        self.states = {path: self._state(path) for path in self.pristine}

    @staticmethod
    def _state(path: Path) -> tuple[int, ...]:
        status = path.lstat()
        return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino

    def restore(self) -> None:
        for top, folders, files in os.walk(self.root, topdown=False):
            for path in (Path(top, name) for name in (*folders, *files)):
                if path not in self.pristine and (path.is_symlink() or not path.is_dir()):
                    path.unlink()
        for path, data in self.pristine.items():
            if os.path.lexists(path) and self._state(path) == self.states[path]:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif os.path.lexists(path):
                path.unlink()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            self.states[path] = self._state(path)
            if path.name == "mlflow.db":
                let_go_of_databases()

    def entry(self, folder: str, number: int) -> Path:
        return self.root / folder / f"{number:08d}.json"

    def forged(self, folder: str, number: int, **changes: Any) -> None:
        """An entry as its writer would have written it, with a digest of its own that is right."""
        path = self.entry(folder, number)
        value = {**json.loads(path.read_bytes()), **changes}
        value.pop("sha256")
        path.write_bytes(canonical_json({**value, "sha256": sha256_of(value)}))

    def detail(self, folder: str, number: int, **changes: Any) -> None:
        """The same, of its detail; a field that is `...` is left out."""
        detail = {**json.loads(self.entry(folder, number).read_bytes())["detail"], **changes}
        self.forged(folder, number, detail={key: value for key, value in detail.items() if value is not ...})

    @property
    def result(self) -> Path:
        return self.root / run_folder(self.runs[-1].run) / RESULT_NAME

    def message(self, **changes: Any) -> None:
        self.result.write_bytes(canonical_json({**json.loads(self.result.read_bytes()), **changes}))

    @property
    def copy(self) -> Path:
        """MLflow's copy of the champion's files."""
        example = "input_example.json"
        own = (self.graph.parents[1] / example).read_bytes()
        copies = self.root.glob(f"mlartifacts/**/{example}")
        (found,) = (path.parent for path in copies if path.read_bytes() == own)
        return found

    @property
    def graph(self) -> Path:
        return self.root / next(file.path for file in self.last.artifacts if file.path.endswith(".pt2"))

    @property
    def client(self) -> Any:
        return mlflow_store.connect(mlflow_store.default_tracking_uri(self.workspace))

    def register_graph(self, graph: Path, scratch: Path) -> None:
        """Make a champion of another graph, as one who can write all would: every document and copy agrees."""
        own = self.graph.relative_to(self.root).as_posix()
        other = self.workspace.publish_file(graph, own)
        files = tuple(other if file.path == own else file for file in self.last.artifacts)
        link = self.workspace.publish_document(self.last.model_copy(update={"artifacts": files}))
        context = make_context(self.workspace, scratch)
        uri = mlflow_store.default_tracking_uri(self.workspace)
        champion.settle(
            ModelVersions(context, lambda: mlflow_store.connect(uri), MODEL, ""), link, self.last.evaluation
        )

    def run_in_mlflow(self) -> Any:
        return self.client.get_run(self.client.get_model_version(MODEL, "3").run_id)

    def sql(self, statement: str) -> None:
        with sqlite3.connect(self.root / "mlflow.db") as database:
            database.execute(statement)
        database.close()

    def claimed(self) -> list[str]:
        """Every file that the champion's proof reads: what a cleaning keeps for it, but for what no proof covers."""
        listed = {file.path for top in (*KINDS, "refs") for file in self.workspace.files(top)}
        graph, own = ReferenceGraph(listed, ReferenceReader(self.workspace)), document_path(self.last.link)
        # Of another model, which has a proof of its own.
        others = {path for path in listed if path.startswith(f"documents/{Registration.kind}/") and path != own}
        kept = reached({own: "the champion"}, lambda path: () if path in others else graph.of(path)).keys() - others
        # Of a run that the weights come from, the checkpoint is proved: not that it was its last, nor its own version.
        own_files = {self.result.relative_to(self.root).as_posix(), *(file.path for file in self.last.artifacts)}
        others_work = {path for path in kept - own_files if path.startswith("models/") or path.endswith(RESULT_NAME)}
        saves_work = {path for path in kept if path.startswith(("cards/", "reports/")) or path.endswith(GROUP_RECORD)}
        found = {f"{folder}/{name}" for folder in (CHAMPION, CHALLENGER, VERSIONS) for name in self.names(folder)}
        found |= {path.relative_to(self.root).as_posix() for path in self.copy.rglob("*") if path.is_file()}
        return sorted(found | (kept - others_work - saves_work))

    def names(self, folder: str) -> list[str]:
        return self.workspace.names(folder)


def tensors(number: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    weight = torch.randn(6, 8, generator=generator)
    return {"model.weight": weight, "model.half": weight[0].bfloat16(), "optimizer.step": torch.tensor(number)}


def build(folder: Path, mlflow_tables: Path) -> Forge:
    """A champion and what it stands on, made without training."""
    workspace = Workspace.create(str(folder / "workspace"))
    shutil.copy(mlflow_tables, workspace.local_path("mlflow.db"))
    context = make_context(workspace, folder / "flow")
    uri = mlflow_store.default_tracking_uri(workspace)
    versions = ModelVersions(context, lambda: mlflow_store.connect(uri), MODEL, "")
    maker = Maker(workspace)
    data, stranger = maker.data(1), workspace.load(maker.data(2), ShardManifest)
    own = workspace.load(data, ShardManifest)
    mixed = workspace.publish_document(stranger.model_copy(update={"fitted": own.fitted}))
    (folder / "graph").mkdir()
    for note in workspace.names("places"):
        (workspace.local_path("places") / note).unlink()
    model = torch.nn.Sequential(OrderedDict(linear=torch.nn.Linear(4, 3))).eval()
    write_graph(model, torch.zeros(2, 4), folder / "graph")
    graph = (folder / "graph" / "model.pt2").read_bytes()
    runs: list[Made] = []
    registrations: list[Registration] = []
    for number in (1, 2, 3):
        start = runs[-1].checkpoint if number == 3 else None
        more: dict[str, Any] = {"order": {"mix": [{"manifest": mixed.sha256, "weight": 1.0}]}} if number == 3 else {}
        more |= {"start_from": {"model": f"models:/{MODEL}/2"}} if number == 3 else {}
        made = maker.run(number, data, start=start, config=more)
        where = workspace.local_path(run_folder(made.run))
        shutil.rmtree(where / "checkpoints" / directory_name(3))
        content = make_content(3, tensors(number), run=made.run)
        saved = run_in_gang(2, lambda gang, to=where, of=content: save_checkpoint(to / "checkpoints", of, gang))[0]
        checkpoint = workspace.publish_document(saved)
        ended = RunResult(
            run=made.run.sha256,
            step=3,
            checkpoint=directory_name(3),
            manifest_sha256=checkpoint.sha256,
            tensors_sha256=tensors_sha256(sorted(tensors(number).items())),
        )
        workspace.publish_json(f"{run_folder(made.run)}/{RESULT_NAME}", ended.model_dump())
        runs.append(Made(made.run, checkpoint, []))
        against = registrations[-1].link if registrations else None
        evaluation = workspace.publish_document(report_on(checkpoint, data, against))
        below = f"models/{MODEL}/{checkpoint.sha256[:16]}"
        registration = Registration(
            model=MODEL,
            run=made.run,
            checkpoint=checkpoint,
            evaluation=evaluation,
            artifacts=(
                workspace.publish(f"{below}/MLmodel", MLMODEL),
                workspace.publish(f"{below}/artifacts/model.pt2", graph),
                workspace.publish(f"{below}/input_example.json", b"[[1]]" + b" " * number),
            ),
        )
        settled = champion.settle(versions, workspace.publish_document(registration), evaluation)
        assert settled.promoted, settled.reason
        registrations.append(registration)
    return Forge(workspace, runs, registrations[-1])


def broken(verify: Verify, **how: Any) -> str:
    """What verify says is broken, in a line."""
    code, message = verify(**how)
    (link,) = [link for link in message["links"] if link["status"] == "broken"] or [None]
    assert link is not None, "nothing is broken"
    assert (code, message["verdict"]) == (5, "broken")
    line = f"{link['what']}: {link['detail']}"
    assert "\n" not in line
    return line
