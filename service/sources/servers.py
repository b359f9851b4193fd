"""Inspect external servers: their settings, load and replication slots."""

from typing import Final

from psycopg.rows import dict_row

from service.domain.source import VERSION_MIN
from service.ports.sources import Address, ServerFacts, SlotFacts, SourceLoad
from service.sources.connections import connected, resolved, trusted

_SERVER: Final = """
select
    current_setting('server_version') as version,
    current_setting('server_version_num')::int as version_number,
    current_setting('wal_level') as wal_level,
    pg_is_in_recovery() as in_recovery,
    exists (
        select from pg_roles r
        where pg_has_role(r.oid, 'member') and r.rolname in ('rds_replication', 'rds_superuser', 'cloudsqlsuperuser')
        union all
        select from pg_roles r where r.rolname = current_user and (r.rolsuper or r.rolreplication)
    ) as replication,
    has_database_privilege(current_database(), 'create') as creates,
    (select count(*) from pg_replication_slots) as slots,
    current_setting('max_replication_slots')::int as slots_max,
    pg_has_role('pg_read_all_stats', 'usage') as monitors
"""
# Logical subscribers, including tidefill, are not replicas from which anyone reads.
_LOAD: Final = """
select
    (
        select max(pg_wal_lsn_diff(pg_current_wal_lsn(), r.replay_lsn))::bigint
        from pg_stat_replication r
        where r.pid not in (select active_pid from pg_replication_slots where slot_type = 'logical' and active)
    ),
    case when pg_has_role('pg_read_all_stats', 'usage') then (
        select count(*)
        from pg_stat_activity a
        where a.state = 'active' and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
            and a.application_name not like 'tidefill%'
    ) end
"""
_SPILLED: Final = """
select spill_bytes, spill_txns from pg_stat_replication_slots where total_txns > 0 order by spill_bytes desc limit 1
"""
_SLOT: Final = """
select
    s.slot_name,
    s.plugin,
    s.database,
    current_database(),
    s.confirmed_flush_lsn::text,
    s.active,
    pg_wal_lsn_diff({now}, s.confirmed_flush_lsn)::bigint,
    pg_wal_lsn_diff({now}, s.restart_lsn)::bigint,
    s.wal_status,
    to_jsonb(s) ->> 'invalidation_reason'
from pg_replication_slots s where s.slot_name = %s
"""
_NOW: Final = "case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end"


class PostgresExternalServers:
    """`service.ports.sources.ExternalServers` in Postgres."""

    async def conninfo(self, at: Address) -> str:
        return await resolved(at)

    async def server(self, at: Address) -> ServerFacts:
        async with connected(at) as conn:
            facts = await (await conn.cursor(row_factory=dict_row).execute(_SERVER)).fetchone()
            assert facts is not None
            spilled = None
            if facts["version_number"] >= VERSION_MIN:
                spilled = await (await conn.execute(_SPILLED)).fetchone()
        return ServerFacts(**facts, spilled=None if spilled is None else (spilled[0], spilled[1]))

    async def load(self, at: Address) -> SourceLoad:
        async with connected(at) as conn:
            found = await (await conn.execute(_LOAD)).fetchone()
        assert found is not None
        lag, active = found
        return SourceLoad(_positive(lag), active)

    async def slot(self, at: Address, name: str) -> SlotFacts | None:
        async with connected(at) as conn:
            query = trusted(_SLOT.replace("{now}", _NOW))
            found = await (await conn.execute(query, [name])).fetchone()
        if found is None:
            return None
        slot, plugin, database, here, confirmed, active, lag, retained, status, invalid = found
        why_lost = None
        if plugin != "pgoutput" or database != here:
            why_lost = f'slot "{slot}" is {"physical" if plugin is None else f"of {plugin} in database {database}"}'
        elif status == "lost" or invalid is not None:
            why_lost = f'slot "{slot}" was invalidated: {invalid or "the log that it needs is gone"}'
        return SlotFacts(slot, confirmed, active, _positive(lag), _positive(retained), why_lost)


def _positive(number: int | None) -> int | None:
    return None if number is None else max(number, 0)
