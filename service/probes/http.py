"""One GET to a user's health check: bounded, straight to the place that was named, and nothing of it in any message.

The place is whatever an operator set (`ALTER SYSTEM`), who could ask it from elsewhere as well; an answer's body is not
read and its status is all that is told.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import unquote

import httpx

from service.domain.errors import Invalid
from service.domain.probes import ProbeUrl
from service.domain.reach import ANY, HostRules
from service.ports.health import ProbeFailed
from service.reach import UnresolvedError, addresses


class HttpxProbe:
    """Implements `service.ports.health.HttpProbe`. A connection for each call: a kept one could hide a dead server."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None, *, hosts: HostRules = ANY) -> None:
        self._transport, self._hosts = transport, hosts
        # Made once: reading the authorities takes longer than an answer does, and everything else waits meanwhile.
        self._authorities = httpx.create_ssl_context(trust_env=False)

    async def status(self, url: ProbeUrl, *, timeout_ms: int) -> int:
        # The library's own errors may quote the URL: none of their words is passed on, nor they as a cause.
        try:
            async with (
                # The library's limits count for each part of the exchange; this one for all of it.
                asyncio.timeout(timeout_ms / 1000),
                self._client(timeout_ms) as client,
                self._asked(client, url) as answer,
            ):
                return answer.status_code
        except Invalid as error:
            raise ProbeFailed(f"{url.shown}: {error.message}") from None
        except (TimeoutError, httpx.TimeoutException):
            raise ProbeFailed(f"{url.shown} did not answer within {timeout_ms} ms") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnresolvedError):
            # One message for a closed port and for what is no web server: nobody scans ports with it.
            raise ProbeFailed(f"{url.shown} could not be reached as a web server") from None

    @asynccontextmanager
    async def _asked(self, client: httpx.AsyncClient, url: ProbeUrl) -> AsyncGenerator[httpx.Response]:
        """Send the request to an address that may be connected to, under the name that the URL has."""
        target = httpx.URL(url.target)
        found = await addresses([target.host], target.port or 80, self._hosts)
        async with client.stream(
            "GET",
            target.copy_with(host=found[0][1]),
            auth=_auth(url.user),
            headers={"Host": target.netloc.decode()},
            extensions={"sni_hostname": target.host},
            follow_redirects=False,
        ) as answer:
            yield answer

    def _client(self, timeout_ms: int) -> httpx.AsyncClient:
        # No proxy, no credentials of the environment's.
        return httpx.AsyncClient(
            transport=self._transport, verify=self._authorities, timeout=timeout_ms / 1000, trust_env=False
        )


def _auth(user: str | None) -> httpx.BasicAuth | None:
    if user is None:
        return None
    name, _, password = user.partition(":")
    return httpx.BasicAuth(unquote(name), unquote(password))
