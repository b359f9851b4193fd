"""Read rows and digests of a followed table at a pinned epoch for a comparison."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from psycopg.raw_cursor import AsyncRawCursor

from service.domain.comparing import Digest, Key, Part, Rows
from service.protocol import digests
from service.protocol.cdc import CdcScan
from service.protocol.digests import SAME_TEXTS, KeyExpression, Side
from service.protocol.ids import Epoch
from service.protocol.quoting import quoted
from service.protocol.relation import Relation, state_table
from service.protocol.vnodes import vnode_postgres
from service.serving.connections import Pool, translated, trusted


class PostgresFollowedRows:
    """`service.ports.comparing.FollowedRows` over the pool of the state store's owner."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def digest(self, scan: CdcScan, relation: Relation, part: Part, *, at: Epoch) -> Digest:
        side = _side(scan, relation, at)
        ((rows, total),) = await self._read(digests.digest_query(side, part.after, part.upto, part.vnodes))
        return Digest(int(rows), int(total))

    async def rows(self, scan: CdcScan, relation: Relation, part: Part, most: int, *, at: Epoch) -> Rows:
        query = digests.rows_query(_side(scan, relation, at), part.after, part.upto, part.vnodes, most)
        return await asyncio.to_thread(digests.by_key, await self._read(query))

    async def rows_of(self, scan: CdcScan, relation: Relation, keys: Collection[Key], *, at: Epoch) -> Rows:
        query = digests.rows_of_query(_side(scan, relation, at))
        return await asyncio.to_thread(digests.by_key, await self._read(query, digests.parameters(keys)))

    async def vnodes(self, scan: CdcScan, relation: Relation, keys: Collection[Key]) -> dict[Key, int]:
        if not keys:
            return {}
        side = _side(scan, relation, Epoch(0))
        typed = [(part.value, kind) for part, kind in zip(side.key, relation.key_types, strict=True)]
        computed = replace(side, vnode=vnode_postgres(typed, relation.vnode_count))
        return digests.by_key(await self._read(digests.vnodes_query(computed), digests.parameters(keys)))

    async def _read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with translated():
            async with self._pool.connection() as conn, conn.transaction():
                for name, value in SAME_TEXTS.items():
                    await conn.execute("select set_config(%s, %s, true)", [name, value])
                async with AsyncRawCursor(conn) as cursor:
                    return await (await cursor.execute(trusted(query), values or None)).fetchall()


def _side(scan: CdcScan, relation: Relation, at: Epoch) -> Side:
    def value(name: str) -> str:
        return f"t.{quoted(name)}"

    key = [
        KeyExpression(value(part.name), str(kind), f"{value(part.name)}::text")
        for part, kind in zip(relation.key, relation.key_types, strict=True)
    ]
    return Side(
        table=f"{state_table(relation.id)} t",
        where=f"t._from <= {at} and t._to > {at}",
        key=key,
        values=[value(column.name) for column in scan.columns],
        vnode="t._vnode",
    )
