"""The rows and jobs of each engine, by scan; three more parameters in the catalog (expand).

Revision ID: 0037
Revises: 0036
"""

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

COLUMNS = ("spark_jobs", "spark_rows", "store_jobs", "store_rows")
PARAMETERS = """
create or replace view rw_catalog.rw_system_parameters as
select d.name, coalesce(p.value, d.value) as value
from (
    values
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
        ('statement_timeout_max_ms', '600000'),
        ('own_graph_rows', '10000'),
        ('stage_timeout_ms', '30000'),
        {}('creating_rows_max', '1000000000'),
        {}('serverless_workers_max', '0'),
        ('operator_creating_jobs_max', '0'),
        ('operator_calls_max', '0'),
        ('operator_result_bytes_max', '0'),
        ('viewer_calls_max', '0'),
        ('viewer_result_bytes_max', '0')
) d (name, value)
left join tidefill.system_parameter p on p.name = d.name
"""
ADDED = ("('spark_history_rows', '100000'), ('spark_changes_rows', '1000000'), ", "('view_rows_max', '10000000000'), ")
ENGINES = """
create view rw_catalog.rw_job_engines as
select j.id, r.name, e.engine, sum(e.jobs)::bigint as jobs, sum(e.rows)::bigint as rows
from tidefill.job j
join tidefill.relation r on r.id = j.relation
join tidefill.fragment f on f.job = j.id
join tidefill.scan_progress p on p.fragment = f.id
cross join lateral (
    values ('spark', p.spark_jobs, p.spark_rows), ('store', p.store_jobs, p.store_rows)
) e (engine, jobs, rows)
where not r.dropped
group by j.id, r.name, e.engine
"""


def upgrade() -> None:
    added = ", ".join(f"add column {one} bigint not null default 0" for one in COLUMNS)
    op.execute(f"alter table tidefill.scan_progress {added}")
    op.execute(ENGINES)
    op.execute(PARAMETERS.format(*ADDED))


def downgrade() -> None:
    op.execute(PARAMETERS.format("", ""))
    op.execute("drop view rw_catalog.rw_job_engines")
    op.execute(f"alter table tidefill.scan_progress {', '.join(f'drop column {one}' for one in COLUMNS)}")
