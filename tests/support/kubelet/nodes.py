"""A node: what the API server knows of it, and the pods that the scheduler has bound to it."""

import asyncio
import os
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

import httpx

from tests.support.control_plane.api import Document, RefusedError, at
from tests.support.control_plane.servers import NODE_GRACE_SECONDS
from tests.support.kubelet.calls import Calls
from tests.support.kubelet.images import Image, Launch, Program, repository
from tests.support.kubelet.pods import PodLife, now
from tests.support.kubelet.probes import pause
from tests.support.kubelet.statuses import stamp

HEARTBEAT_SECONDS: Final = NODE_GRACE_SECONDS / 3


@dataclass
class Node:
    """One node. `number` makes its pods' addresses different from those of other nodes."""

    name: str
    number: int
    calls: Calls
    directory: Path
    images: Mapping[str, Image]
    base: Mapping[str, str]
    """The variables of every container."""
    second: float
    cpu: str
    memory: str
    pods: int
    reachable: asyncio.Event = field(default_factory=asyncio.Event)
    lives: dict[str, PodLife] = field(default_factory=dict[str, PodLife])
    """By uid."""
    errors: list[BaseException] = field(default_factory=list[BaseException])
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set["asyncio.Task[None]"])
    _addresses: "count[int]" = field(default_factory=lambda: count(2))

    async def start(self) -> None:
        """Register the node, and begin to look after its pods."""
        await self.calls.post(at("nodes"), self._document())
        lease = {"metadata": {"name": self.name}, "spec": self._lease()}
        try:
            await self.calls.post(at("leases", "kube-node-lease"), lease)
        except RefusedError as error:
            # That of an earlier node of this name may not be collected yet.
            if error.status != 409:
                raise
        self.reachable.set()
        self._begin(self._beat())
        self._following = self._begin(self._follow())

    async def stop(self) -> None:
        """End everything that runs on the node."""
        while self._tasks:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.wait(tuple(self._tasks))

    def lose(self) -> None:
        """Let nothing pass between the node and the API server. Its containers go on."""
        self.reachable.clear()
        self._following.cancel()

    def crash(self) -> None:
        """Lose the node and everything that runs on it."""
        self.lose()
        for life in self.lives.values():
            if life.container is not None:
                life.container.kill()

    async def regain(self) -> None:
        """Undo `lose`: the node says that it is well again, and hears what has happened meanwhile."""
        self.reachable.set()
        await self._tell()
        self._following = self._begin(self._follow())

    def life(self, namespace: str, name: str) -> PodLife:
        """Return a pod's life on this node, or what was its life."""
        (found,) = (
            one
            for one in self.lives.values()
            if (one.pod["metadata"]["namespace"], one.pod["metadata"]["name"]) == (namespace, name)
        )
        return found

    def program(self, launch: Launch) -> Program | None:
        image = self.images.get(repository(launch.image))
        return image(launch) if image else None

    def variables(self) -> dict[str, str]:
        return dict(self.base)

    def _begin(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.errors.append(error)

    async def _beat(self) -> None:
        path = at("leases", "kube-node-lease", self.name)
        while True:
            await pause(HEARTBEAT_SECONDS)
            await self.reachable.wait()
            with suppress(httpx.TransportError):
                await self.calls.merge(path, {"spec": self._lease()})
                # A lease that ran out, as on a busy machine, made the node unready. Only its status undoes that.
                await self._tell()

    async def _tell(self) -> None:
        """Say that the node is well."""
        await self.calls.merge(at("nodes", None, self.name, "status"), {"status": self._document()["status"]})

    async def _follow(self) -> None:
        """Take notice of the pods that are bound to this node, and of what becomes of them."""
        mine = {"fieldSelector": f"spec.nodeName={self.name}"}
        while True:
            with suppress(httpx.TransportError, RefusedError):
                listed = await self.calls.get(at("pods"), **mine)
                self._compare(listed["items"])
                async for kind, pod in self.calls.watch(at("pods"), listed["metadata"]["resourceVersion"], **mine):
                    self._gone(pod["metadata"]["uid"]) if kind == "DELETED" else self._seen(pod)
            await pause(HEARTBEAT_SECONDS / 10)

    def _compare(self, pods: list[Document]) -> None:
        for pod in pods:
            self._seen(pod)
        for uid in self.lives.keys() - {pod["metadata"]["uid"] for pod in pods}:
            self._gone(uid)

    def _seen(self, pod: Document) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if uid not in self.lives:
            number = next(self._addresses)
            # Tests of other processes have nodes of the same numbers.
            ip = f"127.{100 + self.number}.{os.getpid() % 256}.{number % 256}"
            self.lives[uid] = PodLife(self, pod, self.directory / uid, ip)
            self._begin(self.lives[uid].run())
        if "deletionTimestamp" in metadata:
            self.lives[uid].delete(metadata.get("deletionGracePeriodSeconds", 0))

    def _gone(self, uid: str) -> None:
        if uid in self.lives:
            self.lives[uid].removed.set()

    def _lease(self) -> Document:
        return {
            "holderIdentity": self.name,
            "leaseDurationSeconds": NODE_GRACE_SECONDS,
            "renewTime": now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }

    def _document(self) -> Document:
        size = {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods), "ephemeral-storage": "100Gi"}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
        }
        return {
            "metadata": {
                "name": self.name,
                "labels": {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"},
            },
            "status": {
                "capacity": size,
                "allocatable": size,
                "conditions": [ready | {"lastHeartbeatTime": stamp(now()), "lastTransitionTime": stamp(now())}],
                "addresses": [
                    {"type": "InternalIP", "address": "127.0.0.1"},
                    {"type": "Hostname", "address": self.name},
                ],
            },
        }
