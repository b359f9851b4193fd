"""Who sits the examinations: the real stores and those in memory."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, cast

import pytest

from service.ports.meta_store import Stores
from service.ports.state_store import Fences, LookupIndexes, VersionedTables
from service.protocol.ids import DATABASE_GRAPH
from service.protocol.relation import ALIVE, Relation, state_table
from service.serving.fencing import PostgresFences
from service.serving.lookups import PostgresLookups
from service.serving.tables import PostgresTables
from tests.support.fake_meta_store import FakeStores
from tests.support.fake_state_store import FakeFences, FakeLookups, FakeTables, StateStore
from tests.support.meta_store import NOW, stores_on
from tests.support.model import Version
from tests.support.state_store import Store, prepared_store

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)
ON_POSTGRES = pytest.mark.parametrize("stores", [POSTGRES], indirect=True)
"""Of what has no form in memory, and of locks: in memory transactions come one after the other."""
Rows = Sequence[tuple[object, ...]]


@dataclass
class TickingClock:
    """A database's clock: a millisecond goes by between any two looks at it."""

    at: datetime = NOW

    def __call__(self) -> datetime:
        self.at += timedelta(milliseconds=1)
        return self.at


@pytest.fixture
def database_url(laid_out_url: str) -> str:
    """A fresh database with the layouts of the meta store and of the state store."""
    return laid_out_url


@pytest.fixture(params=["fake", POSTGRES])
async def stores(request: pytest.FixtureRequest) -> AsyncGenerator[Stores]:
    if request.param == "fake":
        yield FakeStores(TickingClock())
        return
    async with stores_on(request.getfixturevalue("database_url")) as (stores, _):
        yield stores


class Examined(Protocol):
    """A state store under examination, with what a worker puts there and what a user sees of it."""

    @property
    def tables(self) -> VersionedTables: ...

    @property
    def fences(self) -> Fences: ...

    @property
    def lookups(self) -> LookupIndexes: ...

    async def put(self, relation: Relation, key: int, value: str, epoch: int, ended: int | None = None) -> None:
        """Store a version of the row `(key, value)`."""
        ...

    async def shown(self, relation: Relation) -> Rows | None:
        """Return what a user reads by the relation's name, in order; None where there is nothing of that name."""
        ...

    async def stored(self, relation: Relation) -> Rows | None:
        """Return every version as (key, value, from, to), in order; None where there is no table."""
        ...

    async def generation(self) -> int | None:
        """Return the generation of the database graph that may write."""
        ...


@dataclass(frozen=True)
class ExaminedPostgres:
    store: Store

    @property
    def tables(self) -> PostgresTables:
        return self.store.tables

    @property
    def fences(self) -> PostgresFences:
        return self.store.fences

    @property
    def lookups(self) -> PostgresLookups:
        return PostgresLookups(self.store.pool)

    async def put(self, relation: Relation, key: int, value: str, epoch: int, ended: int | None = None) -> None:
        end = "default" if ended is None else str(ended)
        await self.store.run(f"insert into {state_table(relation.id)} values (0, {key}, '{value}', {epoch}, {end})")

    async def shown(self, relation: Relation) -> Rows | None:
        return await self._rows(f'public."{relation.name}"', "*")

    async def stored(self, relation: Relation) -> Rows | None:
        return await self._rows(state_table(relation.id), "id, v, _from, _to")

    async def generation(self) -> int | None:
        rows = await self.store.rows(f"select generation from state.fence where graph = {DATABASE_GRAPH}")
        return cast("int", rows[0][0]) if rows else None

    async def _rows(self, name: str, columns: str) -> Rows | None:
        if await self.store.rows(f"select to_regclass('{name}')") == [(None,)]:
            return None
        return await self.store.rows(
            f"select {columns} from {name} order by 1, 3" if "," in columns else f"table {name} order by 1"
        )


@dataclass(frozen=True)
class ExaminedFake:
    store: StateStore
    tables: FakeTables
    fences: FakeFences
    lookups: FakeLookups

    async def put(self, relation: Relation, key: int, value: str, epoch: int, ended: int | None = None) -> None:
        version = Version(0, (key,), cast("Any", (value,)), epoch, ALIVE if ended is None else ended)
        self.store.tables[relation.id].put_version(version)

    async def shown(self, relation: Relation) -> Rows | None:
        rows = self.store.shown(relation.name)
        return None if rows is None else sorted((*key, *row) for key, row in rows.items())

    async def stored(self, relation: Relation) -> Rows | None:
        table = self.store.tables.get(relation.id)
        if table is None:
            return None
        return sorted((*one.key, *one.row, one.start, one.end) for one in table.versions)

    async def generation(self) -> int | None:
        return self.store.fences.get(DATABASE_GRAPH)


@pytest.fixture(params=["fake", POSTGRES])
async def examined(request: pytest.FixtureRequest) -> AsyncGenerator[Examined]:
    if request.param == "fake":
        store = StateStore()
        yield ExaminedFake(store, FakeTables(store), FakeFences(store), FakeLookups(store))
        return
    async with prepared_store(request.getfixturevalue("database_url")) as prepared:
        yield ExaminedPostgres(prepared)
