"""The control plane of the tests: what its own controllers do, with nodes on which nothing has to run."""

from typing import Final

import pytest

from tests.support.control_plane.api import RefusedError, at, condition
from tests.support.control_plane.plane import Plane
from tests.support.kubelet.kubelet import Kubelet

pytestmark = [pytest.mark.control_plane]
MEMORY_MIB_MAX: Final = 1024


def pod(name: str, *command: str, **more: object) -> dict[str, object]:
    container = {"name": "main", "image": "machine:1", "command": command or ("sleep", "1000")}
    return {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [container | more]}}


def test_a_quota_says_what_it_refuses(control_plane: Plane, namespace: str) -> None:
    api = control_plane.api
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    api.post(at("resourcequotas", namespace), quota)
    api.until(at("resourcequotas", namespace, "few"), lambda found: found["status"].get("hard"))
    with pytest.raises(RefusedError) as refused:
        api.post(at("pods", namespace), pod("one-too-many"))
    assert refused.value.status == 403
    assert "exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0" in refused.value.text


def test_an_account_has_the_rights_of_its_role_and_no_others(control_plane: Plane, namespace: str) -> None:
    account = control_plane.client(control_plane.create_account(namespace, "worker", ("pods", "create,list")))
    assert account.items(at("pods", namespace)) == []
    assert account.post(at("pods", namespace), pod("dry"), dryRun="All")["metadata"]["name"] == "dry"
    assert account.items(at("pods", namespace)) == []
    for path in (at("secrets", namespace), at("pods", "default"), at("pods", namespace, "dry")):
        with pytest.raises(RefusedError) as refused:
            account.get(path)
        assert refused.value.status == 403
        assert f'User "system:serviceaccount:{namespace}:worker" cannot' in refused.value.text


def test_a_pod_without_a_place_says_why(control_plane: Plane, kubelet: Kubelet, namespace: str) -> None:
    api = control_plane.api
    api.post(at("pods", namespace), pod("large", resources={"requests": {"cpu": "1000"}}))
    # Before a node's first heartbeat, and while the machine is slow, a node is not ready instead.
    found = api.until(
        at("pods", namespace, "large"),
        lambda found: "Insufficient cpu" in condition(found, "PodScheduled").get("message", ""),
    )
    assert condition(found, "PodScheduled")["reason"] == "Unschedulable"
    assert found["status"]["phase"] == "Pending"


def test_the_servers_stay_small(control_plane: Plane, kubelet: Kubelet) -> None:
    memory = control_plane.servers.memory_mib()
    assert set(memory) == {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
    assert sum(memory.values()) < MEMORY_MIB_MAX, memory
