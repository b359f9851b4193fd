"""Create, change and remove publications and slots in an external database."""

from typing import Final

import psycopg
from psycopg import errors
from psycopg.raw_cursor import AsyncRawCursor

from service.domain.errors import Unavailable
from service.ports.sources import Address
from service.protocol.cdc import SYSTEM_POSTGRES, Lsn, Published, published_of, published_postgres
from service.sources.connections import Connection, connected, identifier, trusted

_MEMBER: Final = "select from pg_publication_tables where pubname = %s and schemaname = %s and tablename = %s"
# A slot does not wait for transactions without an id, because they have written nothing.
_RUNNING: Final = """
select
    (select string_agg(pid::text, ', ' order by xact_start)
    from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()),
    (select string_agg(gid, ', ' order by prepared) from pg_prepared_xacts)
"""


STEP_BYTES: Final = 512 << 20
"""The distance by which one call advances a slot. The server reads all of that log, and a cancelled statement does not
advance the slot.
"""
_ENDED_MILLISECONDS: Final = 2000
"""The longest wait for the end of a session that uses a slot."""


class PostgresReplication:
    """`service.ports.sources.Replication` in Postgres."""

    async def create_publication(self, at: Address, name: str) -> None:
        async with connected(at) as conn:
            # The values of stored generated columns are not computed again, so they must be published.
            generated = ", publish_generated_columns = stored" if conn.info.server_version >= 180000 else ""
            head = trusted("create publication {} with (publish_via_partition_root = true").format(identifier(name))
            await conn.execute(head + trusted(f"{generated})"))

    async def create_slot(self, at: Address, name: str) -> Lsn:
        async with connected(at) as conn:
            # A standby that synchronises slots also keeps this one, for a failover.
            more = ", failover => true" if conn.info.server_version >= 170000 else ""
            query = trusted(f"select lsn::text from pg_create_logical_replication_slot(%s, 'pgoutput'{more})")
            try:
                made = await (await conn.execute(query, [name])).fetchone()
            except (errors.QueryCanceled, errors.LockNotAvailable):
                # The creation waits for running transactions, and such a wait ends like one for locks.
                raise Unavailable(await _held_up(at, conn)) from None
        assert made is not None
        return made[0]

    async def publish(self, at: Address, publication: str, schema: str, table: str) -> tuple[int, Published]:
        async with connected(at) as conn:
            if await (await conn.execute(_MEMBER, [publication, schema, table])).fetchone() is None:
                add = trusted("alter publication {} add table {}")
                await conn.execute(add.format(identifier(publication), identifier(schema, table)))
            # Read before the id. Later changes of the entry are detected by comparison with it, earlier ones by the id.
            published = await _published(at, conn, publication, schema, table)
            # A new id, assigned in its own transaction. Every transaction that wrote before the table was published has
            # a smaller id. The `xmax` of a snapshot may be smaller than such an id, so it cannot be used.
            found = await (await conn.execute("select pg_current_xact_id()::text::bigint")).fetchone()
        assert found is not None
        return found[0], published

    async def unpublish(self, at: Address, publication: str, schema: str, table: str) -> None:
        async with connected(at) as conn:
            if await (await conn.execute(_MEMBER, [publication, schema, table])).fetchone() is not None:
                drop = trusted("alter publication {} drop table {}")
                await conn.execute(drop.format(identifier(publication), identifier(schema, table)))

    async def drop_publication(self, at: Address, name: str) -> None:
        async with connected(at) as conn:
            await conn.execute(trusted("drop publication if exists {}").format(identifier(name)))

    async def drop_slot(self, at: Address, name: str) -> None:
        async with connected(at) as conn:
            # A worker may decode from the slot for minutes. Its session has the same role, so it may be terminated.
            await conn.execute(
                "select pg_terminate_backend(active_pid, %s) from pg_replication_slots"
                " where slot_name = %s and active_pid is not null",
                [_ENDED_MILLISECONDS, name],
            )
            await conn.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s", [name]
            )

    async def skip(self, at: Address, slot: str) -> tuple[Lsn, int]:
        async with connected(at) as conn:
            # The slot may already be ahead of the requested LSN. It never goes back.
            moved = await (
                await conn.execute(
                    "select end_lsn::text from pg_replication_slot_advance(%s, least(pg_current_wal_flush_lsn(),"
                    " (select confirmed_flush_lsn + %s::numeric from pg_replication_slots where slot_name = %s)))",
                    [slot, STEP_BYTES, slot],
                )
            ).fetchone()
            found = await (await conn.execute("select pg_current_xact_id()::text::bigint")).fetchone()
        assert moved is not None
        assert found is not None
        return moved[0], found[0]


async def _held_up(at: Address, conn: Connection) -> str:
    running = await (await conn.execute(_RUNNING)).fetchone()
    assert running is not None
    pids, prepared = running
    told = [f"those of the processes {pids}"] if pids else []
    told += [f"those that are prepared as {prepared}"] if prepared else []
    return (
        f"{at.label}: a slot can be made once the transactions that run there have ended: "
        f"{' and '.join(told) or 'unknown ones'}"
    )


async def _published(at: Address, conn: Connection, publication: str, schema: str, table: str) -> Published:
    async with AsyncRawCursor(conn) as cursor:
        query = trusted(published_postgres(conn.info.server_version))
        found = await (await cursor.execute(query, [publication, [schema], [table], []])).fetchone()
    if found is None:
        raise Unavailable(f'{at.label}: "{schema}.{table}" was taken out of "{publication}" again')
    try:
        row = await (await conn.execute(trusted(SYSTEM_POSTGRES))).fetchone()
    except psycopg.DatabaseError:
        row = None
    return published_of(found, None if row is None else row[0], {})
