"""Wires the service: the only module that knows every concrete class, and the only one that makes identities and
reads clocks.

`serve` is what a process does from its first to its last moment: find or start the databases, migrate, prepare the
state store, start the loops, the worker and the doors, and take all of it down again in the opposite order.
"""

import asyncio
import gc
import secrets
import signal
import socket
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import uvicorn
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncEngine

from service.api.address import allowed_origins, check_bind, reachable
from service.api.app import create_app
from service.api.connections import ACCEPTED_AT_ONCE, HEAD_BYTES_MAX, ConnectionLimits, protocol
from service.api.settings import ApiSettings
from service.columnar.process import ColumnarProcesses
from service.domain.backlog import Backlog
from service.domain.claims import oidc_rules
from service.domain.lake_places import LakeRoots
from service.domain.reach import parse_host_rules
from service.domain.uploading import Spool
from service.embedded.postgres import EmbeddedPostgres
from service.identity.oidc import OidcBearers
from service.launcher_choice import kubernetes, pods, profiles_of, subprocesses
from service.launchers.kubernetes.client import KubernetesClient
from service.loops.periodic import Pauses, run_periodically
from service.loops.schedule import Schedule
from service.loops.shared_signals import Exchange
from service.loops.signal_texts import channel_of
from service.loops.system_clock import SystemClock
from service.loops.watchdog import watch
from service.meta_store.engine import connect
from service.meta_store.migrate import migrate
from service.meta_store.notifications import PostgresNotifications
from service.meta_store.parameters import remembered
from service.meta_store.stores import PostgresStores
from service.operations.rows.bulk import remove_abandoned
from service.operations.status.readiness import Readiness
from service.operations.upkeep.cluster import Supervision
from service.operations.world import (
    Calls,
    External,
    Loading,
    Logins,
    StateStore,
    Workers,
    World,
    load_turns,
)
from service.pages import app as pages
from service.parsing.pool import ParserProcesses
from service.pools import Pools, open_pools
from service.ports.launcher import Profiles
from service.ports.state_store import Reader
from service.ports.tokens import Bearers
from service.probes.http import HttpxProbe
from service.serving.comparing import PostgresFollowedRows
from service.serving.fencing import PostgresFences
from service.serving.health import PostgresGauge
from service.serving.lending import PostgresLending
from service.serving.logical_views import PostgresViews
from service.serving.lookups import PostgresLookups
from service.serving.pins import PostgresPins
from service.serving.read_logins import PostgresReadLogins
from service.serving.reader import PostgresReader, ReaderLimits
from service.serving.staging import PostgresStaging
from service.serving.tables import PostgresTables
from service.settings import Settings
from service.sources.comparing import PostgresExternalRows
from service.sources.replication import PostgresReplication
from service.sources.servers import PostgresExternalServers
from service.sources.tables import PostgresExternalTables
from service.telemetry.log import configure, logger
from service.traces_choice import check_installed, traces_of

log = logger("bootstrap")

LOOK_AT_POSTGRES: Final = timedelta(seconds=1)
DRAIN: Final = timedelta(seconds=5)
"""How long open requests may take to end when the service stops."""


_SWITCH_SECONDS: Final = 0.001
"""How long a thread keeps the interpreter while the event loop waits for it, where the default is 5 ms. Threads convert
the results of queries, and each of the hundred times that an INSERT wakes the loop, it waits for them.
"""
_COLLECTED_AFTER: Final = 10_000
"""New objects until the youngest are looked through. Python's own 700 are those of a few dozen rows: a list of a
thousand jobs was interrupted fourteen times.
"""


def serve(settings: Settings) -> None:
    """Run a service until SIGTERM or SIGINT. Raises Invalid when the settings are refused."""
    configure(level=settings.log_level, form=settings.log_format)
    remove_abandoned()
    sys.setswitchinterval(_SWITCH_SECONDS)
    asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    if settings.otel:
        check_installed()
    rules = oidc_rules(settings.oidc_issuer, settings.oidc_audience, settings.oidc_role_claim, settings.oidc_roles)
    check_bind(settings.host, secured=settings.secured)
    stop = _stop_at_signals()
    async with AsyncExitStack() as stack:
        database_url, embedded = await _database(stack, settings)
        worker_token = settings.worker_token or SecretStr(secrets.token_urlsafe(32))
        holder = str(uuid.uuid4())  # noqa: TID251 - identities are made here
        await asyncio.to_thread(migrate, database_url)
        engine = _engine(stack, database_url, "tidefill-service")
        exchange = await stack.enter_async_context(_exchanging(database_url, engine, holder))
        wired = await _wired(stack, settings, database_url, engine, exchange, holder)
        world = wired.world
        schedule = Schedule(wired.reserved, holder, None, stop)
        ready = Readiness(wired.reserved, wired.probe, lambda: schedule.leading is not None)
        bearers = None if rules is None else OidcBearers(rules, world.clock)
        server = uvicorn.Server(_uvicorn(settings, wired, ready, worker_token, bearers))
        sockets = [_listening(server.config.bind_socket())]
        port = sockets[0].getsockname()[1]
        url = settings.public_url or f"http://{reachable(settings.host)}:{port}"
        _launch_by(schedule, stack, settings, url, worker_token, wired)
        _freeze()
        log.info("service.listening", url=url)
        announced = asyncio.Event()
        loops = asyncio.gather(
            schedule.run(),
            watch(world, stop),
            _keep_running(embedded, stop),
            _announce(ready, url, over=announced),
        )
        try:
            if not stop.is_set():
                await server.serve(sockets=sockets)
        finally:
            stop.set()
            announced.set()
            world.signals.notify()
            await loops


def _launch_by(
    schedule: Schedule, stack: AsyncExitStack, settings: Settings, url: str, worker_token: SecretStr, wired: "_Wired"
) -> None:
    """Give the schedule what starts workers, if this service starts some."""
    match settings.launcher:
        case "subprocess":
            ended = schedule.worker_ended
            schedule.launcher = subprocesses(settings, url, worker_token, wired.state_store_url, ended)
            stack.push_async_callback(schedule.launcher.stop)
        case "kubernetes":
            assert wired.kubernetes is not None
            cluster = pods(wired.kubernetes, settings, url, wired.installation)
            start_within = timedelta(seconds=settings.kubernetes_start_seconds)
            schedule.cluster = Supervision(wired.reserved, cluster, start_within)
        case "none":
            return


def _freeze() -> None:
    """Keep the collector from the objects that exist and stay: going through them delayed calls by 0.1 s."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])


@asynccontextmanager
async def _exchanging(database_url: str, engine: AsyncEngine, holder: str) -> AsyncGenerator[Exchange]:
    """Exchange signals with other services. The last one that is sent says that the lease is free."""
    key = await remembered(engine, "signals", proposed=secrets.token_urlsafe(32))
    notifications = PostgresNotifications(database_url, channel_of(key))
    exchange, over = Exchange(notifications, holder, key, SystemClock()), asyncio.Event()
    running = asyncio.create_task(exchange.run(over))
    try:
        yield exchange
    finally:
        over.set()
        await running


async def _announce(ready: Readiness, url: str, *, over: asyncio.Event) -> None:
    """Log once that statements can be run, and how to connect."""

    async def look() -> None:
        if set((await ready()).values()) == {"ok"}:
            log.info("service.ready", docs=f"{url}/docs", connect=f"tidefill sql --url {url}")
            over.set()

    await run_periodically(look, Pauses(LOOK_AT_POSTGRES), over, name="announce")


class _Listening(socket.socket):
    """A socket at which as many clients may wait as the kernel allows. asyncio accepts as many in a row as may wait."""

    def listen(self, backlog: int = socket.SOMAXCONN, /) -> None:
        del backlog
        super().listen(socket.SOMAXCONN)


def _listening(bound: socket.socket) -> socket.socket:
    """Have answers leave at once, inherited by every connection: the body would wait 40 ms for the head's ACK.

    asyncio does so by itself, but not for sockets like these, which were made without naming their protocol.
    """
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _Listening(fileno=bound.detach())


def _stop_at_signals() -> asyncio.Event:
    """Return what SIGTERM and SIGINT set. uvicorn raises the signal that ended it once more: left to its default it
    would end the process before anything else is taken down.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _database(stack: AsyncExitStack, settings: Settings) -> tuple[str, EmbeddedPostgres | None]:
    """Return the meta store's URL, and the embedded server that was started where none was given."""
    if settings.database_url is not None:
        return settings.database_url.get_secret_value(), None
    embedded = EmbeddedPostgres(settings.data_dir)
    url = await asyncio.to_thread(embedded.start)
    stack.push_async_callback(asyncio.to_thread, embedded.stop)
    return url, embedded


async def _keep_running(embedded: EmbeddedPostgres | None, stop: asyncio.Event) -> None:
    """Nobody else would start the embedded server again if it were killed."""
    if embedded is None:
        return

    async def look() -> None:
        await asyncio.to_thread(embedded.keep_running)

    await run_periodically(look, Pauses(LOOK_AT_POSTGRES), stop, name="postgres")


@dataclass(frozen=True, slots=True)
class _Wired:
    """The world of users' calls, and `reserved`: the same one for the loops and the workers' calls, with connections
    that no user's call can take. `probe` has another connection.
    """

    world: World
    reserved: World
    probe: Reader
    state_store_url: SecretStr
    installation: str
    """An identity that the meta store was given once."""
    kubernetes: KubernetesClient | None = None
    """None if workers are no pods."""


async def _wired(
    stack: AsyncExitStack, settings: Settings, database_url: str, engine: AsyncEngine, exchange: Exchange, holder: str
) -> _Wired:
    pools = await open_pools(stack, settings, database_url, engine)
    parsers = ParserProcesses()
    stack.push_async_callback(parsers.close)
    client = kubernetes(stack, settings) if settings.launcher == "kubernetes" else None
    installation = await remembered(engine, "installation", proposed=str(uuid.uuid4()))  # noqa: TID251 - made here
    world = _world(settings, pools, PostgresStores(engine), parsers, exchange, profiles_of(client, settings))
    world = replace(world, traces=traces_of(stack, settings, installation, holder, world.metrics))
    return _Wired(
        world,
        replace(world, stores=PostgresStores(_engine(stack, database_url, "tidefill-leader"))),
        PostgresReader(pools.probe),
        SecretStr(pools.url),
        installation,
        client,
    )


def _world(
    settings: Settings,
    pools: Pools,
    stores: PostgresStores,
    parsers: ParserProcesses,
    exchange: Exchange,
    profiles: Profiles | None,
) -> World:
    return World(
        stores=stores,
        clock=SystemClock(),
        signals=exchange.signals("changes"),
        parsers=parsers,
        state_store=_state_store(settings, pools),
        external=_external(settings),
        workers=Workers(
            barriers=exchange.signals("barriers"),
            requests=exchange.signals("requests"),
            dml_url=pools.writer_url,
            startable=settings.launcher != "none",
            profiles=profiles,
        ),
        loading=Loading(
            ColumnarProcesses(memory=settings.load_memory_max),
            idle=timedelta(seconds=settings.load_idle_seconds),
            rate_min=settings.load_rate_min,
            within=timedelta(seconds=settings.load_seconds_max),
            spool=Spool(settings.load_files_bytes_max),
            turns=load_turns(settings.loads_max),
        ),
        logins=Logins(
            PostgresReadLogins(pools.owner, pools.read_group),
            pools.read_place,
            pools.read_sessions,
            PostgresLending(pools.owner, pools.read_group),
        ),
        calls=Calls(backlog=Backlog(settings.dml_waiting_max, settings.dml_waiting_bytes_max)),
    )


def _external(settings: Settings) -> External:
    hosts = replace(parse_host_rules(settings.source_hosts), told=not settings.secured)
    tables, rows = PostgresExternalTables(), PostgresExternalRows()
    roots = LakeRoots(None if settings.lake_roots is None else tuple(settings.lake_roots))
    return External(
        PostgresExternalServers(), tables, PostgresReplication(), rows, HttpxProbe(hosts=hosts), hosts, roots
    )


def _state_store(settings: Settings, pools: Pools) -> StateStore:
    limits = ReaderLimits(settings.result_bytes_max, settings.queries_max, settings.queries_waiting_max)
    return StateStore(
        PostgresTables(pools.leader),
        PostgresFences(pools.leader),
        PostgresLookups(pools.owner),
        PostgresPins(pools.owner),
        PostgresReader(pools.reader, pools.catalog, limits),
        PostgresStaging(pools.staging, pools.owner, pools.reader),
        PostgresViews(pools.owner),
        PostgresGauge(pools.owner),
        PostgresFollowedRows(pools.owner),
    )


def _engine(stack: AsyncExitStack, database_url: str, name: str) -> AsyncEngine:
    engine = connect(database_url, application_name=name)
    stack.push_async_callback(engine.dispose)
    return engine


def _uvicorn(
    settings: Settings, wired: _Wired, ready: Readiness, worker_token: SecretStr, bearers: Bearers | None
) -> uvicorn.Config:
    api = ApiSettings(
        worker_token,
        settings.api_token,
        settings.body_size_max,
        allowed_origins=allowed_origins(settings.allowed_origins),
        calls_max=settings.calls_max,
        uploads_max=settings.uploads_max,
        streams_max=settings.streams_max,
        unsent_bytes_max=8 * settings.result_bytes_max,
    )

    app = create_app(
        wired.world, settings=api, ready=ready, reserved=wired.reserved, bearers=bearers, traces=wired.world.traces
    )
    pages.install(app, api, base=settings.root_path)
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=int(DRAIN.total_seconds()),
        http=protocol(ConnectionLimits(settings.connections_max, settings.head_seconds, settings.stalled_seconds)),
        ws="none",
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        backlog=ACCEPTED_AT_ONCE,
        # Long polls end with the loops' stop, not with their clients.
        lifespan="off",
    )
