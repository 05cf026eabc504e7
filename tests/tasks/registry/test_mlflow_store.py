"""What is logged of a run is logged again without a change: by a retry, and by whoever reads its documents later."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.data_contracts.store.documents import Link, RunSpec, StoredFile
from headway.data_contracts.store.errors import RegistryError
from headway.tasks.registry import mlflow_store
from tests.tasks.conftest import report_on

ZERO = "0" * 64
LINEAGE = {"headway.snapshot": ZERO, "headway.contract": "c 1.0.0"}
GROUPS = [{"optimizer": "muon", "match": ["größe.*"], "lr": 0.02}, {"optimizer": "adamw", "lr": 0.01}]


@pytest.fixture
def run() -> RunSpec:
    nowhere = StoredFile(path="code/none.zip", size_bytes=0, sha256=ZERO)
    return RunSpec(
        pipeline="tiny",
        config={"seed": 1, "optimizer": {"groups": GROUPS, "betas": [0.9, 0.95]}},
        manifest=Link(kind="manifest", sha256=ZERO),
        receipt=Link(kind="receipt", sha256=ZERO),
        fitted=Link(kind="fitted", sha256=ZERO),
        code=nowhere,
        environment=nowhere,
    )


def test_a_run_that_is_read_again_has_the_parameters_of_the_one_that_was_made(
    run: RunSpec, tmp_path: Path, mlflow_tables: Path
) -> None:
    client = mlflow_store.connect(f"{mlflow_store.SQLITE}{shutil.copy(mlflow_tables, tmp_path)}")
    made = mlflow_store.find_or_create_run(client, None, "tiny", run).info.run_id
    read = RunSpec.from_bytes(run.to_bytes(), where="")
    assert list(read.config["optimizer"]["groups"][0]) != list(GROUPS[0]), "its keys come in another order"
    report = report_on(Link(kind="checkpoint", sha256=ZERO), read.manifest, None)
    for each in (read, run):
        mlflow_store.log_result(client, made, each, report, LINEAGE)
    assert mlflow_store.find_or_create_run(client, None, "tiny", read).info.run_id == made
    parameters = client.get_run(made).data.params
    assert parameters["seed"] == "1" and parameters["optimizer.betas"] == "[0.9,0.95]"
    assert parameters["optimizer.groups"].startswith('[{"lr":0.02,"match":["größe.*"],"optimizer":"muon"},')


def test_a_database_that_would_keep_whoever_asks_waiting_is_refused(tmp_path: Path, mlflow_tables: Path) -> None:
    """`verify` asks it in its own process, and `clean` and each retrain do."""
    database = Path(shutil.copy(mlflow_tables, tmp_path))
    uri = f"{mlflow_store.SQLITE}{database}"
    mlflow_store.connect(uri, must_exist=True)
    pipe = Path(f"{database}-journal")
    os.mkfifo(pipe)
    with pytest.raises(RegistryError, match=r"-journal: it is a pipe, not a file\..*Move aside"):
        mlflow_store.connect(uri, must_exist=True)
    pipe.unlink()
    endless = "with recursive c(x) as (select 1 union all select x + 1 from c) select max(x) from c"
    with contextlib.closing(sqlite3.connect(database)) as opened:
        opened.execute(f"create trigger mine after insert on tags begin {endless}; end")
        opened.commit()
    with pytest.raises(RegistryError, match="the trigger mine, which would be run when it is written"):
        mlflow_store.connect(uri, must_exist=True)
    with contextlib.closing(sqlite3.connect(database)) as opened:
        opened.execute("drop trigger mine")
        opened.execute("alter table model_versions add column mine as (instr(hex(zeroblob(50000000)), 'x'))")
        opened.commit()
    with pytest.raises(RegistryError, match=r"generated column model_versions\.mine, which would be computed"):
        mlflow_store.connect(uri, must_exist=True)


@pytest.mark.parametrize(("start_time_ms", "day"), [(1_790_000_000_000, "2026-09-21"), (1 << 62, "4611686018427388.0")])
def test_a_run_is_named_by_its_day_whatever_a_server_takes_for_its_start(
    tmp_path: Path, mlflow_tables: Path, start_time_ms: int, day: str
) -> None:
    """A version that is registered by then must not be told of as a defect."""
    client = mlflow_store.connect(f"{mlflow_store.SQLITE}{shutil.copy(mlflow_tables, tmp_path)}")
    made = client.create_run(client.create_experiment("tiny"), start_time=start_time_ms).info.run_id
    mlflow_store.name_by_version(client, made, "tiny", "3")
    assert client.get_run(made).info.run_name == f"tiny {day} v3"


ANSWERS = {
    "no JSON": b"hello",
    "another kind": b"[1, 2]",
    "a text for a list": b'{"experiments": "x", "experiment": [1], "model_version": "q"}',
    "a number for a text": b'{"experiments": [{"experiment_id": 7}], "experiment": {"experiment_id": {}}}',
    "deep": b"[" * 100_000,
}


@pytest.fixture(params=ANSWERS.values(), ids=ANSWERS)
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that is none of MLflow's, on the port where one was."""

    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(request.param)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_answers_as_no_mlflow_does_is_a_trouble_of_the_registry(stranger: str) -> None:
    with pytest.raises(RegistryError, match="MLflow refuses"):
        mlflow_store.connect(stranger)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=stranger, registry_uri=stranger)
    with pytest.raises(RegistryError), mlflow_store.mlflow_client(stranger):
        client.get_experiment_by_name("x")


def test_a_defect_of_ours_while_mlflow_is_asked_is_no_trouble_of_the_registry() -> None:
    with pytest.raises(KeyError), mlflow_store.mlflow_client("http://127.0.0.1:9"):
        raise KeyError("ours")
