"""A prepared state store, and the few rows tests put into it as a worker would."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from service.ports.read_logins import ReadLogin
from service.ports.state_store import StagedRows
from service.protocol.columns import Column, ColumnType, KeyColumn
from service.protocol.ids import DATABASE_GRAPH, Epoch, Generation, RelationId, Term
from service.protocol.relation import Relation, RelationKind, state_table
from service.serving.connections import Pool, open_pool, url_as
from service.serving.fencing import PostgresFences
from service.serving.preparation import prepare
from service.serving.read_logins import PostgresReadLogins
from service.serving.roles import Logins
from service.serving.tables import PostgresTables

READER_PASSWORD = "reader's own"
WRITER_PASSWORD = "writer's own"
READ_PASSWORD = "read's own"


async def filled(staging: AbstractAsyncContextManager[StagedRows]) -> int:
    """Stage rows that nobody accepts; return how many."""
    async with staging as staged:
        return staged.rows


@dataclass(frozen=True, slots=True)
class Store:
    """A laid out state store: the owner's URL and pool, the logins, the tables and the fences."""

    url: str
    pool: Pool
    logins: Logins
    tables: PostgresTables
    fences: PostgresFences

    async def rows(self, query: str) -> list[tuple[object, ...]]:
        """Return what a query of the owner gives."""
        async with self.pool.connection() as conn:
            return list(await (await conn.execute(query.encode())).fetchall())

    async def read_url(self, suffix: str = "root") -> str:
        """Open a login for a user's own tools; return its URL."""
        reads = PostgresReadLogins(self.pool, self.logins.read)
        await reads.open(ReadLogin(suffix), READ_PASSWORD)
        return url_as(self.url, reads.name(suffix), READ_PASSWORD)

    async def run(self, statement: str) -> None:
        """Run a statement of the owner."""
        async with self.pool.connection() as conn:
            await conn.execute(statement.encode())


@asynccontextmanager
async def prepared_store(url: str) -> AsyncGenerator[Store]:
    """Prepare the database and open the owner's pool."""
    logins = await prepare(url, reader_password=READER_PASSWORD, writer_password=WRITER_PASSWORD)
    async with open_pool(url, name="test") as pool:
        yield Store(url, pool, logins, PostgresTables(pool), PostgresFences(pool))


def lay_out_template(url: str) -> None:
    """Prepare a database that others are copied from: with the layout, and without logins, for each has its own.

    Revoking from PUBLIC takes most of the time of preparing a store, and a copy has it done already.
    """
    # A fixture may be made while a loop runs in this thread.
    with ThreadPoolExecutor(1) as apart:
        preparing = prepare(url, reader_password=READER_PASSWORD, writer_password=WRITER_PASSWORD)
        logins = apart.submit(asyncio.run, preparing).result()
    names = [make_url(one).username for one in (logins.reader_url, logins.writer_url)]
    with psycopg.connect(url, autocommit=True) as connection:
        for name in (*names, logins.read):
            role = sql.Identifier(str(name))
            connection.execute(sql.SQL("drop owned by {}").format(role))
            connection.execute(sql.SQL("drop role {}").format(role))


@asynccontextmanager
async def store_of(url: str, table: Relation, generation: Generation) -> AsyncGenerator[Store]:
    """Prepare the database with one table, to be written in `generation` of the database graph."""
    term = Term(7)
    async with prepared_store(url) as store:
        await store.fences.claim(term)
        await store.tables.create(table, term=term)
        await store.fences.fence(DATABASE_GRAPH, generation, term=term)
        yield store


def relation(number: int, name: str, columns: dict[str, str] | None = None, *key: str) -> Relation:
    """Return a table with columns (name -> type) and a key, `id bigint, v text` with key `id` by default."""
    shape = columns or {"id": "bigint", "v": "text"}
    return Relation(
        id=RelationId(number),
        name=name,
        kind=RelationKind.TABLE,
        columns=tuple(Column(name=title, type=ColumnType.parse(kind)) for title, kind in shape.items()),
        key=tuple(KeyColumn(name=part) for part in (key or (next(iter(shape)),))),
    )


def insert(conn: psycopg.Connection, table: Relation, epoch: Epoch, rows: Sequence[tuple[object, ...]]) -> None:
    """Write row versions that begin at `epoch`, all in vnode 0."""
    names = sql.SQL(", ").join([sql.Identifier(column.name) for column in table.columns])
    places = sql.SQL(", ").join([sql.Placeholder()] * len(table.columns))
    statement = sql.SQL("insert into {} (_vnode, {}, _from) values (0, {}, {})").format(
        sql.Identifier(*state_table(table.id).split(".")), names, places, sql.Literal(epoch)
    )
    with conn.cursor() as cursor:
        cursor.executemany(statement, rows)
