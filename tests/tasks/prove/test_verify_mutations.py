"""`headway verify` names whatever is changed of what a champion stands on: by a line, at once, and with no traceback.

One small champion, with three versions behind it, is made once and put back before every change.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.data_contracts.store.documents import RunSpec
from headway.data_contracts.store.errors import RegistryError
from headway.data_contracts.store.published_files import document_path
from headway.tasks.registry import champion_moves, mlflow_store
from headway.tasks.registry.model_versions import ModelVersions
from headway.tasks.retention.reachability import KINDS
from headway.training.checkpoint.layout import RESULT_NAME, directory_name, run_folder
from headway.training.launch.base.process_tree import beside_headway
from tests.e2e.project import let_go_of_databases
from tests.tasks.conftest import MODEL, make_context
from tests.tasks.forge import CHALLENGER, CHAMPION, VERSIONS, Forge, Verify, broken
from tests.training.graph_check.altered_graphs import ON_LOADING, altered

NUM_FLIPS = [1, pytest.param(4, marks=pytest.mark.soak)]
"""In each file."""


def test_what_nobody_changed_is_proved_in_all_its_parts(forge: Forge, verify: Verify) -> None:
    code, message = verify()
    assert [link for link in message["links"] if link["status"] == "broken"] == []
    assert (code, message["verdict"]) == (0, "source gone, shards prove it")
    assert any(link["what"].startswith("mixed in") for link in message["links"])
    assert any(link["what"].startswith("started from") for link in message["links"])
    assert not any("result.json" in each for each in message["unsigned"])
    assert len(forge.claimed()) > 40


def test_what_a_cleaning_keeps_for_a_version_is_all_that_its_proof_reads(forge: Forge, verify: Verify) -> None:
    kept = {forge.root / name for name in forge.claimed()}
    for path in [path for top in KINDS for path in (forge.root / top).rglob("*") if path.is_file()]:
        if path not in kept:
            path.unlink()
    code, message = verify()
    assert (code, message["verdict"]) == (0, "source gone, shards prove it")


READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


@pytest.mark.long
@pytest.mark.process
def test_a_workspace_that_is_mounted_read_only_is_proved_and_left_as_it_is(forge: Forge) -> None:
    alone = ("unshare", "--mount", "--propagation", "private")
    if os.geteuid() != 0 or subprocess.run((*alone, "true"), capture_output=True).returncode != 0:
        pytest.skip("only root can mount")
    before = {path: path.read_bytes() for path in forge.root.rglob("*") if path.is_file()}
    verify = (sys.executable, "-P", "-m", "headway", "verify", f"models:/{MODEL}@champion")
    done = subprocess.run(
        (*alone, "sh", "-c", READ_ONLY, str(forge.root), *verify, "--workspace", str(forge.root)),
        env=os.environ | beside_headway(()),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.endswith("@champion: source gone, shards prove it\n"), done
    assert before == {path: path.read_bytes() for path in forge.root.rglob("*") if path.is_file()}


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
    "the challenger's newest deleted": (
        lambda f: f.entry(CHALLENGER, 3).unlink(),
        "its alias challenger is version None",
    ),
    "all of the challenger's deleted": (lambda f: shutil.rmtree(f.root / CHALLENGER), f"{CHALLENGER}: is gone"),
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
    "of another format in the midst": (lambda f: f.forged(CHAMPION, 3, format_version=2), f"{CHAMPION}/00000003"),
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
    "a store that there is not": (lambda f: f.detail(VERSIONS, 3, tracking_uri="none://x"), "not asked: none://x"),
    "a store in another folder": (
        lambda f: f.detail(VERSIONS, 3, tracking_uri="sqlite:////n/m.db"),
        "not asked: sqlite:////n/m.db",
    ),
    "a database that is not there": (lambda f: f.detail(VERSIONS, 3, tracking_uri="postgresql://x/y"), "not asked"),
    "a server that swallows all": (
        lambda f: f.detail(VERSIONS, 3, tracking_uri="http://10.255.255.1"),
        "no pipeline here",
    ),
}
RESULT: dict[str, tuple[Callable[[Forge], object], str]] = {
    "another run": (lambda f: f.message(run="0" * 64), RESULT_NAME),
    "another digest of all tensors": (lambda f: f.message(tensors_sha256="0" * 64), RESULT_NAME),
    "another step": (lambda f: f.message(step=2, checkpoint=directory_name(2)), RESULT_NAME),
    "another folder": (lambda f: f.message(checkpoint=directory_name(2)), RESULT_NAME),
    "another manifest": (lambda f: f.message(manifest_sha256="0" * 64), RESULT_NAME),
    "another format": (lambda f: f.message(format_version=2), RESULT_NAME),
    "one field more": (lambda f: f.message(more=1), RESULT_NAME),
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


def _move_out(file: Path, folder: Path) -> None:
    """Its bytes stay the same, as long as whoever may write there leaves them so."""
    shutil.move(file, folder / file.name)
    file.symlink_to(folder / file.name)


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
        "its alias challenger is version 1, the refs say none",
    ),
    "the challenger's alias given to the champion": (
        lambda f: f.client.set_registered_model_alias(MODEL, "challenger", "3"),
        "its alias challenger is version 3, the refs say none",
    ),
    "a tag changed": (
        lambda f: f.client.set_model_version_tag(MODEL, "3", "headway.code", "0" * 64),
        "tag headway.code",
    ),
    "a tag deleted": (lambda f: f.client.delete_model_version_tag(MODEL, "3", "headway.run"), "tag headway.run"),
    "the database gone": (lambda f: (f.root / "mlflow.db").unlink(), "database is gone"),
    "its files elsewhere": (
        lambda f: f.sql("UPDATE runs SET artifact_uri = 'http://10.255.255.1/api/2.0/mlflow-artifacts/artifacts/x'"),
        "outside of the workspace's own, at http://10.255.255.1/api/2.0/mlflow-artifacts/artifacts/x/model: not read",
    ),
    "its files at bytes that are no text": (
        lambda f: f.sql("UPDATE runs SET artifact_uri = x'ff0080'"),
        "does not say where its files lie",
    ),
    "its files in a folder elsewhere that holds the same": (
        lambda f: (
            shutil.copytree(f.root / "mlartifacts", f.root.parent / "elsewhere", dirs_exist_ok=True),
            f.sql(
                "UPDATE runs SET artifact_uri = "
                f"replace(artifact_uri, '{f.root}/mlartifacts', '{f.root.parent}/elsewhere')"
            ),
        ),
        "If the workspace was moved or copied",
    ),
    "files of MLflow's own that are served over its own": (
        lambda f: f.client.create_logged_model(
            f.run_in_mlflow().info.experiment_id, name="model", source_run_id=f.run_in_mlflow().info.run_id
        ),
        "logged model",
    ),
    "a file more in its copy": (lambda f: (f.copy / "more.py").write_text("x"), "holds more.py"),
    "a hidden file more": (lambda f: (f.copy / ".more").write_text("x"), "holds .more"),
    "a link more": (lambda f: (f.copy / "more").symlink_to("/etc"), "holds more"),
    "a file in a folder more": (
        lambda f: ((f.copy / "code").mkdir(), (f.copy / "code" / "a.py").touch()),
        "holds code/a.py",
    ),
    "a file of its copy elsewhere": (
        lambda f: _move_out(f.copy / "MLmodel", f.root.parent),
        "copy of MLmodel is a link",
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


def test_after_a_rollback_the_newest_candidate_has_to_be_challenger_again(forge: Forge, verify: Verify) -> None:
    uri = mlflow_store.default_tracking_uri(forge.workspace)
    context = make_context(forge.workspace, forge.root.parent / "flow")
    versions = ModelVersions(context, lambda: mlflow_store.connect(uri), MODEL, "")
    now, target = champion_moves.rollback_target(forge.workspace, MODEL)
    champion_moves.rollback(versions, target, expected=now, why="it was slow", by="ada@desk")
    for model in (f"models:/{MODEL}@champion", f"models:/{MODEL}@challenger"):
        assert verify(model)[0] == 0, model
    forge.client.delete_registered_model_alias(MODEL, "challenger")
    let_go_of_databases()
    assert "its alias challenger is version None, the refs say 3" in broken(verify)


@pytest.mark.parametrize("attack", ON_LOADING)
def test_a_graph_that_could_run_code_is_named_though_every_digest_is_right(
    forge: Forge, verify: Verify, tmp_path: Path, attack: str
) -> None:
    marker = tmp_path / "marker"
    bad = altered(forge.graph, ON_LOADING[attack], marker, tmp_path / "bad.pt2")
    forge.register_graph(bad, tmp_path / "flow")
    code, message = verify(f"models:/{MODEL}/4")
    whole = [link["what"] for link in message["links"] if link["status"] == "proved"]
    assert code == 5 and "registered model" in whole and "registered graph" not in whole
    named = broken(verify, model=f"models:/{MODEL}/4")
    assert forge.graph.relative_to(forge.root).as_posix() in named and "the graph is refused" in named
    assert not marker.exists()


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


def test_a_database_that_another_process_holds_is_no_finding(forge: Forge, verify: Verify) -> None:
    let_go_of_databases()
    holder = sqlite3.connect(forge.root / "mlflow.db", isolation_level=None)
    with contextlib.closing(holder):
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RegistryError, match=r"another process holds MLflow's database locked.*Verify again"):
            verify()
    let_go_of_databases()
    assert verify()[0] == 0


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
    message = broken(verify)
    assert path.name in message or path.relative_to(forge.root).as_posix() in message


@pytest.mark.process
@pytest.mark.parametrize("num_flips", NUM_FLIPS)
def test_a_bit_flipped_in_any_file_that_the_champion_stands_on_is_named(
    forge: Forge, verify: Verify, num_flips: int
) -> None:
    draw = random.Random("flips")
    files = forge.claimed()
    missed: list[str] = []
    for name in num_flips * files:
        data = bytearray((forge.root / name).read_bytes())
        bit = draw.randrange(8 * len(data)) if data else 0
        if not data:
            continue
        data[bit // 8] ^= 1 << bit % 8
        (forge.root / name).write_bytes(data)
        try:
            message = broken(verify)
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        if Path(name).name not in message or "Error" in message.split(":")[0]:
            missed.append(f"bit {bit} of {name}: {message}")
        forge.restore()
    assert missed == []
