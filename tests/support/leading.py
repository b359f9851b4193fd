"""A leader's looks at the database graph, one by one, and a worker that says what a test tells it to."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Self

import psycopg

from service.domain.errors import Invalid
from service.domain.fan_out import Statistics
from service.domain.graph import Abandon, Commit, GraphStatus, Inject, Publish, RollBack
from service.domain.leadership import LEASE
from service.meta_store.stores import PostgresStores
from service.operations.barriers.advance import advance
from service.operations.world import World
from service.protocol.barrier import Barrier
from service.protocol.ids import DATABASE_GRAPH, CommandId, Generation, JobId, RelationId, Term, WorkerId
from service.protocol.mutation import Add, Mutation
from service.protocol.report import ActorReport
from tests.support.http import changed, world_of
from tests.support.meta_store import (
    NOW,
    WORKER,
    add_created,
    add_creating,
    collected,
    new_table,
    new_view,
    registration,
    running,
    stores_on,
)
from tests.support.stages_oracle import run as run_text
from tests.support.stages_oracle import types_of


class Shown:
    """A state store that shows whatever it is told to: the barriers under test write nothing."""

    async def publish(self, *_: object, **__: object) -> Mapping[RelationId, str]:
        return {}

    async def fence(self, *_: object, **__: object) -> Collection[Generation]:
        return ()

    async def roll_back(self, *_: object, **__: object) -> None:
        return

    async def create(self, *_: object, **__: object) -> None:
        return

    async def drop(self, *_: object, **__: object) -> None:
        return

    async def hide(self, *_: object, **__: object) -> None:
        return

    async def add_column(self, *_: object) -> None:
        return

    async def foreign_readers(self, *_: object) -> Sequence[str]:
        return ()


class Described:
    """A state store that knows the columns of `t` and `v`, and nothing of their rows."""

    def __init__(self, url: str) -> None:
        self.url = url

    def of(self, _caller: str) -> Self:
        return self

    async def describe(self, sql: str, *, timeout_ms: int) -> tuple[tuple[str, str], ...]:
        assert timeout_ms
        with psycopg.connect(self.url) as connection:
            for name in ("t", "v"):
                run_text(connection, f"create temp table {name} (id bigint, name text)")
            try:
                found = run_text(connection, f"select * from ({sql}) q limit 0").description or []
            except psycopg.Error as error:
                raise Invalid(error.diag.message_primary or "") from None
            return tuple(zip((one.name for one in found), types_of(connection, sql), strict=True))

    async def statistics(self, _: object) -> Statistics:
        return {}


class Leader:
    """Advances the graph and answers for its worker."""

    def __init__(self, stores: PostgresStores, term: Term) -> None:
        self.stores, self.term = stores, term
        state_store = Shown()
        self.world: World = world_of(stores, tables=state_store, fences=state_store)

    def describe(self, url: str) -> None:
        """Have statements described that read `t` and `v`."""
        store: Any = Described(url)
        self.world = changed(self.world, reader=store, lookups=store)

    async def queue(self, mutation: Mutation | None, *, by: str = "a test") -> CommandId:
        async with self.stores.begin() as tx:
            return await tx.commands.add(DATABASE_GRAPH, mutation, asked_by=by, now=NOW)

    async def add_views(self, count: int, *, named: str) -> tuple[list[JobId], list[CommandId]]:
        """Store creating views and queue the command that adds each."""
        async with self.stores.begin() as tx:
            table = await tx.catalog.named("t")
            upstream = (await add_created(tx, new_table("t"))).relation if table is None else table.relation.id
            jobs = [(await add_creating(tx, new_view(f"{named}{n}", upstream))).id for n in range(count)]
            plans = {plan.id: plan for plan in await tx.plans.of(jobs)}
        return jobs, [await self.queue(Add(jobs=(plans[job],))) for job in jobs]

    async def barrier(self, *actors: ActorReport, worker: WorkerId = WORKER) -> Barrier:
        """Have the next barrier injected, collected, committed and published; return it."""
        assert isinstance(await self.look(), Inject)
        return await self.answered(*actors, worker=worker)

    async def answered(self, *actors: ActorReport, worker: WorkerId = WORKER) -> Barrier:
        """Have the barrier in flight collected, committed and published; return it."""
        barrier = await self._collected(actors, worker)
        assert isinstance(await self.look(), Commit)
        assert isinstance(await self.look(), Publish)
        return barrier

    async def injected(self, *actors: ActorReport) -> Barrier:
        """Have the next barrier injected and collected, and no more; return it."""
        assert isinstance(await self.look(), Inject)
        return await self._collected(actors, WORKER)

    async def recover(self) -> None:
        """End the generation: what is not committed never was. The next barrier is the initial one."""
        async with self.stores.begin() as tx:
            await tx.graphs.ask_recovery(DATABASE_GRAPH, "a test")
        assert isinstance(await self.look(), Abandon)
        assert isinstance(await self.look(), RollBack)

    async def replaced(self, other: WorkerId, *, parallelism: int) -> WorkerId:
        """Have the worker given up, and another in its place that runs so many tasks at once; return that one. The next
        barrier is its initial one.
        """
        async with self.stores.begin() as tx:
            await tx.workers.register(registration(other).model_copy(update={"parallelism": parallelism}), now=NOW)
            await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.RECOVERING, now=NOW, reason="a test")
            await tx.graphs.set_status(DATABASE_GRAPH, GraphStatus.WAITING, now=NOW)
            await tx.workers.give_up(WORKER)
        return other

    async def epoch_of(self, command: CommandId) -> int | None:
        async with self.stores.begin() as tx:
            found = await tx.commands.get(command)
        assert found is not None
        return found.epoch if found.done else None

    async def state_of(self, job: JobId) -> str:
        async with self.stores.begin() as tx:
            found = await tx.jobs.get(job)
        assert found is not None
        return found.state

    async def _collected(self, actors: Sequence[ActorReport], worker: WorkerId) -> Barrier:
        async with self.stores.begin() as tx:
            barrier = await tx.barriers.for_worker(worker)
            assert barrier is not None
            answer = collected(barrier.curr, *actors, generation=barrier.generation, worker=worker)
            assert await tx.barriers.answer(answer, now=NOW)
        return barrier

    async def look(self) -> object:
        """Do the one next thing in the database graph."""
        return await advance(self.world, DATABASE_GRAPH, term=self.term)


@asynccontextmanager
async def leading(database_url: str) -> AsyncGenerator[Leader]:
    """Lead over a fresh meta store with one worker."""
    async with stores_on(database_url) as (stores, _):
        await running(stores)
        async with stores.begin() as tx:
            term = await tx.leases.gain("a test", lease=max(LEASE, timedelta(minutes=5)))
        assert term is not None
        yield Leader(stores, term)
