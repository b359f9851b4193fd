"""Both stores on one real database, with a leader's term and a world on them, but no worker."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from service.meta_store.stores import PostgresStores
from service.operations.statements import dispatch
from service.operations.statements.outcome import Outcome
from service.operations.world import World
from service.ports.records import NewJob
from service.protocol.ids import DATABASE_GRAPH, Epoch, RelationId, Term
from service.protocol.relation import Relation
from service.serving.logical_views import PostgresViews
from service.serving.lookups import PostgresLookups
from service.serving.reader import PostgresReader
from service.serving.user_query import open_reader_pool
from tests.support.http import world_of
from tests.support.meta_store import A_TEST, NOW, add_created, stores_on
from tests.support.state_store import Store, prepared_store


@dataclass
class BothStores:
    """The stores, and a world on them. Relations are published at `epoch`."""

    stores: PostgresStores
    store: Store
    world: World
    term: Term
    epoch: Epoch = field(default_factory=lambda: Epoch(5))

    @classmethod
    @asynccontextmanager
    async def on(cls, database_url: str) -> AsyncGenerator[Self]:
        """Prepare the database, which has the meta store's schema."""
        async with (
            stores_on(database_url) as (stores, _),
            prepared_store(database_url) as store,
            open_reader_pool(store.logins.reader_url, size=1) as pool,
        ):
            async with stores.begin() as tx:
                term = await tx.leases.gain("a test", lease=timedelta(minutes=5))
            assert term is not None
            await store.fences.claim(term)
            world = world_of(
                stores,
                tables=store.tables,
                fences=store.fences,
                lookups=PostgresLookups(store.pool),
                reader=PostgresReader(pool),
                views=PostgresViews(store.pool),
            )
            yield cls(stores, store, world, term)

    async def run(self, text: str, **session: str) -> Outcome:
        return await dispatch.run(self.world, text, session=session, asked_by=A_TEST)

    async def rows(self, text: str) -> tuple[tuple[Any, ...], ...]:
        return (await self.run(text)).rows

    async def created(self, new: NewJob) -> RelationId:
        """Store a relation that is created and readable, in both stores."""
        async with self.stores.begin() as tx:
            job = await add_created(tx, new)
            await tx.visibility.publish(DATABASE_GRAPH, Epoch(0), now=NOW)
        await self.publish(new.relation.model_copy(update={"id": job.relation}))
        return job.relation

    async def publish(self, relation: Relation) -> None:
        await self.store.tables.create(relation, term=self.term)
        await self.store.tables.publish(DATABASE_GRAPH, self.epoch, term=self.term, created=[relation])
