"""Services of the cluster: a local port for each, whose connections are dealt round to its pods."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from tests.support.control_plane.api import Document, at, condition
from tests.support.kubelet.calls import Calls

_CHUNK = 1 << 16


@dataclass
class ServicePort:
    """The first port of a Service, which need not be there yet."""

    calls: Calls
    namespace: str
    name: str
    number: int = 0
    _turn: int = 0
    _open: "set[asyncio.Task[None]]" = field(default_factory=set["asyncio.Task[None]"])

    async def start(self) -> None:
        """Listen on a loopback port, whose number is then known."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.number)
        self.number = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop to listen, and close what is open."""
        self._server.close()
        for task in tuple(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(tuple(self._open))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            with suppress(OSError, asyncio.CancelledError, httpx.TransportError):
                await self._forward(reader, writer)
        finally:
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect to the pod whose turn it is, and copy both ways until one side closes."""
        service = await self.calls.find(at("services", self.namespace, self.name))
        pods = [] if service is None else await self._pods(service)
        if service is None or not pods:
            return
        self._turn += 1
        pod = pods[self._turn % len(pods)]
        there, out = await asyncio.open_connection(pod["status"]["podIP"], _target(service, pod))
        copies = [asyncio.create_task(_copy(reader, out)), asyncio.create_task(_copy(there, writer))]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            out.close()

    async def _pods(self, service: Document) -> list[Document]:
        """Return the pods behind the Service, by name: those that are ready, unless it publishes others, too."""
        wanted = ",".join(f"{key}={value}" for key, value in service["spec"]["selector"].items())
        found = (await self.calls.get(at("pods", self.namespace), labelSelector=wanted))["items"]
        needs_ready = not service["spec"].get("publishNotReadyAddresses", False)
        return [
            pod
            for pod in found
            if pod["status"]["phase"] == "Running"
            and "deletionTimestamp" not in pod["metadata"]
            and (not needs_ready or condition(pod, "Ready").get("status") == "True")
        ]


def _target(service: Document, pod: Document) -> int:
    """Return the port of the pod that the Service's first port leads to."""
    port = service["spec"]["ports"][0]
    target = port.get("targetPort", port["port"])
    (container,) = pod["spec"]["containers"]
    named = {one["name"]: one["containerPort"] for one in container.get("ports", []) if "name" in one}
    return target if isinstance(target, int) else named[target]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
