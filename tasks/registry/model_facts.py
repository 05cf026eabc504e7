"""What a policy asks of a registered model beside its figures: size, signature, example, latency, age of its data."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from headway.data_contracts.rules.contract import LABEL_LEAK, LIKELY_LEAK
from headway.data_contracts.store.documents import ContractReceipt, Link, Registration, RunSpec
from headway.data_contracts.store.errors import ConfigError, IntegrityError, shortened
from headway.data_contracts.store.leftovers import scratch_folder
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.strict_yaml import parse_yaml
from headway.tasks.registry.model_export import name_in_model, registered_graph
from headway.tasks.registry.promotion_decision import Subject
from headway.tasks.registry.promotion_spec import PromotionSpec
from headway.tasks.tracking.model_folder import ARTIFACTS
from headway.training.graph_check.safe_graph import require_safe_graph
from headway.training.programs.export import INPUT_EXAMPLE

TIMED_GRAPH = Path(__file__).with_name("timed_graph.py")
CALLS = 100
WITHIN_S = 300.0
DESCRIPTION = "MLmodel"


def subject_of(
    workspace: Workspace,
    policy: PromotionSpec,
    registration: Link,
    evaluation: Link,
    champion: Link | None,
    *,
    blocked_reason: str = "",
    latency_ms: float | None = None,
    approved: str = "",
    refused: str = "",
) -> Subject:
    """All that a decision needs, from the documents of a registration; the latency is measured where it is asked for.

    Args:
        latency_ms: as it was measured before on this kind of machine, so that it is not measured again.

    Raises:
        IntegrityError: a document or the registered description is gone or damaged.
    """
    document = workspace.load(registration, Registration)
    run = workspace.load(document.run, RunSpec)
    description = _description(workspace, document)
    graph = next((file for file in document.artifacts if file.path.endswith(".pt2")), None)
    problem = ""
    if policy.max_latency_ms is not None and latency_ms is None:
        try:
            latency_ms = latency_of(workspace, document)
        except IntegrityError as error:
            problem = str(error)
    receipt = workspace.load(run.receipt, ContractReceipt)
    return Subject(
        model=document.model,
        registration=registration,
        evaluation=evaluation,
        checkpoint=document.checkpoint,
        manifest=run.manifest,
        champion=champion,
        model_bytes=None if graph is None else graph.size_bytes,
        latency_ms=latency_ms,
        timed_on=machine_here(),
        latency_problem=problem,
        data_age_s=data_age_s(receipt, time.time()),
        label_leak=receipt.verdict(LABEL_LEAK),
        likely_leak=receipt.verdict(LIKELY_LEAK),
        has_signature=bool((description.get("signature") or {}).get("inputs")),
        has_input_example=_example(workspace, document, description) is not None,
        blocked_reason=blocked_reason,
        approved=approved,
        refused=refused,
    )


def machine_here() -> str:
    """The kind of machine that a latency holds for."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{platform.machine()} {next(names, platform.processor())}".strip()


def data_age_s(receipt: ContractReceipt, now_unix_s: float) -> float | None:
    """Age of the newest row, in seconds; of several rules the oldest. None: no rule says how new the data are."""
    newest = [each.unix_s for each in receipt.freshness]
    known = [unix_s for unix_s in newest if unix_s is not None]
    # One rule without a time makes the age unknown: the rest could look fresher than the data are.
    return now_unix_s - min(known) if known and len(known) == len(newest) else None


def latency_of(workspace: Workspace, registration: Registration) -> float:
    """95th percentile in milliseconds of one call of the registered graph on its input example, on one thread.

    Raises:
        IntegrityError: there is no example, or the graph cannot be called with it, or loading it could run code.
    """
    description = _description(workspace, registration)
    example = _example(workspace, registration, description)
    if example is None:
        raise IntegrityError("no input example is registered.", where=registration.link.short)
    # Of a table, MLflow's own example is a row as the source has it, and this what the graph is called with.
    encoded = _read(workspace, registration, f"{ARTIFACTS}/{INPUT_EXAMPLE}")
    dtype = "" if encoded is not None else _input_dtype(registration, description)
    with scratch_folder("headway-latency-") as folder:
        graph = folder / "model.pt2"
        registered = registered_graph(registration)
        workspace.copy_out(registered, graph)
        require_safe_graph(graph, registered.path)
        given = folder / "example"
        given.write_bytes(example if encoded is None else encoded)
        command = [sys.executable, "-P", str(TIMED_GRAPH), str(graph), str(given), dtype, str(CALLS)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=WITHIN_S, cwd=folder, text=True)
        except subprocess.TimeoutExpired as error:
            raise IntegrityError(f"{CALLS} calls took longer than {WITHIN_S:g} s.", where=graph.name) from error
    if done.returncode != 0:
        message = done.stderr.strip().splitlines()
        raise IntegrityError(
            f"cannot be called: {shortened(message[-1], 200) if message else 'no word why'}", where=graph.name
        )
    return float(json.loads(done.stdout)["p95_ms"])


def _read(workspace: Workspace, registration: Registration, name: str) -> bytes | None:
    """A registered file by its name in the model's folder, its digest checked; None where there is no such file."""
    for file in registration.artifacts:
        if name_in_model(file) == name:
            return workspace.read_stored(file)
    return None


def _description(workspace: Workspace, registration: Registration) -> dict[str, Any]:
    """MLflow's `MLmodel`.

    Raises:
        IntegrityError: not readable.
    """
    data = _read(workspace, registration, DESCRIPTION)
    try:
        return dict(parse_yaml((data or b"{}").decode(), DESCRIPTION))
    except (ConfigError, ValueError, TypeError) as error:
        raise IntegrityError("the registered description is not readable.", where=registration.link.short) from error


def _input_dtype(registration: Registration, description: dict[str, Any]) -> str:
    """Raises `IntegrityError`: the description does not say what goes in."""
    try:
        return str(json.loads(description["signature"]["inputs"])[0]["tensor-spec"]["dtype"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise IntegrityError(
            "its signature does not say of which type the input example is.", where=registration.link.short
        ) from error


def _example(workspace: Workspace, registration: Registration, description: dict[str, Any]) -> bytes | None:
    named = (description.get("saved_input_example_info") or {}).get("artifact_path")
    return None if named is None else _read(workspace, registration, str(named))
