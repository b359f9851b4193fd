"""Transactions over the aggregates on Postgres. No other module of the service commits aggregates to the meta store."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.meta_store.barriers.barriers import PostgresBarriers
from service.meta_store.barriers.commands import PostgresCommands
from service.meta_store.barriers.graphs import PostgresGraphs
from service.meta_store.barriers.leases import PostgresLeases, assert_term
from service.meta_store.barriers.requests import PostgresRequests
from service.meta_store.barriers.statements import PostgresStatements
from service.meta_store.barriers.workers import PostgresWorkers
from service.meta_store.catalog.catalog import PostgresCatalog
from service.meta_store.catalog.indexes import PostgresIndexes
from service.meta_store.catalog.logical_views import PostgresLogicalViews
from service.meta_store.engine import translated
from service.meta_store.events import PostgresEvents
from service.meta_store.jobs.actors import PostgresActors
from service.meta_store.jobs.fragments import PostgresFragments
from service.meta_store.jobs.jobs import PostgresJobs
from service.meta_store.jobs.limits import PostgresLimits
from service.meta_store.jobs.snapshots import PostgresSnapshots
from service.meta_store.keys import PostgresKeys
from service.meta_store.parameters import PostgresParameters
from service.meta_store.sources.followed_tables import PostgresFollowing, PostgresSourceCleanups
from service.meta_store.sources.sources import PostgresSecrets, PostgresSources
from service.ports.meta_store import Transaction
from service.protocol.ids import Term


@dataclass(frozen=True, slots=True)
class PostgresTransaction:
    """The aggregates of one transaction. None of them may be used after it."""

    leases: PostgresLeases
    graphs: PostgresGraphs
    barriers: PostgresBarriers
    commands: PostgresCommands
    catalog: PostgresCatalog
    jobs: PostgresJobs
    fragments: PostgresFragments
    actors: PostgresActors
    snapshots: PostgresSnapshots
    limits: PostgresLimits
    views: PostgresLogicalViews
    indexes: PostgresIndexes
    sources: PostgresSources
    following: PostgresFollowing
    source_cleanups: PostgresSourceCleanups
    secrets: PostgresSecrets
    statements: PostgresStatements
    workers: PostgresWorkers
    requests: PostgresRequests
    events: PostgresEvents
    parameters: PostgresParameters
    keys: PostgresKeys

    @classmethod
    def on(cls, connection: AsyncConnection) -> "PostgresTransaction":
        """Return the aggregates over `connection`, on which a transaction is open."""
        return cls(
            leases=PostgresLeases(connection),
            graphs=PostgresGraphs(connection),
            barriers=PostgresBarriers(connection),
            commands=PostgresCommands(connection),
            catalog=PostgresCatalog(connection),
            jobs=PostgresJobs(connection),
            fragments=PostgresFragments(connection),
            actors=PostgresActors(connection),
            snapshots=PostgresSnapshots(connection),
            limits=PostgresLimits(connection),
            views=PostgresLogicalViews(connection),
            indexes=PostgresIndexes(connection),
            sources=PostgresSources(connection),
            following=PostgresFollowing(connection),
            source_cleanups=PostgresSourceCleanups(connection),
            secrets=PostgresSecrets(connection),
            statements=PostgresStatements(connection),
            workers=PostgresWorkers(connection),
            requests=PostgresRequests(connection),
            events=PostgresEvents(connection),
            parameters=PostgresParameters(connection),
            keys=PostgresKeys(connection),
        )


class PostgresStores:
    """See `service.ports.meta_store.Stores`. The caller owns the engine and disposes of it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def begin(self, term: Term | None = None) -> AsyncGenerator[Transaction]:
        """The transaction is READ COMMITTED. Row locks protect whatever must not change between its statements.

        Raises Deposed where `term` is over.
        """
        with translated():
            async with self._engine.begin() as connection:
                if term is not None:
                    await assert_term(connection, term)
                transaction = PostgresTransaction.on(connection)
                yield transaction
                await transaction.events.write()
