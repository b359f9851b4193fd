"""The chart's executors, rendered: settings, rights and ports, and nothing of them without a profile that has some."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from service.launchers.kubernetes.pods import Templates
from tests.support.helm import find_helm

# The first test may have to build helm.
pytestmark = pytest.mark.timeout(1200)

CHART: Final = Path(__file__).parents[3] / "helm" / "tidefill"
KUBERNETES: Final = "1.33"
BIG: Final = {
    "executors": 3,
    "sparkConf": {"spark.executor.cores": "4", "spark.executor.memory": "8g"},
    "nodeSelector": {"pool": "spot"},
    "priorityClassName": "cheap",
}
VALUES: Final[dict[str, Any]] = {
    "fullnameOverride": "tides",
    "imagePullSecrets": ["pull-credentials"],
    "worker": {
        "launcher": "kubernetes",
        "image": {"repository": "example.com/worker", "tag": "7", "pullPolicy": "Always"},
        "profiles": {"database": {"executors": 0}, "big": BIG},
    },
    "networkPolicy": {"enabled": True},
}
PORTS: Final = {"driver": "spark.driver.port", "blocks": "spark.driver.blockManager.port"}


@pytest.fixture(scope="module")
def helm() -> Path:
    found = find_helm()
    if found is None:
        pytest.skip("needs helm, or Go to build it")
    return found


def rendered(helm: Path, values: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the manifests by kind and name."""
    ran = subprocess.run(
        [
            helm,
            "template",
            "release",
            CHART,
            "--namespace",
            "data",
            "--kube-version",
            f"{KUBERNETES}.0",
            "--values",
            "-",
        ],
        input=yaml.safe_dump(values),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(ran.stdout) if one}


def worker(manifests: dict[tuple[str, str], dict[str, Any]], profile: str) -> dict[str, Any]:
    """Return the template of a profile."""
    return json.loads(manifests["ConfigMap", "tides-worker"]["data"][f"{profile}.json"])


def conf(template: dict[str, Any]) -> dict[str, str]:
    """Return the Spark settings of a worker."""
    (container,) = template["spec"]["containers"]
    (found,) = [one["value"] for one in container["env"] if one["name"] == "TIDEFILL_SPARK_CONF"]
    return json.loads(found)


def test_without_executors_nothing_of_them_is_there(helm: Path) -> None:
    values = {**VALUES, "worker": {**VALUES["worker"], "profiles": {"database": {"executors": 0}, "big": {}}}}
    manifests = rendered(helm, values)
    named = {name for kind, name in manifests if kind in {"Role", "ServiceAccount", "NetworkPolicy", "RoleBinding"}}
    assert named == {"tides", "tides-launcher", "tides-worker"}
    assert set(manifests["ConfigMap", "tides-worker"]["data"]) == {"big.json", "database.json", "serverless.json"}
    assert "ingress" not in manifests["NetworkPolicy", "tides-worker"]["spec"]
    assert worker(manifests, "big") == worker(manifests, "database")


def test_a_deployment_has_no_executors(helm: Path) -> None:
    plain = rendered(helm, {**VALUES, "worker": {"launcher": "deployment", "profiles": VALUES["worker"]["profiles"]}})
    assert "driver" not in " ".join(name for _, name in plain)
    assert "k8s://" not in json.dumps(list(plain.values()))


def test_a_worker_with_executors_knows_its_pod_and_theirs(helm: Path) -> None:
    manifests = rendered(helm, VALUES)
    template = worker(manifests, "big")
    kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **template}, KUBERNETES, strict=True)
    found, (container,) = conf(template), template["spec"]["containers"]
    assert found["spark.executor.instances"] == "3"
    assert found["spark.default.parallelism"] == "12", "actors for each slot"
    assert (found["spark.executor.cores"], found["spark.executor.memory"]) == ("4", "8g"), (
        "the values of the profile win"
    )
    assert found["spark.kubernetes.container.image"] == "example.com/worker:7"
    assert found["spark.kubernetes.container.image.pullPolicy"] == "Always"
    assert found["spark.authenticate"] == found["spark.network.crypto.enabled"] == "true"
    assert found["spark.kubernetes.driver.pod.name"] == "$(POD_NAME)", "the worker's pod owns them"
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "$(POD_IP)"
    # A variable in a setting is one that the container has, before the setting.
    names = [one["name"] for one in container["env"]]
    for name in ("POD_NAME", "POD_NAMESPACE", "POD_IP"):
        assert f"$({name})" in found.values()
        assert names.index(name) < names.index("TIDEFILL_SPARK_CONF")
    masters = {one["name"]: one.get("value") for one in container["env"]}
    assert masters["TIDEFILL_SPARK_MASTER"] == "k8s://https://kubernetes.default.svc"
    assert template["spec"]["automountServiceAccountToken"] is True
    # The template of executors is where the setting names it.
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "executor"]
    (volume,) = [one["configMap"] for one in template["spec"]["volumes"] if one["name"] == "executor"]
    ((key, path),) = [(item["key"], item["path"]) for item in volume["items"]]
    assert found["spark.kubernetes.executor.podTemplateFile"] == f"{mount['mountPath']}/{path}"
    assert volume["name"] == "tides-worker"
    assert key in manifests["ConfigMap", "tides-worker"]["data"]
    assert set(Templates.of(with_uid(manifests)).texts) == {"database", "serverless", "big"}, "executors are no profile"


def with_uid(manifests: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    found = manifests["ConfigMap", "tides-worker"]
    return {**found, "metadata": {**found["metadata"], "uid": "5a0c1f3e-0000-4000-8000-000000000001"}}


def test_an_executor_is_a_pod_of_the_worker_s_image_without_rights(helm: Path) -> None:
    manifests = rendered(helm, VALUES)
    pod = yaml.safe_load(manifests["ConfigMap", "tides-worker"]["data"]["big.executor.yaml"])
    (container,) = pod["spec"]["containers"]
    container["image"] = conf(worker(manifests, "big"))["spark.kubernetes.container.image"]  # as Spark does
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    assert container["command"] == ["python", "-m", "workers.executor"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["nodeSelector"] == {"pool": "spot"}
    assert pod["spec"]["priorityClassName"] == "cheap"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull-credentials"}]
    driver = worker(manifests, "big")["spec"]
    assert pod["spec"]["securityContext"] == driver["securityContext"]
    assert container["securityContext"] == driver["containers"][0]["securityContext"]
    assert "secret" not in json.dumps(pod["spec"]["volumes"])
    # The service deletes pods of its workers that it does not know.
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "executor"
    account = conf(worker(manifests, "big"))["spark.kubernetes.authenticate.executor.serviceAccountName"]
    bound = [
        subject["name"] for (kind, _), one in manifests.items() if kind == "RoleBinding" for subject in one["subjects"]
    ]
    assert ("ServiceAccount", account) in manifests
    assert account not in bound


def test_only_a_worker_with_executors_may_create_them(helm: Path) -> None:
    manifests = rendered(helm, VALUES)
    assert worker(manifests, "big")["spec"]["serviceAccountName"] == "tides-driver"
    assert worker(manifests, "database")["spec"]["serviceAccountName"] == "tides"
    assert worker(manifests, "database")["spec"]["automountServiceAccountToken"] is False
    (rule,) = manifests["Role", "tides-driver"]["rules"]
    assert rule == {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["create", "get", "list", "watch", "delete", "deletecollection"],
    }
    binding = manifests["RoleBinding", "tides-driver"]
    assert [subject["name"] for subject in binding["subjects"]] == ["tides-driver"]
    assert ("Role", "tides-executors") not in manifests, "it is for executors that are the user's"
    off = "false"
    unneeded = ("disableConfigMap", "ownPersistentVolumeClaim", "reusePersistentVolumeClaim", "deleteOnTermination")
    found = {name.rsplit(".", 1)[-1]: value for name, value in conf(worker(manifests, "big")).items()}
    assert [found[name] for name in unneeded] == ["true", off, off, off]


def test_executors_reach_the_ports_that_are_set_and_no_others(helm: Path) -> None:
    manifests = rendered(helm, VALUES)
    found, (container,) = conf(worker(manifests, "big")), worker(manifests, "big")["spec"]["containers"]
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert ports == {name: found[setting] for name, setting in PORTS.items()}
    (ingress,) = manifests["NetworkPolicy", "tides-worker"]["spec"]["ingress"]
    assert {port["port"] for port in ingress["ports"]} == set(ports)
    pod = yaml.safe_load(manifests["ConfigMap", "tides-worker"]["data"]["big.executor.yaml"])
    (peer,) = ingress["from"]
    assert peer["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    policy = manifests["NetworkPolicy", "tides-executor"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (ingress,) = policy["ingress"]
    assert [str(port["port"]) for port in ingress["ports"]] == [found["spark.blockManager.port"]]
    for policy in ("tides-worker", "tides-executor"):
        kubernetes_validate.validate(manifests["NetworkPolicy", policy], KUBERNETES, strict=True)


def test_another_template_of_executors_is_another_template_of_their_worker(helm: Path) -> None:
    """Only its path is in the worker's, so a hash of it is there too."""
    found = [
        worker(rendered(helm, {**VALUES, "imagePullSecrets": [name]}), "big")["metadata"]["annotations"]
        for name in ("one", "one", "other")
    ]
    assert found[0] == found[1] != found[2]
