-- RisingWave's catalogs as views. `env.py` runs this file after the newest migration.
--
-- The views run with their owner's rights, so a login needs only USAGE on `rw_catalog` and SELECT on the views. No view
-- shows a column that may contain a secret: no idempotency keys, no DML statements, no payloads of barriers.

create or replace view rw_catalog.rw_ddl_progress as
select
    j.id as ddl_id, j.statement as ddl_statement,
    case when j.background then 'BACKGROUND' else 'FOREGROUND' end as create_type,
    coalesce(j.progress_text, '0.0%') as progress,
    j.initialized_at, j.serverless as is_serverless_backfill,
    case
        when not exists (
            select from tidefill.fragment f where f.job = j.id and f.kind in ('STREAM_SCAN', 'CDC_SCAN')
        ) then 'BACKFILL_TYPE_UNSPECIFIED'
        when exists (select from tidefill.fragment f where f.job = j.id and f.scan_type = 'SNAPSHOT_BACKFILL')
            then 'SNAPSHOT_BACKFILL'
        else 'NORMAL_BACKFILL'
    end as backfill_type,
    nullif(j.created_by, '') as created_by
from tidefill.job j
-- A followed table can be read before its history is complete.
where j.state in ('Initial', 'Queued', 'Creating') or (
    j.state = 'Created' and exists (
        select
        from tidefill.scan_progress p join tidefill.fragment f on f.id = p.fragment
        where not p.finished and f.job = j.id and f.kind = 'CDC_SCAN'
    )
);

create or replace view rw_catalog.rw_streaming_jobs as
select
    j.id, j.id as job_id, j.relation as table_id, r.name, 1 as database_id, upper(j.state) as status,
    coalesce(
        case when j.state in ('Initial', 'Queued', 'Creating') then j.backfill_parallelism end,
        j.parallelism,
        (
            select 'fixed(' || max(of_fragment.actors) || ')'
            from (
                select count(*) as actors
                from tidefill.fragment f join tidefill.actor a on a.fragment = f.id where f.job = j.id group by f.id
            ) of_fragment
        )
    ) as parallelism,
    r.vnode_count as max_parallelism, coalesce(j.resource_group, 'default') as resource_group, j.error, j.recoveries
from tidefill.job j join tidefill.relation r on r.id = j.relation
where not r.dropped;

create or replace view rw_catalog.rw_own_graphs as
select
    j.id, r.name, j.graph, j.own_graph as reason, s.consumed as consumed_epoch, g.published as published_epoch,
    greatest(0, ((d.committed >> 16) - (coalesce(s.consumed, j.snapshot_epoch) >> 16)) / 1000.0)::numeric(20, 3)
        as lag_seconds
from tidefill.job j
join tidefill.relation r on r.id = j.relation
join tidefill.snapshot_backfill s on s.job = j.id
join tidefill.graph g on g.id = j.graph
join tidefill.graph d on d.id = 1
where j.own_graph is not null and not r.dropped;

create or replace view rw_catalog.rw_job_engines as
select j.id, r.name, e.engine, sum(e.jobs)::bigint as jobs, sum(e.rows)::bigint as rows
from tidefill.job j
join tidefill.relation r on r.id = j.relation
join tidefill.fragment f on f.job = j.id
join tidefill.scan_progress p on p.fragment = f.id
cross join lateral (values ('spark', p.spark_jobs, p.spark_rows), ('store', p.store_jobs, p.store_rows))
    e (engine, jobs, rows)
where not r.dropped
group by j.id, r.name, e.engine;

create or replace view rw_catalog.rw_tables as
select
    r.id, r.name, 'public' as schema_name, r.definition,
    case when j.state in ('Initial', 'Queued', 'Creating', 'Cancelling') then 'Creating' else 'Created' end as status,
    j.initialized_at, j.finished_at as created_at
from tidefill.relation r join tidefill.job j on j.relation = r.id
where r.kind = 'table' and not r.dropped;

create or replace view rw_catalog.rw_materialized_views as
select
    r.id, r.name, 'public' as schema_name, r.definition,
    case when j.state in ('Initial', 'Queued', 'Creating', 'Cancelling') then 'Creating' else 'Created' end as status,
    j.background as background_ddl, j.initialized_at, j.finished_at as created_at
from tidefill.relation r join tidefill.job j on j.relation = r.id
where r.kind = 'materialized view' and not r.dropped;

create or replace view rw_catalog.rw_views as
select r.id, r.name, 'public' as schema_name, r.definition
from tidefill.relation r
where r.kind = 'view' and not r.dropped;

-- Of a connector's options only these are shown. Secrets are no options: only their names are stored.
create or replace view rw_catalog.rw_sinks as
select
    r.id, r.name, 1 as schema_id, 1 as owner,
    c.connector ->> 'name' as connector,
    coalesce(
        c.connector -> 'options' ->> 'type',
        case c.connector ->> 'name' when 'deltalake' then 'upsert' else 'append-only' end
    ) as sink_type,
    null::integer as connection_id, r.definition, array[]::text[] as acl,
    j.initialized_at, j.finished_at as created_at,
    c.connector -> 'options' ->> 'location' as location
from tidefill.relation r join tidefill.job j on j.relation = r.id
left join lateral (
    select f.connector from tidefill.fragment f where f.job = j.id and f.connector is not null limit 1
) c on true
where r.kind = 'sink' and not r.dropped
order by r.id;

-- `id` is null for an index that no user named: the stages of views need it.
create or replace view rw_catalog.rw_indexes as
with named as (
    select r.id, r.name, v.relation as on_id, r.definition, s.shape, s.state, s.bytes, s.error, s.views,
        s.asked_at, s.built_at,
        array(select c.name from tidefill.relation_column c where c.relation = r.id and c.key_position is not null
            order by c.key_position) as columns
    from tidefill.relation r
    join tidefill.view_reference v on v.reader = r.id
    left join tidefill.stored_index s on s.relation = v.relation and r.id = any (s.named)
    where r.kind = 'index' and not r.dropped
), unnamed as (
    select null::bigint as id, '__index_' || r.name || '_' || array_to_string(c.columns, '_') as name,
        s.relation as on_id,
        'CREATE INDEX ON ' || quote_ident(r.name) || ' ('
            || (select string_agg(quote_ident(one), ', ' order by at) from unnest(c.columns) with ordinality u(one, at))
            || ')' as definition,
        s.shape, s.state, s.bytes, s.error, s.views, s.asked_at, s.built_at, c.columns
    from tidefill.stored_index s
    join tidefill.relation r on r.id = s.relation
    cross join lateral (select array(select jsonb_array_elements_text(s.shape -> 'columns')) as columns) c
    where s.named = '{}'
)
select
    i.id, i.name, i.on_id as primary_table_id,
    array(
        select (c.position + 1)::smallint
        from unnest(i.columns) with ordinality k(name, at)
        join tidefill.relation_column c on c.relation = i.on_id and c.name = k.name
        order by k.at
    ) as indkey,
    1 as schema_id, 1 as owner, i.definition, array[]::text[] as acl, i.asked_at as initialized_at,
    i.built_at as created_at,
    case i.state when 'CREATED' then 'Created' when 'DROPPING' then 'Dropping' else 'Creating' end as status,
    i.bytes as size,
    array(select r.name from tidefill.relation r where r.id = any (i.views) and not r.dropped order by r.id)
        as needed_by,
    i.error
from (select * from named union all select * from unnamed) i
order by i.id nulls last, i.on_id, i.name;

create or replace view rw_catalog.rw_table_stats as
select r.id, r.key_count as total_key_count
from tidefill.relation r
where not r.dropped and r.kind not in ('view', 'source', 'sink', 'index');

create or replace view rw_catalog.rw_columns as
select
    c.relation as relation_id, c.name, c.position + 1 as position, c.hidden as is_hidden,
    c.key_position is not null as is_primary_key, c.type as data_type, c.nullable as is_nullable
from tidefill.relation_column c;

create or replace view rw_catalog.rw_databases as
select 1 as id, current_database()::text as name, 1 as owner, array[]::text[] as acl, 'default' as resource_group;

-- `id` here and of rw_fragment_parallelism, and `job_id` of rw_internal_table_info, are the relation's id, which is the
-- job's id in RisingWave. So the joins of its scripts work.
create or replace view rw_catalog.rw_streaming_parallelism as
select r.id, r.name, r.kind as relation_type, upper(j.parallelism) as parallelism, j.max_parallelism
from rw_catalog.rw_streaming_jobs j join tidefill.relation r on r.id = j.table_id
where r.kind in ('table', 'materialized view', 'sink')
order by r.id;

-- A scan stores its positions under its own id. `state_table_ids` of rw_fragments has that id too.
create or replace view rw_catalog.rw_internal_table_info as
select
    f.id,
    '__internal_' || r.name || '_' || f.id || '_' || lower(replace(f.kind, '_', '')) || '_' || f.id as name,
    r.id as job_id, r.name as job_name, r.kind as job_type, 'public' as schema_name, 'root' as owner
from tidefill.fragment f
join tidefill.job j on j.id = f.job
join tidefill.relation r on r.id = j.relation
where f.kind in ('STREAM_SCAN', 'SNAPSHOT_SCAN', 'CDC_SCAN') and not r.dropped
order by f.id;

create or replace view rw_catalog.rw_fragments as
select
    f.id as fragment_id, j.relation as table_id, 'HASH' as distribution_type,
    array[case when f.kind in ('STREAM_SCAN', 'CDC_SCAN', 'SOURCE_SCAN') then f.id else j.relation end]
        as state_table_ids,
    case f.kind
        when 'STREAM_SCAN' then array(
            select writer.id
            from tidefill.fragment writer join tidefill.job maker on maker.id = writer.job
            where maker.relation = f.upstream and writer.kind <> 'STREAM_SCAN'
            order by writer.id
        )
        -- The scans that say how much of its inputs an operator sees. They are stored right before it. The texts of
        -- queries are not shown, so neither are the operators that write what it reads.
        when 'OPERATOR' then array(
            select scan.id
            from tidefill.fragment scan
            where scan.job = f.job and scan.kind = 'STREAM_SCAN' and scan.id < f.id and not exists (
                select
                from tidefill.fragment earlier
                where earlier.job = f.job and earlier.kind = 'OPERATOR' and earlier.id between scan.id and f.id - 1
            )
            order by scan.id
        )
        when 'MATERIALIZE' then array(
            select scan.id
            from tidefill.fragment scan
            where scan.job = f.job and scan.kind = 'STREAM_SCAN'
            order by scan.id
        )
        else array[]::bigint[]
    end as upstream_fragment_ids,
    array[f.kind] as flags, actors.number as parallelism,
    case when f.kind = 'CDC_SCAN' then jsonb_array_length(f.cdc -> 'splits') else r.vnode_count end as max_parallelism,
    'fixed(' || actors.number || ')' as parallelism_policy
from tidefill.fragment f
join tidefill.job j on j.id = f.job
join tidefill.relation r on r.id = j.relation
cross join lateral (select count(*) as number from tidefill.actor a where a.fragment = f.id) actors;

create or replace view rw_catalog.rw_fragment_parallelism as
select
    r.id, r.name, r.kind as relation_type, f.fragment_id, f.distribution_type, f.state_table_ids,
    f.upstream_fragment_ids, f.flags, f.parallelism, f.max_parallelism
from rw_catalog.rw_fragments f join tidefill.relation r on r.id = f.table_id
where r.kind in ('table', 'materialized view') and not r.dropped
order by r.id, f.fragment_id;

create or replace view rw_catalog.rw_actors as
select
    a.id as actor_id, g.worker as worker_id, a.fragment as fragment_id, f.job as job_id,
    case when g.status = 'RUNNING' then 'RUNNING' else 'INACTIVE' end as state,
    a.runs as vnodes, a.rows as consumed_rows, a.finished
from tidefill.actor a
join tidefill.fragment f on f.id = a.fragment
join tidefill.job j on j.id = f.job
join tidefill.graph g on g.id = j.graph
where j.state in ('Creating', 'Created', 'Cancelling', 'Dropping');

create or replace view rw_catalog.rw_backfill_info as
select
    f.job as job_id, f.id as fragment_id, f.id as backfill_state_table_id,
    coalesce(f.upstream, f.source) as backfill_target_relation_id,
    case
        when f.kind = 'CDC_SCAN' then 'SOURCE'
        when f.scan_type = 'SNAPSHOT_BACKFILL' then f.scan_type
        else 'ARRANGEMENT_OR_NO_SHUFFLE'
    end as backfill_type,
    coalesce(j.snapshot_epoch, 0) as backfill_epoch
from tidefill.fragment f join tidefill.job j on j.id = f.job
where f.kind in ('STREAM_SCAN', 'CDC_SCAN');

-- It has a row for each input that is looked up. A share has at least two decimals, because readers parse them, and
-- twenty at most, rounded once: the division carries thirty.
create or replace view rw_catalog.rw_fragment_backfill_progress as
with listed as (
    select j.id as job_id, f.id as fragment_id, 'public.' || r.name as job_name, f.upstream, f.cdc, f.query, p.rows,
        p.total
    from tidefill.scan_progress p
    join tidefill.fragment f on f.id = p.fragment
    join tidefill.job j on j.id = f.job
    join tidefill.relation r on r.id = j.relation
    where j.state in ('Initial', 'Queued', 'Creating')
        or (not p.finished and f.kind = 'CDC_SCAN' and j.state = 'Created')
)
select
    l.job_id, l.fragment_id, l.job_name,
    coalesce('public.' || u.name, (l.cdc ->> 'external_schema') || '.' || (l.cdc ->> 'external_table'))
        as upstream_table_name,
    case when total.rows = 0 then '100' else round(share.percent, greatest(min_scale(share.percent), 2))::text end
        || '% (' || l.rows || '/' || total.rows || ')' as progress,
    'scan' as kind
from listed l
left join tidefill.relation u on u.id = l.upstream
cross join lateral (
    select greatest(coalesce(l.total, u.key_count, (l.cdc ->> 'total')::bigint, 0), l.rows) as rows
) total
cross join lateral (select round(l.rows::numeric(60, 30) * 100 / nullif(total.rows, 0), 20) as percent) share
union all
select l.job_id, l.fragment_id, l.job_name, 'public.' || u.name, '100% (0/0)', 'lookup'
from listed l
cross join lateral jsonb_path_query(l.query, '$.joins[*].inputs[*].relation') with ordinality as input (id, place)
join tidefill.relation u on u.id = input.id::bigint
where input.place > 1 and u.kind <> 'internal table';

create or replace view rw_catalog.rw_rate_limit as
select
    f.id as fragment_id, array[f.kind] as fragment_type, f.kind as node_name, j.relation as table_id, f.rate_limit
from tidefill.fragment f join tidefill.job j on j.id = f.job
where f.kind in ('STREAM_SCAN', 'CDC_SCAN') and f.rate_limit is not null;

create or replace view rw_catalog.rw_backfill_auto_limit as
select
    f.id as fragment_id, f.job as job_id, f.rate_limit,
    case when l.threshold is null or l.present < l.threshold then 'slow start' else 'even steps' end as phase,
    l.move, l.signal, l.reason, l.looked_at, l.since as effective_epoch
from tidefill.fragment f join tidefill.adaptive_limit l on l.fragment = f.id
where f.auto;

create or replace view rw_catalog.rw_backfill_auto_limit_history as
select
    c.id, c.fragment as fragment_id, f.job as job_id, c.at, c.epoch, c.before as rate_limit_before,
    c.after as rate_limit, c.signal, c.reason
from tidefill.limit_change c join tidefill.fragment f on f.id = c.fragment;

create or replace view rw_catalog.rw_sources as
select
    r.id, r.name, 'public' as schema_name,
    s.options ->> 'connector' as connector, r.definition, s.publication, s.slot, s."offset", s.waiting, s.lag_bytes,
    s.retained_bytes, s.retention, s.reported_at
from tidefill.source s join tidefill.relation r on r.id = s.relation
where not r.dropped
union all
select
    r.id, r.name, 'public', s.connector ->> 'name', r.definition, null, null, null, null, null, null, null, null
from tidefill.lake_source s join tidefill.relation r on r.id = s.relation
where not r.dropped;

create or replace view rw_catalog.rw_cdc_progress as
select
    f.job as job_id,
    case when p.finished then 1::bigint else splits.total end as split_total_count,
    case when p.finished then 1::bigint else splits.completed end as split_backfilled_count,
    case when p.finished then 1::bigint else splits.completed end as split_completed_count
from tidefill.fragment f
join tidefill.scan_progress p on p.fragment = f.id
cross join lateral (
    select
        jsonb_array_length(f.cdc -> 'splits')::bigint as total,
        (select count(*) from tidefill.backfill_position b where b.fragment = f.id and b.state = 'completed')
            as completed
) splits
where f.kind = 'CDC_SCAN';

-- What is still to be removed from external databases, and why it has not been.
create or replace view rw_catalog.rw_source_cleanups as
select
    c.id, r.name as source_name, c.what, c.external_schema, c.external_table, c.asked_at, c.due, c.attempts, c.error
from tidefill.source_cleanup c join tidefill.relation r on r.id = c.source;

create or replace view rw_catalog.rw_barriers as
select
    b.graph as graph_id, b.epoch, b.prev as prev_epoch, b.kind, b.generation, b.state,
    b.mutation ->> 'type' as mutation,
    b.injected_at, b.collected_at, b.committed_at, b.published_at,
    extract(epoch from b.published_at - b.injected_at) * 1000 as latency_ms,
    b.failure
from tidefill.barrier b;

create or replace view rw_catalog.rw_workers as
select w.id, w.graph as graph_id, w.host, w.pid, w.parallelism, w.registered_at, w.seen_at, w.given_up
from tidefill.worker w;

create or replace view rw_catalog.rw_recovery_info as
select
    g.id as graph_id,
    case when g.status = 'RUNNING' then 'RUNNING' else 'RECOVERING' end as recovery_state,
    g.generation, g.committed as committed_epoch, g.published as published_epoch, g.paused, g.recoveries, g.last_error
from tidefill.graph g;

create or replace function rw_catalog.rw_recovery_status() returns text language sql stable as $$
    select case when bool_and(recovery_state = 'RUNNING') then 'RUNNING' else 'RECOVERING' end
    from rw_catalog.rw_recovery_info
$$;

-- Nobody is known who reads them, so events of tokens and secrets are left out. `/v1/events` shows those to admins.
create or replace view rw_catalog.rw_events with (security_barrier) as
select e.id, e.at, e.kind, e.facts
from tidefill.event e
where not starts_with(e.kind, 'token.') and not starts_with(e.kind, 'secret.');

create or replace view rw_catalog.rw_event_logs with (security_barrier) as
select e.id::text as unique_id, e.at as timestamp, upper(replace(e.kind, '.', '_')) as event_type, e.facts as info
from tidefill.event e
where not starts_with(e.kind, 'token.') and not starts_with(e.kind, 'secret.');

-- The calls about secrets and tokens are shown to admins alone.
create or replace view rw_catalog.rw_audit_entries with (security_barrier) as
select id, at, actor, role, method, route, statement, target, outcome, request_id, trace_id
from tidefill.audit_entry
where not discreet;

-- The defaults of `service.domain.parameters`, in its order.
create or replace view rw_catalog.rw_system_parameters as
select d.name, coalesce(p.value, d.value) as value
from (
    values
        ('barrier_interval_ms', '1000'), ('checkpoint_frequency', '1'),
        ('max_concurrent_creating_streaming_jobs', '1'), ('pause_on_next_bootstrap', 'false'),
        ('backfill_auto_floor', '100'), ('backfill_auto_ceiling', '1000000'),
        ('backfill_auto_latency_target_ms', '0'), ('backfill_auto_replication_lag_mb', '64'),
        ('backfill_auto_connections_percent', '90'),
        ('backfill_auto_probe_http', ''), ('backfill_auto_probe_http_status', '200'),
        ('backfill_auto_probe_http_timeout_ms', '1000'),
        ('backfill_auto_probe_sql', ''), ('backfill_auto_probe_sql_max', '0'),
        ('backfill_auto_probe_sql_timeout_ms', '1000'),
        ('backfill_auto_source_replication_lag_mb', '64'), ('backfill_auto_source_active_queries', '50'),
        ('dml_epoch_budget_ms', '2000'), ('dml_statement_timeout_ms', '10000'),
        ('row_limit_max', '100000'), ('statement_timeout_max_ms', '600000'),
        ('own_graph_rows', '10000'), ('stage_timeout_ms', '30000'),
        ('spark_history_rows', '100000'), ('spark_changes_rows', '1000000'),
        ('creating_rows_max', '1000000000'), ('view_rows_max', '10000000000'),
        ('serverless_workers_max', '0'), ('operator_creating_jobs_max', '0'),
        ('operator_calls_max', '0'), ('operator_result_bytes_max', '0'),
        ('viewer_calls_max', '0'), ('viewer_result_bytes_max', '0')
) d (name, value)
left join tidefill.system_parameter p on p.name = d.name;
