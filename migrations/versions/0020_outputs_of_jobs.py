"""A job has outputs: none (a sink), one, or several of which some are hidden (expand).

A hidden relation has an owner: the object in the catalog that its job is named after. A scan may write a hidden one
(`output`), or send its rows to an external system (`sink`). A service of the previous release reads neither column; it
must not run while there is a sink or an internal table.

Revision ID: 0020
Revises: 0019
"""

from alembic import op

revision = "0020"
down_revision = "0019"
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
    add column sink jsonb,
    add constraint fragment_has_one_output check (output is null or sink is null),
    add constraint fragment_sink_is_of_a_scan check (sink is null or kind = 'STREAM_SCAN');
"""
# The options may hold what only operators should see: the catalog names the connector alone.
SINKS = """
create view rw_catalog.rw_sinks as
select
    r.id,
    r.name,
    1 as schema_id,
    1 as owner,
    (select f.sink ->> 'connector' from tidefill.fragment f where f.job = j.id limit 1) as connector,
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


def downgrade() -> None:
    op.execute(STREAMING_PARALLELISM.format(jobs="'table', 'materialized view'"))
    op.execute(STATS.format(stateless="'view', 'source'"))
    op.execute("drop view rw_catalog.rw_sinks")
    op.execute(GONE)
    op.execute("alter table tidefill.fragment drop column output, drop column sink")
    op.execute("alter table tidefill.relation drop constraint relation_internal_has_an_owner, drop column owner")
    op.execute(KINDS.format(kinds="'table', 'materialized view', 'view', 'source'"))
