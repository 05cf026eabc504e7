"""`headway deploy PROFILE --render-exporter`: the shipped exporter's manifest, with the names that the project goes by.

Image, namespace, volume and user are those of what runs on Kubernetes there: the exporter reads the workspace that its
pods write.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import yaml

from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.pipeline_spec import SHIPPED
from headway.flows.deploy.resources import DesiredState
from headway.training.config.launcher_specs import KubernetesSpec, Volume

TEMPLATE = SHIPPED / "deployments" / "kubernetes" / "metrics.yaml"
WORKSPACE = "HEADWAY_WORKSPACE"
COMMENT = """\
# Rendered by `headway deploy PROFILE --render-exporter`, for `kubectl apply -f -`. Image, namespace, volume and user
# are those of {source}. The password that it asks for is a Secret:
#
#   kubectl --namespace {namespace} create secret generic headway-metrics \\
#       --from-literal=password="$(openssl rand -hex 24)"
"""


def render_exporter(wanted: DesiredState) -> str:
    """The text of its manifests.

    Raises:
        ConfigError: nothing of the project runs on Kubernetes, or no volume holds the workspace.
    """
    source, spec = _on_kubernetes(wanted)
    workspace = (wanted.profile.env or {}).get(WORKSPACE) or ""
    volume = _holding(spec, workspace)
    items: list[dict[str, Any]] = list(yaml.safe_load_all(TEMPLATE.read_text()))
    for item in items:
        item["metadata"]["namespace"] = spec.namespace
    pod: dict[str, Any] = items[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["image"] = spec.image
    _set_variable(container, WORKSPACE, workspace)
    # The template's readers and writers are one user; so are those of the project.
    if spec.run_as_user is not None:
        pod["securityContext"] |= {"runAsUser": spec.run_as_user, "runAsGroup": spec.fs_group or spec.run_as_user}
    if spec.fs_group is not None:
        pod["securityContext"]["fsGroup"] = spec.fs_group
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in spec.image_pull_secrets]
    _mount(pod, container, volume)
    text = yaml.safe_dump_all(items, sort_keys=False, allow_unicode=True, width=120)
    comment = COMMENT.format(source=source, namespace=spec.namespace)
    return comment.replace("PROFILE", wanted.profile_name) + text


def _on_kubernetes(wanted: DesiredState) -> tuple[str, KubernetesSpec]:
    """Of the first pipeline by name that runs there, else of the probe; and what to call it."""
    probe = wanted.profile.probe
    launches = [(f"the pipeline {name}", each.launch) for name, each in sorted(wanted.pipelines.items())]
    if probe is not None and probe.launch is not None:
        launches.append(("the profile's probe", probe.launch))
    for source, launch in launches:
        if launch.kubernetes is not None:
            return source, launch.kubernetes
    raise ConfigError(
        "no pipeline of the project, and no probe of the profile, runs on Kubernetes.",
        where="--render-exporter",
        advice="An exporter goes where training is: `headway metrics --listen` serves a machine's, and "
        "deployments/kubernetes/metrics.yaml can be edited by hand.",
    )


def _holding(spec: KubernetesSpec, workspace: str) -> Volume:
    """The innermost volume that has the workspace on it."""
    place = PurePosixPath(workspace)
    found = [each for each in spec.volumes if place.is_relative_to(each.mount_path)]
    if not workspace or not found:
        mounted = ", ".join(each.mount_path for each in spec.volumes)
        raise ConfigError(
            f"the workspace {workspace!r} is on none of the volumes at {mounted}."
            if workspace
            else "it is not known where the workspace is.",
            where="--render-exporter",
            advice=f"Say it in the profile's `env: {{{WORKSPACE}: ...}}`, as a path on one of the volumes. For a "
            "workspace in object storage edit deployments/kubernetes/metrics.yaml by hand: it needs egress and keys.",
        )
    return max(found, key=lambda each: len(PurePosixPath(each.mount_path).parts))


def _set_variable(container: Mapping[str, Any], name: str, value: str) -> None:
    (variable,) = (each for each in container["env"] if each["name"] == name)
    # A dollar in brackets is Kubernetes' own, unless there are two.
    variable["value"] = value.replace("$(", "$$(")


def _mount(pod: Mapping[str, Any], container: Mapping[str, Any], volume: Volume) -> None:
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "workspace")
    mount["mountPath"] = volume.mount_path
    if volume.sub_path:
        mount["subPath"] = volume.sub_path
    (claimed,) = (each for each in pod["volumes"] if each["name"] == "workspace")
    claimed["persistentVolumeClaim"]["claimName"] = volume.claim
