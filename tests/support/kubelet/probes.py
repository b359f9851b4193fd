"""Probes of a container: when they are made, and when their result counts."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import httpx

from tests.support.control_plane.api import Document
from tests.support.kubelet.containers import Container


async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)  # noqa: TID251 - periods of the kubelet are a matter of time


@dataclass
class Probes:
    """The probes of a running container. `second` is how long a second lasts between two of them."""

    spec: Document
    container: Container
    ip: str
    second: float

    async def results(self, kind: str) -> AsyncGenerator[bool]:
        """Yield True or False whenever the threshold of a probe is reached, `readinessProbe` for one."""
        probe = self.spec[kind]
        await pause(probe.get("initialDelaySeconds", 0) * self.second)
        passed = failed = 0
        while True:
            good = await self._passes(probe)
            passed, failed = (passed + 1, 0) if good else (0, failed + 1)
            if passed >= probe.get("successThreshold", 1):
                yield True
            elif failed >= probe.get("failureThreshold", 3):
                yield False
            await pause(probe.get("periodSeconds", 10) * self.second)

    async def _passes(self, probe: Document) -> bool:
        try:
            async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
                if "exec" in probe:
                    return await self.container.run(probe["exec"]["command"])
                if "httpGet" in probe:
                    return await self._answers(probe["httpGet"])
                return await self._connects(probe["tcpSocket"])
        except (TimeoutError, OSError):
            return False

    async def _answers(self, get: Document) -> bool:
        url = f"{get.get('scheme', 'HTTP').lower()}://{self.ip}:{self._port(get['port'])}{get.get('path', '/')}"
        try:
            async with httpx.AsyncClient(verify=False) as http:
                return 200 <= (await http.get(url)).status_code < 400
        except httpx.TransportError:
            return False

    async def _connects(self, socket: Document) -> bool:
        _, writer = await asyncio.open_connection(self.ip, self._port(socket["port"]))
        writer.close()
        await writer.wait_closed()
        return True

    def _port(self, port: int | str) -> int:
        """Return a port's number, which a probe may give by its name."""
        named = {one["name"]: one["containerPort"] for one in self.spec.get("ports", []) if "name" in one}
        return port if isinstance(port, int) else named[port]
