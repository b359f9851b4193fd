"""Inspect external tables through catalogs, index lookups and samples of rows."""

from collections.abc import Sequence
from typing import Any, Final

from psycopg.rows import dict_row

from service.domain.external import ExternalColumn, ExternalIndex, ExternalTable, Generated, Identity, Publication
from service.ports.sources import Address
from service.sources.connections import Connection, connected, identifier, trusted

SAMPLED_ROWS: Final = 10_000
_NOT_TABLES: Final = {
    "v": "it is a view",
    "m": "it is a materialized view",
    "f": "it is a foreign table",
    "S": "it is a sequence",
    "i": "it is an index",
    "I": "it is an index",
    "c": "it is a type",
    "t": "it is a TOAST table",
}
_CHANGES: Final = ("insert", "update", "delete", "truncate")

_TABLE: Final = """
select
    c.oid,
    c.relkind,
    c.relpersistence,
    c.relreplident,
    n.nspname in ('pg_catalog', 'information_schema') as of_the_system,
    has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select') as selectable,
    pg_has_role(c.relowner, 'usage') as owned,
    row_security_active(c.oid) as hides
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = %s
"""
# A domain may be based on another domain and inherit its length or precision.
_COLUMNS: Final = """
select
    a.attname,
    format_type(a.atttypid, a.atttypmod) as type,
    format_type(base.type, base.modifier) as base,
    a.attnotnull,
    a.attgenerated,
    coalesce((select k.collisdeterministic from pg_collation k where k.oid = a.attcollation), true) as ordered
from pg_attribute a
cross join lateral (
    with recursive over (type, modifier) as (
        select a.atttypid, a.atttypmod
        union all
        select t.typbasetype, t.typtypmod from over o join pg_type t on t.oid = o.type where t.typtype = 'd'
    )
    select o.type, o.modifier from over o join pg_type t on t.oid = o.type where t.typtype <> 'd'
) base
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""
_INDEXES: Final = """
select
    i.indisprimary,
    i.indisreplident,
    array(
        select a.attname::text
        from unnest(i.indkey::int2[]) with ordinality k (number, place)
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
        where k.place <= i.indnkeyatts
        order by k.place
    ) as columns
from pg_index i
where i.indrelid = %s and i.indisunique and i.indimmediate and i.indisvalid
    and i.indpred is null and i.indexprs is null
    and not exists (select from unnest(i.indoption::int2[]) o (flags) where o.flags <> 0)
    and not exists (
        select
        from unnest(i.indkey::int2[]) with ordinality k (number, place)
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
        where k.place <= i.indnkeyatts and not a.attnotnull
    )
order by not i.indisprimary, i.indexrelid
"""
_PARTITIONS: Final = """
select array_agg(distinct c.relreplident::text), coalesce(sum(pg_relation_size(c.oid)), 0)::bigint
from pg_partition_tree(%(table)s) p join pg_class c on c.oid = p.relid
where p.isleaf
"""
_BYTES: Final = "select array[c.relreplident::text], pg_relation_size(c.oid) from pg_class c where c.oid = %(table)s"

_PUBLICATION: Final = """
select p.oid, p.pubviaroot, array[p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate] as publishes,
    to_jsonb(p) ->> 'pubgencols' as generated
from pg_publication p where p.pubname = %s
"""
_PUBLISHED: Final = "select schemaname, tablename, {partial} from pg_publication_tables where pubname = %s"
# Since Postgres 15 a publication may omit columns and rows. A column list with every column omits none.
_PARTIAL: Final = """
rowfilter is not null or exists (
    select
    from pg_attribute a
    where a.attrelid = format('%%I.%%I', schemaname, tablename)::regclass and a.attnum > 0 and not a.attisdropped
        and a.attgenerated = '' and a.attname <> all (attnames)
)
"""

_HISTOGRAM: Final = """
select s.histogram_bounds::text::text[]
from pg_stats s
where s.schemaname = %s and s.tablename = %s and s.attname = %s and s.histogram_bounds is not null
order by s.inherited desc limit 1
"""


class PostgresExternalTables:
    """`service.ports.sources.ExternalTables` in Postgres."""

    async def table(self, at: Address, schema: str, name: str) -> ExternalTable | None:
        async with connected(at) as conn:
            found = await (await conn.cursor(row_factory=dict_row).execute(_TABLE, [schema, name])).fetchone()
            if found is None:
                return None
            why_not = _why_not(found)
            if why_not is not None:
                return ExternalTable(schema, name, columns=(), why_not=why_not)
            columns = await (await conn.execute(_COLUMNS, [found["oid"]])).fetchall()
            indexes = await (await conn.execute(_INDEXES, [found["oid"]])).fetchall()
            partitioned = found["relkind"] == "p"
            parts = await (
                await conn.execute(_PARTITIONS if partitioned else _BYTES, {"table": found["oid"]})
            ).fetchone()
            assert parts is not None
            identities, size = parts
            rows = await _estimated(conn, schema, name, size) if found["selectable"] else None
        return ExternalTable(
            schema,
            name,
            columns=tuple(
                ExternalColumn(column, kind, base, not fixed, Generated(generated), ordered)
                for column, kind, base, fixed, generated, ordered in columns
            ),
            indexes=tuple(ExternalIndex(tuple(names), primary, identity) for primary, identity, names in indexes),
            identity=_identity(identities or [found["relreplident"]], partitioned=partitioned),
            partitioned=partitioned,
            selectable=found["selectable"],
            owned=found["owned"],
            rows=rows,
        )

    async def publication(self, at: Address, name: str) -> Publication | None:
        async with connected(at) as conn:
            found = await (await conn.execute(_PUBLICATION, [name])).fetchone()
            if found is None:
                return None
            _, via_root, publishes, generated = found
            partial = _PARTIAL if conn.info.server_version >= 150000 else "false"
            query = trusted(_PUBLISHED.replace("{partial}", partial))
            tables = await (await conn.execute(query, [name])).fetchall()
        return Publication(
            name,
            tables=frozenset((schema, table) for schema, table, _ in tables),
            partial=frozenset((schema, table) for schema, table, some in tables if some),
            via_root=via_root,
            generated=generated == "s",
            lacks=tuple(change for change, there in zip(_CHANGES, publishes, strict=True) if not there),
        )

    async def extent(self, at: Address, table: ExternalTable, column: str) -> tuple[int, int] | None:
        query = trusted("select min({0})::bigint, max({0})::bigint from {1}").format(
            identifier(column), identifier(table.schema, table.name)
        )
        async with connected(at) as conn:
            found = await (await conn.execute(query)).fetchone()
        return None if found is None or found[0] is None else (found[0], found[1])

    async def sample(self, at: Address, table: ExternalTable, column: str) -> Sequence[str]:
        async with connected(at) as conn:
            known = await (await conn.execute(_HISTOGRAM, [table.schema, table.name, column])).fetchone()
            if known is not None:
                return tuple(known[0])
            share = 100.0 if not table.rows else min(100.0, 100 * SAMPLED_ROWS / table.rows)
            query = trusted(
                "select format('%s', s.{0}) from (select {0} from {1} tablesample system ({2}) limit {3}) s"
                " order by s.{0}"
            ).format(identifier(column), identifier(table.schema, table.name), f"{share:f}", SAMPLED_ROWS)
            rows = await (await conn.execute(query)).fetchall()
        return tuple(value for (value,) in rows)


async def _estimated(conn: Connection, schema: str, name: str, size: int) -> int | None:
    """Return the planner's estimate of the rows, which includes growth since the last ANALYZE. 0 for no storage."""
    if size == 0:
        return 0
    query = trusted("explain (format json) select from {}").format(identifier(schema, name))
    plan = await (await conn.execute(query)).fetchone()
    assert plan is not None
    return int(plan[0][0]["Plan"]["Plan Rows"])


def _why_not(found: dict[str, Any]) -> str | None:
    if found["of_the_system"]:
        return "it is a table of the system"
    if found["relkind"] not in {"r", "p"}:
        return _NOT_TABLES.get(found["relkind"], "it is no table")
    if found["relpersistence"] != "p":
        return "it is temporary" if found["relpersistence"] == "t" else "it is unlogged: its changes are not in the log"
    if found["hides"]:
        return "its row level security hides rows from the login of the source: ALTER ROLE ... BYPASSRLS"
    return None


def _identity(identities: Sequence[str], *, partitioned: bool) -> Identity:
    """Return the replica identity that all partitions provide. The identity index of a partition is not the table's."""
    known = {Identity(one) for one in identities}
    if known == {Identity.FULL}:
        return Identity.FULL
    if known <= {Identity.FULL, Identity.DEFAULT}:
        return Identity.DEFAULT
    return Identity.NOTHING if partitioned else known.pop()
