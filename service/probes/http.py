"""Send one bounded GET to a user's health check, directly to the host of its URL, and reveal nothing of the answer.

An operator sets the URL (`ALTER SYSTEM`), and could call it from elsewhere as well. Only the status of the answer is
returned. Its body is not read.
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
    """Implements `service.ports.health.HttpProbe`. Each call opens a connection, because a kept one could hide a dead
    server.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None, *, hosts: HostRules = ANY) -> None:
        self._transport, self._hosts = transport, hosts
        # Made once, because reading the certificate authorities takes longer than an answer, and blocks the event loop.
        self._authorities = httpx.create_ssl_context(trust_env=False)

    async def status(self, url: ProbeUrl, *, timeout_ms: int) -> int:
        # The library's errors may quote the URL. Their text is not passed on, neither are they as a cause.
        try:
            async with (
                # The library's timeouts apply to each part of the exchange, this one to all of it.
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
            # The same message for a closed port and for a server without HTTP, so that it cannot be used for a port
            # scan.
            raise ProbeFailed(f"{url.shown} could not be reached as a web server") from None

    @asynccontextmanager
    async def _asked(self, client: httpx.AsyncClient, url: ProbeUrl) -> AsyncGenerator[httpx.Response]:
        """Send the request to a permitted address of the URL's host, with the URL's host as name."""
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
        # Without proxies and credentials from the environment.
        return httpx.AsyncClient(
            transport=self._transport, verify=self._authorities, timeout=timeout_ms / 1000, trust_env=False
        )


def _auth(user: str | None) -> httpx.BasicAuth | None:
    if user is None:
        return None
    name, _, password = user.partition(":")
    return httpx.BasicAuth(unquote(name), unquote(password))
