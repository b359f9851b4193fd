"""The kubelet of the tests: a pod is a real process, and its status says what became of it."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from tests.support.control_plane.api import Api, Document, at, condition
from tests.support.control_plane.plane import Plane
from tests.support.kubelet.images import ACCOUNT
from tests.support.kubelet.kubelet import Kubelet
from tests.support.processes import state_of
from tests.support.waiting import until

pytestmark = [pytest.mark.control_plane]
FOREVER: Final = ("sleep", "1000")
STUBBORN: Final = ("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done")


def pod(name: str, command: Sequence[str] = FOREVER, *, spec: Document | None = None, **container: Any) -> Document:
    main = {"name": "main", "image": "machine:1", "command": [*command], **container}
    return {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [main], **(spec or {})}}


def shell(script: str) -> Sequence[str]:
    return ("sh", "-c", script)


def state(found: Document) -> Document:
    (one,) = found["status"].get("containerStatuses", [{"state": {}}])
    return one["state"]


def end(found: Document) -> tuple[int, str]:
    return state(found)["terminated"]["exitCode"], state(found)["terminated"]["reason"]


def test_a_pod_runs_until_it_is_deleted(control_plane: Plane, kubelet: Kubelet, namespace: str) -> None:
    api = control_plane.api
    path = at("pods", namespace, "server")
    api.post(at("pods", namespace), pod("server", shell("trap 'echo told; exit 0' TERM; echo up; sleep 1000 & wait")))
    running = api.until_phase(namespace, "server", "Running")
    assert running["status"]["podIP"].startswith("127.")
    assert condition(running, "Ready")["status"] == "True"
    until(lambda: kubelet.log(namespace, "server") == "up\n", what="up")
    pid = kubelet.pid(namespace, "server")
    api.delete(path)
    api.until_gone(path)
    assert kubelet.log(namespace, "server") == "up\ntold\n"
    assert state_of(pid) is None


def test_a_pod_that_ignores_its_end_is_killed_after_the_grace(
    control_plane: Plane, kubelet: Kubelet, namespace: str
) -> None:
    api = control_plane.api
    path = at("pods", namespace, "deaf")
    api.post(at("pods", namespace), pod("deaf", STUBBORN))
    api.until_phase(namespace, "deaf", "Running")
    until(lambda: kubelet.log(namespace, "deaf") == "deaf\n", what="deaf")
    pid = kubelet.pid(namespace, "deaf")
    api.delete(path, gracePeriodSeconds=1)
    assert "deletionTimestamp" in api.get(path)["metadata"]
    api.until_gone(path)
    assert state_of(pid) is None


@pytest.mark.parametrize(
    ("script", "phase", "code", "reason", "message"),
    [
        ("exit 0", "Succeeded", 0, "Completed", None),
        ("echo no such table >&2; exit 3", "Failed", 3, "Error", "no such table\n"),
        ("kill -SEGV $$", "Failed", 139, "Error", None),
    ],
)
def test_an_end_is_reported(
    control_plane: Plane,
    kubelet: Kubelet,
    namespace: str,
    script: str,
    phase: str,
    code: int,
    reason: str,
    message: str | None,
) -> None:
    control_plane.api.post(
        at("pods", namespace), pod("short", shell(script), terminationMessagePolicy="FallbackToLogsOnError")
    )
    found = control_plane.api.until_phase(namespace, "short", phase)
    assert end(found) == (code, reason)
    assert state(found)["terminated"].get("message") == message


def test_orders_end_a_pod_as_a_node_does(control_plane: Plane, kubelet: Kubelet, namespace: str) -> None:
    api = control_plane.api
    for name in ("large", "unlucky"):
        api.post(at("pods", namespace), pod(name))
        api.until_phase(namespace, name, "Running")
    kubelet.kill_for_memory(namespace, "large")
    assert end(api.until_phase(namespace, "large", "Failed")) == (137, "OOMKilled")
    kubelet.evict(namespace, "unlucky")
    evicted = api.until_phase(namespace, "unlucky", "Failed")
    assert evicted["status"]["reason"] == "Evicted"
    assert evicted["status"]["message"] == "The node was low on resource: memory."
    assert condition(evicted, "DisruptionTarget")["reason"] == "TerminationByKubelet"
    assert end(evicted) == (137, "Error")


def test_an_image_or_a_secret_that_is_not_there_holds_a_pod_up(
    control_plane: Plane, kubelet: Kubelet, namespace: str
) -> None:
    api = control_plane.api
    secret = {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "words", "key": "first"}}}
    api.post(at("pods", namespace), pod("imageless", image="nowhere/worker:1"))
    api.post(at("pods", namespace), pod("secretless", shell('echo "$WORD"'), env=[secret]))
    waits = api.until(at("pods", namespace, "imageless"), lambda found: "ImagePullBackOff" in str(state(found)))
    assert state(waits)["waiting"]["message"] == 'Back-off pulling image "nowhere/worker:1"'
    waits = api.until(at("pods", namespace, "secretless"), lambda found: "ConfigError" in str(state(found)))
    assert state(waits)["waiting"] == {"reason": "CreateContainerConfigError", "message": 'secret "words" not found'}
    api.post(at("secrets", namespace), {"metadata": {"name": "words"}, "stringData": {"first": "please"}})
    api.until_phase(namespace, "secretless", "Succeeded")
    assert kubelet.log(namespace, "secretless") == "please\n"


def test_a_container_finds_what_its_pod_gives_it(control_plane: Plane, kubelet: Kubelet, namespace: str) -> None:
    api = control_plane.api
    api.post(at("secrets", namespace), {"metadata": {"name": "keys"}, "stringData": {"a": "of a", "b": "of b"}})
    api.post(at("configmaps", namespace), {"metadata": {"name": "set"}, "data": {"COLOUR": "blue"}})
    spec: Document = {
        "volumes": [
            {"name": "keys", "secret": {"secretName": "keys", "items": [{"key": "a", "path": "under/a"}]}},
            {"name": "space", "emptyDir": {}},
        ],
        "initContainers": [
            {
                "name": "first",
                "image": "machine:1",
                "command": ["sh", "-c", "echo found > $SPACE/it"],
                "env": [{"name": "SPACE", "value": "/space"}],
                "volumeMounts": [{"name": "space", "mountPath": "/space"}],
            }
        ],
    }
    container: Document = {
        "args": ["main", "$(ME)", "/elsewhere/it"],
        "env": [
            {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "KEYS", "value": "/run/keys"},
            {"name": "TOKENS", "value": ACCOUNT},
        ],
        "envFrom": [{"configMapRef": {"name": "set"}}],
        "volumeMounts": [{"name": "keys", "mountPath": "/run/keys"}, {"name": "space", "mountPath": "/elsewhere"}],
    }
    script = (
        'cat "$KEYS/under/a"; ls "$KEYS" | wc -l; echo "$ME $COLOUR $1"; cat "$2" "$TOKENS/namespace";'
        ' test -s "$TOKENS/token" && test -s "$TOKENS/ca.crt"'
    )
    api.post(at("pods", namespace), pod("rich", shell(script), spec=spec, **container))
    api.until_phase(namespace, "rich", "Succeeded")
    assert kubelet.log(namespace, "rich") == f"of a1\nrich blue rich\nfound\n{namespace}"


def test_probes_decide_what_is_ready_and_what_is_started_again(
    control_plane: Plane, kubelet: Kubelet, namespace: str
) -> None:
    api = control_plane.api
    path = at("pods", namespace, "web")
    probes = {
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 1},
        "livenessProbe": {"exec": {"command": ["test", "!", "-e", "broken"]}, "periodSeconds": 1},
        "ports": [{"name": "http", "containerPort": 8080}],
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    }
    serve = shell(f'rm -f broken; exec {sys.executable} -m http.server 8080 --bind "$IP"')
    api.post(at("pods", namespace), pod("web", serve, spec={"restartPolicy": "Always"}, **probes))
    running = api.until_phase(namespace, "web", "Running")
    assert condition(running, "Ready")["status"] == "False"
    work = kubelet.directory / running["metadata"]["uid"] / "work"
    (work / "ready").touch()
    api.until(path, lambda found: condition(found, "Ready")["status"] == "True")
    (work / "broken").touch()
    again = api.until(path, lambda found: found["status"]["containerStatuses"][0]["restartCount"] == 1)
    assert "terminated" in again["status"]["containerStatuses"][0]["lastState"]
    api.until(path, lambda found: condition(found, "Ready")["status"] == "True")


def test_a_container_that_ends_is_started_again_later_and_later(
    control_plane: Plane, kubelet: Kubelet, namespace: str
) -> None:
    api = control_plane.api
    path = at("pods", namespace, "loop")
    api.post(at("pods", namespace), pod("loop", shell("exit 7"), spec={"restartPolicy": "Always"}))
    found = api.until(path, lambda found: "CrashLoopBackOff" in str(state(found)))
    (status,) = found["status"]["containerStatuses"]
    assert status["restartCount"] >= 1
    assert status["lastState"]["terminated"]["exitCode"] == 7
    assert found["status"]["phase"] == "Running"


def test_an_owner_takes_its_pods_along(control_plane: Plane, kubelet: Kubelet, namespace: str) -> None:
    api = control_plane.api
    owner = api.post(at("configmaps", namespace), {"metadata": {"name": "template"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "template", "uid": owner["metadata"]["uid"]}
    owned = pod("owned")
    owned["metadata"]["ownerReferences"] = [reference]
    api.post(at("pods", namespace), owned)
    api.until_phase(namespace, "owned", "Running")
    pid = kubelet.pid(namespace, "owned")
    api.delete(at("configmaps", namespace, "template"))
    api.until_gone(at("pods", namespace, "owned"))
    assert state_of(pid) is None


def test_a_lost_node_keeps_its_pods_running_unseen(control_plane: Plane, kubelet: Kubelet, namespace: str) -> None:
    api = control_plane.api
    path = at("pods", namespace, "cut-off")
    lost = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    spec = {"nodeSelector": {"kubernetes.io/hostname": "two"}, "tolerations": [lost | {"tolerationSeconds": 1}]}
    api.post(at("pods", namespace), pod("cut-off", spec=spec))
    api.until_phase(namespace, "cut-off", "Running")
    pid = kubelet.pid(namespace, "cut-off")
    kubelet.lose("two")
    try:
        gone = api.until(path, lambda found: "deletionTimestamp" in found["metadata"])
        assert condition(gone, "Ready")["status"] == "False"
        assert gone["status"]["phase"] == "Running"
        assert state_of(pid) is not None
    finally:
        kubelet.regain("two")
    api.until_gone(path)
    assert state_of(pid) is None


def preempt(api: Api, namespace: str, node: str) -> None:
    api.post(at("priorityclasses"), {"metadata": {"name": namespace}, "value": 1000})
    here: Document = {"nodeSelector": {"kubernetes.io/hostname": node}, "priorityClassName": namespace}
    api.post(at("pods", namespace), pod("dear", spec=here, resources={"requests": {"cpu": "1"}}))


def drain(api: Api, namespace: str, node: str) -> None:
    del node
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "cheap", "namespace": namespace}}
    api.post(at("pods", namespace, "cheap", "eviction"), eviction)


@pytest.mark.parametrize(("disrupt", "reason"), [(preempt, "PreemptionByScheduler"), (drain, "EvictionByEvictionAPI")])
def test_a_pod_whose_place_is_wanted_says_who_ends_it(
    control_plane: Plane,
    kubelet: Kubelet,
    namespace: str,
    disrupt: Callable[[Api, str, str], None],
    reason: str,
) -> None:
    api, node, path = control_plane.api, f"small-{namespace}", at("pods", namespace, "cheap")
    kubelet.add_node(node, cpu="1")
    lingers = shell("trap 'until test -e let-go; do sleep 0.1; done; exit 0' TERM; echo up; sleep 1000 & wait")
    spec: Document = {"nodeSelector": {"kubernetes.io/hostname": node}}
    api.post(at("pods", namespace), pod("cheap", lingers, spec=spec, resources={"requests": {"cpu": "1"}}))
    running = api.until_phase(namespace, "cheap", "Running")
    until(lambda: kubelet.log(namespace, "cheap") == "up\n", what="up")

    disrupt(api, namespace, node)
    ending = api.until(path, lambda found: "deletionTimestamp" in found["metadata"])
    assert condition(ending, "DisruptionTarget")["reason"] == reason
    assert ending["status"]["phase"] == "Running"
    (kubelet.directory / running["metadata"]["uid"] / "work" / "let-go").touch()
    api.until_gone(path)
    if disrupt is preempt:
        api.until_phase(namespace, "dear", "Running")


def test_a_node_says_that_it_is_well_again(control_plane: Plane, kubelet: Kubelet) -> None:
    """Its lease ran out while the machine was busy, so the node controller made it unready."""
    api, path = control_plane.api, at("nodes", None, "one")
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    api.patch(at("nodes", None, "one", "status"), {"status": {"conditions": [unknown]}})
    api.until(path, lambda node: condition(node, "Ready")["status"] == "True")
