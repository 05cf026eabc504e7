"""A checkpoint as an MLflow model that holds no pickle: a `torch.export` graph, and the source that serves it."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from headway.data_contracts.store.digests import sha256_file
from headway.data_contracts.store.documents import Link, Registration, StoredFile
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.installation import version
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.candidate import Candidate
from headway.tasks.core.context import RunContext
from headway.tasks.core.gangs import run_stepless
from headway.tasks.core.run_result import checkpoint_here
from headway.tasks.registry import mlflow_store, model_refs
from headway.tasks.tracking.model_folder import ARTIFACTS, CODE, MLMODEL, Example, write_model
from headway.training.checkpoint.layout import run_folder
from headway.training.config.encoder_specs import TabularEncoderSpec
from headway.training.data.encode.data_shape import classes_of
from headway.training.data.encode.table_statistics import table_statistics
from headway.training.graph_check import check
from headway.training.launch.base.gang import LaunchSpec
from headway.training.programs.export import GRAPH, INPUT_EXAMPLE, OUTPUT_EXAMPLE, WEIGHTS
from headway.training.recipes.built_in import BUILT_IN

SERVED_BY = Path(__file__).with_name("served_graph.py")
GRAPH_CHECK = Path(check.__file__).parent
"""The package that `served_graph` imports."""
CONFIG = "config.json"
"""Among the weights: what builds the model, and what its encoder learnt."""
REQUIRED = ("mlflow", "numpy", "torch")
IN_A_VERSION = re.compile(r"(?P<folder>models/[^/]+/[^/]+)/(?P<file>.+)")
"""The path of a registered file."""


def export_graph(context: RunContext, launch: LaunchSpec, candidate: Candidate) -> Path:
    """Let one rank, on the run's frozen code, write the graph and its examples; returns their folder."""
    workspace = context.workspace
    run_dir = workspace.local_path(f"{run_folder(candidate.run.link)}/export")
    run_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = checkpoint_here(workspace, candidate.folder, candidate.manifest)
    arguments = ("--checkpoint", str(checkpoint), "--out", str(run_dir))
    run_stepless(context, launch, candidate.run, "headway.training.programs.export", run_dir, *arguments)
    return run_dir


def name_in_model(file: StoredFile) -> str:
    """A registered file's name below the model's own folder, `models/NAME/CHECKPOINT`."""
    return "/".join(file.path.split("/")[3:])


def registered_graph(registration: Registration) -> StoredFile:
    """Raises `IntegrityError`: the registration names none."""
    for file in registration.artifacts:
        if file.path.endswith(f"/{ARTIFACTS}/{GRAPH}"):
            return file
    raise IntegrityError("no graph is registered.", where=registration.link.short)


@contextlib.contextmanager
def naming_the_copy(workspace: Workspace, model: str, version: str, registration: Link) -> Iterator[None]:
    """Where a registered file is gone or altered, add the command that brings it back: MLflow has a copy of its own.

    A retrain makes again what the newest version stands on, and no other's.
    """
    try:
        yield
    except IntegrityError as error:
        found = IN_A_VERSION.fullmatch(error.where)
        if found is None or error.advice or not workspace.is_local:
            raise
        entry = model_refs.last_entry(workspace, model, registration)
        store = "" if entry is None else model_refs.version_detail(model, entry).tracking_uri
        # Another store's URI may hold a password.
        uri = "" if store else f"MLFLOW_TRACKING_URI={shlex.quote(mlflow_store.default_tracking_uri(workspace))} "
        where = " with MLFLOW_TRACKING_URI of the store that it was registered in" if store else ""
        wanted = shlex.quote(f"models:/{model}/{version}/{found['file']}")
        folder = shlex.quote(str(workspace.local_path(found["folder"])))
        raise IntegrityError(
            error.what,
            where=error.where,
            advice=f"MLflow's own copy brings it back{where}: `{uri}mlflow artifacts download "
            f"--artifact-uri {wanted} --dst-path {folder}`. Its digest is checked when it is read.",
        ) from error


def save_model(exported: Path, lineage: dict[str, str], target: Path) -> None:
    """Write an MLflow model folder around the graph in `exported`, with signature, input example, weights and lineage.

    The folder's bytes are a function of graph, examples, weights and lineage alone, so that registering again after a
    crash, or after damage, is the same registration.
    """
    rows = _rows_of(exported)
    config = {} if rows is None else {"config_sha256": sha256_file(exported / WEIGHTS / CONFIG)}
    # What the graph itself reads, of a model that is asked with rows as the source has them.
    graph_example = {} if rows is None else {"example": exported / INPUT_EXAMPLE}
    description = write_model(
        target,
        served_by=SERVED_BY,
        artifacts={"graph": exported / GRAPH, **graph_example},
        package=GRAPH_CHECK,
        config={"graph_sha256": sha256_file(exported / GRAPH), **config},
        example=_of_arrays(exported) if rows is None else Example.of_row(*rows),
        requires=REQUIRED,
    )
    for folder in (target, target / CODE / GRAPH_CHECK.name):
        # Where Python keeps what it compiled, and looks first: with a file there it writes nothing into what is proved.
        (folder / "__pycache__").write_bytes(b"")
    shutil.copytree(exported / WEIGHTS, target / WEIGHTS)
    (target / "lineage.json").write_text(json.dumps(lineage, indent=1, sort_keys=True) + "\n")
    # Of the lineage, so that an export that is repeated has the same bytes. MLflow would add a clock.
    description["model_uuid"] = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(lineage, sort_keys=True)).hex
    # For `mlflow.pytorch`, too.
    flavor = {"code": None, "model_data": ARTIFACTS, "pytorch_version": version("torch")}
    description["flavors"]["pytorch"] = flavor
    (target / MLMODEL).write_text(yaml.safe_dump(description))


def _of_arrays(exported: Path) -> Example:
    import numpy as np

    given, made = (np.load(exported / name, allow_pickle=False) for name in (INPUT_EXAMPLE, OUTPUT_EXAMPLE))
    return Example.of_arrays(given, made)


def _rows_of(exported: Path) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """A row as the source might have it, and the columns of an answer; None: it is no table's, or a recipe of one's
    own, of which nobody else knows how it calls its model."""
    path = exported / WEIGHTS / CONFIG
    model = json.loads(path.read_bytes())["model"] if path.exists() else {}
    if model.get("recipe") not in BUILT_IN or model["encoder"]["kind"] != "tabular":
        return None
    fitted = model["encoder"]["fitted"]
    spec = TabularEncoderSpec.model_validate(model["encoder"]["spec"])
    learnt, classes = table_statistics(spec, fitted), classes_of(spec, fitted)
    row = {
        **{each.column: each.mean for each in learnt.numeric},
        **{each.column: _moment(each.first_us, is_zoned=each.is_zoned) for each in learnt.times},
        **{each.column: next(iter(each.values), "") for each in learnt.categorical},
    }
    return row, ("prediction", *(f"p({name})" for name in classes))


def _moment(unix_us: int, *, is_zoned: bool) -> str:
    moment = datetime.fromtimestamp(unix_us / 1e6, UTC)
    return (moment if is_zoned else moment.replace(tzinfo=None)).isoformat()
