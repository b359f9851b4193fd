"""Transactions over the aggregates on Postgres. No other module of the service commits aggregates to the meta store."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.meta_store.audit import Audit
from service.meta_store.barriers.barriers import PostgresBarriers
from service.meta_store.barriers.commands import PostgresCommands
from service.meta_store.barriers.graphs import PostgresGraphs
from service.meta_store.barriers.launches import PostgresLaunches
from service.meta_store.barriers.leases import PostgresLeases, assert_term
from service.meta_store.barriers.requests import Requests
from service.meta_store.barriers.statements import PostgresStagingTables, PostgresStatements
from service.meta_store.barriers.workers import PostgresWorkers
from service.meta_store.catalog.catalog import PostgresCatalog, PostgresCleanups
from service.meta_store.catalog.indexes import PostgresNamedIndexes, PostgresStoredIndexes
from service.meta_store.catalog.logical_views import LogicalViews
from service.meta_store.catalog.visibility import PostgresVisibility
from service.meta_store.engine import CALLS_AT_ONCE, POOL_TIMEOUT_SECONDS, translated
from service.meta_store.events import PostgresEvents
from service.meta_store.jobs.actors import PostgresActors
from service.meta_store.jobs.fragments import PostgresFragments
from service.meta_store.jobs.jobs import PostgresFailures, PostgresJobs
from service.meta_store.jobs.limits import Adaptations, PostgresLimits
from service.meta_store.jobs.partial_graphs import PostgresPartialGraphs
from service.meta_store.jobs.plans import PostgresPlans
from service.meta_store.jobs.queue import PostgresJobQueue
from service.meta_store.jobs.rescaling import PostgresRescaling
from service.meta_store.jobs.snapshots import PostgresSnapshots
from service.meta_store.keys import PostgresKeys
from service.meta_store.parameters import PostgresParameters
from service.meta_store.sources.followed_tables import Following, Slots, SourceCleanups
from service.meta_store.sources.lakes import Lakes
from service.meta_store.sources.sources import Secrets, Sources
from service.meta_store.status import Status
from service.meta_store.tokens import Tokens
from service.ports.audit import Asker, Outcome
from service.ports.meta_store import Transaction
from service.protocol.ids import Term
from service.turns import CALLER, Turns

_WAITING_MAX: Final = 10_000


def portless(connection: AsyncConnection) -> dict[str, Any]:
    """Return the members of a transaction that feed no decision: they have no port, and no other form."""
    return {
        "views": LogicalViews(connection),
        "adaptations": Adaptations(connection),
        "sources": Sources(connection),
        "lakes": Lakes(connection),
        "following": Following(connection),
        "slots": Slots(connection),
        "source_cleanups": SourceCleanups(connection),
        "secrets": Secrets(connection),
        "requests": Requests(connection),
        "status": Status(connection),
        "tokens": Tokens(connection),
        "audit": Audit(connection),
    }


def transaction_on(connection: AsyncConnection, events: PostgresEvents) -> Transaction:
    """Return the ports over `connection`, on which a transaction is open."""
    return Transaction(
        leases=PostgresLeases(connection),
        graphs=PostgresGraphs(connection),
        barriers=PostgresBarriers(connection),
        commands=PostgresCommands(connection),
        catalog=PostgresCatalog(connection),
        cleanups=PostgresCleanups(connection),
        visibility=PostgresVisibility(connection),
        indexes=PostgresNamedIndexes(connection),
        stored_indexes=PostgresStoredIndexes(connection),
        jobs=PostgresJobs(connection),
        queue=PostgresJobQueue(connection),
        plans=PostgresPlans(connection),
        failures=PostgresFailures(connection),
        fragments=PostgresFragments(connection),
        actors=PostgresActors(connection),
        rescaling=PostgresRescaling(connection),
        limits=PostgresLimits(connection),
        partial_graphs=PostgresPartialGraphs(connection),
        snapshots=PostgresSnapshots(connection),
        statements=PostgresStatements(connection),
        staging_tables=PostgresStagingTables(connection),
        workers=PostgresWorkers(connection),
        launches=PostgresLaunches(connection),
        events=events,
        parameters=PostgresParameters(connection),
        keys=PostgresKeys(connection),
        **portless(connection),
    )


class PostgresStores:
    """See `service.ports.meta_store.Stores`. The caller owns the engine and disposes of it.

    The connections that the calls of users have are shared out among the callers (I13).
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._turns = Turns("transactions", running=CALLS_AT_ONCE, waiting=_WAITING_MAX, seconds=POOL_TIMEOUT_SECONDS)

    @asynccontextmanager
    async def begin(self, term: Term | None = None, *, by: Asker | None = None) -> AsyncGenerator[Transaction]:
        """The transaction is READ COMMITTED. Row locks protect whatever must not change between its statements.

        Raises Deposed where `term` is over.
        """
        async with self._turn():
            with translated():
                async with self._engine.begin() as connection:
                    if term is not None:
                        await assert_term(connection, term)
                    events = PostgresEvents(connection)
                    tx = transaction_on(connection, events)
                    yield tx
                    if by is not None and by.call is not None:
                        await tx.audit.add(by, Outcome.ACCEPTED)
                    await events.write()

    def _turn(self) -> AbstractAsyncContextManager[None]:
        caller = CALLER.get()
        return nullcontext() if caller is None else self._turns.turn(caller)
