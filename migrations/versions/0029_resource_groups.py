"""Resource groups: the profile of a serverless job's worker, and a limit of such workers (expand).

A leader of the previous release gives such a worker the profile of all serverless jobs.

Revision ID: 0029
Revises: 0028
"""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

JOBS = """
create or replace view rw_catalog.rw_streaming_jobs as
select
    j.id,
    j.id as job_id,
    j.relation as table_id,
    r.name,
    1 as database_id,
    upper(j.state) as status,
    coalesce(
        case when j.state in ('Initial', 'Queued', 'Creating') then j.backfill_parallelism end,
        j.parallelism,
        (
            select 'fixed(' || max(of_fragment.actors) || ')'
            from (
                select count(*) as actors
                from tidefill.fragment f join tidefill.actor a on a.fragment = f.id
                where f.job = j.id
                group by f.id
            ) of_fragment
        )
    ) as parallelism,
    r.vnode_count as max_parallelism,
    {group} as resource_group,
    j.error,
    j.recoveries
from tidefill.job j join tidefill.relation r on r.id = j.relation
where not r.dropped;
"""

EARLIER = """
        ('barrier_interval_ms', '1000'),
        ('checkpoint_frequency', '1'),
        ('max_concurrent_creating_streaming_jobs', '1'),
        ('pause_on_next_bootstrap', 'false'),
        ('backfill_auto_floor', '100'),
        ('backfill_auto_ceiling', '1000000'),
        ('backfill_auto_latency_target_ms', '0'),
        ('backfill_auto_replication_lag_mb', '64'),
        ('backfill_auto_connections_percent', '90'),
        ('backfill_auto_probe_http', ''),
        ('backfill_auto_probe_http_status', '200'),
        ('backfill_auto_probe_http_timeout_ms', '1000'),
        ('backfill_auto_probe_sql', ''),
        ('backfill_auto_probe_sql_max', '0'),
        ('backfill_auto_probe_sql_timeout_ms', '1000'),
        ('backfill_auto_source_replication_lag_mb', '64'),
        ('backfill_auto_source_active_queries', '50'),
        ('dml_epoch_budget_ms', '2000'),
        ('dml_statement_timeout_ms', '10000'),
        ('row_limit_max', '100000'),
        ('statement_timeout_max_ms', '600000')"""
ADDED = """,
        ('serverless_workers_max', '0')"""
PARAMETERS = """
create or replace view rw_catalog.rw_system_parameters as
select d.name, coalesce(p.value, d.value) as value
from (
    values{}
) d (name, value)
left join tidefill.system_parameter p on p.name = d.name
"""


def upgrade() -> None:
    op.execute("alter table tidefill.job add column resource_group text")
    op.execute(JOBS.format(group="coalesce(j.resource_group, 'default')"))
    op.execute(PARAMETERS.format(EARLIER + ADDED))


def downgrade() -> None:
    op.execute(PARAMETERS.format(EARLIER))
    op.execute(JOBS.format(group="'default'"))
    op.execute("alter table tidefill.job drop column resource_group")
