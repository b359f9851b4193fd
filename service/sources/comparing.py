"""Read rows, digests and the end of the log of an external table for a comparison, each in one short statement."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from psycopg.raw_cursor import AsyncRawCursor

from service.domain.comparing import Digest, Key, Part, Rows
from service.ports.sources import Address
from service.protocol import digests
from service.protocol.cdc import CdcScan, Lsn, carried_postgres, without_length
from service.protocol.digests import KeyExpression, Side
from service.protocol.kept import or_null_postgres
from service.protocol.quoting import quoted, quoted_text
from service.protocol.relation import Relation
from service.protocol.vnodes import vnode_postgres
from service.sources.connections import Connection, connected, trusted

_ORDERS = """
select bool_and(a.attcollation = 0 or k.collname in ('C', 'POSIX', 'ucs_basic', 'pg_c_utf8') or (
    k.collname = 'default' and (to_jsonb(d) ->> 'datlocprovider' = 'b' or d.datcollate in ('C', 'POSIX'))
)) and bool_and(a.atttypid <> 'bpchar'::regtype)
from pg_attribute a
join pg_class c on c.oid = a.attrelid
join pg_namespace n on n.oid = c.relnamespace
left join pg_collation k on k.oid = a.attcollation
join pg_database d on d.datname = current_database()
where n.nspname = $1 and c.relname = $2 and a.attname = any ($3) and not a.attisdropped
"""
_LOG_END = "select pg_current_wal_insert_lsn()::text"


class PostgresExternalRows:
    """`service.ports.comparing.ExternalRows` in Postgres."""

    async def ordered_alike(self, at: Address, scan: CdcScan, relation: Relation) -> bool:
        names = _externals(scan)
        given = [scan.external_schema, scan.external_table, [names[part.name][0] for part in relation.key]]
        async with connected(at) as conn:
            ((alike,),) = await _read(conn, _ORDERS, given)
        return bool(alike) and not any(part.descending for part in relation.key)

    async def end(self, at: Address, scan: CdcScan, relation: Relation, after: Key | None, rows: int) -> Key | None:
        async with connected(at) as conn:
            found = await _read(conn, digests.end_query(_side(scan, relation), after, rows))
        return tuple(map(str, found[0][1:])) if found and found[0][0] == rows else None

    async def digest(self, at: Address, scan: CdcScan, relation: Relation, part: Part) -> tuple[Digest, Lsn]:
        query = digests.digest_query(_side(scan, relation), part.after, part.upto, part.vnodes)
        (((rows, total),), lsn) = await _marked(at, query)
        return Digest(int(rows), int(total)), lsn

    async def rows(self, at: Address, scan: CdcScan, relation: Relation, part: Part, most: int) -> tuple[Rows, Lsn]:
        query = digests.rows_query(_side(scan, relation), part.after, part.upto, part.vnodes, most)
        found, lsn = await _marked(at, query)
        return await asyncio.to_thread(digests.by_key, found), lsn

    async def rows_of(self, at: Address, scan: CdcScan, relation: Relation, keys: Collection[Key]) -> tuple[Rows, Lsn]:
        found, lsn = await _marked(at, digests.rows_of_query(_side(scan, relation)), digests.parameters(keys))
        return await asyncio.to_thread(digests.by_key, found), lsn


async def _marked(at: Address, query: str, values: Sequence[Any] = ()) -> tuple[list[tuple[Any, ...]], Lsn]:
    """Return the rows of a query and the end of the log after it. All rows were committed before that LSN."""
    async with connected(at) as conn:
        found = await _read(conn, query, values)
        ((lsn,),) = await _read(conn, _LOG_END)
    return found, lsn


async def _read(conn: Connection, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    async with AsyncRawCursor(conn) as cursor:
        return await (await cursor.execute(trusted(query), values or None)).fetchall()


def _externals(scan: CdcScan) -> dict[str, tuple[str, str]]:
    return {column.name: (column.external, column.type) for column in scan.columns}


def _side(scan: CdcScan, relation: Relation) -> Side:
    names = _externals(scan)

    def value(name: str) -> str:
        return f"t.{quoted(names[name][0])}"

    def typed(name: str) -> str:
        kind = relation.column(name).type
        carried = f"({carried_postgres(value(name), names[name][1], kind)})::{kind}"
        if scan.unkeepable == "fail" or any(part.name == name for part in relation.key):
            return carried
        return or_null_postgres(value(name), carried, kind, relation.id)

    key = [
        KeyExpression(value(part.name), without_length(names[part.name][1]), f"({typed(part.name)})::text")
        for part in relation.key
    ]
    vnode = vnode_postgres(
        [(typed(part.name), kind) for part, kind in zip(relation.key, relation.key_types, strict=True)],
        relation.vnode_count,
    )
    name = f"{quoted(scan.external_schema)}.{quoted(scan.external_table)}"
    oid = f"{quoted_text(name)}::regclass"
    # A partitioned table includes the rows of its partitions. Rows of inheriting tables are excluded.
    mine = f"(t.tableoid = {oid} or (select relkind = 'p' from pg_class where oid = {oid}))"
    return Side(f"{name} t", mine, key, [typed(column.name) for column in scan.columns], vnode)
