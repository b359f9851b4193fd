"""An external Postgres that is followed: a database of the server that the tests have, and a world that reaches it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typing_extensions import override

from service.domain.graph import Inject
from service.operations.barriers import recovery
from service.operations.jobs import queue
from service.operations.sources import upkeep
from service.operations.statements import dispatch
from service.operations.statements.outcome import Outcome
from service.operations.world import World
from service.ports.signals import Topic
from service.ports.sources import Address
from service.protocol.barrier import Barrier
from service.protocol.cdc import SourceReport
from service.protocol.ids import RelationId
from service.protocol.report import ActorReport
from service.sources.replication import PostgresReplication
from service.sources.servers import PostgresExternalServers
from service.sources.tables import PostgresExternalTables
from tests.support.http import PatientSignals, StillClock, changed
from tests.support.leading import Leader, leading
from tests.support.meta_store import A_TEST, NOW, WORKER, collected
from tests.support.postgres import fresh_database

T = TypeVar("T")
PASSWORD = "a password that nobody is shown"


@dataclass
class External:
    """A database with a login of its own that may replicate, and owns what is made there under its name."""

    url: str
    login: str

    @property
    def options(self) -> dict[str, str]:
        """How CREATE SOURCE reaches it, but for the password."""
        parts = conninfo_to_dict(self.url)
        return {
            "connector": "postgres-cdc",
            "hostname": str(parts["host"]),
            "port": str(parts["port"]),
            "username": self.login,
            "database.name": str(parts["dbname"]),
        }

    @property
    def address(self) -> Address:
        """How the adapters reach it."""
        parts = conninfo_to_dict(self.url)
        text = f"host={parts['host']} port={parts['port']} dbname={parts['dbname']} user={self.login}"
        return Address("pg", f"{parts['host']}", f"{text} password='{PASSWORD}'")

    def create_source(self, name: str = "pg", password: str = f"'{PASSWORD}'", **more: str) -> str:
        """Return the statement."""
        options = self.options | {one.replace("__", "."): value for one, value in more.items()}
        given = ", ".join(f"{one} = '{value}'" for one, value in options.items())
        return f"CREATE SOURCE {name} WITH ({given}, password = {password})"

    def run(self, *statements: str, superuser: bool = False) -> None:
        """Run statements, each by itself."""
        url = self.url if superuser else make_conninfo(self.url, user=self.login, password=PASSWORD)
        with psycopg.connect(url, autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return what a query gives."""
        with psycopg.connect(self.url, autocommit=True) as conn:
            return conn.execute(query.encode()).fetchall()

    def slots(self) -> list[Any]:
        """Return the names of the slots of this database."""
        return [
            name
            for (name,) in self.rows(
                "select slot_name from pg_replication_slots where database = current_database() order by 1"
            )
        ]

    def published(self) -> list[tuple[Any, ...]]:
        """Return what is published, by publication, schema and table."""
        return self.rows("select pubname, schemaname, tablename from pg_publication_tables order by 1, 2, 3")

    def publications(self) -> list[Any]:
        """Return the publications."""
        return [name for (name,) in self.rows("select pubname from pg_publication order by 1")]


@contextmanager
def external_database(server_url: str) -> Generator[External]:
    """Make a database to be followed; its slots go before it does."""
    with fresh_database(server_url) as url:
        name = str(conninfo_to_dict(url)["dbname"])
        one = External(url, f"follower_{name}")
        one.run(
            f"create role {one.login} login replication password '{PASSWORD}'",
            f"grant create on database {name} to {one.login}",
            f"grant all on schema public to {one.login}",
            superuser=True,
        )
        try:
            yield one
        finally:
            one.run(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where database = current_database()",
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                " where database = current_database()",
                f"drop owned by {one.login} cascade",
                f"drop role {one.login}",
                superuser=True,
            )


class Tables:
    """A state store that takes whatever it is told: what is written there is the worker's."""

    async def _nothing(self, *_: object, **__: object) -> Mapping[RelationId, str]:
        return {}

    create = publish = fence = roll_back = drop = hide = foreign_readers = add_column = _nothing


_TURNING: ContextVar[bool] = ContextVar("_TURNING", default=False)


@dataclass
class TurnSignals(PatientSignals):
    """A call beside which the leader takes turns looks once in a turn: its limits count turns, however long the machine
    takes for one.
    """

    turned: asyncio.Event = field(default_factory=asyncio.Event)
    turning: bool = False

    @override
    async def wait(self, timeout_seconds: float, *, topic: Topic = None, since: int | None = None) -> None:
        if self.turning and not _TURNING.get():
            await self.turned.wait()
        await super().wait(timeout_seconds, topic=topic, since=since)

    @contextmanager
    def turn(self) -> Generator[None]:
        """A turn of the leader, which may wait for its own ends."""
        before = _TURNING.set(True)
        try:
            yield
        finally:
            _TURNING.reset(before)
            self.turned.set()
            self.turned.clear()


@dataclass
class Following:
    """A leader whose worker answers what it is told to, over a real meta store and an external database."""

    leader: Leader
    world: World
    external: External
    url: str = field(repr=False)
    signals: TurnSignals
    reports: list[SourceReport] = field(default_factory=list[SourceReport])
    actors: list[ActorReport] = field(default_factory=list[ActorReport])

    async def run(self, text: str, **session: str) -> Outcome:
        """Run a statement, with barriers and chores for as long as it takes."""
        return await self.through(lambda: dispatch.run(self.world, text, session=session, asked_by=A_TEST))

    async def through(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call, and go on making barriers until that has returned."""
        task = asyncio.ensure_future(call())
        self.signals.turning = True
        try:
            while not task.done():
                with self.signals.turn():
                    await self.turn()
                await asyncio.sleep(0)  # noqa: TID251 - hands over to the call, and takes no time
        finally:
            self.signals.turning = False
        return await task

    async def turn(self) -> object:
        """Do what a leader's loops do, once."""
        await upkeep.clean_up(self.world, term=self.leader.term)
        await queue.start_jobs(self.world, term=self.leader.term)
        await recovery.clean_up(self.world, term=self.leader.term)
        effect = await self.leader.look()
        if isinstance(effect, Inject):
            await self._answer()
        return effect

    async def barrier(self) -> Barrier:
        """Have one more barrier injected, collected, committed and published."""
        self.leader.world.clock.wall += self.world.workers.poll_wait  # type: ignore[attr-defined]
        effect: object = None
        while not isinstance(effect, Inject):
            effect = await self.leader.look()
        answered = await self._answer()
        for _ in range(2):
            await self.leader.look()
        return answered

    async def _answer(self) -> Barrier:
        async with self.world.stores.begin() as tx:
            barrier = await tx.barriers.for_worker(WORKER)
            assert barrier is not None
            answer = collected(barrier.curr, *self.actors, *self.reports, generation=barrier.generation)
            await tx.barriers.answer(answer, now=NOW)
        return barrier

    def stored(self, query: str) -> list[tuple[Any, ...]]:
        """Return what a query of the meta store gives."""
        with psycopg.connect(self.url, autocommit=True) as conn:
            return conn.execute(query.encode()).fetchall()


@asynccontextmanager
async def following(database_url: str, external: External) -> AsyncGenerator[Following]:
    """Lead over a fresh meta store, beside an external database."""
    async with leading(database_url) as leader:
        clock = leader.world.clock
        assert isinstance(clock, StillClock)
        signals = TurnSignals(clock)
        ports: dict[str, Any] = {
            "signals": signals,
            "tables": Tables(),
            "servers": PostgresExternalServers(),
            "catalog": PostgresExternalTables(),
            "replication": PostgresReplication(),
        }
        leader.world = changed(leader.world, **ports)
        yield Following(leader, leader.world, external, database_url, signals)
