"""The table formats that the tests examine, each with its service side, and rows as an engine writes them."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import adbc_driver_manager
import psycopg
import pyarrow as pa
import pytest

from service.ports.state_store import Fences, Pins, VersionedTables
from service.protocol.ids import DATABASE_GRAPH, Generation, Term
from service.protocol.relation import Relation
from service.serving.pins import PostgresPins
from tests.support.fake_state_store import GenerationOverError
from tests.support.memory_format import MemoryFormat
from tests.support.state_store import prepared_store
from workers.state_store.port import OPERATION, VersionedStore
from workers.state_store.postgres import PostgresStore
from workers.state_store.wire import read_schema

TERM, GENERATION = Term(7), Generation(5)


@dataclass(frozen=True)
class Format:
    """A format under examination. `over` is what it raises when the generation is over."""

    tables: VersionedTables
    fences: Fences
    pins: Pins
    store: Callable[[Generation], VersionedStore]
    over: tuple[type[Exception], ...]

    async def prepare(self, *tables: Relation) -> VersionedStore:
        """Create tables, and return the worker side of the first generation."""
        await self.fences.claim(TERM)
        for table in tables:
            await self.tables.create(table, term=TERM)
        await self.fences.fence(DATABASE_GRAPH, GENERATION, term=TERM)
        return self.store(GENERATION)


@asynccontextmanager
async def table_format(request: pytest.FixtureRequest) -> AsyncGenerator[Format]:
    """Run the format that a fixture's parameter names: `memory` or `postgres`."""
    if request.param == "memory":
        with MemoryFormat() as memory:
            yield Format(memory.tables, memory.fences, memory.pins, memory.store, (GenerationOverError,))
        return
    async with prepared_store(request.getfixturevalue("database_url")) as prepared:

        def store(generation: Generation) -> PostgresStore:
            return PostgresStore(prepared.url, DATABASE_GRAPH, generation)

        over = (psycopg.Error, adbc_driver_manager.Error)
        yield Format(prepared.tables, prepared.fences, PostgresPins(prepared.pool), store, over)


def batch(table: Relation, rows: Iterable[tuple[int, int, tuple[Any, ...]]]) -> pa.RecordBatch:
    """Return rows as an engine writes them. The columns are of native types."""
    given = list(rows)
    schema = pa.schema([pa.field(OPERATION, pa.int8()), *read_schema(table)])
    columns = [
        [op for op, _, _ in given],
        [vnode for _, vnode, _ in given],
        *zip(*(v for _, _, v in given), strict=True),
    ]
    arrays = [pa.array(values, wanted.type) for values, wanted in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
