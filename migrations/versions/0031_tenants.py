"""The tenant of each job, for the order of the queue and for quotas; the new parameters, in the catalog (expand).

A service of the previous release stores no tenant. Such jobs count as those of one nameless tenant.

Revision ID: 0031
Revises: 0030
"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

# The defaults of `service.domain.parameters`, in its order.
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
        ('serverless_workers_max', '0'),
        ('operator_creating_jobs_max', '0'),
        ('operator_calls_max', '0'),
        ('operator_result_bytes_max', '0'),
        ('viewer_calls_max', '0'),
        ('viewer_result_bytes_max', '0')"""
PARAMETERS = """
create or replace view rw_catalog.rw_system_parameters as
select d.name, coalesce(p.value, d.value) as value
from (
    values{}
) d (name, value)
left join tidefill.system_parameter p on p.name = d.name
"""
DDL_PROGRESS = """
create or replace view rw_catalog.rw_ddl_progress as
select
    j.id as ddl_id,
    j.statement as ddl_statement,
    case when j.background then 'BACKGROUND' else 'FOREGROUND' end as create_type,
    coalesce(j.progress_text, '0.0%') as progress,
    j.initialized_at,
    j.serverless as is_serverless_backfill,
    case
        when not exists (
            select from tidefill.fragment f where f.job = j.id and f.kind in ('STREAM_SCAN', 'CDC_SCAN')
        ) then 'BACKFILL_TYPE_UNSPECIFIED'
        when exists (select from tidefill.fragment f where f.job = j.id and f.scan_type = 'SNAPSHOT_BACKFILL')
            then 'SNAPSHOT_BACKFILL'
        else 'NORMAL_BACKFILL'
    end as backfill_type{tenant}
from tidefill.job j
where j.state in ('Initial', 'Queued', 'Creating') or (
    j.state = 'Created' and exists (
        select
        from tidefill.scan_progress p join tidefill.fragment f on f.id = p.fragment
        where not p.finished and f.job = j.id and f.kind = 'CDC_SCAN'
    )
)
"""


def upgrade() -> None:
    op.execute("alter table tidefill.job add column created_by text not null default ''")
    op.execute("create index job_starts on tidefill.job (created_by, started_at)")
    op.execute(PARAMETERS.format(EARLIER + ADDED))
    op.execute(DDL_PROGRESS.format(tenant=",\n    nullif(j.created_by, '') as created_by"))


def downgrade() -> None:
    op.execute("drop view rw_catalog.rw_ddl_progress")
    op.execute(DDL_PROGRESS.format(tenant=""))
    op.execute(PARAMETERS.format(EARLIER))
    op.execute("drop index tidefill.job_starts")
    op.execute("alter table tidefill.job drop column created_by")
