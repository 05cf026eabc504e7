"""What is logged of a run is logged again without a change: by a retry, and by whoever reads its documents later."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headway.data_contracts.store.documents import Link, RunSpec, StoredFile
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
