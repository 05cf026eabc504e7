"""`headway verify` names whatever is changed of what a champion stands on: by a line, at once, and with no traceback.

One small champion, with three versions behind it, is made once and put back before every change.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from data_contracts.digests import canonical_json, sha256_of
from data_contracts.documents import CheckpointManifest, Link, Registration, RunSpec, ShardManifest, StoredFile
from data_contracts.publication import Workspace
from data_contracts.published_files import document_path
from flows.verify import verify_model
from tasks import champion, mlflow_store
from tasks.model_versions import ModelVersions
from tests.e2e.project import let_go_of_databases
from tests.tasks.conftest import MLMODEL, MODEL, make_context, report_on
from tests.tasks.past_work import Made, Maker
from training.checkpoint.layout import RESULT_NAME, RunResult, checkpoint_path, directory_name, run_folder, stored_files
from training.checkpoint.save import save_checkpoint
from training.export import write_graph
from training.result import tensors_sha256

WITHIN_S = 20
NUM_FLIPS = 200
CHAMPION, CHALLENGER, VERSIONS = (f"refs/models/{MODEL}/{name}" for name in ("champion", "challenger", "versions"))


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

    def said(self, **changes: Any) -> None:
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

    def sql(self, statement: str) -> None:
        with sqlite3.connect(self.root / "mlflow.db") as database:
            database.execute(statement)
        database.close()

    def claimed(self) -> list[str]:
        """Every file that the proof of the champion reads, found by walking its documents."""
        found = {f"{folder}/{name}" for folder in (CHAMPION, CHALLENGER, VERSIONS) for name in self.names(folder)}
        found |= {path.relative_to(self.root).as_posix() for path in self.copy.rglob("*") if path.is_file()}
        found.add(self.result.relative_to(self.root).as_posix())

        def walk(value: Any) -> None:
            if isinstance(value, dict):
                if value.keys() == {"kind", "sha256"}:
                    document(Link(**value))
                if "path" in value and value.keys() & {"sha256", "blake3"}:
                    found.add(StoredFile(**{key: value[key] for key in StoredFile.model_fields if key in value}).path)
                for key, inner in value.items():
                    if key not in ("comparison", "incomparable"):  # of another model, which has a proof of its own
                        walk(inner)
            for inner in value if isinstance(value, list) else ():
                walk(inner)

        def document(link: Link) -> None:
            path = document_path(link)
            if path in found:
                return
            found.add(path)
            value = json.loads(self.workspace.read(path))
            if link.kind == "checkpoint":
                manifest = self.workspace.load(link, CheckpointManifest)
                folder = checkpoint_path(run_folder(manifest.run), manifest.step)
                found.update(file.path for file in stored_files(folder, manifest))
                value.pop("files")
            if link.kind == "run":
                for mixed in value["config"].get("order", {}).get("mix", ()):
                    document(Link(kind="manifest", sha256=mixed["manifest"]))
            if link.kind == "snapshot":
                value.pop("files")  # the source's
            walk(value)

        document(self.last.link)
        return sorted(found)

    def names(self, folder: str) -> list[str]:
        return self.workspace.names(folder)


def tensors(number: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    weight = torch.randn(6, 8, generator=generator)
    return {"model.weight": weight, "model.half": weight[0].bfloat16(), "optimizer.step": torch.tensor(number)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, mlflow_tables: Path) -> Forge:
    from tests.training.checkpoint.conftest import make_content, run_in_gang

    folder = tmp_path_factory.mktemp("forge")
    workspace = Workspace.create(str(folder / "workspace"))
    shutil.copy(mlflow_tables, workspace.local_path("mlflow.db"))
    context = make_context(workspace, folder / "flow")
    uri = mlflow_store.default_tracking_uri(workspace)
    versions = ModelVersions(context, mlflow_store.connect(uri), MODEL, "")
    maker = Maker(workspace)
    data, stranger = maker.data(1), workspace.load(maker.data(2), ShardManifest)
    own = workspace.load(data, ShardManifest)
    mixed = workspace.publish_document(stranger.model_copy(update={"fitted": own.fitted}))
    (folder / "graph").mkdir()
    for note in workspace.names("places"):
        (workspace.local_path("places") / note).unlink()
    write_graph(torch.nn.Linear(4, 3).eval(), torch.zeros(2, 4), folder / "graph")
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


@pytest.fixture
def forge(built: Forge) -> Iterator[Forge]:
    built.restore()
    yield built
    built.restore()


Verify = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def verify(built: Forge, capsys: pytest.CaptureFixture[str]) -> Iterator[Verify]:
    """Exit code and answer of the command, which may not take long."""

    def too_long(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"verify hangs: not done within {WITHIN_S} s")

    def run(model: str = f"models:/{MODEL}@champion") -> tuple[int, dict[str, Any]]:
        signal.alarm(WITHIN_S)
        try:
            code = verify_model(model, built.workspace.uri, as_json=True)
        finally:
            signal.alarm(0)
        return code, json.loads(capsys.readouterr().out)

    before = signal.signal(signal.SIGALRM, too_long)
    yield run
    signal.signal(signal.SIGALRM, before)


def broken(verify: Verify) -> str:
    """What verify says is broken, in a line."""
    code, said = verify()
    (link,) = [link for link in said["links"] if link["standing"] == "broken"] or [None]
    assert link is not None, "nothing is broken"
    assert (code, said["verdict"]) == (5, "broken")
    line = f"{link['what']}: {link['detail']}"
    assert "\n" not in line
    return line


def test_what_nobody_changed_is_proved_in_all_its_parts(forge: Forge, verify: Verify) -> None:
    code, said = verify()
    assert [link for link in said["links"] if link["standing"] == "broken"] == []
    assert (code, said["verdict"]) == (0, "source gone, shards prove it")
    assert any(link["what"].startswith("mixed in") for link in said["links"])
    assert any(link["what"].startswith("started from") for link in said["links"])
    assert not any("result.json" in each for each in said["unsigned"])
    assert len(forge.claimed()) > 40


def swap(first: Path, second: Path) -> None:
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)


HISTORY: dict[str, tuple[Callable[[Forge], object], str]] = {
    "bytes appended": (lambda f: f.entry(CHAMPION, 2).open("ab").write(b"\n"), f"{CHAMPION}/00000002.json"),
    "bytes appended to the newest": (lambda f: f.entry(CHAMPION, 3).open("ab").write(b" "), "00000003.json"),
    "a middle entry deleted": (lambda f: f.entry(CHAMPION, 2).unlink(), f"{CHAMPION}/00000002.json"),
    "the first deleted": (lambda f: f.entry(VERSIONS, 1).unlink(), f"{VERSIONS}/00000001.json"),
    "the newest deleted": (lambda f: f.entry(CHAMPION, 3).unlink(), "its alias champion is version 3"),
    "all of the challenger's deleted": (
        lambda f: shutil.rmtree(f.root / CHALLENGER),
        "its alias challenger is version 3, the ref says nothing",
    ),
    "an older one replayed at the end": (
        lambda f: shutil.copy(f.entry(CHAMPION, 1), f.entry(CHAMPION, 4)),
        f"{CHAMPION}/00000004.json",
    ),
    "an older one replayed in the newest's place": (
        lambda f: shutil.copy(f.entry(CHAMPION, 2), f.entry(CHAMPION, 3)),
        f"{CHAMPION}/00000003.json",
    ),
    "two swapped": (lambda f: swap(f.entry(CHAMPION, 1), f.entry(CHAMPION, 2)), f"{CHAMPION}/0000000"),
    "another ref's": (
        lambda f: shutil.copy(f.entry(CHALLENGER, 3), f.entry(CHAMPION, 3)),
        f"{CHAMPION}/00000003.json",
    ),
    "a middle one forged": (lambda f: f.forged(CHAMPION, 2, reason="else"), f"{CHAMPION}/00000003.json"),
    "a middle one of the versions forged": (lambda f: f.forged(VERSIONS, 1, reason="else"), f"{VERSIONS}/00000002"),
    "of an older format in the midst": (lambda f: f.forged(CHAMPION, 3, format_version=1), f"{CHAMPION}/00000003"),
    "the newest forged without a version": (lambda f: f.detail(CHAMPION, 3, version=...), f"{CHAMPION}/00000003"),
    "the newest forged without what was before": (lambda f: f.detail(CHAMPION, 3, **{"from": ...}), "00000003"),
    "the newest forged from another": (lambda f: f.detail(CHAMPION, 3, **{"from": "0" * 64}), f"{CHAMPION}/00000003"),
    "the newest forged from nothing": (lambda f: f.detail(CHAMPION, 3, **{"from": None}), f"{CHAMPION}/00000003"),
    "the newest forged with another version": (lambda f: f.detail(CHAMPION, 3, version="1"), f"{CHAMPION}/00000003"),
    "a version that is no text": (lambda f: f.detail(CHAMPION, 3, version=[3]), f"{CHAMPION}/00000003"),
    "an empty detail": (lambda f: f.forged(CHAMPION, 3, detail={}), f"{CHAMPION}/00000003"),
    "of what was never registered": (
        lambda f: f.forged(CHAMPION, 3, target={"kind": "registration", "sha256": "0" * 64}),
        f"{CHAMPION}/00000003",
    ),
    "of what is no registration": (
        lambda f: f.forged(CHAMPION, 3, target=f.last.run.model_dump()),
        f"{CHAMPION}/00000003",
    ),
    "the challenger's without a version": (lambda f: f.detail(CHALLENGER, 3, version=...), f"{CHALLENGER}/00000003"),
    "a registered one without a version": (lambda f: f.detail(VERSIONS, 3, version=...), f"{VERSIONS}/00000003"),
    "a registered one of another version": (lambda f: f.detail(VERSIONS, 3, version="7"), f"{CHAMPION}/00000003"),
    "a registered one of no number": (lambda f: f.detail(VERSIONS, 3, version="x"), f"{VERSIONS}/00000003"),
    "a store that there is not": (lambda f: f.detail(VERSIONS, 3, tracking_uri="none://x"), "MLflow refuses"),
    "a store in another folder": (
        lambda f: f.detail(VERSIONS, 3, tracking_uri="sqlite:////n/m.db"),
        "database is gone",
    ),
}
RESULT: dict[str, tuple[Callable[[Forge], object], str]] = {
    "another run": (lambda f: f.said(run="0" * 64), RESULT_NAME),
    "another digest of all tensors": (lambda f: f.said(tensors_sha256="0" * 64), RESULT_NAME),
    "another step": (lambda f: f.said(step=2, checkpoint=directory_name(2)), RESULT_NAME),
    "another folder": (lambda f: f.said(checkpoint=directory_name(2)), RESULT_NAME),
    "another manifest": (lambda f: f.said(manifest_sha256="0" * 64), RESULT_NAME),
    "another format": (lambda f: f.said(format_version=2), RESULT_NAME),
    "one field more": (lambda f: f.said(more=1), RESULT_NAME),
    "a byte appended": (lambda f: f.result.open("ab").write(b"\n"), RESULT_NAME),
    "a key twice": (
        lambda f: f.result.write_bytes(f.result.read_bytes().replace(b'"step":3', b'"step":2,"step":3')),
        RESULT_NAME,
    ),
    "gone": (lambda f: f.result.unlink(), RESULT_NAME),
    "another run's": (
        lambda f: shutil.copy(f.root / run_folder(f.runs[0].run) / RESULT_NAME, f.result),
        RESULT_NAME,
    ),
}
MLFLOW: dict[str, tuple[Callable[[Forge], object], str]] = {
    "its source": (
        lambda f: f.sql("UPDATE model_versions SET source = 'file:///etc' WHERE version = 3"),
        "its source is file:///etc",
    ),
    "where it is fetched from": (
        lambda f: f.sql("UPDATE model_versions SET storage_location = 'file:///etc' WHERE version = 3"),
        "fetched from another place",
    ),
    "its run": (
        lambda f: f.sql(
            "UPDATE model_versions SET run_id = (SELECT run_id FROM model_versions WHERE version = 1),"
            " source = (SELECT source FROM model_versions WHERE version = 1),"
            " storage_location = (SELECT storage_location FROM model_versions WHERE version = 1) WHERE version = 3"
        ),
        "is of another training",
    ),
    "its run deleted": (lambda f: f.client.delete_run(f.client.get_model_version(MODEL, "3").run_id), "was deleted"),
    "the version deleted": (lambda f: f.client.delete_model_version(MODEL, "3"), "MLflow"),
    "the champion's alias moved": (
        lambda f: f.client.set_registered_model_alias(MODEL, "champion", "1"),
        "its alias champion is version 1",
    ),
    "the champion's alias deleted": (
        lambda f: f.client.delete_registered_model_alias(MODEL, "champion"),
        "its alias champion is version None",
    ),
    "the challenger's alias moved": (
        lambda f: f.client.set_registered_model_alias(MODEL, "challenger", "1"),
        "its alias challenger is version 1",
    ),
    "a tag changed": (
        lambda f: f.client.set_model_version_tag(MODEL, "3", "headway.code", "0" * 64),
        "tag headway.code",
    ),
    "a tag deleted": (lambda f: f.client.delete_model_version_tag(MODEL, "3", "headway.run"), "tag headway.run"),
    "the database gone": (lambda f: (f.root / "mlflow.db").unlink(), "database is gone"),
    "a file more in its copy": (lambda f: (f.copy / "more.py").write_text("x"), "holds more.py"),
    "a hidden file more": (lambda f: (f.copy / ".more").write_text("x"), "holds .more"),
    "a link more": (lambda f: (f.copy / "more").symlink_to("/etc"), "holds more"),
    "a file in a folder more": (
        lambda f: ((f.copy / "code").mkdir(), (f.copy / "code" / "a.py").touch()),
        "holds code/a.py",
    ),
    "a file of its copy gone": (lambda f: (f.copy / "MLmodel").unlink(), "copy of MLmodel is gone"),
    "a file more in the workspace": (lambda f: (f.graph.parent / "more.py").write_text("x"), "artifacts/more.py"),
    "a link more in the workspace": (lambda f: (f.graph.parent / "more").symlink_to("model.pt2"), "artifacts/more"),
}


@pytest.mark.parametrize("change", HISTORY)
def test_a_change_of_the_histories_is_named(forge: Forge, verify: Verify, change: str) -> None:
    apply, named = HISTORY[change]
    apply(forge)
    assert named in broken(verify)


@pytest.mark.parametrize("change", RESULT)
def test_a_change_of_the_runs_result_is_named(forge: Forge, verify: Verify, change: str) -> None:
    apply, named = RESULT[change]
    apply(forge)
    assert named in broken(verify)


@pytest.mark.parametrize("change", MLFLOW)
def test_a_change_of_the_registry_is_named(forge: Forge, verify: Verify, change: str) -> None:
    apply, named = MLFLOW[change]
    apply(forge)
    if "database" not in change and "copy" not in change:
        let_go_of_databases()
    assert named in broken(verify)


INSTEAD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a circle of links": lambda path: path.symlink_to(path.name),
    "a folder": Path.mkdir,
    "deep JSON": lambda path: path.write_bytes(b"[" * 200_000),
    "an infinite number": lambda path: path.write_bytes(b'{"step":1e999,"unix_s":Infinity}\n'),
    "nothing at all": Path.touch,
    "a link out of the workspace": lambda path: path.symlink_to("/etc/hostname"),
}
PLACES: dict[str, Callable[[Forge], Path]] = {
    "the registration": lambda f: f.root / document_path(f.last.link),
    "the run": lambda f: f.root / document_path(f.last.run),
    "the champion's newest entry": lambda f: f.entry(CHAMPION, 3),
    "an entry of the versions": lambda f: f.entry(VERSIONS, 1),
    "a shard": lambda f: f.root / next(name for name in f.claimed() if name.startswith("shards/")),
    "the result": lambda f: f.result,
    "a file of the checkpoint": lambda f: f.root / next(n for n in f.claimed() if n.endswith(".safetensors")),
    "the graph": lambda f: f.graph,
    "the code": lambda f: f.root / f.workspace.load(f.last.run, RunSpec).code.path,
    "MLflow's copy of a file": lambda f: f.copy / "MLmodel",
}


@pytest.mark.parametrize("what", INSTEAD)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_of_ours_is_named_at_once(forge: Forge, verify: Verify, place: str, what: str) -> None:
    path = PLACES[place](forge)
    path.unlink()
    INSTEAD[what](path)
    said = broken(verify)
    assert path.name in said or path.relative_to(forge.root).as_posix() in said


def test_a_bit_flipped_in_any_file_that_the_champion_stands_on_is_named(forge: Forge, verify: Verify) -> None:
    draw = random.Random("flips")
    files = forge.claimed()
    missed: list[str] = []
    for number in range(NUM_FLIPS):
        name = files[number % len(files)]
        data = bytearray((forge.root / name).read_bytes())
        bit = draw.randrange(8 * len(data)) if data else 0
        if not data:
            continue
        data[bit // 8] ^= 1 << bit % 8
        (forge.root / name).write_bytes(data)
        try:
            said = broken(verify)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        if Path(name).name not in said or "Error" in said.split(":")[0]:
            missed.append(f"bit {bit} of {name}: {said}")
        forge.restore()
    assert missed == []
