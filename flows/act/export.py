"""`headway export`: a registered model as files for the world outside, every byte checked."""

from __future__ import annotations

from pathlib import Path

from headway.data_contracts.store.documents import Registration
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, IntegrityError
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.publication import Workspace
from headway.tasks.registry import model_refs
from headway.tasks.registry.model_export import name_in_model
from headway.tasks.serving import exported_model
from headway.tasks.tracking.model_folder import ARTIFACTS
from headway.training.graph_check.safe_graph import require_safe_graph
from headway.training.programs.export import GRAPH, WEIGHTS

COPIED = (f"{WEIGHTS}/", f"{ARTIFACTS}/{GRAPH}", "lineage.json")
"""Of a registered model's files; the others are MLflow's own."""


def export_model(model_uri: str, workspace_uri: str, out: Path) -> list[Path]:
    """Copy weights, configuration, graph, lineage and registration to a new folder, which appears whole or not at all.

    Raises:
        ConfigError: no such model, or the folder is there.
        IntegrityError: a file is gone or altered; or the version was registered before weights were kept with it; or
            loading its graph could run code.
        EnvironmentProblem: the folder cannot be written.
    """
    workspace = Workspace.existing(workspace_uri)
    _, version, link = model_refs.resolve(workspace, model_uri)
    registration = workspace.load(link, Registration)
    if out.exists():
        raise ConfigError("is there already.", where=str(out), advice="Name a folder that --out may make.")
    files = {name_in_model(file): file for file in registration.artifacts}
    chosen = {name: file for name, file in files.items() if name.startswith(COPIED)}
    if not any(name.startswith(f"{WEIGHTS}/") for name in chosen):
        raise IntegrityError(
            "no weights were registered with it.",
            where=model_uri,
            advice="Retrain to register a version that has them; its graph is in MLflow.",
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Of a drawn name: under one that can be guessed, another user of a shared folder could have put a link, or a
        # folder whose files are still theirs once they are checked.
        with scratch_folder("headway-export-", inside=out.parent) as scratch:
            partial = scratch / "model"
            for name, file in chosen.items():
                workspace.copy_out(file, partial / name.removeprefix(f"{WEIGHTS}/").removeprefix(f"{ARTIFACTS}/"))
            if (graph := chosen.get(f"{ARTIFACTS}/{GRAPH}")) is not None:
                # Whoever is given the folder loads it without Headway's check.
                require_safe_graph(partial / GRAPH, graph.path)
            (partial / exported_model.FILE).write_bytes(
                exported_model.exported_model(workspace, version, link).to_bytes()
            )
            partial.rename(out)
    except OSError as error:
        raise EnvironmentProblem(f"cannot be written ({error.strerror}).", where=str(out)) from error
    return sorted(path for path in out.iterdir())
