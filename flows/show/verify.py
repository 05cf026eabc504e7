"""`headway verify`: the chain of proof, link by link, on a terminal or as JSON."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from headway.data_contracts.store.digests import sha256_file
from headway.data_contracts.store.documents import Link, Snapshot
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.console.environment import project_folder
from headway.flows.console.output import print_json, print_line
from headway.flows.console.pipeline_names import pipeline_files
from headway.tasks.prove.prove import OUTSIDE, UNSIGNED, ChainProof, prove, source_proof
from headway.tasks.stages.snapshot import known_place

MARKS = {"proved": "proved", "gone": "gone  ", "broken": "BROKEN"}


def verify_model(model_uri: str, workspace_uri: str, *, as_json: bool) -> int:
    """Print every link; 0 when the chain holds, the exit code of an integrity error when one is broken."""
    workspace = Workspace.existing(workspace_uri)
    found = []
    for proof in proofs(workspace, model_uri):
        found.append(proof)
        if not as_json:
            print_line(f"{MARKS[proof.status]}  {proof.what:<34} {proof.detail}")
    broken = [proof for proof in found if proof.status == "broken"]
    gone = any(proof.status == "gone" for proof in found)
    verdict = "broken" if broken else "source gone, shards prove it" if gone else "proved"
    if as_json:
        links = [{"what": p.what, "status": p.status, "detail": p.detail} for p in found]
        print_json({"model": model_uri, "verdict": verdict, "links": links, "outside": OUTSIDE, "unsigned": UNSIGNED})
    else:
        print_line(f"\nNot proved without signatures: {'; '.join(UNSIGNED)}.")
        print_line(f"Outside the proof: {'; '.join(OUTSIDE)}.")
        print_line(f"{model_uri}: {verdict}" + (f" at {broken[0].what}: {broken[0].detail}" if broken else ""))
    return IntegrityError.exit_code if broken else 0


def proofs(workspace: Workspace, model_uri: str, *, aliases: bool = True) -> Iterator[ChainProof]:
    """Every link of a model's proof, its source's files where they were read.

    Args:
        aliases: do MLflow's aliases have to say what the refs say?

    Raises:
        ConfigError: no such model.
        RegistryError: an MLflow server, or the store of its files, does not answer.
    """

    def read_source(link: Link) -> Iterator[ChainProof]:
        base = known_place(workspace, link)
        snapshot = workspace.load(link, Snapshot)
        if base is None:
            yield ChainProof(what="source", status="gone", detail="nobody recorded where it lies; the shards prove it")
        else:
            yield from source_proof(snapshot, base, lambda path: sha256_file(base / path))

    return prove(workspace, model_uri, read_source, _may_ask, aliases=aliases)


def _may_ask(model: str, store: str) -> bool:
    """A store that MLFLOW_TRACKING_URI names, or in which a pipeline of this project registers the model."""
    if store == os.environ.get("MLFLOW_TRACKING_URI"):
        return True
    for path in pipeline_files(project_folder()):
        with contextlib.suppress(ConfigError):
            registry = load_pipeline(path).registry
            if (registry.model, registry.tracking_uri) == (model, store):
                return True
    return False
