"""A job has outputs: none (a sink), one, or several, some of which are hidden (expand).

A hidden relation has an owner: the catalog object after which its job is named. A scan may write a hidden relation
(`output`), or use a `connector` to send rows to an external system or to read rows from it. A service of the previous
release reads neither column. It must not run while there is a sink, an internal table or a source scan.

Revision ID: 0021
Revises: 0020
"""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

KINDS = """
alter table tidefill.relation
    drop constraint relation_kind_is_known,
    add constraint relation_kind_is_known check (kind in ({kinds}))
"""
OUTPUTS = """
alter table tidefill.relation
    add column owner bigint references tidefill.relation (id),
    add constraint relation_internal_has_an_owner check ((kind = 'internal table') = (owner is not null));
create index relation_owner on tidefill.relation (owner) where owner is not null;
alter table tidefill.fragment
    add column output bigint references tidefill.relation (id),
    add column connector jsonb,
    add constraint fragment_has_one_output check (output is null or connector is null),
    drop constraint fragment_kind_is_known,
    add constraint fragment_kind_is_known check (
        kind in ('DML', 'STREAM_SCAN', 'CDC_SCAN', 'SOURCE_SCAN', 'MATERIALIZE')
    ),
    add constraint fragment_source_scan_has_a_connector check (
        connector is not null or kind <> 'SOURCE_SCAN'
    );
"""
# The catalog shows only the connector's name, because only operators may see some of its options.
SINKS = """
create view rw_catalog.rw_sinks as
select
    r.id,
    r.name,
    1 as schema_id,
    1 as owner,
    (select f.connector ->> 'name' from tidefill.fragment f where f.job = j.id limit 1) as connector,
    'append-only' as sink_type,
    null::integer as connection_id,
    r.definition,
    array[]::text[] as acl,
    j.initialized_at,
    j.finished_at as created_at
from tidefill.relation r join tidefill.job j on j.relation = r.id
where r.kind = 'sink' and not r.dropped
order by r.id
"""
STATS = """
create or replace view rw_catalog.rw_table_stats as
select r.id, r.key_count as total_key_count
from tidefill.relation r
where not r.dropped and r.kind not in ({stateless})
"""
STREAMING_PARALLELISM = """
create or replace view rw_catalog.rw_streaming_parallelism as
select r.id, r.name, r.kind as relation_type, upper(j.parallelism) as parallelism, j.max_parallelism
from rw_catalog.rw_streaming_jobs j join tidefill.relation r on r.id = j.table_id
where r.kind in ({jobs})
order by r.id
"""
FRAGMENTS = """
create or replace view rw_catalog.rw_fragments as
select
    f.id as fragment_id,
    j.relation as table_id,
    'HASH' as distribution_type,
    array[case when f.kind in ({positioned}) then f.id else j.relation end] as state_table_ids,
    case f.kind
        when 'STREAM_SCAN' then array(
            select writer.id
            from tidefill.fragment writer join tidefill.job maker on maker.id = writer.job
            where maker.relation = f.upstream and writer.kind <> 'STREAM_SCAN'
            order by writer.id
        )
        when 'MATERIALIZE' then array(
            select scan.id
            from tidefill.fragment scan
            where scan.job = f.job and scan.kind = 'STREAM_SCAN'
            order by scan.id
        )
        else array[]::bigint[]
    end as upstream_fragment_ids,
    array[f.kind] as flags,
    actors.number as parallelism,
    case when f.kind = 'CDC_SCAN' then jsonb_array_length(f.cdc -> 'splits') else r.vnode_count end as max_parallelism,
    'fixed(' || actors.number || ')' as parallelism_policy
from tidefill.fragment f
join tidefill.job j on j.id = f.job
join tidefill.relation r on r.id = j.relation
cross join lateral (select count(*) as number from tidefill.actor a where a.fragment = f.id) actors
"""
GONE = """
create temp table gone on commit drop as
    select id from tidefill.relation where kind in ('sink', 'internal table');
delete from tidefill.cleanup where relation in (select id from gone);
delete from tidefill.view_reference where reader in (select id from gone);
update tidefill.fragment set output = null;
delete from tidefill.job where relation in (select id from gone);
delete from tidefill.relation where id in (select id from gone)
"""


def upgrade() -> None:
    op.execute(KINDS.format(kinds="'table', 'materialized view', 'view', 'source', 'sink', 'internal table'"))
    op.execute(OUTPUTS)
    op.execute(SINKS)
    op.execute(STATS.format(stateless="'view', 'source', 'sink'"))
    op.execute(STREAMING_PARALLELISM.format(jobs="'table', 'materialized view', 'sink'"))
    op.execute(FRAGMENTS.format(positioned="'STREAM_SCAN', 'CDC_SCAN', 'SOURCE_SCAN'"))


def downgrade() -> None:
    op.execute(FRAGMENTS.format(positioned="'STREAM_SCAN', 'CDC_SCAN'"))
    op.execute(STREAMING_PARALLELISM.format(jobs="'table', 'materialized view'"))
    op.execute(STATS.format(stateless="'view', 'source'"))
    op.execute("drop view rw_catalog.rw_sinks")
    op.execute(GONE)
    op.execute("""
        delete from tidefill.fragment where kind = 'SOURCE_SCAN';
        alter table tidefill.fragment
            drop column output,
            drop column connector,
            drop constraint fragment_kind_is_known,
            add constraint fragment_kind_is_known check (kind in ('DML', 'STREAM_SCAN', 'CDC_SCAN', 'MATERIALIZE'))
    """)
    op.execute("alter table tidefill.relation drop constraint relation_internal_has_an_owner, drop column owner")
    op.execute(KINDS.format(kinds="'table', 'materialized view', 'view', 'source'"))
