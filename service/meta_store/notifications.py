"""Send and receive notifications between the services of one installation, by LISTEN and NOTIFY."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from service.domain.errors import Unavailable
from service.meta_store.engine import CONNECT_TIMEOUT_SECONDS, psycopg_url


class PostgresNotifications:
    """Implements `service.ports.signals.Notifications`. It holds two connections, which belong to no pool.

    Whoever knows the name of the channel may send and listen. No catalog shows it to the logins of users.
    """

    def __init__(self, url: str, channel: str) -> None:
        self._channel = channel
        self._url = make_url(psycopg_url(url)).set(drivername="postgresql").render_as_string(hide_password=False)
        self._sending: psycopg.AsyncConnection[Any] | None = None

    async def send(self, payload: str) -> None:
        """See the port. A connection that was lost is opened again by the next call."""
        with _translated():
            if self._sending is None or self._sending.closed:
                self._sending = await self._connect("send")
            await self._sending.execute("select pg_notify(%s, %s)", (self._channel, payload))

    async def listen(self, receive: Callable[[str | None], None], *, silent_seconds: float) -> None:
        """See the port."""
        with _translated():
            async with await self._connect("listen") as connection:
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
                receive(None)
                while True:
                    payload = None
                    async for notification in connection.notifies(timeout=silent_seconds, stop_after=1):
                        receive(payload := notification.payload)
                    if payload is None:
                        raise Unavailable("no notification came, not even the service's own heartbeat")

    async def close(self) -> None:
        """Close the connection of `send`."""
        if self._sending is not None:
            await self._sending.close()

    async def _connect(self, purpose: str) -> "psycopg.AsyncConnection[Any]":
        return await psycopg.AsyncConnection.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            application_name=f"tidefill-signals-{purpose}",
        )


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except (psycopg.Error, OSError) as error:
        raise Unavailable(f"the meta store passes no notifications: {str(error).strip()}") from error
