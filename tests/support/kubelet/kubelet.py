"""The nodes of a cluster, on a thread and an event loop of their own, and orders to them."""

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.support.control_plane.api import at, trusting
from tests.support.control_plane.plane import Plane
from tests.support.kubelet.calls import Calls
from tests.support.kubelet.images import Image
from tests.support.kubelet.nodes import Node
from tests.support.kubelet.services import ServicePort
from tests.support.waiting import PATIENCE

T = TypeVar("T")


@dataclass
class Kubelet:
    """Nodes that run what is bound to them.

    `images` maps a repository, without a tag, to what it runs. Any other image cannot be pulled.
    """

    plane: Plane
    directory: Path
    images: dict[str, Image]
    second: float
    loop: asyncio.AbstractEventLoop
    calls: Calls
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    ports: list[ServicePort] = field(default_factory=list[ServicePort])

    def add_node(self, name: str, *, cpu: str = "4", memory: str = "16Gi", pods: int = 200) -> None:
        """Register a node of this size; return once it is ready for pods."""
        node = Node(
            name=name,
            number=len(self.nodes),
            calls=self.calls,
            directory=self.directory,
            images=self.images,
            base=self._base(),
            second=self.second,
            cpu=cpu,
            memory=memory,
            pods=pods,
        )
        self.nodes[name] = node
        self._do(node.start())
        self.plane.api.until(at("nodes", None, name), lambda found: not found["spec"].get("taints"))

    def expose(self, namespace: str, service: str) -> int:
        """Return a loopback port which leads to the pods of a Service; the Service need not be there yet."""
        port = ServicePort(self.calls, namespace, service)
        self._do(port.start())
        self.ports.append(port)
        return port.number

    def lose(self, name: str) -> None:
        """Cut a node off: no heartbeat, no report, no order. Its containers go on."""
        self._call(self.nodes[name].lose)

    def crash(self, name: str) -> None:
        """Cut a node off as its machine fails: its containers end with it. They start again once it is regained."""
        self._call(self.nodes[name].crash)

    def regain(self, name: str) -> None:
        """Connect a node again that was lost, and wait until the cluster has noticed."""
        self._do(self.nodes[name].regain())
        self.plane.api.until(at("nodes", None, name), lambda found: not found["spec"].get("taints"))

    def evict(self, namespace: str, pod: str, message: str = "The node was low on resource: memory.") -> None:
        """Have the pod's node evict it, as under pressure."""
        self._do(self._node_of(namespace, pod).life(namespace, pod).evict(message))

    def kill_for_memory(self, namespace: str, pod: str) -> None:
        """Kill a pod's container as the kernel does at its memory limit."""
        self._call(self._node_of(namespace, pod).life(namespace, pod).kill_for_memory)

    def log(self, namespace: str, pod: str) -> str:
        """Return what a pod's containers have written."""
        return self._node_of(namespace, pod).life(namespace, pod).log.read_text(errors="replace")

    def pid(self, namespace: str, pod: str) -> int:
        """Return the process id of a pod's container."""
        container = self._node_of(namespace, pod).life(namespace, pod).container
        assert container is not None
        return container.process.pid

    def _node_of(self, namespace: str, pod: str) -> Node:
        return next(
            node
            for node in self.nodes.values()
            for life in tuple(node.lives.values())
            if (life.pod["metadata"]["namespace"], life.pod["metadata"]["name"]) == (namespace, pod)
        )

    def _base(self) -> Mapping[str, str]:
        """Return the variables that the kubelet gives every container, and where programs are."""
        host, port = self.plane.servers.url.removeprefix("https://").split(":")
        return {"PATH": os.environ["PATH"], "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def _call(self, call: Callable[[], T]) -> T:
        async def called() -> T:
            return call()

        return self._do(called())

    async def stop(self) -> None:
        """End all that runs on the nodes, and remove them, so that no pod is bound to them any more."""
        for node in self.nodes.values():
            await node.stop()
            await self.calls.delete(at("nodes", None, node.name))
        # Containers connect to them until they have ended.
        for port in self.ports:
            await port.stop()


@contextmanager
def running_kubelet(plane: Plane, images: Mapping[str, Image], *, second: float = 0.1) -> Generator[Kubelet]:
    """Have nodes until the end; nothing that ran on them is left then.

    `second` is how long a second of probes and of back-off takes, so that tests need not wait for them.
    Raises what went wrong on the nodes.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="kubelet", daemon=True)
    thread.start()
    headers = {"Authorization": f"Bearer {plane.api.token}"}
    http = httpx.AsyncClient(
        base_url=plane.api.url, headers=headers, verify=trusting(plane.api.ca), timeout=30, limits=httpx.Limits()
    )
    with tempfile.TemporaryDirectory(prefix="tidefill-pods-", ignore_cleanup_errors=True) as directory:
        kubelet = Kubelet(plane, Path(directory), dict(images), second, loop, Calls(http))
        try:
            yield kubelet
        finally:
            for work in (kubelet.stop(), http.aclose(), loop.shutdown_asyncgens()):
                asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(PATIENCE)
            loop.close()
    if errors := [error for node in kubelet.nodes.values() for error in node.errors]:
        raise BaseExceptionGroup("on the nodes", errors)
