"""Judge the document of a pod: does it run, what holds it up, or why has it ended.

The phase comes before the statuses of containers. Those may be empty, as when its node was deleted or refused it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from service.domain.launching import LEAVING, HeldUp, Over, Runs, Seen
from service.launchers.kubernetes.client import ApiError, Document

CONTAINER: Final = "worker"
"""The name of a worker's container. Clusters add others, which do not decide about its end."""
_ORDINARY: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
"""The reasons for which every container waits for a while."""
_TEXT_MAX: Final = 2_000
_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _UNPROCESSABLE = 400, 401, 403, 404, 422


def judge(pod: Document) -> Seen:
    """Return the state of a worker's pod."""
    status: Document = pod.get("status") or {}
    worker = _worker(status)
    terminated: Document | None = ((worker or {}).get("state") or {}).get("terminated")
    if status.get("phase") in {"Failed", "Succeeded"} or terminated is not None:
        failed = status.get("phase") == "Failed" or (terminated or {}).get("exitCode", 0) != 0
        return Over(_short(_why_ended(pod, status, terminated)), failed=failed)
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        return HeldUp(LEAVING, _short(_disruption(status) or "its pod is being deleted"))
    return next(_hold_ups(status), Runs(evicted=_disruption(status) is not None))


def refusal(error: ApiError) -> HeldUp:
    """Return what a refused call means for the launch that needed it."""
    text = _short(error.message)
    match error.status:
        case code if code == _FORBIDDEN and "exceeded quota" in error.message:
            return HeldUp("quota", text)
        case code if code in {_UNAUTHORIZED, _FORBIDDEN}:
            return HeldUp("forbidden", text)
        case code if code in {_BAD_REQUEST, _NOT_FOUND, _UNPROCESSABLE}:
            return HeldUp("template", text)
        case _:
            return HeldUp("unavailable", text)


def _hold_ups(status: Document) -> Iterator[HeldUp]:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reason = condition.get("reason") or "Unschedulable"
            yield HeldUp(reason, _short(f"{reason}: {condition.get('message') or 'no node takes its pod'}"))
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting: Document = (container.get("state") or {}).get("waiting") or {}
        if (reason := waiting.get("reason") or "") not in _ORDINARY:
            message = waiting.get("message") or f"container {container.get('name')}"
            yield HeldUp(_CAUSES.get(reason, reason), _short(f"{reason}: {message}"))


_CAUSES: Final = {"ErrImagePull": "ImagePullBackOff"}
"""The kubelet alternates between these two, for one cause."""


def _why_ended(pod: Document, status: Document, terminated: Document | None) -> str:
    if (disruption := _disruption(status)) is not None:
        return disruption
    ended = terminated or _other_end(status)
    if ended is None:
        if status.get("phase") == "Succeeded":
            return "it ended by itself"
        return ": ".join(filter(None, (status.get("reason"), status.get("message")))) or "its pod failed"
    code, said = ended.get("exitCode", 0), _last_line(ended.get("message") or "")
    if ended.get("reason") == "OOMKilled":
        limit = _memory_limit(pod)
        return "OOMKilled: it needed more memory than " + (f"its limit of {limit}" if limit else "its node has")
    if status.get("reason"):  # Evicted, DeadlineExceeded and the like: the kubelet ended it
        return ": ".join(filter(None, (status["reason"], status.get("message"))))
    killed = code - 128 if code > 128 else ended.get("signal")
    how = f"signal {killed}" if killed else f"exit code {code}"
    return f"it ended with {how}" + (f": {said}" if said else "")


def _disruption(status: Document) -> str | None:
    """Return who ended the pod, if the cluster did: preemption, drain, a taint, a lost node."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"{condition.get('reason') or 'DisruptionTarget'}: {condition.get('message') or 'it was evicted'}"
    return None


def _worker(status: Document) -> Document | None:
    statuses: Sequence[Document] = status.get("containerStatuses") or ()
    named = (one for one in statuses if one.get("name") == CONTAINER)
    return next(named, statuses[0] if len(statuses) == 1 else None)


def _other_end(status: Document) -> Document | None:
    """Return the end of an init container that failed."""
    for container in status.get("initContainerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            return ended
    return None


def _memory_limit(pod: Document) -> str | None:
    containers: Sequence[Mapping[str, Any]] = (pod.get("spec") or {}).get("containers") or ()
    named = (one for one in containers if one.get("name") == CONTAINER or len(containers) == 1)
    return (((next(named, None) or {}).get("resources") or {}).get("limits") or {}).get("memory")


def _last_line(message: str) -> str:
    """Return the last line of a termination message, which is the end of the container's log."""
    return message.strip().rsplit("\n", 1)[-1]


def _short(text: str) -> str:
    return text[:_TEXT_MAX]
