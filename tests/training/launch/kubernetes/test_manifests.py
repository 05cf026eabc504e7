"""What Kubernetes is told of a run: as its spec says, and nothing that any supported version would refuse."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.training.config.launcher_specs import KubernetesSpec
from headway.training.launch.base.gang import Gang, LaunchSpec, for_stepless_work
from headway.training.launch.base.stop_request import NEVER, StopRequest
from headway.training.launch.kubernetes.manifests import Manifest, job_policies, manifests
from tests.kubernetes_objects import VERSIONS, problem

NOW_S = 1_700_000_000.0
GOLDENS = Path(__file__).parents[1] / "goldens"
DEPLOYMENTS = Path(__file__).parents[4] / "deployments" / "kubernetes"
KEY, ORDER = "headway-0123456789abcdef-0a1b2c3d4e5f", "8badf00d" * 4
EVERYTHING = """
image: registry.example/headway:1
namespace: speech
python: /opt/venv/bin/python
volumes:
- {claim: shared, mount_path: /shared}
- {claim: shared, mount_path: /models, sub_path: models, read_only: true}
resources: {cpu: 16, memory: 64Gi, nvidia.com/gpu: 8}
shared_memory: 16Gi
environment: {NCCL_DEBUG: WARN}
secrets: {HF_TOKEN: {secret: hub, key: token}}
node_selector: {node.kubernetes.io/instance-type: p5.48xlarge}
tolerations:
- {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
- {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, seconds: 0}
service_account: trainer
image_pull_secrets: [registry]
run_as_user: 10001
fs_group: 10001
labels: {kueue.x-k8s.io/queue-name: speech}
annotations: {example.com/owner: "Speech, 3rd floor"}
"""
JOB_ALONE = "secret_environments: [s3]\npriority_class: high\n"


def spec(text: str = EVERYTHING, **fields: Any) -> LaunchSpec:
    return LaunchSpec(launcher="kubernetes", kubernetes=KubernetesSpec(**yaml.safe_load(text)), **fields)


def gang(stop: StopRequest = NEVER, run_dir: str = "/shared/runs of $(HOME)/0123456789abcdef") -> Gang:
    return Gang(
        module="headway.training.programs.worker",
        arguments=("--steps", "3"),
        nodes=4,
        ranks_per_node=8,
        import_path=("/code.zip",),
        run_dir=Path(run_dir),
        stop=stop,
    )


def rendered(form: str, stop: StopRequest = NEVER) -> list[Manifest]:
    text = EVERYTHING + (JOB_ALONE if form == "indexed-job" else "training_runtime: headway\n")
    return manifests(spec(text), gang(stop), KEY, ORDER, NOW_S, ("gpu-node-7", "gpu-node-3"))


@pytest.mark.parametrize("form", ["indexed-job", "train-job"])
def test_the_objects_of_a_run_are_what_its_spec_says(form: str) -> None:
    golden = list(yaml.safe_load_all((GOLDENS / f"{form}.yaml").read_text()))
    assert rendered(form, StopRequest(at_unix_s=NOW_S + 1700)) == golden


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", ["indexed-job", "train-job"])
def test_every_supported_version_takes_every_object(form: str, version: str) -> None:
    plain = spec("image: i\nvolumes: [{claim: shared, mount_path: /shared}]\n")
    for item in [*rendered(form), *manifests(plain, gang(), KEY, ORDER, NOW_S)]:
        assert problem(item, version) == ""


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ((0, "spec", "completionMod"), "Indexed", "completionMod"),
        ((0, "spec", "template", "spec", "containers", 0, "env", 0, "nmae"), "x", "nmae"),
        ((0, "spec", "template", "spec", "volumes", 0, "persistentVolumeClaim"), "shared", "shared"),
        ((1, "spec", "clusterIp"), "None", "clusterIp"),
    ],
)
def test_an_object_with_a_field_that_is_not_there_would_be_refused(path: Any, value: Any, words: str) -> None:
    items = copy.deepcopy(rendered("indexed-job"))
    _set(items, path, value)
    assert words in problem(items[path[0]])


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ((0, "spec", "podTemplateOverrides"), [], "podTemplateOverrides"),
        ((0, "spec", "trainer", "numNode"), 4, "numNode"),
        ((0, "spec", "trainer", "numNodes"), "4", "numNodes"),
        ((0, "spec", "trainer", "env", 0, "nmae"), "x", "nmae"),
        ((0, "metadata", "name"), "0123", "RFC 1035"),
    ],
)
def test_a_train_job_with_a_field_that_is_not_there_would_be_refused(path: Any, value: Any, words: str) -> None:
    items = copy.deepcopy(rendered("train-job"))
    _set(items, path, value)
    assert words in problem(items[0])


def unrestricted(pod: Manifest) -> list[str]:
    """What of a pod the Pod Security Standard *restricted* refuses (Kubernetes 1.25 and later, Linux)."""
    wrong = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    kinds = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    wrong += [f"volume {volume['name']}" for volume in pod.get("volumes", ()) if not volume.keys() - {"name"} <= kinds]
    of_pod = pod.get("securityContext", {})
    if of_pod.get("sysctls"):
        wrong.append("sysctls")
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        own = container.get("securityContext", {})
        both = {**of_pod, **own}
        drops, adds = (own.get("capabilities", {}).get(what, ()) for what in ("drop", "add"))
        rules = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "runAsNonRoot": both.get("runAsNonRoot") is True,
            "runAsUser": both.get("runAsUser") != 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "capabilities": "ALL" in drops and set(adds) <= {"NET_BIND_SERVICE"},
            "procMount": own.get("procMount", "Default") == "Default",
            "hostPort": not any(port.get("hostPort") for port in container.get("ports", ())),
        }
        wrong += [name for name, is_kept in rules.items() if not is_kept]
    return wrong


def pod_of(job: Manifest) -> Manifest:
    """Of an Indexed Job, or of what a TrainJob or its runtime says of one."""
    template: Manifest = job["spec"]
    if job["kind"] == "TrainJob":
        template = template["runtimePatches"][0]["trainingRuntimeSpec"]
    if "replicatedJobs" in template.get("template", {}).get("spec", {}):
        template = template["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    found: Manifest = template["template"]["spec"]
    return found


@pytest.mark.parametrize("form", ["indexed-job", "train-job"])
def test_pods_are_taken_where_pod_security_is_restricted(form: str) -> None:
    runtime = yaml.safe_load((DEPLOYMENTS / "training-runtime.yaml").read_text())
    plain = spec("image: i\nvolumes: [{claim: shared, mount_path: /shared}]\n")
    jobs = [rendered(form)[0], manifests(plain, gang(), KEY, ORDER, NOW_S)[0], runtime]
    assert [unrestricted(pod_of(job)) for job in jobs] == [[], [], []]
    bare = {"containers": [{"name": "node", "image": "i"}]}
    assert unrestricted(bare) == ["allowPrivilegeEscalation", "runAsNonRoot", "seccompProfile", "capabilities"]


@pytest.mark.parametrize("form", ["indexed-job", "train-job"])
def test_only_the_runs_own_pods_reach_its_pods(form: str) -> None:
    job, *others = rendered(form)
    (policy,) = (item for item in others if item["kind"] == "NetworkPolicy")
    pods = {"matchLabels": {"headway/key": KEY}}
    assert policy["spec"] == {
        "podSelector": pods,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": pods}]}],
    }
    labels = [found["headway/key"] for found in _labels_of_pods(job)]
    assert labels == [KEY], "of every pod"


def _labels_of_pods(value: Any) -> list[dict[str, str]]:
    """Wherever in a job a pod's template stands."""
    if isinstance(value, list):
        return [found for each in value for found in _labels_of_pods(each)]
    if not isinstance(value, dict):
        return []
    own = [value["metadata"]["labels"]] if "containers" in value.get("spec", {}) else []
    return own + [found for each in value.values() for found in _labels_of_pods(each)]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_cluster_must_have_is_there_to_be_applied(version: str) -> None:
    items = [item for file in sorted(DEPLOYMENTS.glob("*.yaml")) for item in yaml.safe_load_all(file.read_text())]
    assert {item["kind"] for item in items} >= {"ServiceAccount", "Role", "RoleBinding", "ClusterTrainingRuntime"}
    assert [problem(item, version) for item in items] == [""] * len(items)


def test_the_exporter_is_confined_and_only_prometheus_reaches_it() -> None:
    deployment, service, policy = yaml.safe_load_all((DEPLOYMENTS / "metrics.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    assert unrestricted(pod) == [] and pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    written = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert written == ["/tmp"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"] and "egress" not in policy["spec"]
    (rule,) = policy["spec"]["ingress"]
    (whom,) = rule["from"]
    assert whom["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}
    assert rule["ports"] == [{"protocol": "TCP", "port": "metrics"}]
    assert {port["name"] for port in container["ports"]} == {"metrics"} == {service["spec"]["ports"][0]["targetPort"]}


def test_the_runtime_ends_a_train_job_for_the_reasons_that_end_a_job() -> None:
    runtime = yaml.safe_load((DEPLOYMENTS / "training-runtime.yaml").read_text())
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    wanted = job_policies(LaunchSpec().max_attempts)
    assert {name: job["template"]["spec"][name] for name in wanted} == wanted
    pod = job["template"]["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["containers"][0]["name"]) == ("Never", "node")


def test_a_name_that_no_node_can_have_keeps_no_job_from_being_taken() -> None:
    """Under another launcher the run may have left out a host by what ssh calls it."""
    plain = spec("image: i\nvolumes: [{claim: shared, mount_path: /shared}]\n")

    def message(*without: str) -> str:
        return json.dumps(manifests(plain, gang(), KEY, ORDER, NOW_S, without))

    assert "affinity" not in message() and message("user@c", "GPU_3", "a..b") == message()
    assert message("user@c", "gpu-7.rack.example") == message("gpu-7.rack.example") != message()


@pytest.mark.parametrize("form", ["indexed-job", "train-job"])
def test_no_value_of_a_secret_and_no_variable_of_the_flow_is_in_an_object(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "a-word-that-nobody-else-says")
    message = json.dumps(rendered(form))
    assert "nobody-else" not in message
    assert '{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}' in message


@pytest.mark.parametrize(
    ("bound_s", "deadline_s"),
    [
        pytest.param(math.inf, None, id="no bound"),
        pytest.param(1700.2, 1751, id="the window, and time for the notice after it"),
        pytest.param(-5, 50, id="over already: the supervisor says so"),
    ],
)
@pytest.mark.parametrize("form", ["indexed-job", "train-job"])
def test_the_job_ends_with_the_runs_bound(form: str, bound_s: float, deadline_s: int | None) -> None:
    job, *_ = rendered(form, StopRequest(at_unix_s=NOW_S + bound_s))
    assert job["spec"].get("activeDeadlineSeconds") == deadline_s


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("image: i\nvolumes: [{claim: c, mount_path: /w}]\ntoleration: []", "Did you mean `tolerations`"),
        ("image: i\nvolumes: [{claim: c, mountpath: /w}]", "Did you mean `mount_path`"),
        ("volumes: [{claim: c, mount_path: /w}]", "`image` is missing"),
        ("image: i\nvolumes: []", "at least 1 item"),
        ("image: i\nvolumes: [{claim: c, mount_path: w}]", "must match pattern"),
        ("image: i\nvolumes: [{claim: c, mount_path: /w}]\nresources: {cpu: many}", "must match pattern"),
        ("image: i\nvolumes: [{claim: c, mount_path: /w}]\nrun_as_user: 0", "greater than or equal to 1"),
        ("image: i\nvolumes: [{claim: c, mount_path: /w}]\nsecrets: {A: {secret: s, key: k, value: v}}", "`value`"),
        (
            "image: i\nvolumes: [{claim: c, mount_path: /w}]\nsecrets: {A: {secret: s, key: k}}\nenvironment: {A: x}",
            "both `environment` and `secrets` name A",
        ),
        ("image: i\nvolumes: [{claim: c, mount_path: /w}]\nenvironment: {HEADWAY_JOB: x}", "follows from the run"),
        (
            "image: i\nvolumes: [{claim: c, mount_path: /w}]\ntraining_runtime: r\npriority_class: high",
            "a TrainJob cannot say priority_class",
        ),
    ],
)
def test_what_is_wrong_in_a_pipeline_file_is_named_with_the_nearest_right(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_yaml_model(KubernetesSpec, text, "file")
    assert words in str(refused.value)


def test_the_launcher_and_its_branch_need_each_other() -> None:
    with pytest.raises(ValidationError, match="needs its pods"):
        LaunchSpec(launcher="kubernetes")
    with pytest.raises(ValidationError, match="launcher is 'local'"):
        LaunchSpec(kubernetes=spec().kubernetes)
    quiet = for_stepless_work(spec())
    assert (quiet.launcher, quiet.kubernetes) == ("local", None)


def test_a_run_whose_folder_pods_do_not_see_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"on no volume that the pods can write.*below a mount_path.*: /shared"):
        manifests(spec(), gang(run_dir="/models/runs/0123"), KEY, ORDER, NOW_S)


def _set(items: Any, path: tuple[Any, ...], value: Any) -> None:
    *steps, last = path
    for step in steps:
        items = items[step]
    items[last] = value
