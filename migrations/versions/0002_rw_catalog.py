"""RisingWave's catalogs as views (expand).

The views run with their owner's rights, so a login needs only USAGE on `rw_catalog` and SELECT on the views. No view
shows a column that may contain a secret: no idempotency keys, no DML statements, no payloads of barriers.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

JOBS = """
create view rw_catalog.rw_ddl_progress as
select
    j.id as ddl_id,
    j.statement as ddl_statement,
    case when j.background then 'BACKGROUND' else 'FOREGROUND' end as create_type,
    coalesce(j.progress_text, '0.0%') as progress,
    j.initialized_at,
    false as is_serverless_backfill,
    'NORMAL_BACKFILL' as backfill_type
from tidefill.job j
where j.state in ('Initial', 'Queued', 'Creating');

create view rw_catalog.rw_streaming_jobs as
select
    j.id,
    j.id as job_id,
    j.relation as table_id,
    r.name,
    1 as database_id,
    upper(j.state) as status,
    (
        select 'fixed(' || max(of_fragment.actors) || ')'
        from (
            select count(*) as actors
            from tidefill.fragment f join tidefill.actor a on a.fragment = f.id
            where f.job = j.id
            group by f.id
        ) of_fragment
    ) as parallelism,
    r.vnode_count as max_parallelism,
    'default' as resource_group,
    j.error,
    j.recoveries
from tidefill.job j join tidefill.relation r on r.id = j.relation
where not r.dropped;

create view rw_catalog.rw_tables as
select
    r.id,
    r.name,
    'public' as schema_name,
    r.definition,
    case when j.state in ('Initial', 'Queued', 'Creating', 'Cancelling') then 'Creating' else 'Created' end as status,
    j.initialized_at,
    j.finished_at as created_at
from tidefill.relation r join tidefill.job j on j.relation = r.id
where r.kind = 'table' and not r.dropped;

create view rw_catalog.rw_materialized_views as
select
    r.id,
    r.name,
    'public' as schema_name,
    r.definition,
    case when j.state in ('Initial', 'Queued', 'Creating', 'Cancelling') then 'Creating' else 'Created' end as status,
    j.background as background_ddl,
    j.initialized_at,
    j.finished_at as created_at
from tidefill.relation r join tidefill.job j on j.relation = r.id
where r.kind = 'materialized view' and not r.dropped;

create view rw_catalog.rw_table_stats as
select r.id, r.key_count as total_key_count
from tidefill.relation r
where not r.dropped;

create view rw_catalog.rw_columns as
select
    c.relation as relation_id,
    c.name,
    c.position + 1 as position,
    c.hidden as is_hidden,
    c.key_position is not null as is_primary_key,
    c.type as data_type,
    c.nullable as is_nullable
from tidefill.relation_column c;
"""

FRAGMENTS = """
create view rw_catalog.rw_fragments as
select
    f.id as fragment_id,
    j.relation as table_id,
    'HASH' as distribution_type,
    array[case when f.kind = 'STREAM_SCAN' then f.id else j.relation end] as state_table_ids,
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
    r.vnode_count as max_parallelism,
    'fixed(' || actors.number || ')' as parallelism_policy
from tidefill.fragment f
join tidefill.job j on j.id = f.job
join tidefill.relation r on r.id = j.relation
cross join lateral (select count(*) as number from tidefill.actor a where a.fragment = f.id) actors;

create view rw_catalog.rw_backfill_info as
select
    f.job as job_id,
    f.id as fragment_id,
    f.id as backfill_state_table_id,
    f.upstream as backfill_target_relation_id,
    'ARRANGEMENT_OR_NO_SHUFFLE' as backfill_type,
    0::bigint as backfill_epoch
from tidefill.fragment f
where f.kind = 'STREAM_SCAN';

create view rw_catalog.rw_rate_limit as
select
    f.id as fragment_id,
    array[f.kind] as fragment_type,
    f.kind as node_name,
    j.relation as table_id,
    f.rate_limit
from tidefill.fragment f join tidefill.job j on j.id = f.job
where f.kind = 'STREAM_SCAN' and f.rate_limit is not null;

-- Twenty decimals, rounded once: the division carries thirty.
create view rw_catalog.rw_fragment_backfill_progress as
select
    j.id as job_id,
    f.id as fragment_id,
    'public.' || r.name as job_name,
    'public.' || u.name as upstream_table_name,
    case when u.key_count = 0 then '100' else share.text end || '% (' || p.rows || '/' || u.key_count || ')' as progress
from tidefill.scan_progress p
join tidefill.fragment f on f.id = p.fragment
join tidefill.job j on j.id = f.job
join tidefill.relation r on r.id = j.relation
join tidefill.relation u on u.id = f.upstream
cross join lateral (
    select trim_scale(round(p.rows::numeric(60, 30) * 100 / nullif(u.key_count, 0), 20))::text as text
) share
where j.state in ('Initial', 'Queued', 'Creating');
"""

CLUSTER = """
create view rw_catalog.rw_barriers as
select
    b.graph as graph_id,
    b.epoch,
    b.prev as prev_epoch,
    b.kind,
    b.generation,
    b.state,
    b.mutation ->> 'type' as mutation,
    b.injected_at,
    b.collected_at,
    b.committed_at,
    b.published_at,
    extract(epoch from b.published_at - b.injected_at) * 1000 as latency_ms,
    b.failure
from tidefill.barrier b;

create view rw_catalog.rw_workers as
select w.id, w.graph as graph_id, w.host, w.pid, w.parallelism, w.registered_at, w.seen_at, w.given_up
from tidefill.worker w;

create view rw_catalog.rw_events as
select e.id, e.at, e.kind, e.facts
from tidefill.event e;

create view rw_catalog.rw_recovery_info as
select
    g.id as graph_id,
    case when g.status = 'RUNNING' then 'RUNNING' else 'RECOVERING' end as recovery_state,
    g.generation,
    g.committed as committed_epoch,
    g.published as published_epoch,
    g.paused,
    g.recoveries,
    g.last_error
from tidefill.graph g;

create view rw_catalog.rw_system_parameters as
select p.name, p.value
from tidefill.system_parameter p;
"""


def upgrade() -> None:
    op.execute("create schema rw_catalog")
    for script in (JOBS, FRAGMENTS, CLUSTER):
        op.execute(script)


def downgrade() -> None:
    op.execute("drop schema rw_catalog cascade")
