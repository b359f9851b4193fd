"""Calls of the API server by the kubelet."""

import json
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass

import httpx

from tests.support.control_plane.api import MERGE, STRATEGIC, Document, RefusedError, at, checked


@dataclass
class Calls:
    """The API on an event loop."""

    http: httpx.AsyncClient

    async def get(self, path: str, **parameters: str) -> Document:
        return checked(await self.http.get(path, params=parameters))

    async def find(self, path: str) -> Document | None:
        """Return an object; None where there is none."""
        try:
            return await self.get(path)
        except RefusedError as refused:
            if refused.status != 404:
                raise
            return None

    async def post(self, path: str, body: Document) -> Document:
        return checked(await self.http.post(path, json=body))

    async def merge(self, path: str, body: Document) -> Document:
        return checked(await self.http.patch(path, json=body, headers=MERGE))

    async def delete(self, path: str) -> Document:
        return checked(await self.http.delete(path))

    async def report(self, pod: Document, status: Document) -> None:
        """Patch a pod's status; conditions of others stay. A pod that is gone, or another's by now, is left alone."""
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        path = at("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], "status")
        await self._unless_gone(self.http.patch(path, json=body, headers=STRATEGIC))

    async def remove(self, pod: Document) -> None:
        """Delete a pod whose containers have ended."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        path = at("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        await self._unless_gone(self.http.request("DELETE", path, json=options))

    async def watch(self, path: str, version: str, **parameters: str) -> AsyncGenerator[tuple[str, Document]]:
        """Yield the changes after a version, until the server ends the stream or forgets the version."""
        asked = {"watch": "true", "resourceVersion": version, **parameters}
        async with self.http.stream("GET", path, params=asked, timeout=httpx.Timeout(30, read=None)) as answer:
            if answer.status_code >= 400:
                return
            async for line in answer.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event["type"], event["object"]

    @staticmethod
    async def _unless_gone(call: Awaitable[httpx.Response]) -> None:
        try:
            checked(await call)
        except RefusedError as refused:
            if refused.status not in {404, 409}:
                raise
