"""The status of a pod, as the kubelet reports it."""

from dataclasses import dataclass, field
from datetime import datetime

from tests.support.control_plane.api import Document


def stamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def waiting(reason: str, message: str = "") -> Document:
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def running(since: datetime) -> Document:
    return {"running": {"startedAt": stamp(since)}}


def terminated(code: int, *, reason: str, message: str, since: datetime, now: datetime) -> Document:
    found = {"exitCode": code, "reason": reason, "startedAt": stamp(since), "finishedAt": stamp(now)}
    return {"terminated": found | ({"message": message} if message else {})}


@dataclass
class ContainerStatus:
    """A container as its pod's status shows it."""

    name: str
    image: str
    state: Document = field(default_factory=lambda: waiting("PodInitializing"))
    last: Document = field(default_factory=Document)
    ready: bool = False
    started: bool = False
    restarts: int = 0

    def ended(self) -> int | None:
        """Return its exit code; None while it has not ended."""
        return self.state["terminated"]["exitCode"] if "terminated" in self.state else None

    def document(self) -> Document:
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.image,
            "state": self.state,
            "lastState": self.last,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
        }


@dataclass
class PodStatus:
    """The state of a pod on its node."""

    ip: str
    since: datetime
    inits: list[ContainerStatus]
    main: ContainerStatus
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    disrupted: str = ""
    """The message of the condition by which the kubelet says that it ended the pod itself."""
    changed: dict[str, tuple[bool, str]] = field(default_factory=dict[str, tuple[bool, str]])
    """When each condition was last another one."""

    def document(self, now: datetime) -> Document:
        """Return the status. Fields without a value are left out, except those that an earlier report had set."""
        ready = self.main.ready and self.phase == "Running"
        conditions = [
            self._condition("Initialized", all(init.ended() == 0 for init in self.inits), now),
            self._condition("ContainersReady", ready, now),
            self._condition("Ready", ready, now),
        ]
        if self.disrupted:
            disrupted = self._condition("DisruptionTarget", True, now)
            conditions.append(disrupted | {"reason": "TerminationByKubelet", "message": self.disrupted})
        return {
            "phase": self.phase,
            "conditions": conditions,
            "hostIP": "127.0.0.1",
            "podIP": self.ip,
            "podIPs": [{"ip": self.ip}],
            "startTime": stamp(self.since),
            "initContainerStatuses": [init.document() for init in self.inits],
            "containerStatuses": [self.main.document()],
            **({"reason": self.reason} if self.reason else {}),
            **({"message": self.message} if self.message else {}),
        }

    def _condition(self, kind: str, holds: bool, now: datetime) -> Document:
        if kind not in self.changed or self.changed[kind][0] != holds:
            self.changed[kind] = (holds, stamp(now))
        return {"type": kind, "status": str(holds), "lastTransitionTime": self.changed[kind][1]}
