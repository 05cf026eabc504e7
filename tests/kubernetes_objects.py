"""What Kubernetes would refuse of an object, found without one: unknown fields, wrong types, what is missing.

Kubernetes' own schemas for its own kinds; for Kubeflow Trainer's the models it publishes, which silently drop what they
do not know: so what comes out must be what went in. Rules that only a server knows (CEL, webhooks) are not among them,
but for those that a TrainJob of ours could break.
"""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
from pydantic import ValidationError

VERSIONS = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
"""Of Kubernetes, that are supported."""
_TRAINER = {"TrainJob": "TrainerV1alpha1TrainJob", "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime"}
"""Classes of Kubeflow's models, which a second is spent on importing: whoever only collects tests needs none."""


def problem(item: dict[str, Any], version: str = VERSIONS[-1]) -> str:
    """Empty where it would be taken."""
    if name := _TRAINER.get(item.get("kind", "")):
        from kubeflow_trainer_api import models

        return _trainers_problem(getattr(models, name), item)
    try:
        kubernetes_validate.validate(item, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError as error:
        return str(error.message)
    return ""


def _trainers_problem(model: Any, item: dict[str, Any]) -> str:
    if item.get("apiVersion") != "trainer.kubeflow.org/v1alpha1":
        return f"no such version: {item.get('apiVersion')}"
    try:
        known = model.from_dict(item).to_dict()
    except (ValidationError, AttributeError) as error:
        return " ".join(str(error).split())
    if unknown := _lost(item, known):
        return f"unknown field {unknown}"
    if item["kind"] != "TrainJob":
        return ""
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name := item["metadata"]["name"]) or len(name) > 63:
        return "metadata.name must match RFC 1035 DNS label format"
    for patch in item["spec"].get("runtimePatches", ()):
        for job in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            containers = job["template"]["spec"]["template"]["spec"].get("containers", ())
            if any(container["name"] == "node" and "env" in container for container in containers):
                return "env of the trainer's container is set by spec.trainer.env alone"
    return ""


def _lost(given: Any, known: Any, path: str = "") -> str:
    """The first field that did not come through."""
    if isinstance(given, dict):
        for name, value in given.items():
            if not isinstance(known, dict) or name not in known:
                return f"{path}.{name}".lstrip(".")
            if lost := _lost(value, known[name], f"{path}.{name}"):
                return lost
    if isinstance(given, list):
        for number, value in enumerate(given):
            if lost := _lost(value, known[number], f"{path}[{number}]"):
                return lost
    return ""
