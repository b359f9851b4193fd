"""Judge pods by their documents, which have the form in which API servers of 1.33 to 1.36 give them."""

from typing import Any

import pytest

from service.domain.launching import LEAVING, HeldUp, Over, Runs, Seen
from service.launchers.kubernetes.client import ApiError
from service.launchers.kubernetes.judge import judge, refusal

IMAGE = "registry.example/tidefill/worker:1"


def pod(status: dict[str, Any], *, containers: int = 1, deleted: bool = False) -> dict[str, Any]:
    names = ["worker", "proxy"][:containers]
    limits = {"limits": {"memory": "4Gi"}, "requests": {"memory": "3Gi"}}
    metadata = {"name": "tides-worker-g1-1-ab12", "deletionTimestamp": "2026-11-23T10:00:30Z" if deleted else None}
    spec = {"nodeName": "node-1", "containers": [{"name": name, "image": IMAGE, "resources": limits} for name in names]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def of(state: dict[str, Any], *, name: str = "worker") -> dict[str, Any]:
    return {"name": name, "ready": "running" in state, "restartCount": 0, "image": IMAGE, "state": state}


def waiting(reason: str, message: str | None = None) -> dict[str, Any]:
    return of({"waiting": {"reason": reason, **({} if message is None else {"message": message})}})


def terminated(code: int, reason: str = "Error", message: str | None = None) -> dict[str, Any]:
    said = {} if message is None else {"message": message}
    return of({"terminated": {"exitCode": code, "reason": reason, "containerID": "containerd://1", **said}})


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-23T10:00:00Z",
    }


SCHEDULED = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-23T10:00:00Z"}
NO_ROOM = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims."
PREEMPTED = condition(
    "DisruptionTarget", "True", "PreemptionByScheduler", "default-scheduler: preempting to accommodate"
)
BACK_OFF = f'Back-off pulling image "{IMAGE}": ErrImagePull: not found'
RUNNING = of({"running": {"startedAt": "2026-11-23T10:00:02Z"}})

CASES: dict[str, tuple[dict[str, Any], Seen]] = {
    "not looked at yet": (pod({}), Runs()),
    "accepted": (pod({"phase": "Pending", "qosClass": "Burstable"}), Runs()),
    "being created": (
        pod({"phase": "Pending", "conditions": [SCHEDULED], "containerStatuses": [waiting("ContainerCreating")]}),
        Runs(),
    ),
    "waits for its init containers": (
        pod({"phase": "Pending", "containerStatuses": [waiting("PodInitializing")]}),
        Runs(),
    ),
    "runs": (pod({"phase": "Running", "conditions": [SCHEDULED], "containerStatuses": [RUNNING]}), Runs()),
    "its node is silent": (pod({"phase": "Unknown", "reason": "NodeLost"}), Runs()),
    "no node has room": (
        pod({"phase": "Pending", "conditions": [condition("PodScheduled", "False", "Unschedulable", NO_ROOM)]}),
        HeldUp("Unschedulable", f"Unschedulable: {NO_ROOM}"),
    ),
    "gated": (
        pod({"phase": "Pending", "conditions": [condition("PodScheduled", "False", "SchedulingGated", "a gate")]}),
        HeldUp("SchedulingGated", "SchedulingGated: a gate"),
    ),
    "no such image": (
        pod({"phase": "Pending", "containerStatuses": [waiting("ErrImagePull", "not found")]}),
        HeldUp("ImagePullBackOff", "ErrImagePull: not found"),
    ),
    "still no such image": (
        pod({"phase": "Pending", "containerStatuses": [waiting("ImagePullBackOff", BACK_OFF)]}),
        HeldUp("ImagePullBackOff", f"ImagePullBackOff: {BACK_OFF}"),
    ),
    "no image of that form": (
        pod({"phase": "Pending", "containerStatuses": [waiting("InvalidImageName")]}),
        HeldUp("InvalidImageName", "InvalidImageName: container worker"),
    ),
    "no such secret": (
        pod({"phase": "Pending", "containerStatuses": [waiting("CreateContainerConfigError", 'secret "x" not found')]}),
        HeldUp("CreateContainerConfigError", 'CreateContainerConfigError: secret "x" not found'),
    ),
    "an init container is held up": (
        pod({"phase": "Pending", "initContainerStatuses": [waiting("ImagePullBackOff", "no such image")]}),
        HeldUp("ImagePullBackOff", "ImagePullBackOff: no such image"),
    ),
    "ended well": (
        pod({"phase": "Succeeded", "containerStatuses": [terminated(0, "Completed")]}),
        Over("it ended with exit code 0", failed=False),
    ),
    "ended well, statuses collected": (pod({"phase": "Succeeded"}), Over("it ended by itself", failed=False)),
    "failed": (
        pod({"phase": "Failed", "containerStatuses": [terminated(3, message="line 1\nValueError: no store\n")]}),
        Over("it ended with exit code 3: ValueError: no store"),
    ),
    "was killed": (
        pod({"phase": "Failed", "containerStatuses": [terminated(137)]}),
        Over("it ended with signal 9"),
    ),
    "no memory": (
        pod({"phase": "Failed", "containerStatuses": [terminated(137, "OOMKilled")]}),
        Over("OOMKilled: it needed more memory than its limit of 4Gi"),
    ),
    "evicted by its node, without statuses": (
        pod({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}),
        Over("Evicted: The node was low on resource: memory."),
    ),
    "refused by its node": (
        pod({"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"}),
        Over("OutOfcpu: Node didn't have enough resource: cpu"),
    ),
    "failed, nothing else said": (pod({"phase": "Failed", "containerStatuses": []}), Over("its pod failed")),
    "preempted": (
        pod({"phase": "Failed", "conditions": [PREEMPTED], "containerStatuses": [terminated(143)]}),
        Over("PreemptionByScheduler: default-scheduler: preempting to accommodate"),
    ),
    "an init container failed": (
        pod({"phase": "Failed", "initContainerStatuses": [terminated(2)], "containerStatuses": []}),
        Over("it ended with exit code 2"),
    ),
    "the worker has ended and a sidecar has not": (
        pod(
            {"phase": "Running", "containerStatuses": [of({"running": {}}, name="proxy"), terminated(1)]}, containers=2
        ),
        Over("it ended with exit code 1"),
    ),
    "a sidecar has ended and the worker has not": (
        pod(
            {
                "phase": "Running",
                "containerStatuses": [RUNNING, of({"terminated": {"exitCode": 1}}, name="proxy")],
            },
            containers=2,
        ),
        Runs(),
    ),
    "is about to be preempted": (
        pod({"phase": "Running", "conditions": [PREEMPTED], "containerStatuses": [RUNNING]}),
        Runs(evicted=True),
    ),
    "is being deleted": (
        pod({"phase": "Running", "containerStatuses": [RUNNING]}, deleted=True),
        HeldUp(LEAVING, "its pod is being deleted"),
    ),
    "is being preempted": (
        pod({"phase": "Running", "conditions": [PREEMPTED], "containerStatuses": [RUNNING]}, deleted=True),
        HeldUp(LEAVING, "PreemptionByScheduler: default-scheduler: preempting to accommodate"),
    ),
    "was deleted and has ended": (
        pod({"phase": "Failed", "containerStatuses": [terminated(143)]}, deleted=True),
        Over("it ended with signal 15"),
    ),
}


@pytest.mark.parametrize(("document", "verdict"), CASES.values(), ids=CASES)
def test_a_pod_is_judged(document: dict[str, Any], verdict: Seen) -> None:
    assert judge(document) == verdict


QUOTA = 'pods "w" is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4'
VERB = 'pods is forbidden: User "system:serviceaccount:data:tides" cannot create resource "pods" in API group "" in ..'


@pytest.mark.parametrize(
    ("status", "message", "cause"),
    [
        (403, QUOTA, "quota"),
        (403, VERB, "forbidden"),
        (403, 'pods "w" is forbidden: violates PodSecurity "restricted:latest"', "forbidden"),
        (401, "Unauthorized", "forbidden"),
        (400, "quantities must match the regular expression", "template"),
        (422, 'Pod "w" is invalid: spec.containers[0].image: Required value', "template"),
        (404, 'configmaps "tides-worker" not found', "template"),
        (409, "Operation cannot be fulfilled on resourcequotas", "unavailable"),
        (429, "too many requests", "unavailable"),
        (500, "etcdserver: request timed out", "unavailable"),
        (0, "the API did not answer within 5 s", "unavailable"),
    ],
)
def test_a_refusal_is_sorted(status: int, message: str, cause: str) -> None:
    assert refusal(ApiError(status, "", message)) == HeldUp(cause, message)


def test_texts_are_bounded() -> None:
    long = judge(pod({"phase": "Failed", "reason": "Evicted", "message": "x" * 100_000}))
    assert isinstance(long, Over)
    assert len(long.reason) == 2_000
