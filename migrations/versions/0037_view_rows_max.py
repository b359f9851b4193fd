"""The parameter that bounds what a created view stores, in the catalog (expand).

Revision ID: 0037
Revises: 0036
"""

from alembic import op

revision = "0037"
down_revision = "0036"
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
        ('statement_timeout_max_ms', '600000'),
        ('own_graph_rows', '10000'),
        ('stage_timeout_ms', '30000'),
        ('creating_rows_max', '1000000000'),
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


def upgrade() -> None:
    before, after = EARLIER.split("        ('serverless_workers_max'")
    added = "        ('view_rows_max', '10000000000'),\n        ('serverless_workers_max'"
    op.execute(PARAMETERS.format(before + added + after))


def downgrade() -> None:
    op.execute(PARAMETERS.format(EARLIER))
