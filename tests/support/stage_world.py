"""One stage over changing tables in a real store. Its history is read by the store's engine or by Spark's."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, RelationId, Term
from service.protocol.plan import VnodePosition
from service.protocol.quoting import quoted
from service.protocol.stage import Stage, lookups
from service.protocol.vnodes import runs_of, vnode_postgres
from service.serving.lookups import create
from tests.support.stage_cases import TABLES, Case
from tests.support.state_store import Store, prepared_store
from workers.backfill.actors import ActorTask
from workers.backfill.stages import BoundStage, Window
from workers.engines.copiers import Copiers
from workers.engines.group_merge import GroupMerge
from workers.engines.port import ActorOutcome, StageTask
from workers.engines.stages import StageEngine
from workers.state_store.port import has_store_engine
from workers.state_store.postgres import PostgresStore
from workers.state_store.statements import write

GENERATION = Generation(1)
TERM = Term(3)
ACTORS = 2
EPOCHS_MAX = 100
"""More epochs than a history of a few rows can take."""


class Engine(Protocol):
    """An engine of a stage: of its history, of its changes, or of both."""

    def run(self, task: StageTask) -> list[ActorOutcome] | None: ...


Made = Callable[[PostgresStore, BoundStage], Engine]
"""Makes an engine of a stage."""


@asynccontextmanager
async def stage_store(url: str) -> AsyncGenerator[Store]:
    """Prepare a store with the tables of all cases."""
    async with prepared_store(url) as prepared:
        await prepared.fences.claim(TERM)
        await prepared.fences.fence(DATABASE_GRAPH, GENERATION, term=TERM)
        for table in TABLES.values():
            await prepared.tables.create(table, term=TERM)
        yield prepared


@dataclass
class World:
    """The tables, one stage over them, and how far it has come."""

    store: Store
    case: Case
    random: Random
    made: Made | None = None
    """Makes the engine of the history; without it the store's engine reads it."""
    follows: Made | None = None
    """Makes the engine of the changes; without it the store's engine follows them."""
    format: type[PostgresStore] = PostgresStore
    """The store as other engines than the store's own see it."""
    epoch: int = 10
    positions: dict[int, dict[int, VnodePosition]] = field(default_factory=dict[int, dict[int, VnodePosition]])
    windowed: int = 10

    def __post_init__(self) -> None:
        relations = {table.id: table for table in TABLES.values()}
        read = {one.relation for one in self.case.stage.inputs}
        self.bound = BoundStage(self.case.stage, self.case.target, {one: relations[one] for one in read})
        versioned = PostgresStore(self.store.logins.writer_url, DATABASE_GRAPH, GENERATION)
        self.read_by = self.format(self.store.logins.writer_url, DATABASE_GRAPH, GENERATION)
        self.engine = StageEngine(versioned, self.bound, Copiers("test", ACTORS), 4)
        self.reader = self.engine if self.made is None else self.made(self.read_by, self.bound)
        self.follower = self.engine if self.follows is None else self.follows(self.read_by, self.bound)

    async def change(self, rows: int = 4, tables: Collection[str] = tuple(TABLES)) -> None:
        """Write some rows into each table, and delete some, in the next epoch."""
        self.epoch += 1
        for table in map(TABLES.__getitem__, tables):
            keys = {self.random.randrange(14) for _ in range(self.random.randrange(rows))}
            if not keys:
                continue
            vnode = vnode_postgres([("id", table.column("id").type)], table.vnode_count)
            given = ", ".join(self._row(key) for key in keys)
            rows_of = f"select {vnode} as _vnode, id, x, v, _to from (values {given}) g(id, x, v, _to)"
            await self.store.run(f"with {write(table, rows_of, Epoch(self.epoch))} select 1")

    def _row(self, key: int) -> str:
        x = self.random.choice(["null", *map(str, range(5))])
        return f"({key}::bigint, {x}::bigint, {self.random.randrange(4)}::bigint, {self.random.random() < 0.7})"

    def run(self, *, permits: int | None) -> list[ActorOutcome]:
        """Run one epoch of the stage, at the present epoch."""
        window = Window(Epoch(self.windowed), Epoch(self.epoch))
        self.epoch += 1
        vnodes = range(256)
        actors = tuple(
            ActorTask(
                runs=runs_of(vnodes[index * 128 : (index + 1) * 128]),
                positions=tuple(self.positions.get(index, {}).values()),
                permits=permits,
            )
            for index in range(ACTORS)
        )
        changed = self.bound.relations.keys() if permits == 0 else ()
        task = StageTask(
            curr=Epoch(self.epoch),
            actors=actors,
            page_rows=3,
            slice_seconds=30.0 if permits is None else 0.0,
            windows=dict.fromkeys(self.bound.relations, window),
            changed=frozenset(changed),
            at=dict.fromkeys(self.bound.relations, Epoch(self.windowed)),
        )
        # Spark reads no parts within a limit.
        limited = bool(permits) and self.case.stage.partition is not None
        reader = self.engine if limited else self.reader
        outcomes = (self.follower if permits == 0 else reader).run(task) or self.engine.run(task)
        for outcome in outcomes:
            held = self.positions.setdefault(outcome.actor, {})
            held.update({position.vnode: position for position in outcome.positions})
        return outcomes

    def read_history(self) -> None:
        """Read all history, and merge its groups."""
        self.read_pages()
        if self.case.stage.aggregate is not None and has_store_engine(self.read_by):
            self.merge()

    def read_pages(self) -> None:
        """Read the pages of all history, all at once, or mostly a few rows at a time."""
        self.windowed = self.epoch
        few = self.random.random() < 0.5
        epochs = 0
        while not self.complete:
            epochs += 1
            assert epochs < EPOCHS_MAX, "the history does not end"
            self.run(permits=2 if few and self.random.random() < 0.8 else None)

    def merge(self) -> None:
        """Merge the groups of the history, some vnodes in each epoch."""
        merge = GroupMerge(self.engine.store, self.bound, self.engine.copiers)
        while not merge.done:
            self.epoch += 1
            merge.run(Epoch(self.epoch), slice_seconds=0.0)

    @property
    def complete(self) -> bool:
        """Whether all history is read."""
        known = [position for held in self.positions.values() for position in held.values()]
        return len(known) == 256 and all(position.key is None for position in known)

    def follow(self) -> None:
        """Compute what changed since the last time."""
        upto = self.epoch
        self.run(permits=0)
        self.windowed = upto

    async def differs(self) -> tuple[Counter[tuple[object, ...]], Counter[tuple[object, ...]]]:
        """Return the rows that are missing and those that are too many."""
        columns = ", ".join(map(quoted, self.case.columns))
        held = Counter(await self.store.rows(f"select {columns} from state.t_9 where _to = 9223372036854775807"))
        wanted = Counter(await self.store.rows(self.case.wanted))
        return wanted - held, held - wanted


def state_of(stage: Stage) -> tuple[str, ...]:
    """Return the columns of the log of partial groups that a stage needs, none if it needs no log."""
    return () if stage.aggregate is None else stage.aggregate.state


async def world_of(
    store: Store,
    case: Case,
    seed: int,
    made: Made | None = None,
    follows: Made | None = None,
    form: type[PostgresStore] = PostgresStore,
) -> World:
    """Empty the tables and create the target of a case."""
    for number in (*(table.id for table in TABLES.values()), RelationId(9)):
        tables = f"state.t_{number}, state.p_{number}"
        await store.run(f"set application_name = 'tidefill'; drop table if exists {tables} cascade")
    for table in TABLES.values():
        await store.tables.create(table, term=TERM)
    await store.tables.create(case.target, term=TERM, sums=state_of(case.stage))
    for index in lookups(case.stage, {table.id: table for table in TABLES.values()}):
        async with store.pool.connection() as conn:
            await conn.execute(create(index))
    return World(store, case, Random(seed), made, follows, form)


async def run(
    store: Store,
    case: Case,
    seed: int,
    made: Made | None = None,
    follows: Made | None = None,
    *,
    epochs: int = 12,
    form: type[PostgresStore] = PostgresStore,
) -> str | None:
    """Run a schedule; return where the target is wrong, or None."""
    world = await world_of(store, case, seed, made, follows, form)
    for _ in range(3 * (seed > 0)):
        await world.change(rows=8)
    world.read_history()
    if await world.differs() != (Counter(), Counter()):
        return f"after the history of seed {seed}"
    for _ in range(epochs):
        for _ in range(world.random.randrange(1, 3)):
            await world.change()
        world.follow()
        if await world.differs() != (Counter(), Counter()):
            return f"in epoch {world.epoch} of seed {seed}"
    return None
