"""The pages over sockets, on a real meta store in a state of one's choice. No leader and no worker runs."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import uvicorn

from service.api.app import create_app
from service.api.settings import ApiSettings
from service.loops.local_signals import LocalSignals
from service.loops.system_clock import SystemClock
from service.meta_store.stores import PostgresStores
from service.pages.app import install
from tests.support.http import OPEN, Checks, world_of
from tests.support.meta_store import stores_on
from tests.support.service import free_port
from tests.support.waiting import PATIENCE

Fill = Callable[[PostgresStores], Awaitable[None]]


@contextmanager
def pages_server(
    database_url: str, fill: Fill, *, settings: ApiSettings = OPEN, checks: Checks | None = None
) -> Generator[str]:
    """Serve the pages on a database that `fill` has filled, and yield their address."""
    port, ready = free_port(), threading.Event()
    servers: list[uvicorn.Server] = []

    async def serve() -> None:
        async with stores_on(database_url) as (stores, _):
            await fill(stores)
            world = world_of(stores, clock=SystemClock(), signals=LocalSignals())
            app = create_app(world, settings=settings, ready=checks or Checks())
            install(app, settings)
            config = uvicorn.Config(app, port=port, log_config=None, lifespan="off", timeout_graceful_shutdown=30)
            server = uvicorn.Server(config)
            servers.append(server)
            serving = asyncio.create_task(server.serve(sockets=[config.bind_socket()]))
            ready.set()
            await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        servers[0].should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
